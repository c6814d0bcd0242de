"""Keys of predictions, and of the probes that they rest on.

Hydra takes no `predict.gpu` beside `predict=true`: a key is either a value or a group. So `predict=true` is read as
`predict.enabled=true`, and `probe=true` likewise (`multicard.cli.command_line`).
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config.keys import key, require
from multicard.config.repetition import share

SWITCHED = ("predict", "probe")  # groups of keys that are switched on by their name alone
# None of these keys changes what is measured
PREDICTION = (*SWITCHED, "fit")
UNITS = {"GB": 10**9, "GiB": 2**30}


class Fit(StrEnum):
    warn = "warn"
    refuse = "refuse"
    off = "off"


@dataclass
class PredictConfig:
    enabled: bool = key(False, "predict=true: say what runs would take (memory, time, energy), and start none")
    gpu: Optional[str] = key(None, "predict for this GPU, as h100-94gb; null is the machine's own")
    memory: Optional[str] = key(None, "predict for a GPU with so much memory, as 80GB or 80GiB")

    def __post_init__(self) -> None:
        size = f"predict.memory={self.memory}: must be a size above 0, as 80GB or 80GiB"
        require(self.memory is None or memory_bytes(self.memory) > 0, size)


@dataclass
class ProbeConfig:
    """A run that ends as soon as the mean of its steps is known."""

    enabled: bool = key(False, "probe=true: train until the mean step is known; feeds predictions, is no result")
    error: str = key("1%", "probe=true: known is a mean step with a 95% interval of so much to either side")
    seconds: float = key(60.0, "probe=true: train no longer than so many seconds, known or not")

    def __post_init__(self) -> None:
        require(0 < share(self.error) < 1, f"probe.error={self.error}: must be above 0% and below 100%")
        require(0 < self.seconds < inf, f"probe.seconds={self.seconds}: must be above 0")


def starts_nothing(config: Any) -> bool:
    """True for a command that only prints what it would do, or what that would take."""
    return config.dry_run or config.predict.enabled


def is_elsewhere(config: Any) -> bool:
    """True for a prediction for another GPU than this machine's."""
    return config.predict.gpu is not None or config.predict.memory is not None


def memory_bytes(text: str) -> int:
    """ "80GB" or "80GiB" in bytes; 0 for other words."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(GB|GiB)", text.strip())
    return round(float(match[1]) * UNITS[match[2]]) if match else 0
