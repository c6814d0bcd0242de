"""Measure batches of cells, or only check them, for the launchers."""

import sys
from collections.abc import Callable, Sequence

from hydra.core.utils import configure_log, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig

from multicard.config.job import count
from multicard.config.sweeps import AUTO, refuse_race, starts_nothing
from multicard.machine import shares
from multicard.messages import Message, say
from multicard.records.journal import JournalError
from multicard.sweep import (
    auto,
    auto_refusals,
    cell_checks,
    cells,
    dry_run,
    executor,
    predicted,
    slurm_submit,
    slurm_wait,
)
from multicard.sweep.again import Again
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.command import Command, Conclusion
from multicard.sweep.drive import Drive
from multicard.sweep.grid import Grid, Pace
from multicard.sweep.in_process import InProcess
from multicard.sweep.order import Turn
from multicard.sweep.streak import SameFailureError, Streak
from multicard.sweep.until_sure import UntilSure


class SweepBatches:
    """The batches of one command, with the sweep's configuration.

    `CellLauncher` describes `on_slurm` and `packs`.
    """

    def __init__(
        self,
        command: Command,
        context: HydraContext,
        config: DictConfig,
        on_slurm: bool,
        packs: bool,
    ) -> None:
        self.command = command
        self.context = context
        self.config = config
        self.on_slurm = on_slurm
        self.packs = packs
        self.streak = Streak()
        self.cells: list[Cell] = []

    def launch(self, turns: Sequence[Turn]) -> None:
        """Measure the cells of a batch in their order."""
        if self.command.abandoned:
            return  # An earlier batch of the sweep was interrupted.
        config = self.config
        self.command.is_sweep = True
        setup_globals()
        configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        refuse_race(config, self.on_slurm, config.hydra.sweeper.max_batch_size)
        if config.auto is not None:
            auto_refusals.refuse(config, self.on_slurm, self.packs)
            words = [turn.words for turn in turns]
            resolved = auto.resolve(self.command, self.context, config, words, self.on_slurm)
            turns = [
                Turn(turn.number, turn_words)
                for turn, turn_words in zip(turns, resolved, strict=True)
            ]
        if config.repeat == AUTO:
            self._measure_until_sure(turns)
        else:
            self.cells += self._measure_batch(turns).cells

    def measure_again(self) -> None:
        """Measure disturbed repetitions once more, after all batches have been measured.

        A dry run of a measured sweep only names these repetitions.
        """
        if self.config.predict.enabled or any(cell.result is None for cell in self.cells):
            return
        again = Again(self.config)
        again.take(self.cells)
        while not self.command.abandoned and (turns := again.next_round()):
            sweep = self._measure_batch(turns)
            if sweep.left:
                return
            again.take(sweep.cells)
        if not self.command.abandoned:
            again.say_left()

    def _measure_until_sure(self, turns: Sequence[Turn]) -> None:
        rounds = UntilSure(self.config, turns)
        while rounds.batch:
            sweep = self._measure_batch(rounds.batch, rounds.plan)
            if starts_nothing(self.config) and sweep.left:
                most = self.config.repeat_max
                sentence = (
                    f"repeat=auto: then as often as needed, at most repeat_max={most} times each"
                )
                say(Message("launch.until-sure", sentence, key="repeat", most=most))
                return
            rounds.take(sweep.cells)
            if self.command.abandoned:
                return
        rounds.say()

    def _measure_batch(
        self, turns: Sequence[Turn], check: Callable[[list[Cell]], None] = lambda _: None
    ) -> Sweep:
        """Measure the cells of a batch, or only plan or predict them.

        `check` may refuse all cells before that.
        """
        config = self.config
        sweep = cells.compose(self.command, self.context, config, turns)
        check(sweep.cells)
        cells.settle(sweep)
        if config.predict.enabled:
            predicted.show(sweep, self.on_slurm)
            return sweep
        if not config.dry_run:
            sweep.record_refused()
        predicted.check_fit(sweep, self.on_slurm)
        if config.race.figure is not None:
            self._race(sweep)
        elif config.dry_run:
            self._show(sweep)
        else:
            self._measure(sweep)
        return sweep

    def _race(self, sweep: Sweep) -> None:
        """Find the best of the cells and measure it. A dry run only says how."""
        from multicard.decide.race import command  # This imports scipy, which takes a while.

        # The race itself says which cell is the best.
        self.command.conclude = lambda folders: Conclusion()

        for cell in sweep.refused:
            if not cell.is_mistake:
                label = cell.label.strip()
                reason = cell.reason
                say(
                    Message(
                        "launch.out-of-race", f"{label} out: {reason}", cell=label, reason=reason
                    )
                )
        if not sweep.cells:
            figure = self.config.race.figure
            say(
                Message(
                    "launch.empty-race",
                    f"race={figure}: no cell is left",
                    key="race",
                    figure=figure,
                ),
                error=True,
            )
            self.command.abandoned = True
        if self.config.dry_run:
            if sweep.cells:
                command.refuse(str(self.config.race.figure), sweep.cells)
            cell_checks.check_cells(sweep, sweep.cells)
            figure = self.config.race.figure
            how = Message(
                "launch.as-race", f"cells of race={figure}, the best of them in full", figure=figure
            )
            return dry_run.show(sweep, [("-", sweep.cells)], how)
        finals = Sweep(self.command, refused=[cell for cell in sweep.refused if cell.is_mistake])
        try:
            command.run(sweep, finals)
        except (KeyboardInterrupt, SameFailureError, JournalError) as stopped:
            self.command.abandoned = True
            why = (
                "interrupted" if isinstance(stopped, KeyboardInterrupt) else _stopped(str(stopped))
            )
            command_line = sweep.resume_command()
            sentence = f"{why}; to go on with the race: `{command_line}`"
            say(
                Message("launch.race-ended", sentence, reason=why, command=command_line), error=True
            )
        finally:
            finals.finish()

    def _show(self, sweep: Sweep) -> None:
        """Check the remaining cells as `_measure` would, and print the plan."""
        if not self.on_slurm:
            cell_checks.check_cells(sweep, sweep.left)
            machine = shares.machine()
            how = Message("launch.in-turn", "runs of this process, one after the other")
            if self.packs:
                gpus = len(machine.gpus)
                cores = len(machine.cpus)
                have = f"{count(gpus, 'GPU')} and {count(cores, 'core')}"
                how = Message(
                    "launch.packed", f"processes on this machine, {have}", gpus=gpus, cores=cores
                )
            return dry_run.show(sweep, [("-", sweep.left)], how)
        queued = slurm_submit.queued_jobs(sweep.left)
        cell_checks.check_cells(
            sweep, [cell for cell in sweep.left if cell.number not in queued], on_slurm=True
        )
        arrays = slurm_submit.arrays([cell for cell in sweep.left if cell.number not in queued])
        groups = [(array.in_words(), array.cells) for array in arrays]
        how = Message("launch.arrays", "arrays of SLURM")
        return dry_run.show(sweep, groups, how, queued=len(queued), on_slurm=True)

    def _measure(self, sweep: Sweep) -> None:
        """Measure the remaining cells. If that ends early, name the cells that are left."""
        sweep.record_refused()
        try:
            if self.streak.ends(sweep.left):  # Failures of earlier batches count too.
                raise self.streak.error()
            if not sweep.left:
                return
            if self.on_slurm:
                slurm_wait.wait(sweep, slurm_submit.submit(sweep), self.streak)
            elif self.packs:
                executor.run_all(sweep, self.streak)
            else:
                with shares.announced([cell.config for cell in sweep.left]):
                    self._measure_in_turn(sweep)
        except KeyboardInterrupt:
            sweep.say_left()
        except SameFailureError as stopped:
            sweep.say_left(_stopped(str(stopped)))
        finally:
            sweep.finish()

    def _measure_in_turn(self, sweep: Sweep) -> None:
        """Measure the remaining cells one after the other in this process."""
        sweep.say_start()
        pace = Pace(len(sweep.left), has_bar=sys.stderr.isatty())
        backend = InProcess(self.command, self.context, pace)
        Drive(Grid(sweep.left, pace), backend, self.streak).run()


def _stopped(reason: str) -> Message:
    """Return why a sweep ends before all cells are measured."""
    return Message("launch.stopped", f"stopped, {reason}", reason=reason)
