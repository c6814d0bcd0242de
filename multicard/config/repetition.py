"""Options of repetition: how often each cell of a sweep is measured.

Hydra takes no `repeat.error` beside `repeat=3`: a key is either a value or a group. So the others are `repeat_...`, and
the command line is told so.
"""

from dataclasses import dataclass
from typing import Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.job import JobConfig
from multicard.config.keys import key, require

AUTO = "auto"
LEAST_AUTO = 2  # one run does not show how runs differ
# None of these keys changes what is measured
REPETITION = ("repeat", "repeat_error", "repeat_max", "repeat_compare", "repetition")


@dataclass
class RepeatedConfig(JobConfig):
    repeat: str = key("1", "sweeps: number of runs of each cell, by turns; auto: until it is sure enough")
    repeat_error: str = key("1%", "repeat=auto: half width of the mean step's interval that is sure enough")
    repeat_max: int = key(10, "repeat=auto: most runs of a cell")
    repeat_compare: Optional[str] = key(
        None, "repeat=auto: a swept key; sure enough is also when its values differ, or differ by 5% at most"
    )
    repetition: int = key(1, "which of its repetitions a run is, from 1; repeat sets it")

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.repeat, self.repeat_error, self.repeat_max)
        require(self.repetition >= 1, f"repetition={self.repetition}: must be 1 or more")


def check(repeat: str, error: str, most: int) -> None:
    """
    Raises:
        ValueError: a bad value of `repeat`, `repeat_error` or `repeat_max`, with its key.
    """
    require(repeat == AUTO or count(repeat) >= 1, f"repeat={repeat}: must be 1 or more, or auto")
    require(0 < share(error) < 1, f"repeat_error={error}: must be above 0% and below 100%")
    require(most >= LEAST_AUTO, f"repeat_max={most}: must be {LEAST_AUTO} or more")


def count(repeat: str) -> int:
    """How many times `repeat` has a cell measured; 0 where that is no number."""
    return int(repeat) if repeat.isascii() and repeat.isdigit() else 0


def share(percent: str) -> float:
    """ "1%" or "0.01" as 0.01; 0 where it is neither."""
    number, sign, rest = percent.strip().partition("%")
    try:
        return 0.0 if rest else float(number) / (100 if sign else 1)
    except ValueError:
        return 0.0
