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
    from multicard.sweep.cells import Cell, Sweep
    from multicard.sweep.command import Command

CELLS = "hydra_plugins.multicard_launchers.sweeper.CellSweeper"
BASIC = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"  # which chooses nothing by what cells return


class SweepLauncher(Launcher):
    """Composes all cells, takes the records of those measured before, and has the rest measured.

    on_slurm: cells run on nodes of which this machine knows nothing. packs: they can run beside each other here.
    """

    on_slurm, packs = False, False

    def __init__(self, **_: Any) -> None:
        """The options are in each cell's configuration too, and read there."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from multicard.sweep.streak import Streak

        self.hydra_context, self.config = hydra_context, config
        self.command = command_of(task_function)
        self.streak = Streak()  # over all batches of the command

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from multicard.sweep import objective

        if self.command.abandoned:
            return []  # an earlier batch of the sweep was interrupted
        self.command.is_sweep = True
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        own_sweeper = self.config.hydra.sweeper._target_ == CELLS
        refuse_race(self.config, self.on_slurm, own_sweeper, self.config.hydra.sweeper.get("max_batch_size"))
        objective.refuse(self.command.workload, self.config.objective)
        if self.config.gpus_auto:
            job_overrides = self._with_gpus(job_overrides)
        if not own_sweeper:
            sweep = self._measure_for_another(job_overrides, initial_job_idx)
            if not starts_nothing(self.config):
                return objective.returns(sweep.every, self.config.objective)
            if self.config.hydra.sweeper._target_ != BASIC:
                raise objective.NothingMeasuredError
            return objective.returns(sweep.every, None)
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

        config, pack = self.config, None
        auto_gpus.refuse(config, self.on_slurm)
        if self.packs and config.exclusive is False and config.max_jobs != 1:
            from multicard.decide.plan import planning

            pack = planning.pick
        return auto_gpus.resolve(self.command, self.hydra_context, config, job_overrides, pack)

    def _measure_for_another(self, job_overrides: Sequence[Sequence[str]], first: int) -> "Sweep":
        """Measure cells for a sweeper that is not multicard's.

        Raises:
            ValueError: what multicard's sweeper alone can do.
            KeyboardInterrupt: cells are left: the sweeper would go on without them.
        """
        from multicard import workloads
        from multicard.sweep import axes

        config, remedy = self.config, "leave hydra/sweeper out"
        instead = f"{remedy}, or sweep repetition=1,2,3"
        require(config.repeat == "1", f"repeat={config.repeat}: needs multicard's own sweeper; {instead}")
        every = config.hydra.runtime.choices.get("experiment") == workloads.ALL
        require(not every, f"experiment={workloads.ALL}: needs multicard's own sweeper; {remedy}")
        if config.scale == "smoke":
            job_overrides = [axes.shrunk(words, config.hydra.experiment.smoke) for words in job_overrides]
        sweep = self._measure_batch(job_overrides, first)
        if self.command.abandoned:
            raise KeyboardInterrupt
        return sweep

    def _measure_until_sure(self, job_overrides: Sequence[Sequence[str]], first: int) -> None:
        from multicard.messages import say
        from multicard.sweep.until_sure import UntilSure

        rounds = UntilSure(self.config, job_overrides)
        while rounds.batch:
            first += len(rounds.batch)
            sweep = self._measure_batch(rounds.batch, first - len(rounds.batch), rounds.plan)
            if starts_nothing(self.config) and sweep.left:
                say(f"repeat=auto: then as often as needed, at most repeat_max={self.config.repeat_max} times each")
                return
            rounds.take(sweep.cells)
            if self.command.abandoned:
                return
        rounds.say()

    def _measure_batch(
        self,
        job_overrides: Sequence[Sequence[str]],
        first: int,
        check: "Callable[[list[Cell]], None]" = lambda _: None,
    ) -> "Sweep":
        """Measure cells, or say what would be measured, or what that would take.

        Args:
            first: Hydra's number of the first.
            check: may refuse them all, before any is started.
        """
        from multicard.sweep import cells, fit

        sweep = cells.compose(self.command, self.hydra_context, self.config, job_overrides, first)
        check(sweep.cells)
        cells.settle(sweep)
        if not starts_nothing(self.config):
            sweep.record_refused()
        if self.config.predict.enabled:
            from multicard.sweep import predicted

            predicted.show(sweep, self.on_slurm)
            return sweep
        fit.check(sweep, self.on_slurm)
        if self.config.race.figure is not None:
            (self._show_race if self.config.dry_run else self._race)(sweep)
        elif self.config.dry_run:
            self.show(sweep)
        else:
            self._measure(sweep)
        return sweep

    def _measure(self, sweep: "Sweep") -> None:
        """Measure the cells that are left, whatever ends that early."""
        from multicard.sweep import streak

        sweep.record_refused()
        try:
            if self.streak.ends(sweep.left):  # by what failed in earlier batches
                raise self.streak.error()
            if sweep.left:
                self.measure(sweep)
        except KeyboardInterrupt:
            sweep.say_left()
        except streak.SameFailureError as stopped:
            sweep.say_left(f"stopped, {stopped}")
        finally:
            sweep.finish()

    def _show_race(self, sweep: "Sweep") -> None:
        """Check the cells as a race of them would, and print what it would do."""
        from multicard.decide.race import grid
        from multicard.sweep import dry_run

        self._say_left_out(sweep)
        if sweep.cells:
            grid.refuse(str(self.config.race.figure), sweep.cells)
        dry_run.check(sweep, sweep.cells)
        how = f"cells of race={self.config.race.figure}, the best of them in full"
        dry_run.show(sweep, [("-", sweep.cells)], how)

    def _race(self, sweep: "Sweep") -> None:
        """Find the best of the cells, and measure it."""
        from multicard.decide.race import live
        from multicard.messages import say
        from multicard.records.journal import JournalError
        from multicard.sweep import streak
        from multicard.sweep.cells import Sweep

        self._say_left_out(sweep)
        finals = Sweep(self.command, refused=[cell for cell in sweep.refused if cell.is_mistake])
        try:
            live.run(sweep, finals)
        except (KeyboardInterrupt, streak.SameFailureError, JournalError) as stopped:
            self.command.abandoned = True
            why = "interrupted" if isinstance(stopped, KeyboardInterrupt) else f"stopped, {stopped}"
            say(f"{why}; to go on with the race: {sweep.resume_command()}", error=True)
        finally:
            finals.finish()

    def _say_left_out(self, sweep: "Sweep") -> None:
        """Say which cells a race leaves out."""
        from multicard.messages import say

        for cell in sweep.refused:
            if not cell.is_mistake:
                say(f"{cell.label}out: {cell.reason}")
        if not sweep.cells:
            say(f"race={self.config.race.figure}: no cell is left", error=True)
            self.command.abandoned = True

    @abstractmethod
    def measure(self, sweep: "Sweep") -> None:
        """Measure the cells that are left, and set their `result`.

        Raises:
            ValueError: what no cell can work with, before any is started.
            KeyboardInterrupt: on Ctrl-C, once what ran has ended.
            SameFailureError: the cells that are left would fail as those before.
        """

    @abstractmethod
    def show(self, sweep: "Sweep") -> None:
        """Check the cells as `measure` would, and print what it would do."""


def command_of(task_function: TaskFunction) -> "Command":
    """The command that Hydra runs: its task is `Task.measure`."""
    return task_function.__self__.command  # pyright: ignore[reportFunctionMemberAccess]


class LocalLauncher(SweepLauncher):
    """The default: cells one after the other, in this process. A bad cell does not stop the rest, as it would with
    Hydra's own launcher."""

    def measure(self, sweep: "Sweep") -> None:
        from multicard.machine import shares

        with shares.announced([cell.config for cell in sweep.left]):
            self._measure_in_turn(sweep)

    def _measure_in_turn(self, sweep: "Sweep") -> None:
        from multicard.sweep import task
        from multicard.sweep.executor import Pace

        left = sweep.left
        pace, streak = Pace(len(left)), self.streak
        for index, cell in enumerate(left, 1):
            done = run_job(
                hydra_context=self.hydra_context,
                task_function=lambda _, cell=cell: task.run(self.command, cell),
                config=cell.composed,
                job_dir_key="hydra.sweep.dir",
                job_subdir_key="hydra.sweep.subdir",
            )
            _ = done.return_value  # raises what the task raised: a defect, never a run's end
            assert cell.result is not None
            if cell.result.status == "interrupted":
                raise KeyboardInterrupt
            pace.say_progress([cell])
            streak.add(cell)
            if streak.ends(left[index:]):
                raise streak.error()

    def show(self, sweep: "Sweep") -> None:
        from multicard.sweep import dry_run

        dry_run.check(sweep, sweep.left)
        dry_run.show(sweep, [("-", sweep.left)], "runs of this process, one after the other")


class SubmititLocalLauncher(SweepLauncher):
    """`hydra/launcher=submitit_local`: each cell is a process, on GPUs or cores of this machine that no other has."""

    packs = True

    def measure(self, sweep: "Sweep") -> None:
        from multicard.sweep import executor

        executor.run_all(sweep, self.streak)

    def show(self, sweep: "Sweep") -> None:
        from multicard.config.job import count
        from multicard.machine import shares
        from multicard.sweep import dry_run

        machine = shares.machine()
        how = f"processes on this machine, {count(len(machine.gpus), 'GPU')} and {count(len(machine.cpus), 'core')}"
        dry_run.check(sweep, sweep.left)
        dry_run.show(sweep, [("-", sweep.left)], how)


class SlurmLauncher(SweepLauncher):
    """`hydra/launcher=submitit_slurm`: each cell is a job of SLURM, with the resources of its own configuration."""

    on_slurm = True

    def measure(self, sweep: "Sweep") -> None:
        from multicard.sweep import slurm_submit, slurm_wait

        slurm_wait.wait(sweep, slurm_submit.submit(sweep), self.streak)

    def show(self, sweep: "Sweep") -> None:
        from multicard.sweep import dry_run, slurm_submit

        queued = slurm_submit.queued_jobs(sweep.left)
        dry_run.check(sweep, [cell for cell in sweep.left if cell.number not in queued], on_slurm=True)
        unsubmitted = [cell for cell in sweep.left if cell.number not in queued]
        groups = [(array.in_words(), array.cells) for array in slurm_submit.arrays(unsubmitted)]
        dry_run.show(sweep, groups, "arrays of SLURM", queued=len(queued))
