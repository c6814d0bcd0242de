"""What is known of steps: the means of runs and probes, and printed figures."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

# Keys that change how long a run takes, or how it ends, but not a step; `warmup_steps` are left out of the mean
# fmt: off
WITHOUT_EFFECT = frozenset({
    "seed", "epochs", "lr", "warmup_steps", "skip_steps", "max_steps", "scale", "schedule", "diagnose", "profile.name",
    "target_accuracy", "stop_at_target", "dataset.train_limit", "dataset.test_limit", "dataset.rows", "dataset.mean",
    "dataset.std",
})
# fmt: on
Cell = tuple[str, frozenset[tuple[str, str]]]  # a machine, and a setting
DATASET = "dataset.name"  # a group of which the other keys say more than the name


@dataclass(frozen=True)
class StepObservation:
    """The mean step of one run.

    setting: "group.key" to JSON text, as `multicard.records.comparable.measured_settings` has them. A printed figure
        has only the keys that its source names.
    step_s: the mean of the run's steps, seconds.
    error: relative standard error of that mean, by the steps within the run.
    probe: whether the run ended as soon as its mean was known.
    machine: the hardware; of a printed figure its node's name.
    commit: of the program; None of a printed figure.
    published: whether it was printed by others for the same GPU, and not measured on this machine.
    marks: of the run (`PastRun.marks`).
    """

    setting: Mapping[str, str]
    step_s: float
    error: float
    probe: bool
    machine: str
    commit: str | None
    published: bool = False
    marks: str = ""


def axes(setting: Mapping[str, str]) -> dict[str, str]:
    """The keys of a setting on which a step depends."""
    return {key: value for key, value in setting.items() if key not in WITHOUT_EFFECT}


def differences(known: Mapping[str, str], wanted: Mapping[str, str]) -> tuple[str, ...]:
    """The axes of `known` in which `wanted` differs, sorted; `wanted` may have more keys.

    Another option of a group counts once, by its name: that `loader=batched` has no `loader.prefetch_factor` is no
    further difference.
    """
    differ = {key for key, value in known.items() if wanted.get(key) != value}
    groups = {_group(key) for key in differ if _names_group(key)}
    return tuple(sorted(key for key in differ if _names_group(key) or _group(key) not in groups))


def without(setting: Mapping[str, str], axis: str) -> dict[str, str]:
    """A setting without an axis, and without its group where the axis is the group's name."""
    if _names_group(axis):
        return {key: value for key, value in setting.items() if _group(key) != _group(axis)}
    return {key: value for key, value in setting.items() if key != axis}


def _group(key: str) -> str:
    return key.partition(".")[0]


def _names_group(key: str) -> bool:
    return key.endswith(".name") and key != DATASET


def usable(observations: Iterable[StepObservation]) -> list[StepObservation]:
    """Those with a step above 0, a finite error and a number of GPUs."""
    finite = (seen for seen in observations if 0 < seen.step_s < math.inf and 0 <= seen.error < math.inf)
    return [seen for seen in finite if seen.setting.get("gpus", "1").isdecimal() and seen.setting.get("gpus") != "0"]


def by_setting(
    observations: Sequence[StepObservation],
) -> dict[Cell, list[StepObservation]]:
    """Observations of the same machine and setting together, in the order in which they come."""
    groups: dict[Cell, list[StepObservation]] = {}
    for seen in observations:
        groups.setdefault((seen.machine, frozenset(axes(seen.setting).items())), []).append(seen)
    return groups
