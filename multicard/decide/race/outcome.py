"""What becomes of a race's cells, and of the race: states, reasons, standings and the verdict."""

from dataclasses import dataclass

from multicard.decide.race.budget import MOST_SPENT
from multicard.messages import Message, code_of

NOT_STARTED = "not started"
IN = "in"
OUT = "out"
# Codes of reasons: of a cell that dropped out, and of one whose
# full run did not reach its accuracy, or its loss
BEATEN = "race.beaten"
MISSED = ("race.missed-target", "race.missed-target-loss")
NORMAL_95 = 1.96  # half of a 95 % interval in standard deviations
# Why a race ended
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
        "the best cells are too close: to order them would take as long as measuring them in full",
    ),
    TIME: Message(
        "race.time",
        f"it has taken {MOST_SPENT:.0%} of the time of the whole grid, or all but that of the full"
        " runs",
    ),
    NOTHING_LEFT: Message(
        "race.nothing-left", "further blocks would hardly show which cell is best"
    ),
    NOT_WORTH: Message(
        "race.not-worth",
        "it would take longer than all cells of the grid in full, which are measured instead",
    ),
    NO_CELL: Message("race.no-cell-left", "no cell is left"),
    BURSTS: Message(
        "race.bursts", "other load came in bursts, so that short blocks cannot order the cells"
    ),
}


@dataclass(frozen=True)
class RaceOptions:
    """confidence: of the winner being within `tolerance`, a share, of the best cell.

    finalists: most cells that are measured in full. runs: of each.
    """

    confidence: float = 0.95
    tolerance: float = 0.02
    finalists: int = 3
    runs: int = 3


@dataclass(frozen=True)
class Standing:
    """A cell in the race.

    state: NOT_STARTED, IN or OUT. reason: why it is out, else "". blocks: their number.
    log_figure, error: mean and standard deviation, from its own blocks and those of cells like it.
    The error is at least that of the mean of its full runs by how these differ; with bursts it
    reaches its calm blocks and all runs.
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
        """True for a cell that could not go on, or did not reach its target;
        not for a beaten one.
        """
        return self.state == OUT and code_of(self.reason) != BEATEN

    @property
    def missed(self) -> bool:
        """True for a cell that was measured in full, and did not reach its target."""
        return code_of(self.reason) in MISSED


@dataclass(frozen=True)
class RaceVerdict:
    """How a race ended.

    winner: None where no cell could be measured.
    sure: probability that it is within the tolerance of the best; 0 where bursts were found,
    beside which no such probability holds. disturbed, blocks: blocks and full runs, of all.
    equal: cells that differ from it by at most the tolerance, with the race's confidence; beaten
    ones count. close: cells in the race for which neither that nor the contrary is sure.
    """

    winner: int | None
    sure: float
    equal: tuple[int, ...] = ()
    close: tuple[int, ...] = ()
    disturbed: int = 0
    blocks: int = 0
