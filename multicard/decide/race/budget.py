"""The time of a race: how long it may take, and how many full runs fit into its grid's time."""

from dataclasses import dataclass

import numpy as np

# Seconds of a process start, a block and a full run, before any was measured.
START_S = 20.0
BLOCK_S = 5.0
FULL_S = 3600.0
MOST_SPENT = 0.5  # A race that takes more than this share of its grid's time ends undecided.
# The probability with which the best cell may be missed, as a share of 1 - confidence. It grows
# from the first to the second value while the race spends these shares of the grid's time.
MISS_SHARES = (0.1, 0.75)
SPENT = (0.04, 0.10)


@dataclass(frozen=True)
class Budget:
    """Seconds of a race and of its grid, which is one full run of each cell.

    Attributes:
        runs: full runs of each finalist.
        start_s: time to start a process.
        block_s: time of a block.
        full_s: time of a full run with its start.
        raced_s: time of the race so far.
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
        """Seconds after which the race ends undecided, with time left for one cell's full runs."""
        return max(min(MOST_SPENT * self.cells, self.cells - self.runs), 0) * self.full_s

    @property
    def finalists_that_fit(self) -> int:
        """The number of cells whose full runs fit into the rest of the grid's time."""
        left_s = self.grid_s - self.raced_s
        return int(left_s / (self.runs * self.full_s))

    @property
    def accepted_risk_share(self) -> float:
        """The accepted risk of missing the best cell now, as a share of 1 - confidence."""
        return float(np.interp(self.raced_s / self.grid_s, SPENT, MISS_SHARES))

    def is_not_worth(self, started: int) -> bool:
        """Return True if the shortest race would take longer than the grid.

        It starts `started` cells, trains two blocks of each, and measures one finalist in full.
        """
        least_s = started * (self.start_s + 2 * self.block_s) + self.runs * self.full_s
        return least_s >= self.grid_s
