"""Words of a figure: names of columns and units, titles, and what all of its runs have in common."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.runs import caveats, grouping
from analysis.runs.load import Run
from multicard.records import figures
from multicard.records.text_table import clean

COLUMNS = {
    "gpus": "GPUs",
    "pin_memory": "pinned memory",
    "dataset.image_size": "image size",
    "layout": "memory layout",
    "strategy": "data distribution",
}
PLAIN, SI = ",~f", "~s"  # d3's formats; the second has k, M, G
MOST_CELLS = 4  # named in a line
# The settings that a subtitle names where all runs have the same, in this order, and how it words them
COMMON = {
    "vision": ("dataset", "dataset.image_size", "model", "precision", "layout", "strategy", "loader"),
    "llm": ("model", "weights", "method", "template", "dataset", "rows", "precision"),
}
COUNTS = ("batch_size", "epochs", "max_steps", "gpus", "nodes", "pin_memory")
PHRASES = {
    "dataset.image_size": "{} px",
    "loader": "loader {}",
    "weights": "{} weights",
    "rows": "{} rows",
    "template": "template {}",
    "batch_size": "batches of {} a rank",
    "max_steps": "at most {} steps an epoch",
    "nodes": "{} nodes",
}


@dataclass(frozen=True)
class Unit:
    """Values are divided by `divisor`; `format` is d3's."""

    name: str
    divisor: float
    format: str = PLAIN


def unit(measure: str, largest: float) -> Unit:
    """The unit of a column, so that its largest value has one to three digits before the point."""
    if measure.startswith("copied"):  # kinds of copies differ by orders of magnitude
        return Unit("bytes", 1.0, SI)
    scale = figures.unit(measure).scale(largest)
    return Unit(scale.name, scale.divisor)


def measure(name: str, kind: str) -> str:
    """A measure in few words."""
    figure = figures.find(name)
    return figure.title_of(kind) if figure is not None else name


def axis(name: str, kind: str, unit: Unit) -> str:
    """A measure as the title of an axis, with its unit."""
    figure = figures.find(name)
    title = figure.axis_of(kind) if figure is not None else name
    return f"{title} ({unit.name})" if unit.name else title


def column(name: str, runs: Sequence[Run]) -> str:
    """A swept column in words; CPU ranks are not called GPUs."""
    if name == "gpus" and all(run["cpu_ranks"] for run in runs):
        return "CPU ranks"
    return COLUMNS.get(name, name.rpartition(".")[2].replace("_", " "))


def column_axis(name: str, runs: Sequence[Run]) -> str:
    """A swept column as the title of an axis or legend."""
    return column(name, runs) + (" (px)" if name.endswith("image_size") else "")


def counted(name: str, value: Any, runs: Sequence[Run]) -> str:
    """A swept value with its column: "2 GPUs", "300 px", "method lora"."""
    if name.endswith("image_size"):
        return f"{value} px"
    words = column(name, runs)
    if name == "gpus":
        return f"{value} {words.removesuffix('s') if str(value) == '1' else words}"
    return f"{words} {value}"


def named(name: str, value: Any, runs: Sequence[Run]) -> str:
    """A swept value in words that say what it is: "dali", "300 px", "pinned"."""
    if name == "pin_memory":
        return "pinned" if grouping.typed(value) == "true" else "not pinned"
    text = grouping.typed(value)
    return counted(name, text, runs) if name == "gpus" or "." in name or not text.isidentifier() else text


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def is_numeric(values: Iterable[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def ordered(values: Sequence[Any]) -> list[Any]:
    """Numbers by size, all else as it is."""
    return sorted(values) if is_numeric(values) else list(values)


def common_settings(runs: Sequence[Run], varied: Iterable[str]) -> str:
    """Data set, model, settings, machine and commit that all runs share, without the `varied` columns."""
    varied = {*varied}
    varied |= {name.rpartition(".")[2] for name in varied}
    phrases = []
    for name in (*COMMON.get(runs[0]["kind"], ()), *COUNTS):
        values = {run[name] for run in runs}
        if name in varied or len(values) > 1 or values == {None}:
            continue
        (value,) = values
        if name == "pin_memory":
            phrases.append("pinned memory" if value else "memory not pinned")
        elif name == "epochs":
            phrases.append(f"{value} epoch{'s' * (value != 1)}")
        elif name == "gpus":
            phrases.append(counted(name, value, runs))
        elif name != "nodes" or value != 1:
            phrases.append(PHRASES.get(name, "{}").format(grouping.typed(value)))
    machines = sorted({clean(str(run["hardware"])) for run in runs})
    commits = sorted({grouping.commit(run) for run in runs})
    phrases.append(listed(machines) + f" ({len(machines)} machines averaged, as asked)" * (len(machines) > 1))
    phrases.append(f"commit {listed(commits)}" + f" ({len(commits)} commits averaged, as asked)" * (len(commits) > 1))
    return ", ".join(phrases)


def marks(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """The signs that every run has, and lines that explain all signs of the runs."""
    signs = [run["marks"] for run in runs]
    common = "".join(mark.sign for mark in caveats.MARKS if all(mark.sign in sign for sign in signs))
    everywhere = [line[3:] for line in caveats.legend([common])]
    at_points = [line.replace("  ", ": ", 1) for line in caveats.legend(signs) if line[0] not in common]
    lines = [f"All runs here: {'; '.join(everywhere)}"] if everywhere else []
    return common, [*lines, *([f"At a point: {'; '.join(at_points)}"] if at_points else [])]


def missing_cells(cells: Sequence[grouping.Cell]) -> list[str]:
    """A line about the cells that were not measured."""
    if not cells:
        return []
    named = "; ".join(grouping.label(cell, [key for key, _ in cell]) for cell in cells[:MOST_CELLS])
    rest = f" and {len(cells) - MOST_CELLS} more" if len(cells) > MOST_CELLS else ""
    return [f"Not measured: {named}{rest}"]
