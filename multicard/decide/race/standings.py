"""What the rules of a race say of its cells: where each stands, and who won."""

from dataclasses import dataclass

NOT_STARTED, IN, OUT = "not started", "in", "out"
BEATEN = "beaten: "  # begins the reason of a cell that dropped out


@dataclass(frozen=True)
class RaceOptions:
    """confidence: that the winner is within `tolerance` (a share) of the best cell.

    finalists: at most. runs: of each in full. process_sd: between processes of a cell, before any was repeated.
    """

    confidence: float = 0.95
    tolerance: float = 0.02
    finalists: int = 3
    runs: int = 3
    process_sd: float = 0.01


@dataclass(frozen=True)
class Standing:
    """A cell in the race.

    state: NOT_STARTED, IN or OUT. reason: why it is out, else "". blocks: that it ran.
    log_figure, error: mean and standard deviation; measured or by what others say of it.
    behind, behind_error: the same of how far it is behind the leader, 0 for the leader itself.
    best: the probability that no other cell is better.
    """

    cell: int
    state: str
    reason: str
    blocks: int
    log_figure: float
    error: float
    behind: float
    behind_error: float
    best: float


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
