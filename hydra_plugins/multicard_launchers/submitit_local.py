"""`hydra/launcher=submitit_local`: each cell is a process of its own, on its own GPUs or cores of this machine."""

from typing import TYPE_CHECKING

from hydra_plugins.multicard_launchers.base import SweepLauncher

if TYPE_CHECKING:
    from multicard.sweep.plan import Planned


class SubmititLocalLauncher(SweepLauncher):
    def measure(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard.sweep import local

        local.run_all(planned, left)

    def show(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        from multicard.sweep import local, slurm_wait

        slurm_wait.show_plan(planned, [(None, left)], f"processes on this machine, {local.room()}")
