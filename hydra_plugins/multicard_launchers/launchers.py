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

from multicard.config.keys import require
from multicard.config.prediction import starts_nothing
from multicard.config.race import refuse as refuse_race
from multicard.config.repetition import AUTO

if TYPE_CHECKING:
    from multicard.sweep.plan import Cell


CELLS = "hydra_plugins.multicard_launchers.sweeper.CellSweeper"
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"  # which chooses nothing by what cells return


class SweepLauncher(Launcher):
    """Composes all cells, takes the records of those measured before, and has the rest measured.

    on_slurm: whether cells run on nodes of which this machine knows nothing. packs: whether they can run beside each
        other here.
    """

    on_slurm, packs = False, False

    def __init__(self, **_: Any) -> None:
        """The options are in each cell's configuration too, and read there."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from multicard.sweep.streak import Streak

        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config
        self.streak = Streak()  # over all batches of the command

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from multicard.run.session import SESSION
        from multicard.sweep import objective

        if SESSION.abandoned:
            return []  # an earlier batch of the sweep was interrupted
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        own_sweeper = self.config.hydra.sweeper._target_ == CELLS
        refuse_race(self.config, self.on_slurm, own_sweeper, self.config.hydra.sweeper.get("max_batch_size"))
        assert SESSION.workload is not None
        problem = objective.problem(SESSION.workload, self.config.objective)
        require(problem is None, str(problem))
        if self.config.gpus_auto:
            job_overrides = self._with_gpus(job_overrides)
        if self.config.hydra.sweeper._target_ != CELLS:
            cells = self._measure_for_another(job_overrides, initial_job_idx)
            if not starts_nothing(self.config):
                return objective.returns(cells, self.config.objective)
            if self.config.hydra.sweeper._target_ != BASIC:
                raise objective.NothingMeasuredError
            return objective.returns(cells, None)
        if self.config.repeat == AUTO:
            self._measure_until_sure(job_overrides, initial_job_idx)
        else:
            self._measure_batch(job_overrides, initial_job_idx)
        return []

    def _with_gpus(self, job_overrides: Sequence[Sequence[str]]) -> Sequence[Sequence[str]]:
        """The cells with the numbers of GPUs that are chosen for them.

        Raises:
            ValueError: `gpus=auto` has no meaning here.
        """
        from multicard.sweep import auto_gpus

        config = self.config
        auto_gpus.refuse(config, self.on_slurm)
        if not self.packs or config.exclusive is not False or config.max_jobs == 1:
            return auto_gpus.resolve(self.hydra_context, config, job_overrides, None)
        from multicard.decide.plan import packed_gpus

        return auto_gpus.resolve(self.hydra_context, config, job_overrides, packed_gpus.pick)

    def _measure_for_another(self, job_overrides: Sequence[Sequence[str]], first: int) -> "list[Cell]":
        """Measure cells for a sweeper that is not multicard's.

        Raises:
            ValueError: what multicard's sweeper alone can do.
            KeyboardInterrupt: cells are left: the sweeper would go on without them.
        """
        from multicard import workloads
        from multicard.run.session import SESSION
        from multicard.sweep import axes

        config, remedy = self.config, "leave hydra/sweeper out"
        instead = f"{remedy}, or sweep repetition=1,2,3"
        require(config.repeat == "1", f"repeat={config.repeat}: needs multicard's own sweeper; {instead}")
        every = config.hydra.runtime.choices.get("experiment") == workloads.ALL
        require(not every, f"experiment={workloads.ALL}: needs multicard's own sweeper; {remedy}")
        if config.scale == "smoke":
            job_overrides = [axes.shrunk(words, config.hydra.experiment.smoke) for words in job_overrides]
        cells, _ = self._measure_batch(job_overrides, first)
        if SESSION.abandoned:
            raise KeyboardInterrupt
        return cells

    def _measure_until_sure(self, job_overrides: Sequence[Sequence[str]], first: int) -> None:
        from multicard.run.session import SESSION, say
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
        from multicard.sweep import fit, plan, streak

        cells = plan.plan(self.hydra_context, self.config, job_overrides, first)
        check(cells)
        left = plan.settle(cells)
        if self.config.predict.enabled:
            from multicard.sweep import predicted

            predicted.show(cells, left, self.on_slurm)
            return cells, left
        left = fit.passing(left, self.on_slurm)
        if self.config.race.figure is not None:
            (self._show_race if self.config.dry_run else self._race)(cells)
            return cells, left
        if self.config.dry_run:
            self.show(cells, left)
            return cells, left
        for cell in cells:
            if cell.problem and cell.result is None:
                plan.refuse(cell)
        try:
            if self.streak.ends(left):  # by what failed in earlier batches
                raise self.streak.error()
            if left:
                self.measure(cells, left)
        except KeyboardInterrupt:
            plan.say_left(cells)
        except streak.SameFailureError as stopped:
            plan.say_left(cells, f"stopped, {stopped}")
        finally:
            plan.finish(cells)
        return cells, left

    def _show_race(self, cells: "list[Cell]") -> None:
        """Check the cells as a race of them would, and print what it would do."""
        from multicard.decide.race import grid
        from multicard.sweep import dry_run

        raced = self._raced(cells)
        figure = str(self.config.race.figure)
        if raced:
            grid.refuse(figure, raced)
        dry_run.show(cells, [("-", dry_run.check(raced))], f"cells of race={figure}, the best of them in full")

    def _race(self, cells: "list[Cell]") -> None:
        """Find the best of the cells, and measure it."""
        from multicard.decide.race import live
        from multicard.run.session import SESSION, say
        from multicard.sweep import plan, streak

        finals: list[Cell] = []
        raced = self._raced(cells)
        try:
            live.run(raced, finals)
        except (KeyboardInterrupt, streak.SameFailureError) as stopped:
            SESSION.abandoned = True
            why = f"stopped, {stopped}" if isinstance(stopped, streak.SameFailureError) else "interrupted"
            say(f"{why}; to go on with the race: {plan.resume_command(cells)}", error=True)
        finally:
            plan.finish([*(cell for cell in cells if cell.problem), *finals] or cells[:1])

    def _raced(self, cells: "list[Cell]") -> "list[Cell]":
        """The cells that a race starts with. Says which it leaves out."""
        from multicard.run.session import SESSION, say

        for cell in cells:
            if cell.unfit:
                say(f"{cell.label}out: {cell.unfit}")
        raced = [cell for cell in cells if not (cell.problem or cell.unfit)]
        if not raced:
            say(f"race={self.config.race.figure}: no cell is left", error=True)
            SESSION.abandoned = True
        return raced

    @abstractmethod
    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        """Measure the cells that are `left` of all `cells`, and set their `result`.

        Raises:
            ValueError: what no cell can work with, before any is started.
            KeyboardInterrupt: on Ctrl-C, once what ran has ended.
            SameFailureError: the cells that are left would fail as those before.
        """

    @abstractmethod
    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        """Check the cells as `measure` would, and print what it would do."""


class LocalLauncher(SweepLauncher):
    """The default: cells one after the other, in this process. A bad cell does not stop the rest, as it would with
    Hydra's own launcher."""

    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import shares

        with shares.announced([cell.config for cell in left if cell.config is not None]):
            self._measure_in_turn(left)

    def _measure_in_turn(self, left: "list[Cell]") -> None:
        from multicard.run.session import SESSION
        from multicard.sweep.plan import Pace

        pace, streak = Pace(len(left)), self.streak
        for index, cell in enumerate(left, 1):
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
            streak.add(cell)
            if streak.ends(left[index:]):
                raise streak.error()

    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import dry_run

        dry_run.show(cells, [("-", dry_run.check(left))], "runs of this process, one after the other")


class SubmititLocalLauncher(SweepLauncher):
    """`hydra/launcher=submitit_local`: each cell is a process, on GPUs or cores of this machine that no other has."""

    packs = True

    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import local

        local.run_all(left, self.streak)

    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.config.job import count
        from multicard.sweep import dry_run, shares

        machine = shares.machine()
        how = f"processes on this machine, {count(len(machine.gpus), 'GPU')} and {count(len(machine.cpus), 'core')}"
        dry_run.show(cells, [("-", dry_run.check(left))], how)


class SlurmLauncher(SweepLauncher):
    """`hydra/launcher=submitit_slurm`: each cell is a job of SLURM, with the resources of its own configuration."""

    on_slurm = True

    def measure(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import slurm_submit, slurm_wait

        slurm_wait.wait(cells, slurm_submit.submit(left), self.streak)

    def show(self, cells: "list[Cell]", left: "list[Cell]") -> None:
        from multicard.sweep import dry_run, slurm_submit

        queued = slurm_submit.queued_jobs(left)
        unsubmitted = dry_run.check([cell for cell in left if cell.number not in queued], on_slurm=True)
        groups = [(array.in_words(), array.cells) for array in slurm_submit.arrays(unsubmitted)]
        dry_run.show(cells, groups, "arrays of SLURM", queued=len(queued))
