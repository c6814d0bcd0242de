"""The time of a race: what it may take, and how many full runs fit into the time of its grid."""

from dataclasses import dataclass

import numpy as np

# of a process, a block and a full run, before one is known
START_S = 20.0
BLOCK_S = 5.0
FULL_S = 3600.0
MOST_SPENT = 0.5  # of the grid's time: a longer race ends undecided
# Of 1 - confidence, for missing the best cell; by the share of the grid's time that the race took
MISS_SHARES = (0.1, 0.75)
SPENT = (0.04, 0.10)


@dataclass(frozen=True)
class Budget:
    """Seconds of a race and of its grid, which is one full run of each cell.

    runs: full runs of each finalist. start_s: of a process. block_s: of a block.
    full_s: of a full run with its start. raced_s: of the race so far.
    """

    cells: int
    runs: int
    start_s: float = START_S
    block_s: float = BLOCK_S
    full_s: float = FULL_S
    raced_s: float = 0.0

    @property
    def grid_s(self) -> float:
        return self.cells * self.full_s

    @property
    def most_s(self) -> float:
        """Seconds after which the race ends undecided: the
        full runs of one cell fit in after it.
        """
        return max(min(MOST_SPENT * self.cells, self.cells - self.runs), 0) * self.full_s

    @property
    def finalists_that_fit(self) -> int:
        """Cells whose full runs fit into what is left of the grid's time."""
        left_s = self.grid_s - self.raced_s
        return int(left_s / (self.runs * self.full_s))

    @property
    def accepted_risk_share(self) -> float:
        """Share of 1 - confidence, for missing the best cell, with which the race ends now."""
        return float(np.interp(self.raced_s / self.grid_s, SPENT, MISS_SHARES))

    def is_not_worth(self, started: int) -> bool:
        """True where so many starts, two blocks of each and
        one finalist take longer than the grid.
        """
        least_s = started * (self.start_s + 2 * self.block_s) + self.runs * self.full_s
        return least_s >= self.grid_s
