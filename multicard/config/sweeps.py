"""Options of sweeps beyond their axes: repetition, predictions with the probes that feed them, and races.

Hydra takes no `repeat.error` beside `repeat=3`: a key is either a value or a group. So the others are `repeat_...`, and
`predict=true`, `probe=true` and `race=images_per_s` are read as `predict.enabled=true`, `probe.enabled=true` and
`race.figure=images_per_s` (`multicard.cli.command_line`). No key of this file changes what is measured.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.job import JobConfig
from multicard.config.keys import check_bounds, key, require
from multicard.config.roles import Role

AUTO = "auto"
LEAST_AUTO = 2  # one run does not show how runs differ
RACED = ("images_per_s", "samples_per_s", "tokens_per_s")  # figures of a race, as they are typed
UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


@dataclass
class RepeatedConfig(JobConfig):
    repeat: str = key(
        "1",
        "sweeps: number of runs of each cell, by turns; auto: until it is sure enough",
        Role.beside | Role.sweeps | Role.one_value | Role.planned,
    )
    repeat_error: str = key(
        "1%",
        "repeat=auto: half width of the mean step's interval that is sure enough",
        Role.beside | Role.sweeps | Role.one_value,
    )
    repeat_max: int = key(
        10, "repeat=auto: most runs of a cell", Role.beside | Role.sweeps | Role.one_value, least=LEAST_AUTO
    )
    repetition: int = key(
        1,
        "which of its repetitions a run is, from 1; repeat sets it",
        Role.beside | Role.repetition | Role.planned,
        least=1,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_repetition(self)


def check_repetition(config: Any) -> None:
    """Refuse (ValueError) bad values of `repeat`, `repeat_error` and `repeat_max`."""
    repeat, error, most = config.repeat, config.repeat_error, config.repeat_max
    require(repeat == AUTO or repeats(repeat) >= 1, f"repeat={repeat}: must be 1 or more, or auto")
    require(0 < share(error) < 1, f"repeat_error={error}: must be above 0% and below 100%")
    require(most >= LEAST_AUTO, f"repeat_max={most}: must be {LEAST_AUTO} or more")


def repeats(repeat: str) -> int:
    """How many times `repeat` has a cell measured; 0 where that is no number."""
    return int(repeat) if repeat.isascii() and repeat.isdigit() else 0


def share(percent: str) -> float:
    """ "1%" or "0.01" as 0.01; 0 where it is neither."""
    number, sign, rest = percent.strip().partition("%")
    try:
        return 0.0 if rest else float(number) / (100 if sign else 1)
    except ValueError:
        return 0.0


Fit = StrEnum("Fit", ["warn", "refuse", "off"])


@dataclass
class PredictConfig:
    enabled: bool = key(
        False,
        "predict=true: say what runs would take (memory, time, energy), and start none",
        Role.beside | Role.forecast | Role.one_value,
    )
    gpu: Optional[str] = key(
        None,
        "predict for this GPU, as h100-94gb; null is the machine's own",
        Role.beside | Role.forecast | Role.one_value,
    )
    memory: Optional[str] = key(
        None, "predict for a GPU with so much memory, as 80GB or 80GiB", Role.beside | Role.forecast | Role.one_value
    )

    def __post_init__(self) -> None:
        size = f"predict.memory={self.memory}: must be a size above 0, as 80GB or 80GiB"
        require(self.memory is None or memory_bytes(self.memory) > 0, size)


@dataclass
class ProbeConfig:
    """A run that ends as soon as the mean of its steps is known."""

    enabled: bool = key(
        False,
        "probe=true: train until the mean step is known; feeds predictions, is no result",
        Role.beside | Role.forecast | Role.one_value,
    )
    error: str = key(
        "1%",
        "probe=true: known is a mean step with a 95% interval of so much to either side",
        Role.beside | Role.forecast,
    )
    seconds: float = key(
        60.0, "probe=true: train no longer than so many seconds, known or not", Role.beside | Role.forecast, above=0
    )

    def __post_init__(self) -> None:
        require(0 < share(self.error) < 1, f"probe.error={self.error}: must be above 0% and below 100%")


def starts_nothing(config: Any) -> bool:
    """True for a command that only prints what it would do, or what that would take."""
    return config.dry_run or config.predict.enabled


def is_elsewhere(config: Any) -> bool:
    """True for a prediction for another GPU than this machine's."""
    return config.predict.gpu is not None or config.predict.memory is not None


def memory_bytes(text: str) -> int:
    """ "80GB" or "80GiB" in bytes; 0 for other words."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]i?B)", text.strip())
    return round(float(match[1]) * UNITS[match[2]]) if match else 0


@dataclass
class RaceConfig:
    """A race: the best of a sweep's cells by one figure, for a part of the time that all of them take."""

    figure: Optional[str] = key(
        None,
        f"race=FIGURE: find the best of a sweep's cells by it, without measuring them all: {', '.join(RACED)}",
        Role.beside | Role.sweeps | Role.one_value,
    )
    confidence: float = key(
        0.95,
        "race: probability, over the whole race, that no cell that drops out is the best",
        Role.beside | Role.sweeps | Role.one_value,
    )
    tolerance: str = key(
        "2%",
        "race: cells that are shown to be within this share of the best count as equally good",
        Role.beside | Role.sweeps | Role.one_value,
    )
    block: float = key(
        5.0,
        "race: seconds of training that a cell is given at a time",
        Role.beside | Role.sweeps | Role.one_value,
        above=0,
    )

    def __post_init__(self) -> None:
        names = ", ".join(RACED)
        require(self.figure is None or self.figure in RACED, f"race={self.figure}: choose one of {names}")
        require(0.5 <= self.confidence < 1, f"race.confidence={self.confidence}: must be 0.5 or more, and below 1")
        require(0 < share(self.tolerance) < 1, f"race.tolerance={self.tolerance}: must be above 0% and below 100%")


def refuse_race(config: Any, on_slurm: bool, batch_size: int | None) -> None:
    """Refuse (ValueError) a sweep that cannot be raced, before its cells are composed: else each would be refused.

    Args:
        batch_size: `hydra.sweeper.max_batch_size`.
    """
    if config.race.figure is None:
        return
    check_bounds(RaceConfig(**config.race), "race.")
    race = f"race={config.race.figure}"
    inside = "within a job, as by srun --ntasks=1 --gpus-per-task=4 --cpus-per-task=32 python ... -m ... race=..."
    packed = config.get("exclusive") is False
    require(not packed, f"{race}: its cells have the whole machine by turns; leave out exclusive=false")
    require(not on_slurm, f"{race}: runs on one machine, {inside}; leave out hydra/launcher=submitit_slurm")
    require(batch_size is None, f"{race}: is of all cells at once; leave out hydra.sweeper.max_batch_size={batch_size}")
    require(not config.probe.enabled, f"{race}: its cells are probes by themselves; leave out probe=true")
    check_raced_run(config)


def check_raced_run(config: Any) -> None:
    """Refuse (ValueError) a run that cannot be in a race."""
    if config.race.figure is None:
        return
    problem, profile = f"race={config.race.figure}: measures cells by turns", str(config.profile.name)
    require(config.repeat == "1", f"{problem}, and the best three times; leave out repeat={config.repeat}")
    require(config.nodes == 1, f"{problem}, on one machine; leave out nodes={config.nodes}")
    require(profile == "none", f"{problem}; leave out profile={profile}")
    require(not config.diagnose, f"{problem}; leave out diagnose=true")


def pauses(config: Any) -> bool:
    """True for a cell of a race, which trains and pauses by turns as it is told."""
    return config.race.figure is not None and config.probe.enabled
