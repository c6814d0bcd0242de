"""What a figure says: the names of columns and their units, and what is the same for all of its runs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.runs import caveats, grouping
from analysis.runs.columns import FIGURES
from analysis.runs.load import Run
from multicard.records.text_table import clean

COLUMNS = {
    "gpus": "GPUs",
    "pin_memory": "pinned memory",
    "dataset.image_size": "image size",
    "loader": "loader",
    "layout": "memory layout",
    "strategy": "data distribution",
}
MEASURES = {
    "total_s": ("training time", "time of training and evaluation"),
    "step_s": ("time of a step", "time of a step"),
    "test_accuracy": ("test accuracy", "test accuracy"),
    "train_loss": ("training loss", "training loss, mean of the epoch"),
    "trained_images_per_s": ("images trained a second", "images trained a second"),
    "tokens_per_s": ("tokens a second", "tokens a second, without padding"),
    "peak_memory_bytes": ("peak memory", "peak memory of the rank that holds most"),
    "h2d_bytes": ("bytes moved to the device", "host to device, all ranks"),
    "received_bytes": ("bytes received", "received by a rank in collectives"),
}
LLM = {"total_s": ("tuning time", "time of tuning"), "step_s": ("time of an iteration", "time of an iteration")}
SHARES = ("test_accuracy", "share", "efficiency")
NAMED = 4  # cells in a line
# What the subtitle says where all runs have the same, in this order
SAME = {
    "vision": ("dataset", "dataset.image_size", "model", "precision", "layout", "strategy", "loader"),
    "llm": ("model", "weights", "method", "template", "dataset", "rows", "precision"),
}
WORDED = {"dataset.image_size": "{} px", "loader": "loader {}", "weights": "{} weights", "rows": "{} rows"}
WORDED |= {"template": "template {}"}
COUNTED = ("batch_size", "epochs", "max_steps", "gpus", "nodes", "pin_memory")


@dataclass(frozen=True)
class Unit:
    """Divide by `divisor` for figures in this unit; `format` is d3's."""

    name: str
    divisor: float
    format: str = ",~f"


def column(name: str, runs: Sequence[Run]) -> str:
    """A swept column in words; on CPU ranks there are no GPUs."""
    if name == "gpus" and all(run["cpu_ranks"] for run in runs):
        return "CPU ranks"
    return COLUMNS.get(name, name.rpartition(".")[2].replace("_", " "))


def axis_unit(name: str) -> str:
    return " (px)" if name.endswith("image_size") else ""


def measure(name: str, kind: str, full: bool = False) -> str:
    """A measure in few words, or as an axis has it."""
    found = (LLM if kind == "llm" else {}).get(name) or MEASURES.get(name) or (name, name)
    return found[full]


def unit(measure: str, largest: float) -> Unit:
    """The unit by a column's name, so that the largest value has one to three digits before its point."""
    if measure in SHARES:
        return Unit("%", 0.01)
    if measure.endswith("_bytes"):
        return _thousands(largest, ("B", "kB", "MB", "GB", "TB"))
    if measure.endswith("_s") and not measure.endswith("_per_s"):
        if largest < 1:
            return Unit("ms", 1e-3)
        return Unit("h", 3600.0) if largest > 3 * 3600 else Unit("s", 1.0)
    return Unit("", 1.0)


def _thousands(largest: float, names: Sequence[str]) -> Unit:
    power = 0
    while power + 1 < len(names) and largest >= 1000 ** (power + 1):
        power += 1
    return Unit(names[power], 1000.0**power)


def axis(name: str, kind: str, unit: Unit) -> str:
    return f"{measure(name, kind, full=True)} ({unit.name})" if unit.name else measure(name, kind, full=True)


def value(found: Any) -> str:
    """A value of a swept column, as it is typed."""
    return clean(grouping.typed(found))


def listed(words: Sequence[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if len(words) > 1 else []), *words[-1:]])


def title(measures: Iterable[str], by: Sequence[str]) -> str:
    """What is shown, by what."""
    told = f"{listed(list(measures))} by {listed(list(by))}"
    return told[:1].upper() + told[1:]


def same(runs: Sequence[Run], varied: Iterable[str]) -> str:
    """Data set, model, settings, machine and commit that all runs share; `varied` is shown elsewhere."""
    shown = {*varied}
    shown |= {name.rpartition(".")[2] for name in shown}
    kind = runs[0]["kind"]
    told = [
        WORDED.get(name, "{}").format(value(found))
        for name in SAME.get(kind, ())
        if name not in shown and (found := _one(runs, name)) is not None
    ]
    for name in COUNTED:
        if name not in shown and (found := _one(runs, name)) is not None:
            told += _counted(name, found, runs)
    told.append(_shared({clean(str(run["hardware"])) for run in runs}, "machines"))
    told.append(f"commit {_shared({grouping.commit(run) for run in runs}, 'commits')}")
    return ", ".join(told)


def counted(name: str, found: Any, runs: Sequence[Run]) -> str:
    """A swept value with its column: "2 GPUs", "300 px", "method lora"."""
    if name.endswith("image_size"):
        return f"{found} px"
    words = column(name, runs)
    if name == "gpus":
        return f"{found} {words.removesuffix('s') if str(found) == '1' else words}"
    return f"{words} {found}"


def _one(runs: Sequence[Run], name: str) -> Any:
    found = {run[name] for run in runs}
    return found.pop() if len(found) == 1 else None


def _shared(found: set[str], many: str) -> str:
    return listed(sorted(found)) + (f" ({len(found)} {many} averaged, as asked)" if len(found) > 1 else "")


def _counted(name: str, found: Any, runs: Sequence[Run]) -> list[str]:
    if name == "pin_memory":
        return ["pinned memory" if found else "memory not pinned"]
    if name == "batch_size":
        return [f"batches of {found} a rank"]
    if name == "max_steps":
        return [f"at most {found} steps an epoch"]
    if name == "nodes":
        return [f"{found} nodes"] if found != 1 else []
    if name == "gpus":
        return [counted(name, found, runs)]
    return [f"{found} {name.removesuffix('s') if found == 1 else name}"]


def of_marks(runs: Sequence[Run]) -> tuple[str, list[str]]:
    """Signs that every run has, and the lines that say what the signs of runs mean."""
    signs = [run["marks"] for run in runs]
    common = "".join(mark.sign for mark in caveats.MARKS if all(mark.sign in sign for sign in signs))
    everywhere = [line[3:] for line in caveats.legend([common])]
    at_points = [line.replace("  ", ": ", 1) for line in caveats.legend(signs) if line[0] not in common]
    told = [f"All runs here: {'; '.join(everywhere)}"] if everywhere else []
    return common, [*told, *([f"At a point: {'; '.join(at_points)}"] if at_points else [])]


def absent(missing: Sequence[grouping.Cell]) -> list[str]:
    """A line about the cells that nobody measured."""
    if not missing:
        return []
    named = "; ".join(grouping.label(cell, [key for key, _ in cell]) for cell in missing[:NAMED])
    rest = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return [f"Not measured: {named}{rest}"]


assert set(MEASURES) - {"train_loss"} <= set(FIGURES)
