"""Options of a race: the best of a sweep's cells by one figure, for a part of the time that all of them take.

Hydra takes no `race.confidence` beside `race=images_per_s`: a key is either a value or a group. So the latter is read
as `race.figure=images_per_s` (`multicard.cli.command_line`).
"""

from dataclasses import dataclass
from math import inf
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.keys import key, require
from multicard.config.repetition import share

FIGURES = ("images_per_s", "tokens_per_s", "energy_joules")  # as they are typed
RACE = ("race",)  # a key that does not change what is measured


@dataclass
class RaceConfig:
    """A race of a sweep's cells."""

    figure: Optional[str] = key(
        None, f"race=FIGURE: find the best of a sweep's cells by it, without measuring them all: {', '.join(FIGURES)}"
    )
    confidence: float = key(0.95, "race: probability, over the whole race, that no cell that drops out is the best")
    tolerance: str = key("2%", "race: cells that are shown to be within this share of the best count as equally good")
    block: float = key(5.0, "race: seconds of training that a cell is given at a time")

    def __post_init__(self) -> None:
        names = ", ".join(FIGURES)
        require(self.figure is None or self.figure in FIGURES, f"race={self.figure}: choose one of {names}")
        require(0.5 <= self.confidence < 1, f"race.confidence={self.confidence}: must be 0.5 or more, and below 1")
        require(0 < share(self.tolerance) < 1, f"race.tolerance={self.tolerance}: must be above 0% and below 100%")
        require(0 < self.block < inf, f"race.block={self.block}: must be above 0")


def refuse(config: Any, on_slurm: bool, own_sweeper: bool, batch_size: int | None) -> None:
    """Refuse a sweep that cannot be raced, before its cells are composed: else each of them would be refused.

    Args:
        own_sweeper: the sweeper is multicard's.
        batch_size: `hydra.sweeper.max_batch_size`.

    Raises:
        ValueError: with the remedy.
    """
    if config.race.figure is None:
        return
    RaceConfig(**config.race)
    race = f"race={config.race.figure}"
    inside = "within a job, as by srun --ntasks=1 --gpus-per-task=4 --cpus-per-task=32 python ... -m ... race=..."
    packed = config.get("exclusive") is False
    require(not packed, f"{race}: its cells have the whole machine by turns; leave out exclusive=false")
    require(not on_slurm, f"{race}: runs on one machine, {inside}; leave out hydra/launcher=submitit_slurm")
    require(own_sweeper, f"{race}: is a search by itself; leave out hydra/sweeper")
    require(batch_size is None, f"{race}: is of all cells at once; leave out hydra.sweeper.max_batch_size={batch_size}")
    require(not config.probe.enabled, f"{race}: its cells are probes by themselves; leave out probe=true")
    check_run(config)


def check_run(config: Any) -> None:
    """
    Raises:
        ValueError: a run with this configuration cannot be in a race.
    """
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
