"""Measures a rank's steps from outside the engine's loop: when it asks for each batch, what is in
it, what it logs.

A step lasts from asking for its first batch to asking for the next step's. The engines read the
loss on the host at the end of each step. So the device has done its work by then, and the probe
never waits for it.
"""

from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from multicard.config.base import ProfileName
from multicard.config.llm import Engine, LlmConfig
from multicard.llm import methods
from multicard.llm.batches import COUNTS, Batch, count, mapped
from multicard.llm.epoch_marks import LOGGED, EpochMarks
from multicard.llm.held_out_evaluations import HeldOutEvaluations
from multicard.llm.tuning_report import TuningReport
from multicard.measure import garbage, timing
from multicard.measure.timing import Ranges
from multicard.observe.profiles.capture import TrainingWindow
from multicard.ranks.process import Rank, as_on_rank_0
from multicard.run.training_progress import TrainingProgress

# a run has diverged where one of them is not finite
JUDGED = ("loss", "rewards/chosen", "rewards/rejected")


class DivergenceError(Exception):
    """Ends a recipe's training at the end of an epoch, on all ranks."""


class ProbeEndedError(Exception):
    """Ends a recipe's training once the mean step of a probe is known, on all ranks."""


class TargetReachedError(Exception):
    """Ends a recipe's training once the held-out loss is as low as is asked for, on all ranks."""


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
        self.progress = TrainingProgress(rank, report.folder, loss=lambda: self.loss)
        self.held_out = HeldOutEvaluations(config, report)
        self.pad_id = -1
        # of the optimiser, at the time of the call
        self.lr_now: Callable[[], float] = lambda: config.lr
        self.lr = float("nan")  # of the step that is under way
        self.started_s = 0.0
        self.steps_per_epoch = 0
        self.loss = float("nan")
        self.epoch = EpochMarks(config.gradient_accumulation_steps)

    def batches(self, loader: Any) -> Iterator[Batch]:
        """The loader's batches, timed and counted;
        pinned ones are copied to the device without waiting.
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
                    return  # the engine takes it for the end of the epoch
            batch = next(batches, None)
            if batch is None:
                return
            epoch.received_s.append(self._clock_s())
            epoch.counts.append(count(batch, self.pad_id, self.rank.device.type, self.copies))
            self.window.count(epoch.counts[-1][COUNTS.index("h2d_bytes")])
            yield self.moved(batch)

    def _step_ended(self) -> None:
        self.epoch.steps += 1
        garbage.step_ended(self.progress.steps + 1)
        self.progress.end_step(self.epoch.tokens_of_last_step)

    def _clock_s(self) -> float:
        return timing.clock_s() - self.progress.paused_s - self.held_out.lasted_s

    def _evaluate(self, step: int) -> None:
        """Measure the held-out loss after the run's step `step`, unless it is known."""
        since_s = self.started_s + self.progress.paused_s
        self.held_out.evaluate(step, since_s, self.progress.post)

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
        self.epoch.logged.append(figures)
        self.loss = figures["loss"]

    def start(self) -> None:
        """Training starts now, on all ranks."""
        self.report.counters.read()
        self.window.open()
        self.started_s = timing.clock_s()
        self.report.started(self.started_s)
        self.progress.total = self.config.epochs * self.steps_per_epoch
        self.progress.post()

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
        epoch = self.epoch
        held_out = self.held_out
        ended_s = self._clock_s()
        self.report.counters.read()
        columns = epoch.columns(self.config.max_steps or self.steps_per_epoch, ended_s)
        # the engine stopped without asking for another batch
        if len(columns["step_s"]) > epoch.steps:
            self._step_ended()
        self._evaluate(self.progress.steps)
        since_start_s = ended_s - self.started_s + held_out.lasted_s
        if held_out.evaluator is not None:
            self.report.counters.read()
        self.report.epoch(columns, epoch.lasted_s(ended_s), since_start_s)
        self.progress.epoch = len(self.report.content.epochs)
        last = epoch.logged[-1] if epoch.logged else {}
        self.epoch = EpochMarks(epoch.per_step)
        diverged = not all(isfinite(last[key]) for key in JUDGED if key in last)
        diverged |= held_out.has_diverged
        if self.config.stop_on_divergence and as_on_rank_0(self.rank, diverged):
            raise DivergenceError
        if held_out.is_at_target:
            raise TargetReachedError
        if self.progress.ends_with_epoch():
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
