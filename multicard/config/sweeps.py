"""Options of sweeps: repetition, predictions with the probes that they need, and races.

No key of this file changes what is measured.

Hydra does not allow `repeat.error` next to `repeat=3`: a key is either a value or a group.
Therefore, the other keys of repetition are called `repeat_...`. `predict=true`, `probe=true` and
`race=images_per_s` are read as `predict.enabled=true`, `probe.enabled=true` and
`race.figure=images_per_s` (`multicard.cli.command_line`).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.job import JobConfig
from multicard.config.keys import check_bounds, key
from multicard.config.roles import Role
from multicard.messages import Refusal

AUTO = "auto"
LEAST_AUTO = 2  # A single run does not show how runs differ.
# Values of `order` other than a seed.
SHUFFLED = "shuffled"
TYPED = "typed"
RACED = ("images_per_s", "samples_per_s", "tokens_per_s")  # Figures that a race can compare.
UNITS = {"MB": 10**6, "MiB": 2**20, "GB": 10**9, "GiB": 2**30}


@dataclass
class RepeatedConfig(JobConfig):
    repeat: str = key(
        "1",
        "sweeps: number of runs of each cell, in alternation; auto: until it is precise enough",
        Role.beside | Role.sweeps | Role.one_value | Role.planned,
    )
    repeat_error: str = key(
        "1%",
        "repeat=auto: half width of the mean step's interval that is precise enough",
        Role.beside | Role.sweeps | Role.one_value,
    )
    repeat_max: int = key(
        10,
        "repeat=auto: maximum number of runs of a cell",
        Role.beside | Role.sweeps | Role.one_value,
        least=LEAST_AUTO,
    )
    repeat_disturbed: int = key(
        2,
        "repeat=N: how often a disturbed run is measured again, at most",
        Role.beside | Role.sweeps | Role.one_value,
        least=0,
    )
    repetition: int = key(
        1,
        "number of a run among its repetitions, from 1; set by repeat",
        Role.beside | Role.repetition | Role.planned,
        least=1,
        is_internal=True,
    )
    order: str = key(
        SHUFFLED,
        "sweeps: order of the cells in a round: shuffled by a seed, which is recorded; typed: as"
        " given; or a seed",
        Role.beside | Role.sweeps | Role.one_value,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_repetition(self)


def check_repetition(config: Any) -> None:
    """Refuse invalid values of `repeat`, `repeat_error`, `repeat_max` and `order`."""
    repeat = config.repeat
    most = config.repeat_max
    if repeat != AUTO and repeats(repeat) < 1:
        raise Refusal(
            "config.repeat",
            f"repeat={repeat}: must be 1 or more, or auto",
            key="repeat",
            value=repeat,
        )
    check_share("repeat_error", config.repeat_error)
    if most < LEAST_AUTO:
        raise Refusal(
            "config.repeat-max",
            f"repeat_max={most}: must be {LEAST_AUTO} or more",
            key="repeat_max",
            value=most,
            least=LEAST_AUTO,
        )
    order = config.order
    if order not in (SHUFFLED, TYPED) and not is_whole(order):
        raise Refusal(
            "config.order",
            f"order={order}: must be {SHUFFLED}, {TYPED} or a seed, a whole number",
            key="order",
            value=order,
        )


def repeats(repeat: str) -> int:
    """Return how many runs of a cell `repeat` asks for; 0 if it is not a number."""
    return int(repeat) if is_whole(repeat) else 0


def is_whole(text: str) -> bool:
    """True if the text consists of digits."""
    return text.isascii() and text.isdigit()


def share(percent: str) -> float:
    """Convert "1%" or "0.01" to 0.01; other texts to 0."""
    number, sign, rest = percent.strip().partition("%")
    try:
        return 0.0 if rest else float(number) / (100 if sign else 1)
    except ValueError:
        return 0.0


def check_share(name: str, percent: str) -> None:
    """Refuse the value of a key if it is not a share between 0 and 1."""
    if not 0 < share(percent) < 1:
        raise Refusal(
            "config.share",
            f"{name}={percent}: must be above 0% and below 100%",
            key=name,
            value=percent,
        )


Fit = StrEnum("Fit", ["warn", "refuse", "off"])


@dataclass
class PredictConfig:
    enabled: bool = key(
        False,
        "predict=true: print what runs would take (memory, time, energy), and start none",
        Role.beside | Role.forecast | Role.one_value,
    )
    gpu: Optional[str] = key(
        None,
        "predict for this GPU, as h100-94gb; null: the GPU of this machine",
        Role.beside | Role.forecast | Role.one_value,
    )
    memory: Optional[str] = key(
        None,
        "predict for a GPU with this much memory, as 80GB or 80GiB",
        Role.beside | Role.forecast | Role.one_value,
    )

    def __post_init__(self) -> None:
        if self.memory is not None and memory_bytes(self.memory) <= 0:
            raise Refusal(
                "config.predict-memory",
                f"predict.memory={self.memory}: must be a size above 0, as `predict.memory=80GB`",
                key="predict.memory",
                value=self.memory,
            )


@dataclass
class ProbeConfig:
    """A run that ends as soon as the mean of its steps is known."""

    enabled: bool = key(
        False,
        "probe=true: train until the mean step is known, for predictions; does not count as a"
        " result",
        Role.beside | Role.forecast | Role.one_value,
    )
    error: str = key(
        "1%",
        "probe=true: half width of the mean step's 95% interval at which it counts as known",
        Role.beside | Role.forecast,
    )
    seconds: float = key(
        60.0,
        "probe=true: train at most this many seconds, even if the mean step is not known",
        Role.beside | Role.forecast,
        above=0,
    )

    def __post_init__(self) -> None:
        check_share("probe.error", self.error)


def starts_nothing(config: Any) -> bool:
    """True for a command that only prints what it would do, or what this would take."""
    return config.dry_run or config.predict.enabled


def is_elsewhere(config: Any) -> bool:
    """True for a prediction for another GPU than that of this machine."""
    return config.predict.gpu is not None or config.predict.memory is not None


def memory_bytes(text: str) -> int:
    """Convert "80GB" or "80GiB" to bytes; other texts to 0."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([MG]i?B)", text.strip())
    return round(float(match[1]) * UNITS[match[2]]) if match else 0


@dataclass
class RaceConfig:
    """A race, which finds the best of a sweep's cells by one figure in a fraction of the time that
    all cells would take.
    """

    figure: Optional[str] = key(
        None,
        "race=FIGURE: find the best of a sweep's cells by this figure, without measuring all in"
        f" full: {', '.join(RACED)}",
        Role.beside | Role.sweeps | Role.one_value,
    )
    confidence: float = key(
        0.95,
        "race: probability, over the whole race, that the best cell is not dropped",
        Role.beside | Role.sweeps | Role.one_value,
    )
    tolerance: str = key(
        "2%",
        "race: cells that are shown to be within this share of the best count as equally good",
        Role.beside | Role.sweeps | Role.one_value,
    )
    block: float = key(
        5.0,
        "race: seconds that a cell trains before the next one takes its turn",
        Role.beside | Role.sweeps | Role.one_value,
        above=0,
    )

    def __post_init__(self) -> None:
        figure = self.figure
        confidence = self.confidence
        if figure is not None and figure not in RACED:
            raise Refusal(
                "config.race-figure",
                f"race={figure}: choose one of {', '.join(RACED)}",
                key="race",
                value=figure,
                choices=RACED,
            )
        if not 0.5 <= confidence < 1:
            raise Refusal(
                "config.race-confidence",
                f"race.confidence={confidence}: must be 0.5 or more, and below 1",
                key="race.confidence",
                value=confidence,
            )
        check_share("race.tolerance", self.tolerance)


def refuse_race(config: Any, on_slurm: bool, batch_size: int | None) -> None:
    """Refuse a sweep that cannot be raced. Before its cells are composed, one refusal is enough.

    Args:
        batch_size: `hydra.sweeper.max_batch_size`.
    """
    if config.race.figure is None:
        return
    check_bounds(RaceConfig(**config.race), "race.")
    race = f"race={config.race.figure}"
    if config.get("exclusive") is False:
        raise Refusal(
            "config.race-packed",
            f"{race}: its cells take turns, each on the whole machine; leave out exclusive=false",
            key="race",
        )
    if on_slurm:
        raise Refusal(
            "config.race-slurm",
            f"{race}: runs on one machine; leave out hydra/launcher=submitit_slurm, and start it"
            " within a job, as by `srun --ntasks=1 --gpus-per-task=4 --cpus-per-task=32`",
            key="race",
        )
    if batch_size is not None:
        raise Refusal(
            "config.race-batches",
            f"{race}: needs all cells at once; leave out hydra.sweeper.max_batch_size={batch_size}",
            key="race",
            batch_size=batch_size,
        )
    if config.probe.enabled:
        raise Refusal(
            "config.race-probe",
            f"{race}: its cells already are probes; leave out probe=true",
            key="race",
        )
    check_raced_run(config)


def check_raced_run(config: Any) -> None:
    """Refuse a run that cannot be in a race."""
    if config.race.figure is None:
        return
    problem = f"race={config.race.figure}: measures its cells in turn"
    if config.repeat != "1":
        raise Refusal(
            "config.race-repeat",
            f"{problem}, and the best three times; leave out repeat={config.repeat}",
            key="race",
            repeat=config.repeat,
        )
    if config.nodes != 1:
        raise Refusal(
            "config.race-nodes",
            f"{problem}, on one machine; leave out nodes={config.nodes}",
            key="race",
            nodes=config.nodes,
        )
    profile = str(config.profile.name)
    if profile != "none":
        raise Refusal(
            "config.race-profile",
            f"{problem}; leave out profile={profile}",
            key="race",
            profile=profile,
        )
    if config.diagnose:
        raise Refusal("config.race-diagnose", f"{problem}; leave out diagnose=true", key="race")


def pauses(config: Any) -> bool:
    """True for a cell of a race, which alternately trains and pauses when it is told to."""
    return config.race.figure is not None and config.probe.enabled
