"""The launcher that is used where none is named: cells one after the other, in this process.

Hydra's own stops a sweep at the first cell that exits; here a bad cell never stops the rest.
"""

from collections.abc import Sequence
from pathlib import Path

from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict


class LocalLauncher(Launcher):
    """Composes each cell, gives it its folder, and runs it."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from multicard import cells
        from multicard.run import SESSION

        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        returned: list[JobReturn] = []
        for index, overrides in enumerate(job_overrides):
            composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
            sweep = Path(str(composed.hydra.sweep.dir))
            with open_dict(composed):
                composed.hydra.job.id = composed.hydra.job.num = initial_job_idx + index
                composed.hydra.sweep.subdir = cells.find(sweep, cells.folder_name(composed, list(overrides))).name
            SESSION.label = f"[{index + 1}/{len(job_overrides)}] "
            returned.append(
                run_job(
                    hydra_context=self.hydra_context,
                    task_function=self.task_function,
                    config=composed,
                    job_dir_key="hydra.sweep.dir",
                    job_subdir_key="hydra.sweep.subdir",
                )
            )
            _ = returned[-1].return_value  # raises what the task raised: a defect of ours, never a run's end
            if SESSION.interrupted:
                break
        return returned
