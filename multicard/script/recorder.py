"""The steps of a script on one rank, as its hooks and marks tell of them.

Times are laps between these calls: of the host on CPU, and on CUDA between events in the stream,
once the model is there. They are read when the device has passed them,
and nothing waits for it before the end.
"""

import math
import sys
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from multicard.config.script import ScriptConfig
from multicard.config.sweeps import pauses
from multicard.measure import memory
from multicard.measure.timing import Laps, Ranges, clock_s
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.gates import Gate, Pausing, Probing
from multicard.ranks.process import Rank
from multicard.records.progress import Board, LossPeek
from multicard.records.rank_files import CountedEpoch, ScriptReport
from multicard.records.trained_weights import Held
from multicard.run.rank_report import RankReportWriter
from multicard.script.batches import BatchSource, Draws
from multicard.script.contributions import Contributions
from multicard.script.evaluation_passes import EvaluationPasses
from multicard.script.gaps import Gaps
from multicard.script.left_files import LeftFiles
from multicard.script.losses import Losses
from multicard.script.marks import step
from multicard.script.parts import ModelInputs
from multicard.script.passes import Pass, StepData
from multicard.script.seen import Seen, sentences
from multicard.script.step_times import Lap, StepTimes
from multicard.script.threads import Threads
from multicard.script.weights import TrainedParameters

TAKEN = 32  # steps whose laps are read together
UNKNOWN_STEPS = 0  # of an epoch
# by which ranks train together without a process group
EXCHANGING = ("horovod.torch", "byteps.torch")


def _is_grouped() -> bool:
    is_joined = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
    return is_joined or any(name in sys.modules for name in EXCHANGING)


class EndedError(BaseException):
    """Ends a script after the step at which it is to stop. Frameworks let it pass,
    as it is no `Exception`.
    """


class Recorder:
    """Measures the steps of this rank, posts them, ends them where they are to end,
    and writes the rank's report.

    Attributes:
        optimizers: calls that counted as steps. others: ids of further ones. skipped: steps that a
            GradScaler left out. is_over: nothing is measured any more.
    """

    def __init__(self, rank: Rank, config: ScriptConfig, folder: Path) -> None:
        self.rank = rank
        self.config = config
        self.folder = folder
        self.report = RankReportWriter(ScriptReport, rank, folder, {})
        self.board = Board(folder, rank.world_size)
        self.window = TrainingWindow(config.profile, rank, folder, Ranges(rank.device))
        self.peek = LossPeek(rank.device)
        self.gate = self._gate()
        self._length = sys.maxsize if pauses(config) else config.steps or sys.maxsize
        self._races_tokens = config.race.figure == "tokens_per_s"
        self.optimizers = list[str]()
        self.others = set[int]()
        self.skipped = 0
        self.is_over = False
        self.draws = Draws()
        self.losses = Losses()
        self.contributions = Contributions()
        self.trained = TrainedParameters()
        self.threads = Threads()
        self.left_files = LeftFiles()
        self.inputs = ModelInputs()
        self.steps = self.evaluations = 0
        self._laps = Laps(torch.device("cpu"))
        self._started_s: float | None = None
        self._closing = Lock()
        self._stopped = self._marked = self._in_step = self._evaluating = self._with_gradients = (
            False
        )
        self._gaps = Gaps(self._end_lap)
        self._evaluated = 0  # evaluations that drew batches since the last step
        self._evaluation_passes = EvaluationPasses()
        self._grouped = True
        self._times = StepTimes()
        self._counted: list[bool] = []  # of each step of an optimiser
        # samples and tokens of each step, by its mark
        self._told: list[tuple[int | None, int | None]] = []
        self._samples = self._tokens = 0  # as they are posted
        self._left_out: list[int] = []
        self._left_out_by_mode: list[int] = []  # alone
        # steps with an evaluation before them that modules' modes show
        self._after_mode: set[int] = set()
        self._pending_loss: Any = None
        self._accuracy: Any = None
        self._logged: dict[str, Any] = {}

    def _gate(self) -> Gate | None:
        config = self.config
        rank = self.rank
        if not config.probe.enabled:
            return None
        if not pauses(config):
            return Probing(config, rank, rank.device, self.board, config.steps or UNKNOWN_STEPS)
        return Pausing(
            rank,
            rank.device,
            self.board,
            self.folder,
            config.steps or UNKNOWN_STEPS,
            config.warmup_steps,
            last_loss=self._last_loss,
            held=self._held,
        )

    # ---- what the hooks and marks tell

    def trains_here(self) -> None:
        """The first gradients are computed, in this thread."""
        if self.threads.trains_here():
            self._evaluated = 1  # how long the first step waited is not known
            self.contributions.operations.trains_here()

    def begins_pass(self, loader: Any) -> None:
        """A loader is about to begin a pass: its workers start."""
        self.contributions.rest()
        if (
            self.threads.is_elsewhere()
            or self.is_over
            or self._started_s is None
            or not self._gaps.seems_open
        ):
            return
        is_of_training = self.draws.is_known(BatchSource(loader.dataset, loader._index_sampler))
        if is_of_training and torch.is_grad_enabled() and not self._evaluating:
            self._training_draws()

    def asks(self, one: Pass) -> bool:
        """A batch is asked for. Returns True where it is for training."""
        trains = self.draws.asks(one.source)
        if self.draws.without_step and self.draws.begins_anew(one.source):
            self._evaluated += 1
            self.evaluations += 1
        if trains and self._started_s is None:
            self._start()
        if one.in_thread:
            return trains  # no time of the training's
        with_gradients = torch.is_grad_enabled()
        # one without them has ended before
        if self._evaluating and (trains or with_gradients > self._with_gradients):
            self._end_evaluation(Lap.evaluated)
        if self._evaluating:
            self.evaluations += self._evaluation_passes.draws(one)
            self._laps.end(Lap.evaluate)
        elif self._started_s is not None and trains:
            self._training_draws()
            self._laps.end(self._work())
        elif self._started_s is not None:
            self._laps.end(self._gaps.work(self._work()))
            self._evaluating = True
            self._with_gradients = with_gradients
            self._gaps.draws_evaluation()
            self._evaluation_passes.begins(one)
            self._evaluated += 1
            self.evaluations += 1
        return trains

    def receives(self, one: Pass, trains: bool, size: int | None) -> None:
        """The batch is there, of so many samples."""
        if self.is_over:
            return
        if (trains or self._evaluating) and not one.in_thread:
            self._laps.end(Lap.data if trains else Lap.evaluate_wait)
        if trains and one.in_thread:
            self.threads.waits_known = False
        elif trains and self.window.recording:
            self.window.ranges.close()
        self.draws.add(one, trains, size)

    def exhausted(self, one: Pass, trains: bool, handed_out: int) -> None:
        """There is no further batch, after so many."""
        if self.is_over:
            return
        self.draws.ends(one, handed_out)
        if one.in_thread:
            return
        if trains:
            self._laps.end(Lap.data)
            self._gaps.is_between = self.steps > 0
        elif self._evaluating:
            self._end_evaluation(Lap.evaluated)

    def sets_mode(self, module: Any, trains: bool) -> None:
        """A module is set to training, or to evaluation: what lies
        between may be an evaluation without a loader.
        """
        if self.steps == 0 or self._marked or self._evaluating:
            return
        if self._gaps.sets_mode(module, trains, self._work()):
            self._evaluation_without_loader()

    def _end_lap(self, label: Lap) -> None:
        self._laps.end(label)

    def _training_draws(self) -> None:
        if self._gaps.training_draws():
            self._evaluation_without_loader()

    def _evaluation_without_loader(self) -> None:
        self.evaluations += 1
        if self.gate is not None:
            self.gate.start_epoch()

    def _work(self) -> Lap:
        return Lap.work if self._in_step or not self._marked else Lap.apart

    def steps_now(self) -> None:
        """An optimiser begins a step: where neither a batch nor a mark came before,
        the clock starts here.
        """
        if self._started_s is None and not self.is_over:
            self._start()
            self._evaluated = 1  # when the step began is not known

    def counts_steps_of(self, optimizer: torch.optim.Optimizer, together: int) -> None:
        """Another optimiser's steps count from this one on, which has so many of them in it."""
        self.others.discard(id(optimizer))
        name = f"{type(optimizer).__name__}.step" + (
            f" (its first {together} as one)" if together > 1 else ""
        )
        if name not in self.optimizers:
            self.optimizers.append(name)
        self._evaluated += together > 1  # and is left out
        self.trained.counts(optimizer)

    def counts_turn_of(self, optimizer: torch.optim.Optimizer) -> None:
        """A step of another optimiser counts, in its turn with the one whose steps count."""
        self.others.discard(id(optimizer))
        name = f"{type(optimizer).__name__}.step"
        if name not in self.optimizers:
            self.optimizers.append(name)

    def end_counted_step(self) -> None:
        """The optimiser that counts has ended a step, or left it out."""
        self.trained.stepped()
        if not self._marked and not self.is_over:
            self._end_step(None, None, self._pending_loss)

    def ends_uncounted(self, optimizer: torch.optim.Optimizer, may_count: bool) -> None:
        """Another optimiser has ended a step, which does not count, or not yet."""
        self.others.add(id(optimizer))
        self.draws.step_uncounted()
        if may_count and not self._marked and not self.is_over and self.steps:
            self._laps.end(self._gaps.part())
            self._counted.append(False)
            self.draws.may_end_step()

    def count_part(self) -> None:
        """The last step that did not count was the first of a phase."""
        if self._marked or self.is_over or not self._counted or self._counted[-1]:
            return
        self._counted[-1] = True
        self.draws.ends_step()
        self._told.append((None, None))
        self.steps += 1

    def begin_step(self) -> None:
        """The script begins a step that it marks."""
        if self.is_over:
            return
        if self._started_s is None:
            self._start()
        if self._evaluating:
            self._end_evaluation()
        self._laps.end(Lap.apart)
        self._gaps.step_ended(resumed=True)
        self._marked = self._in_step = True

    def end_step(self, mark: step) -> None:
        """The marked step has ended."""
        if self.is_over or not self._in_step:
            return
        self._in_step = False
        self._evaluated = 0
        self._end_step(
            mark.samples, mark.tokens, self._pending_loss if mark.loss is None else mark.loss
        )

    def log(self, values: dict[str, Any]) -> None:
        """The script tells figures."""
        for name, value in values.items():
            if name == "loss":
                between = not self._in_step and not self.draws.asked
                if self.steps and between and self.steps - 1 not in self.losses:
                    self._keep_loss(self.steps - 1, value)
                else:
                    self._pending_loss = value
            elif name == "accuracy":
                self._accuracy = value
            else:
                self._logged[name] = value

    # ---- steps

    def _start(self) -> None:
        if self.gate is not None:
            self.gate.begin()
        self.report.counters.read()
        self._started_s = self.report.content.started_s = clock_s()
        self.report.write()
        self._post()
        self.window.open()
        self.window.step()
        if self.gate is not None:
            self.gate.start_epoch()
        self._laps = Laps(torch.device("cpu"))

    def _end_evaluation(self, label: Lap = Lap.evaluate) -> None:
        self._laps.end(label)
        self._evaluating = False
        if self.gate is not None:
            self.gate.start_epoch()

    def _end_step(self, samples: int | None, tokens: int | None, loss: Any) -> None:
        if self._evaluating:
            self._end_evaluation()
        is_watched = self.contributions.is_open
        self.contributions.step_ends(self.draws.handed_out(), self.draws.known)
        drawn, resumed = self.draws.take(self.contributions.joined)
        self._laps.end(Lap.resumed if resumed else Lap.step)
        self._counted.append(True)
        if resumed:
            self.evaluations -= self._evaluation_passes.count
            self._evaluated -= 1
        self._told.append((samples, tokens))
        self._samples += sum(one.size or 0 for one in drawn) if samples is None else samples
        self._tokens += tokens or 0
        if self._gaps.evaluations:
            self._after_mode.add(self.steps)
        if self._evaluated > 0 or is_watched:
            self._left_out.append(self.steps)
        elif self._gaps.evaluations:
            self._left_out_by_mode.append(self.steps)
        self._gaps.step_ended(resumed)
        self._evaluated = 0
        self._pending_loss = None
        if loss is not None:
            self._keep_loss(self.steps, loss)
        self.steps += 1
        self.inputs.step_ends(self.steps)
        if self.steps == 1:
            self._see_model()
        elif not self._grouped:  # ranks may join after steps of their own
            self._grouped = _is_grouped()
        if self.steps % TAKEN == 0:
            self._take()
        if self.window.recording:
            self.window.step()
        self._post()
        if self.gate is not None and self.gate.step_ended(self.steps):
            self._laps.end(Lap.pause)
        # ranks that exchange nothing may be past the step: those stop as soon as they see it
        if self.steps >= self._length or 0 < self.board.stop_at <= self.steps:
            self._stopped = True
            self.leave()
            raise EndedError

    def _see_model(self) -> None:
        """After the first step: which clock tells the next ones,
        and whether ranks train together.
        """
        device = self.rank.device
        if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.memory_allocated():
            self._take()
            self._laps = Laps(torch.device("cuda", torch.cuda.current_device()))
        self._grouped = _is_grouped()

    def _take(self, wait: bool = False) -> None:
        """Add the laps that are known by now."""
        for label, seconds in self._laps.known(wait):
            self._times.add(label, seconds)

    def _keep_loss(self, number: int, loss: Any) -> None:
        self.losses.add(number, loss)
        if isinstance(loss, torch.Tensor):
            self.peek.offer(loss.detach().reshape(-1)[0])
        else:
            self.peek.value = float(loss)

    def _last_loss(self) -> float:
        losses, told = self.losses.read(self.steps)
        return float(losses[-1]) if len(told) and told[-1] else 0.0

    def _held(self) -> Held:
        """What this rank has trained so far."""
        if self.rank.world_size == 1:
            return Held()
        return Held(self._grouped, self.trained.digests())

    def _post(self) -> None:
        """Show the controller how far this rank is."""
        done = self._tokens if self._races_tokens else self._samples
        self.board.post(
            self.rank.rank, self.steps, self.config.steps or -1, done, 0, self.peek.value
        )

    # ---- the end

    def leave(self) -> None:
        """Measure nothing any more."""
        self.is_over = True
        self.contributions.finish()
        self.inputs.close()

    def close(self, is_whole: bool = False) -> None:
        """Write the report and the steps, once. Waits for the device, and for another thread that
        writes them: its process must not end meanwhile, where a script fails as it is told to end.

        Args:
            is_whole: the script ended by itself, or after the step at which it was to stop. Only
                then is the device
                asked what the parameters hold: one that hangs would not answer.
        """
        self.leave()
        with self._closing:
            started_s, self._started_s = self._started_s, None
            if started_s is not None:
                self._write(started_s, is_whole)
            self.trained.release()

    def _write(self, started_s: float, is_whole: bool) -> None:
        self._take(wait=True)
        self._times.close()
        self.report.counters.read()
        content = self.report.content
        times = self._times.of_steps(self._counted)
        steps = len(times)
        left_out = self._left_out
        if 2 * len(self._left_out_by_mode) > steps:  # as where rollouts come before each update
            times[:, 0] += times[:, 2]
        else:
            left_out = sorted({*left_out, *self._left_out_by_mode})
            self._times.evaluate_s += float(times[:, 2].sum())
        unseen = [one for one in self.threads.evaluated() if one.begun_at not in self._after_mode]
        evaluations_known = not unseen
        waits_known = self.threads.waits_known
        self.evaluations += len(unseen)
        left_out = sorted({*left_out, *self.threads.begun_before(steps)})
        data = self.data(is_stopped=self._stopped or not is_whole)
        losses, told = self.losses.read(steps)
        columns = {
            "step_s": times[:, 0],
            "data_s": times[:, 1] if waits_known else np.full(steps, math.nan),
            "loss": losses,
            "samples": data.samples[:steps],
            "tokens": np.array([tokens or 0 for _, tokens in self._told[:steps]], dtype=np.int64),
            "batches": data.batches[:steps],
            "loss_told": told.astype(np.int8),
        }
        if steps:
            self.report.write_steps(0, columns)
            content.epochs = [
                CountedEpoch(0, float(times[:, 0].sum()), self._times.total_s, steps=steps)
            ]
        content.spans_s = [(started_s, started_s + self._times.span_s)]
        content.left_out = [number for number in left_out if number < steps]
        content.samples_unknown = (
            np.flatnonzero(data.unknown[:steps]).tolist() if self.draws.ever else []
        )
        tells_samples = all(samples is not None for samples, _ in self._told)
        if self.inputs.trained is not None and not tells_samples:
            content.trained_part = [*self.inputs.trained]
        content.calls_per_step = float(np.median(data.calls)) if len(data.calls) else 0.0
        content.evaluate_s = self._times.evaluate_s if evaluations_known else None
        content.loads = self.draws.ever
        content.waits_known = waits_known
        content.threads = torch.get_num_threads()
        content.peak_memory_bytes = memory.peak_memory_bytes(self.rank.device)
        content.test_accuracy, content.logged = self._figures()
        messages = sentences(self._seen(bool(told.any()), evaluations_known), data, self._times)
        content.seen = [str(message) for message in messages]
        content.seen_codes = [message.code for message in messages]
        if self.gate is not None:
            content.probe = self.gate.result()
            content.probe.left_out = sorted({*content.probe.left_out, *content.left_out})
        content.profile = self.window.close()
        content.grouped = self._grouped
        content.stopped = self._stopped or not is_whole
        if is_whole:
            content.weights = self._held().weights
        self.report.write()

    def data(self, is_stopped: bool = False) -> StepData:
        """What each step trained on, by the batches and as the script's marks tell it."""
        data = self.draws.of_steps(self.contributions, is_stopped)
        for number, (samples, _) in enumerate(self._told):
            if samples is not None:
                data.samples[number] = samples
                data.unknown[number] = False
        if not self.draws.ever:
            data.unknown = data.samples == 0
        return data

    def _seen(self, tells_loss: bool, evaluations_known: bool) -> Seen:
        return Seen(
            steps=self.steps,
            step_names=["multicard.step"] if self._marked else self.optimizers,
            stopped_after=self.steps if self._stopped and self.config.steps == self.steps else None,
            others=len(self.others),
            skipped=self.skipped,
            evaluations=max(0, self.evaluations),
            trained_alone=self.rank.world_size > 1 and not self._grouped,
            loads=self.draws.ever,
            waits_known=self.threads.waits_known,
            evaluations_known=evaluations_known,
            tells_loss=tells_loss,
            went_on_from=self.left_files.went_on_from(),
        )

    def _figures(self) -> tuple[float | None, dict[str, float]]:
        """The accuracy, where it is a share, and the other figures that are numbers."""
        told = {name: float(value) for name, value in self._logged.items()}
        accuracy = None if self._accuracy is None else float(self._accuracy)
        if accuracy is not None and not 0 <= accuracy <= 1:
            accuracy, told["accuracy"] = None, accuracy
        return accuracy, {name: value for name, value in told.items() if math.isfinite(value)}
