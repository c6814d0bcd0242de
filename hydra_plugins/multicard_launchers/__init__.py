"""Hydra plugins: the sweeper, the launchers, and a source of configurations.

Cells run in this process, in parallel processes, or as SLURM jobs. The config source offers
`model=NAME` for each classifier of a library, as if each had a file.

Hydra looks for plugins here and imports this file at every start. Therefore, the work of the
launchers is in `_batches`, which is imported only when a sweep is launched.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.utils import JobReturn
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.launcher import Launcher
from hydra.plugins.search_path_plugin import SearchPathPlugin
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from multicard.config.sweeps import check_repetition, repeats, starts_nothing
from multicard.vision import model_names

if TYPE_CHECKING:
    from multicard.sweep.command import Command
    from multicard.sweep.order import Turn


class CellLauncher(Launcher):
    """Compose all cells of a batch, reuse earlier records, and measure the remaining cells.

    A bad cell does not stop the others, as it would with Hydra's own launcher.

    Args:
        on_slurm: cells are SLURM jobs, on nodes that this machine cannot inspect.
        packs: each cell is a process with GPUs or cores of this machine to itself.
    """

    def __init__(self, on_slurm: bool, packs: bool, **_: Any) -> None:
        """Take the options of a launcher. Each cell's configuration has all others."""
        self.on_slurm = on_slurm
        self.packs = packs

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        from hydra_plugins.multicard_launchers._batches import SweepBatches

        self.command: Command = task_function.__self__.command  # pyright: ignore[reportFunctionMemberAccess]
        self.batches = SweepBatches(self.command, hydra_context, config, self.on_slurm, self.packs)

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Measure cells in the order in which another sweeper made them."""
        from multicard.sweep.order import numbered_turns

        self.measure(numbered_turns(job_overrides, before=initial_job_idx))
        return []

    def measure(self, turns: "Sequence[Turn]") -> None:
        """Measure the cells of a batch in their order."""
        self.batches.launch(turns)


class CellSweeper(BasicSweeper):
    """Hydra's basic sweeper, with repetitions, experiments and `scale=smoke`.

    It does not validate every cell first, because the launchers compose all cells before the first
    one runs. Repetitions are the outermost axes: all cells are measured once, in a shuffled order,
    before any cell is measured again. So slow changes of the machine affect all cells equally. With
    `scale=smoke`, the axes of an experiment shrink. `experiment=all` is one sweep over the cells of
    every experiment of the entry.
    """

    def __init__(
        self, max_batch_size: int | None, params: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(max_batch_size)
        self.axes = dict(params or {})

    def sweep(self, arguments: list[str]) -> Any:
        """Let the launcher measure all cells. Refuse impossible repetitions before that."""
        assert self.config is not None and self.launcher is not None
        from multicard.messages import Refusal
        from multicard.ranks.failures import unwritable
        from multicard.records import run_folder
        from multicard.sweep import order

        assert isinstance(self.launcher, CellLauncher)
        check_repetition(self.config)
        # The order is recorded with the rest of the configuration.
        self.config.order = order.chosen_order(self.config)
        turns = order.numbered_turns(self._cells(arguments))
        turns = order.shuffled_turns(turns, self.config.order)
        if not starts_nothing(self.config):
            folder = Path(self.config.hydra.sweep.dir)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # A probe would overwrite the command of the results in the same folder.
                if not self.config.probe.enabled:
                    # Other users cannot read this file: overrides may hold secrets
                    # (hydra.job.env_set, hydra.launcher.setup).
                    run_folder.write_text(
                        folder / "multirun.yaml", OmegaConf.to_yaml(self.config), mode=0o600
                    )
                    run_folder.forget_refused(folder)
            except OSError as error:
                raise Refusal.of(unwritable(folder, error, "hydra.sweep.dir")) from None
        size = len(turns) if self.max_batch_size in (None, -1) else self.max_batch_size
        for first in range(0, len(turns), size):
            self.launcher.measure(turns[first : first + size])
        self.launcher.batches.measure_again()
        return []

    def _cells(self, arguments: list[str]) -> list[list[str]]:
        """Return the overrides of each cell. If `experiment=all`, include all experiments."""
        from multicard import workloads
        from multicard.sweep.axes import Axes

        assert self.config is not None
        assert isinstance(self.launcher, CellLauncher)
        experiment = self.config.hydra.experiment
        sweeps = [
            (Axes(self.axes, experiment.smoke, experiment.exclude, experiment.parts), arguments)
        ]
        if self.config.hydra.runtime.choices.get("experiment") == workloads.ALL:
            workload = self.launcher.command.workload
            sweeps = [
                (
                    Axes.of_experiment(name, experiment.smoke),
                    workloads.with_experiment(arguments, name),
                )
                for name in workloads.experiments(workload)
            ]
        shrunk = self.config.scale == "smoke"
        times = repeats(self.config.repeat)
        cells = []
        for axes, words in sweeps:
            cells.extend(axes.cells(words, shrunk, times))
        return cells


class NamedModels(ConfigSource, SearchPathPlugin):
    """Options of the group `model` that only set `model.name`. Hydra reads files first."""

    def __init__(self, provider: str = "", path: str = "library://") -> None:
        super().__init__(provider, path)

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        search_path.append("multicard", "library://")

    @staticmethod
    def scheme() -> str:
        return "library"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path.strip("/") == "model"

    def is_config(self, config_path: str) -> bool:
        return config_path.startswith("model/") and model_names.has(
            config_path[6:].removesuffix(".yaml")
        )

    def load_config(self, config_path: str) -> ConfigResult:
        option = {
            "defaults": ["/schema/model/mobilenet_v2@_here_"],
            "name": config_path[6:].removesuffix(".yaml"),
        }
        return ConfigResult(
            self.provider, self.full_path(), OmegaConf.create(option), {"package": "model"}
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        if self.is_group(config_path) and results_filter != ObjectType.GROUP:
            return [*model_names.classifier_names()]
        return []
