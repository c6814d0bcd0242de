"""Hydra's basic sweeper without its check that composes every cell, since the launchers compose all of them before the
first runs. Repetitions are the outermost axes, so that all cells are measured once before any is measured again: what
the machine drifts by meanwhile is in all of them. With `scale=smoke` it shrinks the axes of an experiment.
`experiment=all` is one sweep of the cells of every experiment of the entry."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from omegaconf import OmegaConf

from hydra_plugins.multicard_launchers.launchers import SweepLauncher
from multicard.config.sweeps import check_repetition, repeats, starts_nothing


class CellSweeper(BasicSweeper):
    def __init__(
        self,
        max_batch_size: int | None,
        params: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(max_batch_size)
        self.axes = dict(params or {})

    def sweep(self, arguments: list[str]) -> Any:
        """Have the launcher measure all cells.

        Raises:
            ValueError: repetitions that no cell can have, before anything of the sweep is written.
        """
        assert self.config is not None and self.launcher is not None
        check_repetition(self.config)
        cells = self._cells(arguments)
        if not starts_nothing(self.config):
            folder = Path(self.config.hydra.sweep.dir)
            folder.mkdir(parents=True, exist_ok=True)
            if not self.config.probe.enabled:  # else the command of the results beside them would be lost
                OmegaConf.save(self.config, folder / "multirun.yaml")
        first = 0
        for batch in self.split_overrides_to_chunks(cells, self.max_batch_size):
            self.launcher.launch(batch, initial_job_idx=first)
            first += len(batch)
        return []

    def _cells(self, arguments: list[str]) -> list[list[str]]:
        """The overrides of each cell, of all experiments where these are asked for."""
        from multicard import workloads
        from multicard.sweep.axes import Axes

        assert self.config is not None and self.hydra_context is not None
        assert isinstance(self.launcher, SweepLauncher)
        own = self.config.hydra.experiment
        sweeps = [(Axes(self.axes, own.smoke, own.exclude), arguments)]
        if self.config.hydra.runtime.choices.get("experiment") == workloads.ALL:
            workload = self.launcher.command.workload
            sweeps = [
                (Axes.of_experiment(name, own.smoke), workloads.with_experiment(arguments, name))
                for name in workloads.experiments(workload)
            ]
        shrunk, times = self.config.scale == "smoke", repeats(self.config.repeat)
        loader = self.hydra_context.config_loader
        return [cell for axes, words in sweeps for cell in axes.cells(words, shrunk, times, loader)]
