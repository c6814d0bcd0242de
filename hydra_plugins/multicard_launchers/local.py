"""The launcher that is used where none is named: cells one after the other, in this process.

Hydra's own stops a sweep at the first cell that exits; here a bad cell never stops the rest.
"""

from typing import TYPE_CHECKING

from hydra.core.utils import run_job

from hydra_plugins.multicard_launchers.base import SweepLauncher

if TYPE_CHECKING:
    from multicard.sweep.plan import Planned


class LocalLauncher(SweepLauncher):
    def measure(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard.controller.session import SESSION
        from multicard.sweep import plan

        for cell in left:
            SESSION.label = plan.label(cell, planned)
            done = run_job(
                hydra_context=self.hydra_context,
                task_function=self.task_function,
                config=cell.composed,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
            _ = done.return_value  # raises what the task raised: a defect of ours, never a run's end
            cell.result = SESSION.records.pop()
            if cell.result["status"] == "interrupted":
                break

    def show(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard.sweep import slurm_wait

        slurm_wait.show_plan(planned, [(None, left)], "one after the other, in this process")
