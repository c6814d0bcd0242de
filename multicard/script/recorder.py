"""The steps of a script on one rank, as its hooks and marks tell of them.

Times are laps between these calls: of the host on CPU, and on CUDA between events in the stream, once the model is
there. They are read when the device has passed them, and nothing waits for it before the end.
"""

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from multicard.config.job import count
from multicard.config.script import ScriptConfig
from multicard.config.sweeps import pauses
from multicard.measure import memory
from multicard.measure.timing import Laps, Ranges, clock_s
from multicard.messages import Message
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.gates import Gate, Pausing, Probing
from multicard.ranks.process import Rank
from multicard.records.progress import Board, LossPeek
from multicard.records.rank_files import CountedEpoch, ScriptReport
from multicard.records.trained_weights import Held
from multicard.run.rank_report import Report
from multicard.script.batches import Draws, Source
from multicard.script.marks import step
from multicard.script.weights import Trained

# Labels of laps. STEP is work that ends a step, RESUMED as well, of new data: what seemed an evaluation belongs to it;
# WAIT is for a batch of an evaluation, EVALUATED its end, APART what lies between steps that are marked, PAUSE a race's
WORK, DATA, STEP, RESUMED, EVALUATE, WAIT, EVALUATED, APART, PAUSE = range(9)
TOGETHER = 256  # losses on the device that become one tensor
TAKEN = 32  # steps whose laps are read together
UNKNOWN_STEPS = 0  # of an epoch
EXCHANGING = ("horovod.torch", "byteps.torch")  # by which ranks train together without a process group


class EndedError(BaseException):
    """Ends a script after the step at which it is to stop. Frameworks let it pass, as it is no `Exception`."""


class Losses:
    """Losses of steps. Those on a device stay there, in a tensor for many, until they are read at the end."""

    def __init__(self) -> None:
        self._known: dict[int, float] = {}
        self._chunks: list[tuple[list[int], torch.Tensor]] = []
        self._last: dict[int, torch.Tensor] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._known or number in self._last

    def add(self, number: int, loss: Any) -> None:
        """Keep the loss of a step."""
        if not isinstance(loss, torch.Tensor) or loss.device.type == "cpu":
            self._known[number] = float(loss)
            return
        self._last[number] = loss.detach().to(torch.float32, copy=True).reshape(-1)[:1]
        if len(self._last) == TOGETHER:
            self._chunks.append(([*self._last], torch.cat([*self._last.values()])))
            self._last = {}

    def read(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """The loss of each step (steps,), NaN where none was told, and whether one was. Waits for the device."""
        last = [([*self._last], torch.cat([*self._last.values()]))] if self._last else []
        for numbers, chunk in [*self._chunks, *last]:
            self._known |= dict(zip(numbers, chunk.tolist(), strict=True))
        told = np.array([number in self._known for number in range(steps)], dtype=bool)
        return np.array([self._known.get(number, math.nan) for number in range(steps)]), told


class Recorder:
    """Measures the steps of this rank, posts them, ends them where they are to end, and writes the rank's report.

    Attributes:
        optimizers: calls that counted as steps. others: ids of further ones. skipped: steps that a
            GradScaler left out. is_over: nothing is measured any more.
    """

    def __init__(self, rank: Rank, config: ScriptConfig, folder: Path) -> None:
        self.rank, self.config, self.folder = rank, config, folder
        self.report = Report(ScriptReport, rank, folder, {})
        self.board = Board(folder, rank.world_size)
        self.window = TrainingWindow(config.profile, rank, folder, Ranges(rank.device))
        self.peek = LossPeek(rank.device)
        self.gate = self._gate()
        self._length = sys.maxsize if pauses(config) else config.steps or sys.maxsize
        self._races_tokens = config.race.figure == "tokens_per_s"
        self.optimizers, self.others, self.skipped, self.is_over = list[str](), set[int](), 0, False
        self.draws, self.losses = Draws(), Losses()
        self.trained = Trained()
        self.steps = self.evaluations = 0
        self._laps = Laps(torch.device("cpu"))
        self._started_s: float | None = None
        self._closing = Lock()
        self._stopped = self._marked = self._in_step = self._evaluating = self._with_gradients = False
        self._evaluated = 0  # evaluations since the last step
        self._grouped = True
        self._times: list[tuple[float, float]] = []  # of each step: seconds, and those of waiting for data
        self._counts: list[tuple[int, int, int]] = []  # samples, tokens, batches
        self._samples = self._tokens = self._unknown_samples = 0  # the last: steps of which they are not known
        self._left_out: list[int] = []
        self._pass_from = 0  # the step at which the last pass over the data ended
        self._step_s = self._data_s = self._evaluate_s = 0.0
        self._seemed_s = self._seemed_wait_s = 0.0  # of what seems an evaluation
        self._total_s = self._span_s = self._lapsed_s = self._paused_s = 0.0
        self._pending_loss: Any = None
        self._accuracy: Any = None
        self._logged: dict[str, Any] = {}

    def _gate(self) -> Gate | None:
        config, rank = self.config, self.rank
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

    def asks(self, source: Source) -> bool:
        """A batch is asked for. Returns True where it is for training."""
        trains = self.draws.asks(source)
        if self.draws.without_step and self.draws.begins_anew(source):
            self._evaluated += 1
            self.evaluations += 1
        if trains and self._started_s is None:
            self._start()
        with_gradients = torch.is_grad_enabled()
        if self._evaluating and (trains or with_gradients > self._with_gradients):  # one without them has ended before
            self._end_evaluation(EVALUATED)
        if self._evaluating:
            self._laps.end(EVALUATE)
        elif self._started_s is not None:
            self._laps.end(WORK if self._in_step or not self._marked else APART)
            if not trains:
                self._evaluating, self._with_gradients = True, with_gradients
                self._evaluated += 1
                self.evaluations += 1
        return trains

    def receives(self, source: Source, trains: bool, size: int | None) -> None:
        """The batch is there, of so many samples."""
        if self.is_over:
            return
        if trains or self._evaluating:
            self._laps.end(DATA if trains else WAIT)
        if trains and self.window.recording:
            self.window.ranges.close()
        self.draws.add(source, trains, size)

    def exhausted(self, source: Source, trains: bool, handed_out: int) -> None:
        """There is no further batch, after so many."""
        if self.is_over:
            return
        self.draws.ends(source, handed_out)
        if trains:
            self._laps.end(DATA)
            self._pass_from = self.steps
        elif self._evaluating:
            self._end_evaluation(EVALUATED)

    def steps_now(self) -> None:
        """An optimiser begins a step: where neither a batch nor a mark came before, the clock starts here."""
        if self._started_s is None and not self.is_over:
            self._start()
            self._evaluated = 1  # when the step began is not known

    def counts_steps_of(self, optimizer: torch.optim.Optimizer, together: int) -> None:
        """Another optimiser's steps count from this one on, which has so many of them in it."""
        self.others.discard(id(optimizer))
        name = f"{type(optimizer).__name__}.step" + (f" (its first {together} as one)" if together > 1 else "")
        self.optimizers += [name] if name not in self.optimizers[-1:] else []
        self._evaluated += together > 1  # and is left out
        self.trained.counts(optimizer)

    def end_counted_step(self) -> None:
        """The optimiser that counts has ended a step, or left it out."""
        self.trained.stepped()
        if not self._marked and not self.is_over:
            self._end_step(None, None, self._pending_loss)

    def begin_step(self) -> None:
        """The script begins a step that it marks."""
        if self.is_over:
            return
        if self._started_s is None:
            self._start()
        if self._evaluating:
            self._end_evaluation()
        self._laps.end(APART)
        self._marked = self._in_step = True

    def end_step(self, mark: step) -> None:
        """The marked step has ended."""
        if self.is_over or not self._in_step:
            return
        self._in_step, self._evaluated = False, 0
        self._end_step(mark.samples, mark.tokens, self._pending_loss if mark.loss is None else mark.loss)

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

    def _end_evaluation(self, label: int = EVALUATE) -> None:
        self._laps.end(label)
        self._evaluating = False
        if self.gate is not None:
            self.gate.start_epoch()

    def _end_step(self, samples: int | None, tokens: int | None, loss: Any) -> None:
        if self._evaluating:
            self._end_evaluation()
        drawn, batches, resumed = self.draws.take()
        self._laps.end(RESUMED if resumed else STEP)
        if resumed:
            self.evaluations -= 1
            self._evaluated -= 1
        samples = drawn if samples is None else samples
        self._unknown_samples += samples is None or (batches == 0 and not self.draws.ever and not samples)
        self._counts.append((samples or 0, tokens or 0, batches))
        self._samples, self._tokens = self._samples + (samples or 0), self._tokens + (tokens or 0)
        if self._evaluated > 0:
            self._left_out.append(self.steps)
        self._evaluated, self._pending_loss = 0, None
        if loss is not None:
            self._keep_loss(self.steps, loss)
        self.steps += 1
        if self.steps == 1:
            self._see_model()
        if self.steps % TAKEN == 0:
            self._take()
        if self.window.recording:
            self.window.step()
        self._post()
        if self.gate is not None and self.gate.step_ended(self.steps):
            self._laps.end(PAUSE)
        # ranks that exchange nothing may be past the step: those stop as soon as they see it
        if self.steps >= self._length or 0 < self.board.stop_at <= self.steps:
            self._stopped, self.is_over = True, True
            raise EndedError

    def _see_model(self) -> None:
        """After the first step: which clock tells the next ones, and whether ranks train together."""
        device = self.rank.device
        if device.type == "cuda" and torch.cuda.is_initialized() and torch.cuda.memory_allocated():
            self._take()
            self._laps = Laps(torch.device("cuda", torch.cuda.current_device()))
        is_grouped = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self._grouped = is_grouped or any(name in sys.modules for name in EXCHANGING)

    def _take(self, wait: bool = False) -> None:
        """Add the laps that are known by now."""
        for label, seconds in self._laps.known(wait):
            self._lapsed_s += seconds
            self._paused_s += seconds if label == PAUSE else 0.0
            self._seemed_s += seconds if label in (EVALUATE, WAIT, EVALUATED) else 0.0
            self._seemed_wait_s += seconds if label == WAIT else 0.0
            self._data_s += seconds if label == DATA else 0.0
            self._step_s += seconds if label in (WORK, DATA, STEP, RESUMED) else 0.0
            if label == RESUMED:
                self._step_s, self._data_s = self._step_s + self._seemed_s, self._data_s + self._seemed_wait_s
            elif label in (STEP, EVALUATED):
                self._evaluate_s += self._seemed_s
            if label in (STEP, RESUMED, EVALUATED):
                self._seemed_s = self._seemed_wait_s = 0.0
            if label in (STEP, RESUMED):
                self._times.append((self._step_s, self._data_s))
                self._step_s = self._data_s = 0.0
                self._total_s, self._span_s = self._lapsed_s - self._paused_s, self._lapsed_s

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
        self.board.post(self.rank.rank, self.steps, self.config.steps or -1, done, 0, self.peek.value)

    # ---- the end

    def leave(self) -> None:
        """Measure nothing any more."""
        self.is_over = True

    def close(self, is_whole: bool = False) -> None:
        """Write the report and the steps, once. Waits for the device, and for another thread that writes them: its
        process must not end meanwhile, where a script fails as it is told to end.

        Args:
            is_whole: the script ended by itself, or after the step at which it was to stop. Only then is the device
                asked what the parameters hold: one that hangs would not answer.
        """
        self.is_over = True
        with self._closing:
            started_s, self._started_s = self._started_s, None
            if started_s is not None:
                self._write(started_s, is_whole)
            self.trained.release()

    def _write(self, started_s: float, is_whole: bool) -> None:
        self._take(wait=True)
        self._evaluate_s += self._seemed_s
        self.report.counters.read()
        content, steps = self.report.content, len(self._times)
        times = np.array(self._times).reshape(-1, 2)
        counts = np.array(self._counts[:steps], dtype=np.int64).reshape(-1, 3)
        usual = 0 if self._marked else self._usual_batches()
        ahead = [number for number in range(self._pass_from, steps)[:2] if counts[number, 2] > usual > 0]
        for number in ahead[:1]:  # the loader was a batch ahead, as Accelerate's is, and that was not trained on
            counts[number] = [counts[number, 0] * usual // counts[number, 2], counts[number, 1], usual]
        losses, told = self.losses.read(steps)
        columns = {
            "step_s": times[:, 0],
            "data_s": times[:, 1],
            "loss": losses,
            **{name: counts[:, place] for place, name in enumerate(("samples", "tokens", "batches"))},
            "loss_told": told.astype(np.int8),
        }
        if steps:
            self.report.write_steps(0, columns)
            content.epochs = [CountedEpoch(0, float(times[:, 0].sum()), self._total_s, steps=steps)]
        content.spans_s = [(started_s, started_s + self._span_s)]
        content.left_out = [number for number in self._left_out if number < steps]
        content.evaluate_s, content.loads = self._evaluate_s, self.draws.ever
        content.threads = torch.get_num_threads()
        content.peak_memory_bytes = memory.peak_memory_bytes(self.rank.device)
        content.test_accuracy, content.logged = self._told()
        seen = self._seen(bool(told.any()))
        content.seen = [str(message) for message in seen]
        content.seen_codes = [message.code for message in seen]
        if self.gate is not None:
            content.probe = self.gate.result()
            content.probe.left_out = sorted({*content.probe.left_out, *content.left_out})
        content.profile = self.window.close()
        content.grouped, content.stopped = self._grouped, self._stopped or not is_whole
        if is_whole:
            content.weights = self._held().weights
        self.report.write()

    def _usual_batches(self) -> int:
        """The median of batches a step; of two, the larger: a pass may end in a step of fewer."""
        return int(np.percentile([each[2] for each in self._counts or [(0, 0, 0)]], 50, method="higher"))

    def _told(self) -> tuple[float | None, dict[str, float]]:
        """The accuracy, where it is a share, and the other figures that are numbers."""
        told = {name: float(value) for name, value in self._logged.items()}
        accuracy = None if self._accuracy is None else float(self._accuracy)
        if accuracy is not None and not 0 <= accuracy <= 1:
            accuracy, told["accuracy"] = None, accuracy
        return accuracy, {name: value for name, value in told.items() if math.isfinite(value)}

    def _seen(self, loss_told: bool) -> list[Message]:
        """What was counted, and what could not be."""
        return [*self._counted(), *self._not_known(loss_told)]

    def _counted(self) -> Iterator[Message]:
        if self.steps:
            names = ["multicard.step"] if self._marked else self.optimizers
            yield Message("script.steps-of", f"steps are those of {', then of '.join(names)}", names=names)
        if self._stopped and self.config.steps == self.steps:
            yield Message("script.stopped", f"stopped after step {self.steps}, as asked", step=self.steps)
        if self.others:
            others = len(self.others)
            yield Message(
                "script.further-optimisers",
                f"{count(others, 'further optimiser')} took steps, which do not count",
                optimisers=others,
            )
        if self.skipped:
            yield Message(
                "script.scaler-skipped",
                f"a GradScaler skipped {count(self.skipped, 'step')}, which count as steps here",
                steps=self.skipped,
            )
        batches = self._usual_batches()
        if batches > 1:
            yield Message("script.accumulated", f"gradients of {batches} batches make a step", batches=batches)
        if self.evaluations:
            yield Message(
                "script.evaluations",
                f"{count(self.evaluations, 'evaluation')} between or after steps",
                evaluations=self.evaluations,
            )

    def _not_known(self, loss_told: bool) -> Iterator[Message]:
        if self.rank.world_size > 1 and not self._grouped:
            yield Message(
                "script.no-process-group", "no process group: each rank trained by itself, on whatever data it read"
            )
        if not self.draws.ever:
            yield Message("script.no-loader", "no DataLoader: how long steps waited for data is not known")
        if self._unknown_samples:
            yield Message(
                "script.samples-unknown",
                "the number of samples is not known: the script can give it by multicard.step(samples=...)",
                steps=self._unknown_samples,
            )
        if not loss_told:
            yield Message("script.no-loss", "no loss is known: the script can give it by multicard.log(loss=...)")
