"""`hydra/launcher=submitit_slurm`: each cell is a job of SLURM, with the resources of its own configuration."""

from typing import TYPE_CHECKING

from hydra_plugins.multicard_launchers.base import SweepLauncher

if TYPE_CHECKING:
    from multicard.sweep import Planned


class SlurmLauncher(SweepLauncher):
    def measure(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard import queue, submit

        queue.wait(planned, submit.submit(planned, left))

    def show(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard import queue, submit

        waiting = submit.find_again(left)
        arrays = submit.arrays([cell for cell in left if cell.number not in waiting])
        queue.show_plan(planned, arrays, "arrays of SLURM")
