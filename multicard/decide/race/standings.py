"""What the rules of a race are asked for, and what they say of its cells."""

from dataclasses import dataclass

NOT_STARTED, IN, OUT = "not started", "in", "out"
# Beginnings of reasons: of a cell that dropped out, and of one that cannot win for its accuracy in a full run
BEATEN, MISSED = "beaten: ", "missed target_accuracy"


@dataclass(frozen=True)
class RaceOptions:
    """confidence: that the winner is within `tolerance` (a share) of the best cell.

    finalists: the most that run in full. runs: of each. process_sd: between processes of a cell, before any was
    repeated.
    """

    confidence: float = 0.95
    tolerance: float = 0.02
    finalists: int = 3
    runs: int = 3
    process_sd: float = 0.01


@dataclass(frozen=True)
class Standing:
    """A cell in the race.

    state: NOT_STARTED, IN or OUT. reason: why it is out, else "". blocks: their number.
    log_figure, error: mean and standard deviation; measured or by what others say of it.
    behind, behind_error: the same of how far it is behind the leader, 0 for the leader itself.
    best: the probability that no other cell is better. in_full: the mean log figure of its full runs.
    """

    cell: int
    state: str
    reason: str
    blocks: int
    log_figure: float
    error: float
    behind: float = 0.0
    behind_error: float = 0.0
    best: float = 0.0
    in_full: float | None = None


@dataclass(frozen=True)
class Verdict:
    """How a race ended.

    winner: None where no cell could be measured. sure: the probability that it is within the tolerance of the best.
    equal: cells that differ from it by no more than the tolerance with the race's confidence, beaten ones too.
    close: those in the race of which neither that nor the contrary is sure.
    """

    winner: int | None
    sure: float
    equal: tuple[int, ...] = ()
    close: tuple[int, ...] = ()
