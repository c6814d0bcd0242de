"""What `race=FIGURE` asks of a sweep: the best of its cells by one figure, for a part of what all of them would take.

Hydra takes no `race.confidence` beside `race=images_per_s`: a key is either a value or a group. So the latter is read
as `race.figure=images_per_s` (`multicard.cli.command_line`).
"""

from dataclasses import dataclass
from math import inf
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.keys import key, require
from multicard.config.repetition import share

# Figures that a race can be for, and what they are in
FIGURES = {
    "images_per_s": "images/s",
    "tokens_per_s": "tokens/s",
    "total_s": "s",
    "energy_joules": "J an image or token",
    "peak_memory": "bytes",
}
LESS_IS_BETTER = ("total_s", "energy_joules", "peak_memory")
# Options that a race does not read, by its figure: the steps of a process tell its peak, and no confidence is stated of
# times to a target
UNREAD = {"total_s": ("confidence", "tolerance", "block"), "peak_memory": ("block",)}
RACE = ("race",)  # a key that does not change what is measured


@dataclass
class RaceConfig:
    """A race of a sweep's cells."""

    figure: Optional[str] = key(
        None, f"race=FIGURE: find the best of a sweep's cells by it, without measuring them all: {', '.join(FIGURES)}"
    )
    confidence: float = key(0.95, "race: how sure it is, over all of it, that no cell that drops out is the best")
    tolerance: str = key("2%", "race: cells that are shown to be within so much of the best are as good")
    block: float = key(5.0, "race: seconds of training that a cell is given at a time")

    def __post_init__(self) -> None:
        names = ", ".join(FIGURES)
        require(self.figure is None or self.figure in FIGURES, f"race={self.figure}: choose one of {names}")
        require(0.5 <= self.confidence < 1, f"race.confidence={self.confidence}: must be 0.5 or more, and below 1")
        require(0 < share(self.tolerance) < 1, f"race.tolerance={self.tolerance}: must be above 0% and below 100%")
        require(0 < self.block < inf, f"race.block={self.block}: must be above 0")


def refuse(config: Any, on_slurm: bool, own_sweeper: bool, batch_size: int | None) -> None:
    """Refuse a race of a sweep that cannot be one.

    Args:
        config: of the sweep. own_sweeper: whether it is multicard's. batch_size: hydra.sweeper.max_batch_size.

    Raises:
        ValueError: with the remedy.
    """
    if config.race.figure is None:
        return
    race = f"race={config.race.figure}"
    # Before cells are composed: else each of them is refused for it
    RaceConfig(**{name: config.race[name] for name in ("figure", "confidence", "tolerance", "block")})
    for name in UNREAD.get(config.race.figure, ()):
        value = config.race[name]
        require(
            value == getattr(RaceConfig, name), f"{race}: has no use for race.{name}; leave out race.{name}={value}"
        )
    packed = config.get("exclusive") is False
    require(not packed, f"{race}: its cells have the whole machine by turns; leave out exclusive=false")
    inside = "within a job, as by srun --ntasks=1 --gpus-per-task=4 --cpus-per-task=32 python ... -m ... race=..."
    require(not on_slurm, f"{race}: runs on one machine, {inside}; leave out hydra/launcher=submitit_slurm")
    require(own_sweeper, f"{race}: is a search by itself; leave out hydra/sweeper")
    require(batch_size is None, f"{race}: is of all cells at once; leave out hydra.sweeper.max_batch_size={batch_size}")
    require(not config.probe.enabled, f"{race}: its cells are probes by themselves; leave out probe=true")
    require(config.repeat == "1", f"{race}: repeats the best itself; leave out repeat={config.repeat}")
    problem = f"{race}: measures cells by turns"
    require(config.nodes == 1, f"{problem}, on one machine; leave out nodes={config.nodes}")
    profile = str(config.profile.name)
    require(profile == "none", f"{problem}; leave out profile={profile}")
    require(not config.diagnose, f"{problem}; leave out diagnose=true")


def pauses(config: Any) -> bool:
    """Whether a run is a cell of a race, which trains and pauses by turns as it is told."""
    return config.race.figure is not None and config.probe.enabled
