"""What our launchers have in common. Imported at every start: everything else is imported when a sweep is launched."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

if TYPE_CHECKING:
    from multicard.sweep.plan import Planned


class SweepLauncher(Launcher):
    """Composes all cells, takes what is measured already, and has the rest measured."""

    def __init__(self, **_: Any) -> None:
        """The options are read where they are used: they are in each cell's configuration too."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from multicard.sweep import plan

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        planned = plan.plan(self.hydra_context, self.config, job_overrides, initial_job_idx)
        left = plan.settle(planned)
        if self.config.dry_run:
            self.show(planned, left)
            plan.leave_nothing(planned)
            return []
        try:
            if left:
                self.measure(planned, left)
        except ValueError:
            plan.leave_nothing(planned)
            raise
        finally:
            plan.finish(planned)
        return []

    @abstractmethod
    def measure(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        """Have the cells that are `left` of the `planned` ones measured, and set their `result`."""

    @abstractmethod
    def show(self, planned: "list[Planned]", left: "list[Planned]") -> None:
        """Print what `measure` would do."""
