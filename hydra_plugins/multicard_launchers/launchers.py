"""The launchers of a sweep: cells in this process, as processes beside each other, or as jobs of SLURM.

Hydra imports this file at every start: everything else is imported when a sweep is launched.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hydra.core.utils import JobReturn, configure_log, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from multicard.config.prediction import starts_nothing
from multicard.config.repetition import AUTO

if TYPE_CHECKING:
    from multicard.sweep.plan import Cell


class SweepLauncher(Launcher):
    """Composes all cells, takes the records of those measured before, and has the rest measured.

    on_slurm: whether cells run on nodes of which this machine knows nothing.
    """

    on_slurm = False

    def __init__(self, **_: Any) -> None:
        """The options are in each cell's configuration too, and read there."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from multicard.controller.session import SESSION

        if SESSION.abandoned:
            return []  # an earlier batch of the sweep was interrupted
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        if self.config.repeat == AUTO:
            self._measure_until_sure(job_overrides, initial_job_idx)
        else:
            self._measure_batch(job_overrides, initial_job_idx)
        return []

    def _measure_until_sure(self, job_overrides: Sequence[Sequence[str]], first: int) -> None:
        from multicard.controller.session import SESSION, say
        from multicard.sweep.until_sure import UntilSure

        rounds = UntilSure(self.config, job_overrides)
        while rounds.batch:
            first += len(rounds.batch)
            cells, left = self._measure_batch(rounds.batch, first - len(rounds.batch), rounds.plan)
            if starts_nothing(self.config) and left:
                say(f"repeat=auto: then as often as needed, at most repeat_max={self.config.repeat_max} times each")
                return
            rounds.take(cells)
            if SESSION.abandoned:
                return
        rounds.say()

    def _measure_batch(
        self,
        job_overrides: Sequence[Sequence[str]],
        first: int,
        check: "Callable[[list[Cell]], None]" = lambda _: None,
    ) -> "tuple[list[Cell], list[Cell]]":
        """Measure cells, or say what would be measured, or what that would take. Returns them, and those of them that
        were not measured before.

        Args:
            first: Hydra's number of the first.
            check: may refuse them all, before any is started.
        """
        from multicard.sweep import fit, plan

        cells = plan.plan(self.hydra_context, self.config, job_overrides, first)
        check(cells)
        left = plan.settle(cells)
        if self.config.predict.enabled:
            from multicard.sweep import predicted

            predicted.show(cells, left, self.on_slurm)
            return cells, left
        left = fit.passing(left, self.on_slurm)
        if self.config.dry_run:
            self.show(cells, left)
            return cells, left
        for cell in cells:
            if cell.problem and cell.result is None:
                plan.refuse(cell)
        try:
            if left:
                self.measure(cells, left)
        except KeyboardInterrupt:
            plan.say_interrupted(cells)
        finally:
            plan.finish(cells)
        return cells, left

    @abstractmethod
    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        """Measure the cells that are `left` of all `cells`, and set their `result`.

        Raises:
            ValueError: what no cell can work with, before any is started.
            KeyboardInterrupt: on Ctrl-C, once what ran has ended.
        """

    @abstractmethod
    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        """Check the cells as `measure` would, and print what it would do."""


class LocalLauncher(SweepLauncher):
    """The default: cells one after the other, in this process. A bad cell does not stop the rest, as it would with
    Hydra's own launcher."""

    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.controller.session import SESSION
        from multicard.sweep.plan import Pace

        pace = Pace(len(left))
        for cell in left:
            SESSION.label = cell.label
            done = run_job(
                hydra_context=self.hydra_context,
                task_function=self.task_function,
                config=cell.composed,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
            _ = done.return_value  # raises what the task raised: a defect, never a run's end
            cell.result = SESSION.records.pop()
            if cell.result["status"] == "interrupted":
                raise KeyboardInterrupt
            pace.say_progress([cell])

    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import dry_run

        dry_run.show(cells, [("-", dry_run.check(left))], "runs of this process, one after the other")


class SubmititLocalLauncher(SweepLauncher):
    """`hydra/launcher=submitit_local`: each cell is a process, on GPUs or cores of this machine that no other has."""

    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import local

        local.run_all(left)

    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.config.job import count
        from multicard.sweep import dry_run, local

        machine = local.machine()
        how = f"processes on this machine, {count(len(machine.gpus), 'GPU')} and {count(len(machine.cpus), 'core')}"
        dry_run.show(cells, [("-", dry_run.check(left))], how)


class SlurmLauncher(SweepLauncher):
    """`hydra/launcher=submitit_slurm`: each cell is a job of SLURM, with the resources of its own configuration."""

    on_slurm = True

    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import slurm_submit, slurm_wait

        slurm_wait.wait(cells, slurm_submit.submit(left))

    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import dry_run, slurm_submit

        queued = slurm_submit.queued_jobs(left)
        unsubmitted = dry_run.check([cell for cell in left if cell.number not in queued], on_slurm=True)
        groups = [(array.in_words(), array.cells) for array in slurm_submit.arrays(unsubmitted)]
        dry_run.show(cells, groups, "arrays of SLURM", queued=len(queued))
