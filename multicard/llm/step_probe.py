"""Measures a rank's steps from outside the recipe: when it asks for each batch, what is in it,
what it logs.

A step lasts from asking for its first batch to asking for the next step's. The recipes read the
loss on the host at the end of each step, so the device has done its work by then,
and the probe never waits for it.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multicard.config.base import ProfileName
from multicard.config.llm import Engine, LlmConfig
from multicard.llm import methods
from multicard.llm.batches import COUNTS, Batch, count, mapped
from multicard.llm.held_out import Evaluated, Evaluator
from multicard.measure import garbage, memory, timing
from multicard.measure.timing import Ranges
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.gates import Gate
from multicard.ranks.process import Rank, as_on_rank_0
from multicard.records.progress import Board
from multicard.records.rank_files import CountedEpoch, LlmReport
from multicard.records.schema_parts import Evaluation, HeldOut
from multicard.run.rank_report import RankReportWriter

REWARDS = ("rewards/chosen", "rewards/rejected", "rewards/accuracies")
LOGGED = ("loss", "grad_norm", *REWARDS)  # of what engines log of a step
# a run has diverged where one of them is not finite
JUDGED = ("loss", "rewards/chosen", "rewards/rejected")


class DivergenceError(Exception):
    """Ends a recipe's training at the end of an epoch, on all ranks."""


class ProbeEndedError(Exception):
    """Ends a recipe's training once the mean step of a probe is known, on all ranks."""


class TargetReachedError(Exception):
    """Ends a recipe's training once the held-out loss is as low as is asked for, on all ranks."""


class TuningReport(RankReportWriter[LlmReport]):
    """The report of a rank that tunes."""

    def __init__(self, rank: Rank, folder: Path, config: LlmConfig) -> None:
        flags = {  # in force: torchtune does not enable TF32
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "matmul_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
            "model_dtype": config.formats.weights,
            "autocast_dtype": config.formats.products if config.formats.are_mixed else None,
        }
        super().__init__(LlmReport, rank, folder, flags)

    def built(self, figures: dict[str, Any]) -> None:
        """Add the sizes of the model and the peak of memory so far,
        which is reset for the training.
        """
        setup = memory.peak_memory_bytes(self.rank.device)
        self.add({**figures, "setup_peak_memory_bytes": setup, "peak_memory_bytes": setup})
        memory.reset_peak_memory(self.rank.device)

    def started(self, started_s: float) -> None:
        """Training starts now: `started_s` on the machine's clock."""
        self.content.started_s = started_s
        self.write()

    def epoch(self, per_step: dict[str, np.ndarray], epoch_s: float, ended_s: float) -> None:
        """Add an epoch that took `epoch_s` and ended `ended_s` after the start of training."""
        content = self.content
        epoch = len(self.content.epochs)
        count = len(per_step["step_s"])
        self.write_steps(epoch, per_step)
        began_s = content.started_s or 0.0
        before_s = content.epochs[-1].ended_s if epoch else 0.0
        content.spans_s.append((began_s + before_s, began_s + ended_s))
        content.epochs.append(CountedEpoch(epoch, epoch_s, ended_s, steps=count))
        self.peak()
        self.write()

    def evaluation(
        self, content: HeldOut, evaluated: Evaluated, step: int, evaluate_s: float, ended_s: float
    ) -> None:
        """Add an evaluation of the held-out rows: after `step` steps of the run,
        `ended_s` after the start of training.

        Losses that are not finite are null there.
        """
        if self.content.held_out is None:
            self.content.held_out = content
        figures = [value if value is None or isfinite(value) else None for value in evaluated]
        epoch = len(self.content.epochs)
        self.content.held_out.evaluations.append(
            Evaluation(epoch, step, evaluate_s, ended_s, *figures)
        )

    def peak(self) -> None:
        """Update the peak of memory since the model was built."""
        self.content.train_peak_memory_bytes = now = memory.peak_memory_bytes(self.rank.device)
        self.content.peak_memory_bytes = max(now, self.content.setup_peak_memory_bytes or 0)


class Probe:
    """Times and counts of one rank's steps, written epoch by epoch."""

    def __init__(self, rank: Rank, config: LlmConfig, report: TuningReport) -> None:
        self.rank = rank
        self.config = config
        self.report = report
        self.pairs = methods.chosen(config).pairs
        self.moves = config.pin_memory and rank.device.type == "cuda"
        self.copies = 2 if self.pairs and not self.moves else 1  # of a batch, that the recipe makes
        # batches of a pass after the run, which is not measured
        self.substitute: Iterator[Batch] | None = None
        self.ranges: Ranges | None = None
        own = Ranges(rank.device, nvtx=config.profile.name is ProfileName.nsys)
        self.window = TrainingWindow(config.profile, rank, report.folder, own)
        self.board = Board(report.folder, rank.world_size)
        self.probing: Gate | None = None
        self.paused_s = 0.0  # so far, which no clock counts
        self.evaluated_s = 0.0  # so far, which no clock of the steps counts
        self.evaluator: Evaluator | None = None
        self.evaluated: Evaluated | None = None  # the last evaluation
        self._evaluated_at = 0  # step of the run
        self.stopped = False
        self.pad_id = -1
        # of the optimiser, at the time of the call
        self.lr_now: Callable[[], float] = lambda: config.lr
        self.lr = float("nan")  # of the step that is under way
        self.steps_per_epoch = 0
        self.started_s = 0.0
        self.steps = self.tokens = 0
        self.loss = float("nan")
        self._clear()

    def _clear(self) -> None:
        self.requested_s: list[float] = []
        self.received_s: list[float] = []
        self.counts: list[tuple[int, ...]] = []
        self.logged: list[dict[str, float]] = []
        self.steps_in_epoch = 0

    def batches(self, loader: Any) -> Iterator[Batch]:
        """The loader's batches, timed and counted;
        pinned ones are copied to the device without waiting.
        """
        if self.substitute is not None:
            yield from self.substitute
            return
        garbage.epoch_began()
        batches = iter(loader)
        per_step = self.config.gradient_accumulation_steps
        while True:
            if len(self.counts) % per_step == 0:
                if self.counts and self._is_due(self.steps + 1):
                    self.window.pause()
                    self._evaluate(self.steps + 1)
                self.window.step()
                self.lr = self.lr_now()
            self.requested_s.append(self._clock_s())
            if self.probing is not None and not self.counts:
                self.probing.start_epoch()
            if self.counts and len(self.counts) % per_step == 0:
                self._step_ended()
                if self.stopped or self._is_at_target:
                    return  # the recipe takes it for the end of the epoch
            batch = next(batches, None)
            if batch is None:
                return
            self.received_s.append(self._clock_s())
            self.counts.append(count(batch, self.pad_id, self.rank.device.type, self.copies))
            self.window.count(self.counts[-1][COUNTS.index("h2d_bytes")])
            yield self.moved(batch)

    def _step_ended(self) -> None:
        self.steps += 1
        self.steps_in_epoch += 1
        per_step = self.config.gradient_accumulation_steps
        garbage.step_ended(self.steps)
        self.tokens += sum(
            counts[COUNTS.index("non_padding")] for counts in self.counts[-per_step:]
        )
        self._post()
        if self.probing is not None:
            self.paused_s += self.probing.step_ended(self.steps)
        self.stopped = self.board.stops(self.steps)

    def _clock_s(self) -> float:
        return timing.clock_s() - self.paused_s - self.evaluated_s

    def _post(self, evaluating: bool = False) -> None:
        total = self.config.epochs * self.steps_per_epoch
        epoch = len(self.report.content.epochs)
        self.board.post(
            self.rank.rank, min(self.steps, total), total, self.tokens, epoch, self.loss, evaluating
        )

    def _is_due(self, step: int) -> bool:
        """True where the held-out loss is asked for after a step within an epoch."""
        every = self.config.eval_steps
        return self.evaluator is not None and every is not None and step % every == 0

    def _evaluate(self, step: int) -> None:
        """Measure the held-out loss after the run's step `step`, unless it is known.
        All ranks call it together.
        """
        if self.evaluator is None or self._evaluated_at == step:
            return
        began_s = timing.clock_s()
        self._post(evaluating=True)
        self.evaluated = self.evaluator.evaluate(self.report.folder)
        self._evaluated_at = step
        self._post()
        ended_s = timing.clock_s()
        self.evaluated_s += ended_s - began_s
        since_start_s = ended_s - self.paused_s - self.started_s
        self.report.evaluation(
            self.evaluator.content, self.evaluated, step, ended_s - began_s, since_start_s
        )

    @property
    def _is_at_target(self) -> bool:
        """True where the run is to stop, on all ranks alike: they know the same loss."""
        target = self.config.target_loss
        return (
            self.config.stop_at_target
            and self.evaluated is not None
            and self.evaluated.loss <= (target or 0.0)
        )

    def moved(self, batch: Batch) -> Batch:
        """The batch, on the device where its copy need not wait for the recipe."""
        if not self.moves:
            return batch
        if self.ranges is not None:
            self.ranges.open("h2d")
        return mapped(batch, lambda tensor: tensor.to(self.rank.device, non_blocking=True))

    def log(self, payload: Mapping[str, Any]) -> None:
        """A step's figures, as the recipe logs them on rank 0: after its schedule has gone on, so
        that the learning rate among them is that of the next step.
        """
        if self.substitute is not None:
            return
        figures = {key: float(payload[key]) for key in LOGGED if key in payload} | {"lr": self.lr}
        if self.pairs and self.config.distributed and self.config.engine is Engine.torchtune:
            figures["loss"] /= self.rank.world_size  # its recipe sums it over the ranks
        self.logged.append(figures)
        self.loss = figures["loss"]

    def start(self) -> None:
        """Training starts now, on all ranks."""
        self.report.counters.read()
        self.window.open()
        self.started_s = timing.clock_s()
        self.report.started(self.started_s)
        self._post()

    def end_epoch(self) -> None:
        """Write the epoch, whose last step the recipe has just taken.

        Raises:
            DivergenceError: on all ranks, where its last loss is not finite and the run is to stop
                then.
            TargetReachedError: on all ranks, where the held-out loss is as low as is asked for.
            ProbeEndedError: on all ranks, where a probe is to stop.
        """
        if self.substitute is not None:
            return
        self.window.pause()
        ended_s = self._clock_s()
        self.report.counters.read()
        per_step = self.config.gradient_accumulation_steps
        limit = self.config.max_steps or self.steps_per_epoch
        # a recipe that stops early has fetched one more
        batches = min(len(self.counts) // per_step, limit) * per_step
        marks = np.array([*self.requested_s, ended_s])[: batches + 1]
        waits = np.array(self.received_s[:batches]) - marks[:-1]
        counts = (
            np.array(self.counts[:batches], dtype=np.int64)
            .reshape(-1, per_step, len(COUNTS))
            .sum(axis=1)
        )
        columns = {
            "step_s": np.diff(marks).reshape(-1, per_step).sum(axis=1),
            "data_s": waits.reshape(-1, per_step).sum(axis=1),
            **{name: counts[:, i] for i, name in enumerate(COUNTS)},
        }
        steps = len(counts)
        if steps > self.steps_in_epoch:  # the recipe stopped without asking for another batch
            self._step_ended()
        for key in (*LOGGED, "lr"):  # NaN on other ranks, which log nothing
            logged = [figures.get(key, np.nan) for figures in self.logged[:steps]] or [
                np.nan
            ] * steps
            columns[key.replace("/", "_")] = np.array(logged)
        epoch_s = ended_s - (self.requested_s[0] if self.requested_s else ended_s)
        evaluated_before_s = self.evaluated_s
        self._evaluate(self.steps)
        ended_s += self.evaluated_s - evaluated_before_s
        if self.evaluator is not None:
            self.report.counters.read()
        self.report.epoch(columns, epoch_s, ended_s - self.started_s + evaluated_before_s)
        last = self.logged[-1] if self.logged else {}
        self._clear()
        diverged = not all(isfinite(last[key]) for key in JUDGED if key in last)
        if self.evaluated is not None:
            diverged |= not self.evaluated.is_finite
        if self.config.stop_on_divergence and as_on_rank_0(self.rank, diverged):
            raise DivergenceError
        if self._is_at_target:
            raise TargetReachedError
        if self.probing is not None and (self.probing.end_epoch() or self.stopped):
            raise ProbeEndedError


class MeasuredBatches:
    """The recipe's loader with measured iteration; everything else is the loader's own."""

    def __init__(self, loader: Any, probe: Probe) -> None:
        self.loader = loader
        self._probe = probe

    def __iter__(self) -> Iterator[Batch]:
        return self._probe.batches(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
