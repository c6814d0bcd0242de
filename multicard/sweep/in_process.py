"""Measures cells in this process, one after the other."""

from hydra.core.utils import run_job
from hydra.types import HydraContext

from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.command import Command
from multicard.sweep.drive import Pace
from multicard.sweep.streak import SameFailureError
from multicard.sweep.task import run


class InProcess:
    """The cells of a sweep that are left, each as a job of Hydra. See `drive.Backend`.

    Ctrl-C ends them once the cell that runs has its record.
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
        """Nothing: `collect` measures the next cell."""

    def collect(self) -> list[Cell]:
        cell = self._waiting.pop(0)
        done = run_job(
            hydra_context=self.context,
            task_function=lambda _: run(self.command, cell, left_s=self.pace.left_s),
            config=cell.composed,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        _ = done.return_value  # raises what the task raised: a defect, never a run's end
        assert cell.result is not None
        if cell.result.status == "interrupted" or cell.result.stopped:
            raise KeyboardInterrupt
        return [cell]

    def give_up(self, why: SameFailureError) -> int:
        given_up = len(self._waiting)
        self._waiting.clear()
        return given_up
