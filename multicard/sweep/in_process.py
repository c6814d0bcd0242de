"""Measure cells in this process, one after the other."""

from hydra.core.utils import run_job
from hydra.types import HydraContext

from multicard.sweep.cells import Cell
from multicard.sweep.command import Command
from multicard.sweep.drive import StartedCell
from multicard.sweep.grid import Pace
from multicard.sweep.streak import SameFailureError
from multicard.sweep.task import run


class InProcess:
    """The backend that measures cells in this process, as jobs of Hydra. See `drive.Backend`.

    After Ctrl-C, the sweep ends once the running cell has its record.

    Args:
        pace: estimates the time left, which the running cell shows.
    """

    shares_terminal = True

    def __init__(self, command: Command, context: HydraContext, pace: Pace) -> None:
        self.command = command
        self.context = context
        self.pace = pace
        self._started: Cell | None = None

    def is_busy(self) -> bool:
        return self._started is not None

    def start(self, cell: Cell) -> StartedCell | None:
        """Let `collect` measure this cell."""
        if self._started is not None:
            return None
        self._started = cell
        return StartedCell(cell)

    def collect(self) -> list[Cell]:
        cell = self._started
        assert cell is not None  # always: the loop collects while a cell is started
        self._started = None
        job_return = run_job(
            hydra_context=self.context,
            task_function=lambda _: run(self.command, cell, left_s=self.pace.left_s),
            config=cell.composed,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        # This raises an exception of the task, which is a defect and never the end of a run.
        _ = job_return.return_value
        return [cell]

    def waiting(self) -> list[Cell]:
        return []

    def give_up(self, why: SameFailureError) -> int:
        return 0
