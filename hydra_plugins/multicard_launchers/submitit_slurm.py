"""`hydra/launcher=submitit_slurm`: each cell is a job of SLURM, with the resources of its own configuration."""

from typing import TYPE_CHECKING

from hydra_plugins.multicard_launchers.base import SweepLauncher

if TYPE_CHECKING:
    from multicard.sweep.plan import Planned


class SlurmLauncher(SweepLauncher):
    def measure(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard.sweep import slurm_submit, slurm_wait

        slurm_wait.wait(planned, slurm_submit.submit(planned, left))

    def show(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard.sweep import slurm_submit, slurm_wait

        waiting = slurm_submit.find_again(left)
        arrays = slurm_submit.arrays([cell for cell in left if cell.number not in waiting])
        slurm_wait.show_plan(planned, arrays, "arrays of SLURM")
