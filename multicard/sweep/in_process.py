"""Measure cells in this process, one after the other."""

from hydra.core.utils import run_job
from hydra.types import HydraContext

from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.command import Command
from multicard.sweep.drive import Pace
from multicard.sweep.streak import SameFailureError
from multicard.sweep.task import run


class InProcess:
    """The backend that measures cells in this process, as jobs of Hydra. See `drive.Backend`.

    After Ctrl-C, the sweep ends once the running cell has its record.
    """

    def __init__(self, command: Command, context: HydraContext, sweep: Sweep, pace: Pace) -> None:
        self.command = command
        self.context = context
        self.pace = pace
        self._waiting = sweep.left

    def is_busy(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> list[Cell]:
        return self._waiting

    def start(self) -> None:
        """Do nothing: `collect` measures the next cell."""

    def collect(self) -> list[Cell]:
        cell = self._waiting.pop(0)
        job_return = run_job(
            hydra_context=self.context,
            task_function=lambda _: run(self.command, cell, left_s=self.pace.left_s),
            config=cell.composed,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        # This raises an exception of the task, which is a defect and never the end of a run.
        _ = job_return.return_value
        assert cell.result is not None
        if cell.result.status == "interrupted" or cell.result.stopped:
            raise KeyboardInterrupt
        return [cell]

    def give_up(self, why: SameFailureError) -> int:
        given_up = len(self._waiting)
        self._waiting.clear()
        return given_up
