"""Options of a race, and what its rules say of its cells."""

from dataclasses import dataclass

NOT_STARTED, IN, OUT = "not started", "in", "out"
# First words of reasons: of a cell that dropped out, and of one whose full run did not reach its accuracy
BEATEN, MISSED = "beaten: ", "missed target_accuracy"


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
    in_full: mean log figure of its full runs.
    """

    cell: int
    state: str
    reason: str
    blocks: int
    log_figure: float
    error: float
    in_full: float | None = None


@dataclass(frozen=True)
class Verdict:
    """How a race ended.

    winner: None where no cell could be measured. sure: probability that it is within the tolerance of the best.
    equal: cells that differ from it by at most the tolerance, with the race's confidence; beaten ones count.
    close: cells in the race for which neither that nor the contrary is sure.
    """

    winner: int | None
    sure: float
    equal: tuple[int, ...] = ()
    close: tuple[int, ...] = ()
