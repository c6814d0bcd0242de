"""Drive the cells of a sweep until all have ended, wherever they are measured.

All backends share one rule for failures in a row and one form of progress lines. A `Backend` starts
cells and reports which have ended: in this process (`in_process`), in processes of this machine
(`executor`), or as jobs of SLURM (`slurm_wait`).
"""

from collections.abc import Sequence
from typing import Protocol

from multicard.config.job import count
from multicard.measure.timing import clock_s, in_hours
from multicard.messages import Message, say
from multicard.sweep.cells import Cell
from multicard.sweep.streak import SameFailureError, Streak

SAY_EVERY_S = 60.0  # Lines on the progress of a sweep are at least this far apart.


class Backend(Protocol):
    """Where cells are measured."""

    def is_busy(self) -> bool:
        """Return True while a cell still has to start or to end."""
        ...

    def waiting(self) -> list[Cell]:
        """Return the cells that failures of other cells may keep from being measured."""
        ...

    def start(self) -> None:
        """Start as many cells as there is room for."""
        ...

    def collect(self) -> list[Cell]:
        """Wait a moment, and return the cells that have ended since the last call.

        They have their `result`, and their ends have been printed.

        Raises:
            KeyboardInterrupt: a cell that ended was interrupted, as by Ctrl-C.
        """
        ...

    def give_up(self, why: SameFailureError) -> int:
        """Start no further cell, and cancel cells that have not begun. Running cells go on.

        Returns:
            The number of cells that will not be measured.
        """
        ...


class Drive:
    """The loop that measures the cells of a backend.

    Args:
        pace: estimates when the cells end.
        streak: the cells that ended last, also in earlier batches of the sweep.
    """

    def __init__(self, backend: Backend, pace: "Pace", streak: Streak) -> None:
        self.backend = backend
        self.pace = pace
        self.streak = streak
        self.stopped: SameFailureError | None = None

    def run(self) -> None:
        """Return once all cells have ended. After an interruption it may be called again.

        Raises:
            KeyboardInterrupt: a cell was interrupted, or the backend was while it waited.
            SameFailureError: the remaining cells would fail as the cells before did.
        """
        backend = self.backend
        while backend.is_busy():
            backend.start()
            ended = backend.collect()
            for cell in ended:
                self.streak.add(cell)
            self.pace.say_progress(ended)
            if self.stopped is None and self.streak.ends(backend.waiting()):
                self.stopped = self.streak.error()
                self.pace.total -= backend.give_up(self.stopped)
        if self.stopped is not None:
            raise self.stopped


class Pace:
    """Estimates when a sweep ends, from the cells that have ended so far.

    With `has_bar`, the estimate is shown in the bar of the running cell, so no lines are printed.
    """

    def __init__(self, total: int, has_bar: bool = False) -> None:
        self.total = total
        self.ended = 0
        self.has_bar = has_bar
        self.started_s = self.ended_s = self.said_s = clock_s()

    def left_s(self) -> float | None:
        """Return the seconds until all cells have ended; None before the first has."""
        if not self.ended:
            return None
        cells_s = (self.ended_s - self.started_s) / self.ended * (self.total - self.ended)
        return max(cells_s - (clock_s() - self.ended_s), 0.0)

    def say_progress(self, ended: Sequence[Cell]) -> None:
        """Count cells that ended, and print the progress and the remaining time now and then.

        Refused cells do not count, because they take no time.
        """
        measured = sum(
            cell.result is not None and cell.result.status != "refused" for cell in ended
        )
        self.ended += measured
        self.total -= len(ended) - measured
        if not measured:
            return
        self.ended_s = clock_s()
        left_s = self.left_s()
        if left_s and not self.has_bar and self.ended_s - self.said_s >= SAY_EVERY_S:
            self.said_s = self.ended_s
            elapsed = in_hours(self.ended_s - self.started_s)
            message = Message(
                "sweep.pace",
                f"{self.ended} of {count(self.total, 'cell')} ended in {elapsed}; about"
                f" {in_hours(left_s)} left",
                ended=self.ended,
                cells=self.total,
                left_s=left_s,
            )
            say(f"  {message}")
