"""The keys and words of what the project's own tables and figures show, as W&B has them."""

from collections.abc import Iterable, Mapping, Sequence

from analysis.figures import captions
from multicard.records import figures
from multicard.records.figures import BOTH, FIGURES
from multicard.tracking import keys
from multicard.tracking.keys import Key

SUMMARY = keys.SUMMARY | keys.DETAILS
SYSTEM = "system/"  # before a system metric in a panel


def summary_keys(column: str, kinds: Sequence[str] = BOTH) -> list[str]:
    """The keys in a run's summary of a column of `python -m analysis list --csv`; several where kinds of run differ.

    Raises:
        ValueError: no such column, or runs of these kinds log nothing of it.
    """
    figure = FIGURES.get(column)
    found = [] if figure is None else [key for kind in kinds for key in figure.keys_of(kind)]
    if not found:
        raise ValueError(
            f"{column}: W&B has no such figure of {' or '.join(kinds)} runs (multicard/records/figures.py)"
        )
    return list(dict.fromkeys(found))


def config_key(column: str, kind: str) -> str | None:
    """The axis that a setting is under in a run's configuration; None where it is none."""
    axis = column.rpartition(".")[2]
    return axis if kind in keys.AXES.get(axis, ()) else None


def of_configuration(key: str) -> str:
    """A key of the whole configuration as W&B stores it, with "value" after the first of its names."""
    return f"{keys.CONFIGURATION}.value.{key}"


def by_step(*names: str) -> list[str]:
    return _declared((f"train/{name}" for name in names), keys.BY_STEP)


def by_epoch(*names: str) -> list[str]:
    return _declared((f"epoch/{name}" for name in names), keys.BY_EPOCH)


def of_gpus(column: str, count: int) -> list[str]:
    """A column of gpu.parquet as a system metric of the first `count` GPUs."""
    metric, _ = keys.GPU_SAMPLES[column]
    return [f"{SYSTEM}gpu.{index}.{metric}" for index in range(count)]


def of_machine(column: str) -> list[str]:
    """A column of machine.parquet as a system metric."""
    return [SYSTEM + keys.MACHINE_SAMPLES[column]]


def _declared(names: Iterable[str], table: Mapping[str, Key]) -> list[str]:
    wanted = list(names)
    undeclared = [name for name in wanted if name not in table]
    if undeclared:
        raise ValueError(f"{', '.join(undeclared)}: not in multicard/tracking/keys.py")
    return wanted


def title(column: str, kind: str = "vision") -> str:
    """A column in words with the unit in which W&B shows it: "Peak memory (bytes)"."""
    words = FIGURES[column].title_of(kind) if column in FIGURES else column.replace("_", " ")
    unit = figures.unit(column).name
    return words[:1].upper() + words[1:] + (f" ({unit})" if unit else "")


def setting(column: str) -> str:
    """A swept column in words."""
    words = captions.COLUMNS.get(column, column.rpartition(".")[2].replace("_", " "))
    return words[:1].upper() + words[1:]
