"""Estimate from draws how likely each cell of a race is the best, or good enough."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multicard.decide.race.posterior import Posterior

DRAWS = 4096


@dataclass(frozen=True)
class Look:
    """The race as seen in draws from the posterior.

    Attributes:
        enough: True for each cell within the tolerance of the best in a draw (DRAWS, cells).
        best: the best cell of each draw (DRAWS,).
    """

    posterior: Posterior
    enough: np.ndarray
    best: np.ndarray

    def misses(self, cells: Sequence[int]) -> float:
        """Return the probability that none of these cells is good enough."""
        return 1 - float(self.enough[:, [*cells]].any(axis=1).mean())

    def rivals(self, leader: int) -> np.ndarray:
        """Return how likely each cell is the best (cells,), given that the leader falls short."""
        beaten = ~self.enough[:, leader]
        counts = np.bincount(self.best[beaten], minlength=self.enough.shape[1])
        return counts / max(beaten.sum(), 1)

    def fewest(self, among: Sequence[int], most: int, risk: float) -> tuple[int, ...]:
        """Return the fewest cells that leave at most this risk that none is good enough.

        The best comes first. At most `most` cells are returned, even if the risk stays larger.
        """
        chosen = list[int]()
        missed = np.ones(len(self.best), bool)
        while len(chosen) < min(most, len(among)) and (not chosen or missed.mean() > risk):
            rest = [cell for cell in among if cell not in chosen]
            chosen.append(max(rest, key=lambda cell: self.enough[missed, cell].sum()))
            missed &= ~self.enough[:, chosen[-1]]
        return tuple(chosen)
