"""Measure a rank's steps from outside the engine's loop.

The probe sees when the engine asks for each batch, what the batch holds, and what the engine logs.
A step lasts from the request for its first batch to the request for the next step's first batch.
Engines read the loss on the host at the end of each step, so the device has finished its work by
then. The probe itself never waits for the device.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from multicard.config.base import ProfileName
from multicard.config.llm import LlmConfig
from multicard.llm import engines, methods
from multicard.llm.batches import COUNTS, Batch, count, map_tensors
from multicard.llm.epoch_marks import LOGGED, EpochMarks
from multicard.llm.held_out_evaluations import HeldOutEvaluations
from multicard.llm.tuning_report import TuningReport
from multicard.measure import garbage, timing
from multicard.measure.timing import Ranges
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.process import Rank, as_on_rank_0
from multicard.run.training_progress import TrainingProgress

# A run has diverged if one of these figures is not finite.
JUDGED_FIGURES = ("loss", "rewards/chosen", "rewards/rejected")


class DivergenceError(Exception):
    """Ends the training on all ranks at the end of an epoch, because the run has diverged."""


class ProbeEndedError(Exception):
    """Ends the training on all ranks once the mean step time of a probe is known."""


class TargetReachedError(Exception):
    """Ends the training on all ranks once the held-out loss has reached the target."""


class Probe:
    """Measures the times and the token counts of one rank's steps, and writes them each epoch."""

    def __init__(self, rank: Rank, config: LlmConfig, report: TuningReport) -> None:
        self.rank = rank
        self.config = config
        self.report = report
        self.pairs = methods.chosen(config).pairs
        self.copies_pinned_batches = config.pin_memory and rank.device.type == "cuda"
        # How often the recipe copies a batch to the device.
        self.copies = 2 if self.pairs and not self.copies_pinned_batches else 1
        # If set, these batches replace the loader's. A pass after the run uses it, unmeasured.
        self.substitute: Iterator[Batch] | None = None
        self.ranges: Ranges | None = None
        ranges = Ranges(rank.device, nvtx=config.profile.name is ProfileName.nsys)
        self.window = TrainingWindow(config.profile, rank, report.folder, ranges)
        self.progress = TrainingProgress(rank, report.folder, loss=lambda: self.loss)
        self.held_out = HeldOutEvaluations(config, report)
        self.pad_id = -1
        # Returns the optimizer's current learning rate.
        self.lr_now: Callable[[], float] = lambda: config.lr
        self.lr = float("nan")  # The learning rate of the current step.
        self.started_s = 0.0
        self.steps_per_epoch = 0
        self.loss = float("nan")
        self.epoch = EpochMarks(config.gradient_accumulation_steps)

    def batches(self, loader: Any) -> Iterator[Batch]:
        """Yield the loader's batches, and time and count them.

        Pinned batches are copied to the device asynchronously.
        """
        if self.substitute is not None:
            yield from self.substitute
            return
        garbage.epoch_began()
        batches = iter(loader)
        epoch = self.epoch
        while True:
            if epoch.is_between_steps:
                next_step = self.progress.steps + 1
                if epoch.counts and self.held_out.is_due(next_step):
                    self.window.pause()
                    self._evaluate(next_step)
                self.window.step()
                self.lr = self.lr_now()
            epoch.requested_s.append(self._clock_s())
            if not epoch.counts:
                self.progress.start_epoch()
            if epoch.counts and epoch.is_between_steps:
                self._step_ended()
                if self.progress.is_stopped or self.held_out.is_at_target:
                    return  # The engine takes this for the end of the epoch.
            batch = next(batches, None)
            if batch is None:
                return
            epoch.received_s.append(self._clock_s())
            epoch.counts.append(count(batch, self.pad_id, self.rank.device.type, self.copies))
            self.window.count(epoch.counts[-1][COUNTS.index("h2d_bytes")])
            yield self.to_device(batch)

    def _step_ended(self) -> None:
        self.epoch.steps += 1
        garbage.step_ended(self.progress.steps + 1)
        self.progress.end_step(self.epoch.tokens_of_last_step)

    def _clock_s(self) -> float:
        return timing.clock_s() - self.progress.paused_s - self.held_out.lasted_s

    def _evaluate(self, step: int) -> None:
        """Measure the held-out loss after step `step` of the run, unless it is already known."""
        since_s = self.started_s + self.progress.paused_s
        self.held_out.evaluate(step, since_s, self.progress.post)

    def to_device(self, batch: Batch) -> Batch:
        """Return the batch, copied to the device if the batch is pinned."""
        if not self.copies_pinned_batches:
            return batch
        if self.ranges is not None:
            self.ranges.open("h2d")
        return map_tensors(batch, lambda tensor: tensor.to(self.rank.device, non_blocking=True))

    def log(self, payload: Mapping[str, Any]) -> None:
        """Store the figures of a step, which the recipe logs on rank 0.

        The recipe logs after its scheduler has advanced, so the learning rate that it logs is the
        next step's. The probe stores the step's own learning rate.
        """
        if self.substitute is not None:
            return
        figures = {key: float(payload[key]) for key in LOGGED if key in payload} | {"lr": self.lr}
        is_sum = engines.kind_of(self.config).sums_pair_losses
        if self.pairs and self.config.distributed and is_sum:
            figures["loss"] /= self.rank.world_size
        self.epoch.logged.append(figures)
        self.loss = figures["loss"]

    def start(self) -> None:
        """Mark the start of the training on this rank."""
        self.report.counters.read()
        self.window.open()
        self.started_s = timing.clock_s()
        self.report.mark_start(self.started_s)
        self.progress.total = self.config.epochs * self.steps_per_epoch
        self.progress.post()

    def end_epoch(self) -> None:
        """Write the epoch. The recipe has just taken its last step.

        Raises:
            DivergenceError: On all ranks, if the last loss is not finite and the run should then
                stop.
            TargetReachedError: On all ranks, if the held-out loss has reached the target.
            ProbeEndedError: On all ranks, if a probe has ended.
        """
        if self.substitute is not None:
            return
        self.window.pause()
        epoch = self.epoch
        held_out = self.held_out
        ended_s = self._clock_s()
        self.report.counters.read()
        columns = epoch.columns(self.config.max_steps or self.steps_per_epoch, ended_s)
        # The engine may stop without asking for another batch. Then the last step ends here.
        if len(columns["step_s"]) > epoch.steps:
            self._step_ended()
        self._evaluate(self.progress.steps)
        since_start_s = ended_s - self.started_s + held_out.lasted_s
        if held_out.evaluator is not None:
            self.report.counters.read()
        self.report.add_epoch(columns, epoch.lasted_s(ended_s), since_start_s)
        self.progress.epoch = len(self.report.content.epochs)
        last_figures = epoch.logged[-1] if epoch.logged else {}
        self.epoch = EpochMarks(epoch.per_step)
        diverged = not all(
            isfinite(last_figures[key]) for key in JUDGED_FIGURES if key in last_figures
        )
        diverged |= held_out.has_diverged
        if self.config.stop_on_divergence and as_on_rank_0(self.rank, diverged):
            raise DivergenceError
        if held_out.is_at_target:
            raise TargetReachedError
        if self.progress.ends_with_epoch():
            raise ProbeEndedError


class MeasuredBatches:
    """Wraps the recipe's loader so that iterating over it is measured.

    All other attributes are the loader's.
    """

    def __init__(self, loader: Any, probe: Probe) -> None:
        self.loader = loader
        self._probe = probe

    def __iter__(self) -> Iterator[Batch]:
        return self._probe.batches(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)
