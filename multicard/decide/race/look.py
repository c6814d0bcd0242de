"""The race as draws from the posterior show it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multicard.decide.race.posterior import Posterior

DRAWS = 4096


@dataclass(frozen=True)
class Look:
    """enough: where a cell is within the tolerance of the best (DRAWS, cells).
    best: the best (DRAWS,).
    """

    posterior: Posterior
    enough: np.ndarray
    best: np.ndarray

    def misses(self, cells: Sequence[int]) -> float:
        """The probability that none of these cells is good enough."""
        return 1 - float(self.enough[:, [*cells]].any(axis=1).mean())

    def rivals(self, leader: int) -> np.ndarray:
        """How likely each cell is the best one, where the leader is not good enough (cells,)."""
        beaten = ~self.enough[:, leader]
        counts = np.bincount(self.best[beaten], minlength=self.enough.shape[1])
        return counts / max(beaten.sum(), 1)

    def fewest(self, among: Sequence[int], most: int, risk: float) -> tuple[int, ...]:
        """The fewest cells, at most `most`, of which none is good enough with this risk;
        the best first.
        """
        chosen = list[int]()
        missed = np.ones(len(self.best), bool)
        while len(chosen) < min(most, len(among)) and (not chosen or missed.mean() > risk):
            rest = [cell for cell in among if cell not in chosen]
            chosen.append(max(rest, key=lambda cell: self.enough[missed, cell].sum()))
            missed &= ~self.enough[:, chosen[-1]]
        return tuple(chosen)
