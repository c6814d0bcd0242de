"""The possible outcomes of a race: states of cells, reasons, standings and the verdict."""

from dataclasses import dataclass

from multicard.decide.race.budget import MOST_SPENT
from multicard.messages import Message, code_of

NOT_STARTED = "not started"
IN = "in"
OUT = "out"
# Codes of reasons: BEATEN for a cell that dropped out, MISSED for one whose full run did not reach
# its target accuracy or target loss.
BEATEN = "race.beaten"
MISSED = ("race.missed-target", "race.missed-target-loss")
NORMAL_95 = 1.96  # Half of a 95 % interval in standard deviations.
# The reasons why a race ends.
SURE = "sure"
CLOSE = "close"
TIME = "time"
NOTHING_LEFT = "nothing left"
NOT_WORTH = "not worth"
NO_CELL = "no cell"
BURSTS = "bursts"
ENDINGS = {
    SURE: Message("race.sure", "the blocks showed one cell to be as good as any"),
    CLOSE: Message(
        "race.too-close",
        "the best cells are too close: ordering them would take as long as measuring them in full",
    ),
    TIME: Message(
        "race.time",
        f"it has taken {MOST_SPENT:.0%} of the time of the whole grid, or only the time of the full"
        " runs is left",
    ),
    NOTHING_LEFT: Message(
        "race.nothing-left", "further blocks would hardly show which cell is best"
    ),
    NOT_WORTH: Message(
        "race.not-worth",
        "it would take longer than measuring all cells of the grid in full, which happens instead",
    ),
    NO_CELL: Message("race.no-cell-left", "no cell is left"),
    BURSTS: Message(
        "race.bursts", "other load came in bursts, so short blocks cannot order the cells"
    ),
}


@dataclass(frozen=True)
class RaceOptions:
    """Options of a race.

    Attributes:
        confidence: the probability with which the winner is to be good enough.
        tolerance: the share by which a good-enough cell may be slower than the best.
        finalists: at most this many cells are measured in full.
        runs: full runs of each finalist.
    """

    confidence: float = 0.95
    tolerance: float = 0.02
    finalists: int = 3
    runs: int = 3


@dataclass(frozen=True)
class Standing:
    """A cell in the race.

    Attributes:
        state: NOT_STARTED, IN or OUT.
        reason: why the cell is out, or "".
        blocks: the number of its blocks.
        log_figure: posterior mean, from its blocks and the blocks of similar cells.
        error: standard deviation of `log_figure`. It is at least the standard error of the mean of
            the cell's full runs. With bursts, it also covers its calm blocks and all its full runs.
        in_full: mean log figure of its full runs.
    """

    cell: int
    state: str
    reason: str
    blocks: int
    log_figure: float
    error: float
    in_full: float | None = None

    @property
    def failed(self) -> bool:
        """Return True if the cell could not go on or missed its target, False if it was beaten."""
        return self.state == OUT and code_of(self.reason) != BEATEN

    @property
    def missed(self) -> bool:
        """Return True if the cell was measured in full and missed its target."""
        return code_of(self.reason) in MISSED


@dataclass(frozen=True)
class RaceVerdict:
    """How a race ended.

    Attributes:
        winner: the best cell, or None if no cell could be measured.
        sure: the probability that the winner is within the tolerance of the best. With bursts, no
            such probability holds, and it is 0.
        equal: cells within the tolerance of the winner, with the race's confidence. Beaten cells
            count.
        close: cells in the race for which neither that nor the opposite is sure.
        disturbed: the number of disturbed blocks and full runs.
        blocks: the number of all blocks and full runs.
    """

    winner: int | None
    sure: float
    equal: tuple[int, ...] = ()
    close: tuple[int, ...] = ()
    disturbed: int = 0
    blocks: int = 0
