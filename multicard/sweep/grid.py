"""The policy that measures a grid's cells in their order, and its lines on the progress."""

from collections.abc import Sequence

from multicard.config.job import count
from multicard.measure.timing import clock_s, in_hours
from multicard.messages import Message, say
from multicard.sweep.cells import Cell
from multicard.sweep.drive import StartedCell
from multicard.sweep.streak import SameFailureError

SAY_EVERY_S = 60.0  # Lines on the progress of a sweep are at least this far apart.


class Grid:
    """Cells that may start in any order. See `drive.Policy`.

    They start in the sweep's order, except that a later cell may start early on idle GPUs or cores.

    Args:
        pace: estimates when the cells end.
    """

    def __init__(self, cells: Sequence[Cell], pace: "Pace") -> None:
        self.pace = pace
        self._waiting = [*cells]

    def waiting(self) -> list[Cell]:
        return self._waiting

    def ready(self) -> list[Cell]:
        return [*self._waiting]

    def take_started(self, started: StartedCell) -> None:
        cell = started.cell
        share = started.share
        self._waiting.remove(cell)
        if share is not None:
            where = count(len(share.cpus), "core")
            if share.gpus is not None:
                where = f"GPUs {','.join(share.gpus)}"
            say(f"{cell.title}{Message('cell.started', f'started on {where}', where=where)}")

    def take_ended(self, ended: Sequence[Cell]) -> None:
        self.pace.say_progress(ended)

    def give_up(self, why: SameFailureError, cancelled: int) -> None:
        self.pace.total -= len(self._waiting) + cancelled
        self._waiting.clear()


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
