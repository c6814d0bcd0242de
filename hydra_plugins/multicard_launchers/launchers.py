"""The launchers of a sweep, where Hydra looks for them: cells in this process, as processes beside each other, or as
jobs of SLURM.

Hydra imports this file at every start: what launchers do is imported when a sweep is launched (`_batches`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from multicard.sweep.command import Command


class SweepLauncher(Launcher):
    """Composes all cells of a batch, takes the records of those measured before, and has the rest measured.

    on_slurm: cells run on nodes of which this machine knows nothing. packs: they can run beside each other here.
    """

    on_slurm, packs = False, False

    def __init__(self, **_: Any) -> None:
        """The options are in each cell's configuration too, and read there."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from hydra_plugins.multicard_launchers._batches import Batches

        self.command: Command = task_function.__self__.command  # pyright: ignore[reportFunctionMemberAccess]
        self.batches = Batches(self.command, hydra_context, config, self.on_slurm, self.packs)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        return self.batches.launch(job_overrides, initial_job_idx)


class LocalLauncher(SweepLauncher):
    """The default: cells one after the other, in this process. A bad cell does not stop the rest, as it would with
    Hydra's own launcher."""


class SubmititLocalLauncher(SweepLauncher):
    """`hydra/launcher=submitit_local`: each cell is a process, on GPUs or cores of this machine that no other has."""

    packs = True


class SlurmLauncher(SweepLauncher):
    """`hydra/launcher=submitit_slurm`: each cell is a job of SLURM, with the resources of its own configuration."""

    on_slurm = True
