"""The words of a figure: names of columns and units, titles, and what its runs have in common."""

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

# Number formats of d3. SI writes large numbers with k, M and G.
PLAIN_FORMAT = ",~f"
SI_FORMAT = "~s"
MAX_CELLS = 4  # The most cells that a line names.
DOUBTFUL_NOTE = Message(
    "figure.doubtful", f"{DOUBTFUL} {DOUBTFUL_MEANING}", sign=DOUBTFUL, meaning=DOUBTFUL_MEANING
)


def unit(measure: str, largest: float) -> Scale:
    """Return the unit in which the largest value has one to three digits before the point."""
    is_copied = measure.startswith("copied")  # Kinds of copies differ by orders of magnitude.
    return Scale("bytes") if is_copied else figures.of_column(measure).unit.scale(largest)


def measure(name: str) -> str:
    return figures.of_column(name).title


def axis(name: str, unit: Scale) -> str:
    """Return the title of an axis: a measure with its unit."""
    return f"{measure(name)} ({unit.name})" if unit.name else measure(name)


def column(name: str, runs: Sequence[Run]) -> str:
    """Return a swept column in words; CPU ranks are not called GPUs."""
    if name == "gpus" and all(run["cpu_ranks"] for run in runs):
        return "CPU ranks"
    return schema.title(name) or name.rpartition(".")[2].replace("_", " ")


def value(name: str, value: Any, runs: Sequence[Run]) -> str:
    """Return a swept value in words that need no heading.

    For example "dali", "300 px", "pinned", "2 GPUs" or "cache none".
    """
    text = grouping.typed(value)
    column_words = column(name, runs)
    if name == "pin_memory":
        return "pinned" if text == "true" else "not pinned"
    if name.endswith("image_size"):
        return f"{text} px"
    if name == "gpus":
        return f"{text} {column_words.removesuffix('s') if text == '1' else column_words}"
    return f"{column_words} {text}" if "." in name or not text.isidentifier() else text


def listed(words: Sequence[str], last: str = "and") -> str:
    """Join words as in "a, b and c"."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def in_short(runs: Sequence[Run]) -> str:
    name_lists = [
        first_few(
            [*dict.fromkeys(grouping.typed(run[name]) for run in runs if run[name] is not None)], 2
        )
        for name in ("script", "model", "dataset")  # no roles: the words of a count of runs
    ]
    return f"{count(len(runs), 'run')}: {' on '.join(filter(None, name_lists))}"


def common_settings(runs: Sequence[Run], varied: Iterable[str]) -> str:
    """Describe what all runs share: data set, model, settings, machine and commit.

    The `varied` columns are left out.
    """
    varied = {*varied}
    varied |= {name.rpartition(".")[2] for name in varied}
    values_by_column = {
        name: {run[name] for run in runs} for name in schema.shown() if name not in varied
    }
    shared_cell = tuple(
        (name.rpartition(".")[2], *values)
        for name, values in values_by_column.items()
        if len(values) == 1
    )
    phrases = [
        grouping.label(shared_cell, [name for name, value in shared_cell if value is not None])
    ]
    machines = sorted({clean(str(run["hardware"])) for run in runs})
    commits = sorted({grouping.commit(run) for run in runs})
    phrases.append(_one_or_averaged(machines, "machines"))
    phrases.append(f"commit {_one_or_averaged(commits, 'commits')}")
    return ", ".join(filter(None, phrases))


def _one_or_averaged(names: Sequence[str], what: str) -> str:
    """Return the only machine or commit, or all names if runs of several were averaged."""
    if len(names) < 2:
        return listed(names)
    sentence = f"{listed(names)} ({len(names)} {what} averaged, as asked)"
    return Message("figure.averaged", sentence, what=what, names=names)


def marks(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """Return the signs that every run has, and lines that explain all signs of the runs."""
    limits_found = limits.in_order(grouping.limits_of(runs))
    codes = [{limit.code for limit in run.limits} for run in runs]
    limits_of_all = [
        limit for limit in limits_found if all(limit.code in run_codes for run_codes in codes)
    ]
    limits_at_points = [limit for limit in limits_found if limit not in limits_of_all]
    common_signs = limits.signs(limits_of_all)
    lines = []
    if limits_of_all:
        meanings = [limit.says for limit in limits_of_all]
        lines.append(
            Message(
                "figure.marks-of-all", f"All runs here: {'; '.join(meanings)}", signs=common_signs
            )
        )
    if limits_at_points:
        meanings = [f"{limits.sign(limit.code)}: {limit.says}" for limit in limits_at_points]
        said = f"At a point: {'; '.join(meanings)}"
        lines.append(Message("figure.marks-at-points", said, signs=limits.signs(limits_at_points)))
    return common_signs, lines


def missing_cells(cells: Sequence[grouping.Cell]) -> list[str]:
    if not cells:
        return []
    labels = [grouping.label(cell, [key for key, _ in cell]) for cell in cells]
    return [
        Message(
            "figure.not-measured",
            f"Not measured: {first_few(labels, MAX_CELLS, '; ')}",
            cells=labels,
        )
    ]
