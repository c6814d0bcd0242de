"""Words of a figure: names of columns and units, titles,
and what all of its runs have in common.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from multicard.config import schema
from multicard.config.job import count
from multicard.messages import Message
from multicard.records import figures, limits
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.figures import Scale
from multicard.records.text_table import clean, first_few

from ..runs import grouping
from ..runs.load import Run

# d3's formats; the second has k, M, G
PLAIN = ",~f"
SI = "~s"
MOST_CELLS = 4  # named in a line
DOUBTFUL_NOTE = Message(
    "figure.doubtful", f"{DOUBTFUL} {DOUBTFUL_MEANING}", sign=DOUBTFUL, meaning=DOUBTFUL_MEANING
)


def unit(measure: str, largest: float) -> Scale:
    """Scale of a column in which its largest value has one to three digits before the point."""
    is_copied = measure.startswith("copied")  # kinds of copies differ by orders of magnitude
    return Scale("bytes") if is_copied else figures.of_column(measure).unit.scale(largest)


def measure(name: str) -> str:
    return figures.of_column(name).title


def axis(name: str, unit: Scale) -> str:
    """A measure as the title of an axis, with its unit."""
    return f"{measure(name)} ({unit.name})" if unit.name else measure(name)


def column(name: str, runs: Sequence[Run]) -> str:
    """A swept column in words; CPU ranks are not called GPUs."""
    if name == "gpus" and all(run["cpu_ranks"] for run in runs):
        return "CPU ranks"
    return schema.title(name) or name.rpartition(".")[2].replace("_", " ")


def value(name: str, value: Any, runs: Sequence[Run]) -> str:
    """A swept value in words that need no heading: "dali", "300 px", "pinned", "2 GPUs",
    "cache none".
    """
    text = grouping.typed(value)
    words = column(name, runs)
    if name == "pin_memory":
        return "pinned" if text == "true" else "not pinned"
    if name.endswith("image_size"):
        return f"{text} px"
    if name == "gpus":
        return f"{text} {words.removesuffix('s') if text == '1' else words}"
    return f"{words} {text}" if "." in name or not text.isidentifier() else text


def listed(words: Sequence[str], last: str = "and") -> str:
    """ "a, b and c"."""
    return f" {last} ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def in_short(runs: Sequence[Run]) -> str:
    named = [
        first_few(
            [*dict.fromkeys(grouping.typed(run[name]) for run in runs if run[name] is not None)], 2
        )
        for name in ("script", "model", "dataset")  # no roles: the words of a count of runs
    ]
    return f"{count(len(runs), 'run')}: {' on '.join(filter(None, named))}"


def common_settings(runs: Sequence[Run], varied: Iterable[str]) -> str:
    """Data set, model, settings, machine and commit that all runs share,
    without the `varied` columns.
    """
    varied = {*varied}
    varied |= {name.rpartition(".")[2] for name in varied}
    shared = {name: {run[name] for run in runs} for name in schema.shown() if name not in varied}
    cell = tuple(
        (name.rpartition(".")[2], *values) for name, values in shared.items() if len(values) == 1
    )
    phrases = [grouping.label(cell, [name for name, value in cell if value is not None])]
    machines = sorted({clean(str(run["hardware"])) for run in runs})
    commits = sorted({grouping.commit(run) for run in runs})
    phrases.append(_averaged(machines, "machines"))
    phrases.append(f"commit {_averaged(commits, 'commits')}")
    return ", ".join(filter(None, phrases))


def _averaged(names: Sequence[str], what: str) -> str:
    """The name of the only machine or commit; all names if runs of several were averaged."""
    if len(names) < 2:
        return listed(names)
    sentence = f"{listed(names)} ({len(names)} {what} averaged, as asked)"
    return Message("figure.averaged", sentence, what=what, names=names)


def marks(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """Signs that every run has, and lines that explain all signs of the runs."""
    found = limits.in_order(grouping.limits_of(runs))
    codes = [{limit.code for limit in run.limits} for run in runs]
    everywhere = [limit for limit in found if all(limit.code in own for own in codes)]
    at_points = [limit for limit in found if limit not in everywhere]
    common = limits.signs(everywhere)
    lines = []
    if everywhere:
        meanings = [limit.says for limit in everywhere]
        lines.append(
            Message("figure.marks-of-all", f"All runs here: {'; '.join(meanings)}", signs=common)
        )
    if at_points:
        meanings = [f"{limits.sign(limit.code)}: {limit.says}" for limit in at_points]
        said = f"At a point: {'; '.join(meanings)}"
        lines.append(Message("figure.marks-at-points", said, signs=limits.signs(at_points)))
    return common, lines


def missing_cells(cells: Sequence[grouping.Cell]) -> list[str]:
    if not cells:
        return []
    labels = [grouping.label(cell, [key for key, _ in cell]) for cell in cells]
    return [
        Message(
            "figure.not-measured",
            f"Not measured: {first_few(labels, MOST_CELLS, '; ')}",
            cells=labels,
        )
    ]
