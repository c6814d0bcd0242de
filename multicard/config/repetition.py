"""How often each cell of a sweep is measured.

Hydra takes no `repeat.error` beside `repeat=3`: a key is either a value or a group. So the others are `repeat_...`.
"""

from dataclasses import dataclass

from multicard.config.job import JobConfig
from multicard.config.keys import key, require

AUTO = "auto"  # until it is sure enough
# None of these keys changes what is measured
REPETITION = ("repeat", "repetition")


@dataclass
class RepeatedConfig(JobConfig):
    repeat: str = key("1", "sweeps: measure each cell so many times, by turns: all cells once, then all again")
    repetition: int = key(1, "which of its repetitions a run is, from 1; repeat sets it")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(count(self.repeat) >= 1, f"repeat={self.repeat}: must be 1 or more")
        require(self.repetition >= 1, f"repetition={self.repetition}: must be 1 or more")


def count(repeat: str) -> int:
    """How many times `repeat` has a cell measured; 0 where that is no number."""
    return int(repeat) if repeat.isascii() and repeat.isdigit() else 0
