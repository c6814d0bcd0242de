"""Records the steps of a script on one rank, from what its hooks and marks report."""

import math
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch

from multicard.config.script import ScriptConfig
from multicard.config.sweeps import pauses
from multicard.measure import memory
from multicard.measure.timing import Ranges
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.process import Rank
from multicard.records.rank_files import CountedEpoch, ScriptReport
from multicard.run.rank_report import RankReportWriter
from multicard.run.training_progress import TrainingProgress
from multicard.script.activity import Activity
from multicard.script.batches import BatchSource, Draws
from multicard.script.contributions import Contributions
from multicard.script.counted_optimizers import CountedOptimizers
from multicard.script.left_files import LeftFiles
from multicard.script.left_out_steps import LeftOutSteps
from multicard.script.marks import step
from multicard.script.parts import ModelInputs
from multicard.script.passes import Pass, StepData
from multicard.script.reported_figures import ReportedFigures
from multicard.script.seen import Seen, sentences
from multicard.script.step_amounts import StepAmounts
from multicard.script.step_clock import StepClock
from multicard.script.step_times import Lap
from multicard.script.threads import Threads
from multicard.script.trained_together import TrainedTogether

UNKNOWN_STEPS = 0  # Steps of an epoch, if the script is to run to its end.


class EndedError(BaseException):
    """Ends a script after the step at which it is to stop.

    It is no `Exception`, so that frameworks let it pass.
    """


class Recorder:
    """Measures this rank's steps, publishes its progress, stops the script after the configured
    number of steps, and writes the rank's report.

    Its methods are what hooks and marks call. Each attribute owns a part of what is recorded.

    Attributes:
        is_over: nothing is measured any more.
    """

    def __init__(self, rank: Rank, config: ScriptConfig, folder: Path) -> None:
        self.config = config
        self.report = RankReportWriter(ScriptReport, rank, folder, {})
        self.window = TrainingWindow(config.profile, rank, folder, Ranges(rank.device))
        self.clock = StepClock()
        self.optimizers = CountedOptimizers()
        self.amounts = StepAmounts(races_tokens=config.race.figure == "tokens_per_s")
        self.figures = ReportedFigures(rank.device)
        self.together = TrainedTogether(rank.world_size)
        self.progress = self._progress(rank, folder)
        self.left_out = LeftOutSteps()
        self.activity = Activity(self.clock, self.left_out, self.progress.start_epoch)
        self.draws = Draws()
        self.contributions = Contributions()
        self.inputs = ModelInputs()
        self.threads = Threads()
        self.left_files = LeftFiles()
        self.is_over = False
        self._closing = Lock()

    def _progress(self, rank: Rank, folder: Path) -> TrainingProgress:
        config = self.config
        progress = TrainingProgress(
            rank,
            folder,
            loss=lambda: self.figures.peek.value,
            total=config.steps or -1,
            in_lockstep=False,
        )
        progress.add_gate(
            config,
            rank.device,
            config.steps or UNKNOWN_STEPS,
            config.warmup_steps,
            last_loss=lambda: self.figures.last_loss(progress.steps),
            held=self.together.held,
        )
        return progress

    # ---- what hooks report

    def train_in_this_thread(self) -> None:
        """The first gradients are computed, in this thread."""
        if self.threads.train_in_this_thread():
            self.left_out.leave_out_unseen_start()  # How long it waited for data is not known.
            self.contributions.operations.use_this_thread()

    def begin_pass(self, loader: Any) -> None:
        """A loader is about to begin a pass: its workers start."""
        self.contributions.pause()
        if self.threads.is_elsewhere() or self.is_over or not self.clock.is_running:
            return
        activity = self.activity
        if not activity.gaps.seems_open or activity.is_evaluating or not torch.is_grad_enabled():
            return
        if self.draws.is_known(BatchSource(loader.dataset, loader._index_sampler)):
            activity.go_on_training()

    def ask_batch(self, data_pass: Pass) -> bool:
        """A batch is asked for. Return True if it is for training."""
        trains = self.draws.ask_batch(data_pass.source)
        if self.draws.without_step and self.draws.drop_evaluated_pass(data_pass.source):
            self.activity.count_evaluation()
        if trains and not self.clock.is_running:
            self._start()
        if not data_pass.in_thread:  # Another thread takes none of the training's time.
            self.activity.ask_batch(data_pass, trains)
        return trains

    def receive_batch(self, data_pass: Pass, trains: bool, batch: Any, size: int | None) -> None:
        """A batch of so many samples was handed out; None: nobody knows how many."""
        if self.is_over:
            return
        if not data_pass.in_thread:
            self.activity.receive_batch(trains)
        if trains and data_pass.in_thread:
            self.threads.waits_known = False
        elif trains and self.window.recording:
            self.window.ranges.close()
        self.draws.add(data_pass, trains, size)
        self.contributions.receive_batch(data_pass, trains, batch)
        if trains and not data_pass.in_thread:
            self.inputs.receive_batch(batch, size)

    def end_pass(self, data_pass: Pass, trains: bool, handed_out: int) -> None:
        """A loader has no further batch, after so many."""
        if self.is_over:
            return
        self.draws.end_pass(data_pass, handed_out)
        if not data_pass.in_thread:
            self.activity.end_pass(trains, self.progress.steps)

    def set_mode(self, module: Any, trains: bool) -> None:
        """A module is set to training or to evaluation."""
        if self.progress.steps > 0:
            self.activity.set_mode(module, trains)

    def begin_optimizer_step(self) -> None:
        """An optimizer begins a step. If neither a batch nor a mark came before, the clock starts
        here.
        """
        if not self.clock.is_running and not self.is_over:
            self._start()
            self.left_out.leave_out_unseen_start()

    def count_steps_of(self, optimizer: torch.optim.Optimizer, together: int) -> None:
        """The steps of another optimizer count from now on; the first has so many in it."""
        self.optimizers.add(optimizer, together)
        if together > 1:
            self.left_out.leave_out_next()
        self.together.parameters.hold(optimizer)

    def end_counted_step(self) -> None:
        """The optimizer that counts has ended a step, or a GradScaler skipped it."""
        self.together.parameters.note_step()
        if not self.activity.is_marked and not self.is_over:
            self._end_step(None, None)

    def end_uncounted_step(self, optimizer: torch.optim.Optimizer, may_count: bool) -> None:
        """Another optimizer has ended a step, which does not count, or not yet."""
        self.optimizers.add_uncounted(optimizer)
        self.draws.note_uncounted_step()
        is_recorded = not self.activity.is_marked and not self.is_over
        if may_count and is_recorded and self.progress.steps:
            self.activity.end_uncounted_step()
            self.draws.note_possible_end()

    def count_last_step(self) -> None:
        """The last step that did not count was the first of a phase."""
        if self.activity.is_marked or self.is_over or not self.clock.count_last_step():
            return
        self.draws.add_noted_end()
        self.amounts.add_unmarked()
        self.progress.steps += 1

    # ---- what the script's marks report

    def begin_step(self) -> None:
        """The script begins a step that it marks."""
        if self.is_over:
            return
        if not self.clock.is_running:
            self._start()
        self.activity.begin_mark()

    def end_step(self, mark: step) -> None:
        """The marked step has ended."""
        if self.is_over or not self.activity.is_in_mark:
            return
        self.activity.end_mark()
        self._end_step(mark.samples, mark.tokens, mark.loss)

    def log(self, values: dict[str, Any]) -> None:
        """The script logs figures."""
        steps = self.progress.steps
        is_between_steps = not self.activity.is_in_mark and not self.draws.asked
        self.figures.log(values, steps - 1 if steps and is_between_steps else None)

    # ---- steps

    def _start(self) -> None:
        self.progress.begin()
        self.report.counters.read()
        self.report.content.started_s = self.clock.start()
        self.report.write()
        self.progress.post()
        self.window.open()
        self.window.step()
        self.progress.start_epoch()
        self.clock.start_lap()

    def _end_step(self, samples: int | None, tokens: int | None, loss: Any = None) -> None:
        """End a step.

        Args:
            samples: as its mark says; None if nothing does. tokens: the same.
            loss: as its mark says.
        """
        self.activity.end_open_evaluation()
        is_watched = self.contributions.is_open
        self.contributions.end_step(self.draws.handed_out(), self.draws.known)
        drawn, resumed = self.draws.end_step(self.contributions.joined)
        is_after_mode = self.activity.end_step(resumed)
        number = self.progress.steps
        self.left_out.end_step(number, is_watched, is_after_mode)
        self.figures.end_step(number, loss)
        self.inputs.end_step(number + 1)
        self.together.end_step(number + 1)
        if number == 0:
            self.clock.use_device(self.report.rank.device)
        if self.window.recording:
            self.window.step()
        if self.progress.end_step(self.amounts.add(samples, tokens, drawn)):
            self.clock.lap(Lap.pause)
        if self._is_last_step():
            self.progress.is_stopped = True
            self.leave()
            raise EndedError

    def _is_last_step(self) -> bool:
        steps = self.config.steps
        # A cell of a race trains until the race stops it.
        is_at_end = steps is not None and self.progress.steps >= steps and not pauses(self.config)
        return is_at_end or self.progress.is_stopped

    # ---- the end

    def leave(self) -> None:
        """Measure nothing any more."""
        self.is_over = True
        self.contributions.finish()
        self.inputs.close()

    def close(self, is_whole: bool = False) -> None:
        """Write the report and the steps, once.

        Waits for the device, and for another thread that writes them: the process must not end
        meanwhile if the script fails while it is told to end.

        Args:
            is_whole: the script ended by itself, or after the step at which it was to stop. Only
                then is the device asked what the parameters hold: one that hangs would not answer.
        """
        self.leave()
        with self._closing:
            started_s = self.clock.stop()
            if started_s is not None:
                self._write(started_s, is_whole)
            self.together.parameters.release()

    def _write(self, started_s: float, is_whole: bool) -> None:
        times = self.clock.read_steps()
        self.report.counters.read()
        steps = len(times)
        if self.left_out.is_mode_usual(steps):
            times[:, 0] += times[:, 2]
        else:
            self.clock.times.evaluate_s += float(times[:, 2].sum())
        unseen = [
            data_pass
            for data_pass in self.threads.untrained_passes()
            if not self.left_out.is_after_mode(data_pass.begun_at)
        ]
        self.activity.evaluations += len(unseen)
        is_stopped = self.progress.is_stopped or not is_whole
        data = self.data(is_stopped)
        tells_loss = self._write_steps(times, data)
        content = self.report.content
        content.spans_s = [(started_s, started_s + self.clock.times.span_s)]
        left_out = self.left_out.numbers(steps) | self.threads.begun_before(steps)
        content.left_out = sorted(left_out)
        if self.draws.ever:
            content.samples_unknown = np.flatnonzero(data.unknown[:steps]).tolist()
        if self.inputs.trained is not None and not self.amounts.has_all_samples:
            content.trained_part = [*self.inputs.trained]
        content.calls_per_step = float(np.median(data.calls)) if len(data.calls) else 0.0
        content.evaluate_s = None if unseen else self.clock.times.evaluate_s
        content.loads = self.draws.ever
        content.waits_known = self.threads.waits_known
        content.threads = torch.get_num_threads()
        content.peak_memory_bytes = memory.peak_memory_bytes(self.report.rank.device)
        content.test_accuracy, content.logged = self.figures.accuracy_and_others()
        seen = self._seen(tells_loss, evaluations_known=not unseen)
        messages = sentences(seen, data, self.clock.times)
        content.seen = [str(message) for message in messages]
        content.seen_codes = [message.code for message in messages]
        if self.progress.gate is not None:
            content.probe = self.progress.gate.result()
            content.probe.left_out = sorted({*content.probe.left_out, *content.left_out})
        content.profile = self.window.close()
        content.grouped = self.together.is_grouped
        content.stopped = is_stopped
        if is_whole:
            content.weights = self.together.held().weights
        self.report.write()

    def _write_steps(self, times: np.ndarray, data: StepData) -> bool:
        """Write the columns of the steps. Return True if any loss is known."""
        steps = len(times)
        losses, is_reported = self.figures.losses(steps)
        columns = {
            "step_s": times[:, 0],
            "data_s": times[:, 1] if self.threads.waits_known else np.full(steps, math.nan),
            "loss": losses,
            "samples": data.samples[:steps],
            "tokens": self.amounts.tokens(steps),
            "batches": data.batches[:steps],
            "loss_told": is_reported.astype(np.int8),
        }
        if steps:
            self.report.write_steps(0, columns)
            train_s = float(times[:, 0].sum())
            ended_s = self.clock.times.total_s
            self.report.content.epochs = [CountedEpoch(0, train_s, ended_s, steps=steps)]
        return bool(is_reported.any())

    def data(self, is_stopped: bool = False) -> StepData:
        """Return what each step trained on, by its batches and as the script's marks say."""
        data = self.draws.of_steps(self.contributions, is_stopped)
        self.amounts.replace_samples(data)
        if not self.draws.ever:
            data.unknown = data.samples == 0
        return data

    def _seen(self, tells_loss: bool, evaluations_known: bool) -> Seen:
        steps = self.progress.steps
        is_at_end = self.progress.is_stopped and self.config.steps == steps
        return Seen(
            steps=steps,
            step_names=["multicard.step"] if self.activity.is_marked else self.optimizers.names,
            stopped_after=steps if is_at_end else None,
            others=self.optimizers.uncounted,
            skipped=self.optimizers.skipped,
            evaluations=max(0, self.activity.evaluations),
            trained_alone=self.together.trains_alone,
            loads=self.draws.ever,
            waits_known=self.threads.waits_known,
            evaluations_known=evaluations_known,
            tells_loss=tells_loss,
            went_on_from=self.left_files.went_on_from(),
        )
