"""The keys and words of what the project's own tables and figures show, as W&B has them."""

from collections.abc import Iterable, Mapping, Sequence

from analysis.figures import captions
from analysis.runs.columns import FIGURES
from multicard.tracking import keys
from multicard.tracking.keys import BOTH, Key

SUMMARY = keys.SUMMARY | keys.DETAILS
SYSTEM = "system/"  # before a system metric in a panel
# Parts of the record that are derived when it is read, so that W&B has only what they are derived from
STEPS = {"vision": "step_s", "llm": "iteration_s"}
PARTS = {
    "training_joules": ("gpu.energy_joules",),
    "received_bytes": tuple(
        f"communication_bytes.{name}" for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    ),
}
UNITS = {"_per_s": "", "_s": "s", "_bytes": "bytes", "_joules": "J"}  # by the ending of a column; the first that fits
WORDS = {  # where the figures have none
    "startup_s": "start-up",
    "train_s": "training without evaluation",
    "evaluate_s": "evaluation",
    "compile_s": "compilation",
    "time_to_target_s": "time to the target accuracy",
    "images_per_s": "images a second",
    "loss_first": "first loss",
    "loss_last_tenth": "loss, mean of the last tenth",
    "reward_accuracy": "accuracy of DPO's rewards",
    "energy_joules": "energy of all GPUs",
    "joules_per_image": "joules an image",
    "joules_per_token": "joules a token",
    "mfu": "model FLOPs utilisation",
}


def summary_keys(column: str, kinds: Sequence[str] = BOTH) -> list[str]:
    """The keys in a run's summary of a column of `python -m analysis list --csv`; several where kinds of run differ.

    Raises:
        ValueError: no such column, or runs of these kinds log nothing of it.
    """
    place = FIGURES.get(column)
    found = [] if place is None else [key for kind in kinds for key in _at(place, kind)]
    if not found:
        raise ValueError(f"{column}: W&B has no such figure of {' or '.join(kinds)} runs (multicard/tracking/keys.py)")
    return list(dict.fromkeys(found))


def _at(place: str, kind: str) -> list[str]:
    """The declared keys of a place in the record of a run of some kind."""
    candidates = PARTS.get(place, (place.replace("steps.", f"{STEPS[kind]}.", 1),))
    return [key for key in candidates if key in SUMMARY and kind in SUMMARY[key].kinds]


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
    words = captions.measure(column, kind)
    if words == column:
        words = WORDS.get(column, column.replace("_", " "))
    unit = (
        "share"
        if column in captions.SHARES
        else next((unit for ending, unit in UNITS.items() if column.endswith(ending)), "")
    )
    return words[:1].upper() + words[1:] + (f" ({unit})" if unit else "")


def setting(column: str) -> str:
    """A swept column in words."""
    words = captions.COLUMNS.get(column, column.rpartition(".")[2].replace("_", " "))
    return words[:1].upper() + words[1:]
