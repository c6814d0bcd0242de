"""Drive cells until all have ended, whichever policy orders them and wherever they are measured.

A `Policy` decides which cell may start next: a grid (`grid`) or a plan (`decide.plan.carry_out`). A
`Backend` starts cells and reports which have ended: in this process (`in_process`), in processes of
this machine (`executor`), or as jobs of SLURM (`slurm_wait`). All share one rule for interruptions,
and one for failures in a row.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from multicard.machine.shares import MachineShare
from multicard.sweep.cells import Cell
from multicard.sweep.streak import SameFailureError, Streak


@dataclass(frozen=True)
class StartedCell:
    """A cell that a backend has started.

    Fields:
        share: the GPUs and cores that were leased for it; None if the backend leases none.
        log: where its output goes; None if that is the output of this command.
    """

    cell: Cell
    share: MachineShare | None = None
    log: Path | None = None


class Policy(Protocol):
    """Which cells are measured, and in which order."""

    def waiting(self) -> list[Cell]:
        """Return the cells that have not been started, and will be."""
        ...

    def ready(self) -> Iterable[Cell]:
        """Yield the cells that may start now, the most urgent one first.

        A cell stays ready if the backend has no room for it.
        """
        ...

    def take_started(self, started: StartedCell) -> None:
        """Take note that a cell has started."""
        ...

    def take_ended(self, ended: Sequence[Cell]) -> None:
        """Take note of the cells that have ended, maybe none, since the last call."""
        ...

    def give_up(self, why: SameFailureError, cancelled: int) -> None:
        """Let no further cell start.

        Args:
            cancelled: the number of started cells that will not be measured either.
        """
        ...


class Backend(Protocol):
    """Where cells are measured.

    Attributes:
        shares_terminal: True if Ctrl-C reaches the cells too, perhaps without reaching this
            process. An interrupted cell then interrupts the command.
    """

    shares_terminal: bool

    def is_busy(self) -> bool:
        """Return True while a started cell has not been collected."""
        ...

    def start(self, cell: Cell) -> StartedCell | None:
        """Start a cell, or return None if there is no room for it now."""
        ...

    def collect(self) -> list[Cell]:
        """Wait a moment, and return the cells that have ended since the last call.

        They have their `result`, and their ends have been printed.
        """
        ...

    def waiting(self) -> list[Cell]:
        """Return the started cells that failures of other cells may keep from being measured."""
        ...

    def give_up(self, why: SameFailureError) -> int:
        """Cancel cells that have not begun. Running cells go on.

        Returns:
            The number of cells that will not be measured.
        """
        ...


class Drive:
    """The loop that measures the cells of a policy on a backend.

    Args:
        streak: the cells that ended last, also in earlier batches of the sweep.
    """

    def __init__(self, policy: Policy, backend: Backend, streak: Streak) -> None:
        self.policy = policy
        self.backend = backend
        self.streak = streak
        self.stopped: SameFailureError | None = None

    def run(self) -> None:
        """Return once all cells have ended. After an interruption it may be called again.

        Raises:
            KeyboardInterrupt: a cell was interrupted, or the backend was while it waited.
            SameFailureError: the remaining cells would fail as the cells before did.
        """
        while self.policy.waiting() or self.backend.is_busy():
            self.start_ready()
            ended = self.backend.collect()
            self.policy.take_ended(ended)
            if self.backend.shares_terminal and any(map(_was_interrupted, ended)):
                raise KeyboardInterrupt
            for cell in ended:
                self.streak.add(cell)
            if self.stopped is None and self._would_fail_too():
                self.stopped = self.streak.error()
                cancelled = self.backend.give_up(self.stopped)
                self.policy.give_up(self.stopped, cancelled)
        if self.stopped is not None:
            raise self.stopped

    def start_ready(self) -> None:
        """Start the cells that may start now and for which there is room."""
        for cell in self.policy.ready():
            started = self.backend.start(cell)
            if started is not None:
                self.policy.take_started(started)

    def _would_fail_too(self) -> bool:
        return self.streak.ends([*self.policy.waiting(), *self.backend.waiting()])


def _was_interrupted(cell: Cell) -> bool:
    """Return True if Ctrl-C has ended a cell, or has asked a cell that ended to be the last."""
    result = cell.result
    return result is not None and (result.status == "interrupted" or bool(result.stopped))
