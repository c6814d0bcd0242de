"""One rank's part of a training run: data, model, strategy, optimiser, loop."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from multicard.config.saving import Save
from multicard.config.sweeps import pauses
from multicard.config.vision import VisionConfig
from multicard.measure import garbage, memory, timing
from multicard.measure.timing import PHASES
from multicard.messages import Message, Refusal
from multicard.ranks import checkpoint
from multicard.ranks.process import Rank, meet
from multicard.records.rank_files import VisionRankEpoch, VisionReport
from multicard.records.schema_parts import Parts, Segment
from multicard.run.rank_report import RankReportWriter
from multicard.vision import after_training, compiling, kept_model, models, optim, trial, weights
from multicard.vision.data import datasets
from multicard.vision.data.batch import Input, LoaderInput
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.splits import RankSampler, Remaining, Split
from multicard.vision.loop import COUNTS, Loop, memory_format
from multicard.vision.precision import choose
from multicard.vision.strategy import STRATEGIES, Share, compiles
from multicard.vision.trial import Trial

ENDLESS = 10**6  # epochs
EPOCH = VisionRankEpoch.__struct_fields__
MEASURED = (
    "epochs",
    "segments",
    "peak_memory_bytes",
    "device_peaks_bytes",
)  # kept over a restart; the rest is of this process


@dataclass
class Start:
    """The point from which training starts: before the first step,
    or after the one at which it was stopped.
    """

    epoch: int = 0
    step: int = 0  # of the epoch
    elapsed_s: float = 0.0
    # of `Loop.train_epoch`, for the epoch's steps before the stop
    trained: dict[str, Any] | None = None
    random: list[torch.Tensor] | None = None


class TrainingReport(RankReportWriter[VisionReport]):
    def __init__(
        self, rank: Rank, folder: Path, share: Share, flags: dict[str, Any], workers: int
    ) -> None:
        parameters = list(share.plain.parameters())
        buffers = list(share.plain.buffers())
        super().__init__(
            VisionReport,
            rank,
            folder,
            flags,
            share.devices,
            num_workers=workers,
            steps_per_epoch=share.steps,
            distinct_samples=share.distinct,
            parameters=sum(p.numel() for p in parameters),
            trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
            gradient_bytes=sum(p.nbytes for p in parameters if p.requires_grad),
            parameter_bytes=sum(p.nbytes for p in parameters),
            buffer_bytes=sum(b.nbytes for b in buffers),
            statistics_bytes=sum(b.nbytes for b in buffers if b.is_floating_point()),
        )

    def state(self) -> dict[str, Any]:
        """The measurements so far as plain values, for `restore`."""
        content = msgspec.to_builtins(self.content)
        return {name: content[name] for name in MEASURED}

    def restore(self, state: dict[str, Any]) -> None:
        kept = msgspec.convert({"kind": "vision", "rank": self.rank.rank, **state}, VisionReport)
        self.add({name: getattr(kept, name) for name in MEASURED})

    def started(self, steps: int) -> None:
        """Training starts, after `steps` steps of earlier segments."""
        self.content.started_s = timing.clock_s()
        self.content.segments.append(Segment(first_step=steps, steps=0, trained_s=0.0))
        self.write()

    def epoch(self, figures: dict[str, Any], steps: int, span_s: tuple[float, float]) -> None:
        """Add an epoch: `figures` of its training, its evaluation and its end.

        Args:
            steps: of the run, at the end of the epoch.
            span_s: start and end of the epoch in this process, on the machine's clock.
        """
        phases_s = figures["phases_s"]
        columns = {
            "step_s": phases_s.sum(axis=1),
            **{f"{phase}_s": phases_s[:, i] for i, phase in enumerate(PHASES)},
            **{name: np.asarray(figures[name]) for name in ("loss", *COUNTS)},
        }
        self.write_steps(figures["epoch"], columns)
        self.content.epochs.append(VisionRankEpoch(**{name: figures[name] for name in EPOCH}))
        self.reached(steps, figures["ended_s"], span_s)

    def reached(self, steps: int, elapsed_s: float, span_s: tuple[float, float]) -> None:
        """Training has reached the end of an epoch or a stop."""
        self.content.spans_s.append(span_s)
        *before, segment = self.content.segments
        segment.steps = steps - segment.first_step
        segment.trained_s = elapsed_s - sum(earlier.trained_s or 0.0 for earlier in before)
        now = [memory.peak_memory_bytes(device) for device in self.devices]
        before = self.content.device_peaks_bytes or [0] * len(now)
        self.content.device_peaks_bytes = [max(peaks) for peaks in zip(before, now, strict=True)]
        self.content.peak_memory_bytes = max(self.content.device_peaks_bytes)
        self.write()


def train(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """Train, evaluate after each epoch, and leave rank files and steps in `folder`.

    Where the controller asks for a stop, the state is saved and training ends there; another call
    goes on from it. A probe is evaluated where it stops, and ends there.
    """
    device = rank.device
    precision = choose(config.precision.name, device)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    flags = precision.set_flags()
    torch.manual_seed(config.seed)  # the same weights on every rank

    # ---- data: every rank reads the set; its share of it follows from the strategy
    data = datasets.load(config.dataset, config.seed)

    # ---- model
    model = weights.built(config.model, data.classes, config.dataset.image_size)
    model = model.to(device, precision.model_dtype).to(memory_format=memory_format(config))  # pyright: ignore[reportCallIssue]
    if compiles(config, device.type):
        compiling.compile_model(model, config, device.type)

    # ---- strategy
    strategy = STRATEGIES[config.strategy.name]
    share = strategy.share(model, len(data.train), config, rank)

    def load(split: Split, order: RankSampler, **options: bool) -> Input:
        pin = config.pin_memory and device.type == "cuda"
        source = LoaderInput(
            split,
            order,
            share.batch_size,
            workers,
            config,
            precision.transfer_dtype,
            pin,
            device,
            compiled=compiles(config, device.type),
            **options,
        )
        return LOADERS[config.loader.name].load(source)

    sampler = Remaining(share.sampler, len(data.train))
    training = load(data.train, sampler, sharded=strategy.shards and rank.world_size > 1)
    test_sampler = evaluated_samples(config, len(data.test), share.batch_size, rank)
    testing = load(data.test, test_sampler, training=False)

    refuse_single_images(config, share, data.classes)

    # ---- optimiser
    optimisation = optim.build(
        share.model, config, epochs(config) * share.steps, precision.scale_loss, device
    )

    # ---- loop
    seed(config.seed + rank.rank, share.devices)
    loop = Loop(
        rank,
        config,
        share,
        optimisation,
        folder,
        LOADERS[config.loader.name].prepared(config.loader, workers),
    )
    flags |= compiling.recorded_options(share.plain, config, device.type)
    report = TrainingReport(rank, folder, share, flags, workers)
    report.content.input = {
        "loader": config.loader.name,
        "train": training.facts,
        "test": testing.facts,
        **data.facts,
    }
    report.content.classes = data.classes
    report.content.ignored = data.ignored
    report.content.chance_accuracy = data.test.largest_class_share
    report.content.setup_h2d_bytes = Parts(training.setup_bytes, testing.setup_bytes)
    if compiling.is_slow_at_first(loop):
        report.content.compile_s = compiling.prepare(loop, len(test_sampler), [training, testing])
    start = restore(loop, report)
    for used in share.devices:
        memory.reset_peak_memory(used)
    garbage.begin()
    to_its_end = run_epochs(loop, report, sampler, training, testing, start)
    if loop.compiled:
        report.add(compiling.cuda_graphs(device, config.compile))
    if loop.progress.gate is not None:
        report.content.probe = loop.progress.gate.result()
    note_lost_profile(loop, report)
    if to_its_end and config.save is not Save.none and rank.rank == 0:
        accuracy = report.content.epochs[-1].test_accuracy
        report.content.saved = kept_model.keep(
            share.plain, config, data.class_names, accuracy, folder
        )
    report.write()
    if to_its_end:
        after_training.after_training(loop, report, sampler, training, workers)


def note_lost_profile(loop: Loop, report: TrainingReport) -> None:
    """Say where the profile of a run from its start was lost,
    because the run was stopped and went on without it.
    """
    # A run that is stopped has little time left.
    if loop.window.config is None or loop.progress.is_stopped:
        return
    lost = Message(
        "vision.profile-lost",
        "profile.window=start: lost when the run was stopped; it went on without the profiler",
        key="profile.window",
    )
    report.content.profile = loop.window.close() or {"error": lost}


def evaluated_samples(config: VisionConfig, samples: int, batch_size: int, rank: Rank) -> range:
    """Of the test set's samples, those that this rank evaluates: each is on exactly one rank,
    none twice.
    """
    mine = range(rank.rank, samples, rank.world_size)
    # a race does not wait for more than a batch
    return mine[:batch_size] if pauses(config) else mine


def refuse_single_images(config: VisionConfig, share: Share, classes: int) -> None:
    """Refuse a batch of one image where the last feature map is 1 x 1: BatchNorm would see one
    value a channel.
    """
    last = torch.empty(len(share.sampler) % share.batch_size or share.batch_size)
    if len(last.chunk(len(share.devices))[-1]) > 1:
        return
    size = config.dataset.image_size
    alone = Trial(replace(config.model, weights=models.RANDOM), classes, size, batch_size=1)
    if trial.answer(alone).problem is not None:
        raise Refusal(
            "vision.single-image",
            f"batch_size={config.batch_size}: leaves a batch of one image, which BatchNorm cannot"
            f" train on at {size} px; change batch_size, dataset.train_limit or dataset.image_size",
            key="batch_size",
            batch_size=config.batch_size,
            image_size=size,
        )


def run_epochs(
    loop: Loop,
    report: TrainingReport,
    sampler: Remaining,
    training: Input,
    testing: Input,
    start: Start,
) -> bool:
    """Train and evaluate from `start` to the end, to the step at which a stop is asked for,
    or until it diverged.

    Returns:
        True if it came to the end.
    """
    rank = loop.rank
    config = loop.config
    share = loop.share
    sampler.set_epoch(start.epoch, share.loaded(start.step))
    batches = training
    if start.random is not None:
        # start the workers now, as they were ahead of the step at the stop;
        # then restore the random state
        batches = iter(training)
        set_random(start.random, share.devices)
    report.started(loop.progress.steps)
    loop.progress.begin()
    meet(rank)
    if not loop.progress.steps:  # a run that was stopped goes on without
        loop.window.open()
    elapsed_s = start.elapsed_s
    first_step = start.step
    trained_before = start.trained
    evaluated_s = None
    for epoch in range(start.epoch, epochs(config)):
        report.counters.read()
        started_s = timing.clock_s()
        trained = joined(trained_before, loop.train_epoch(epoch, batches, first_step))
        trained["gap_s"] = (
            None if evaluated_s is None else started_s - evaluated_s + trained["first_batch_s"]
        )
        if loop.progress.is_stopped and loop.progress.gate is None:
            stopped_s = timing.clock_s()
            report.counters.read()
            elapsed_s += stopped_s - started_s
            report.reached(loop.progress.steps, elapsed_s, (started_s, stopped_s))
            save(loop, report, epoch, trained, elapsed_s)
            return False
        with_batch = [
            loss
            for loss, samples in zip(trained["loss"], trained["samples"], strict=True)
            if samples
        ]
        evaluated = loop.evaluate(testing, diverged=not math.isfinite((with_batch or [0.0])[-1]))
        evaluated_s = timing.clock_s()
        report.counters.read()
        elapsed_s += evaluated_s - started_s - trained["paused_s"]
        span_s = (started_s, evaluated_s)
        figures = {**trained, **evaluated, "epoch": epoch, "ended_s": elapsed_s}
        report.epoch(figures, loop.progress.steps, span_s)  # not timed: writing the report
        meet(rank)  # not timed either: waiting for ranks that write longer
        if evaluated["diverged"] and config.stop_on_divergence:
            return False  # on all ranks alike, as below
        target = None if pauses(config) else config.target_accuracy
        if config.stop_at_target and target is not None and evaluated["test_accuracy"] >= target:
            break  # on all ranks alike: the counts were reduced over all of them
        if loop.progress.ends_with_epoch():
            break
        sampler.set_epoch(epoch + 1)
        batches = training
        first_step = 0
        trained_before = None
    return True


def epochs(config: VisionConfig) -> int:
    """Most epochs to train; a cell of a race trains until the race stops it."""
    return ENDLESS if pauses(config) else config.epochs


# ---- stopping and resuming


def save(
    loop: Loop, report: TrainingReport, epoch: int, trained: dict[str, Any], elapsed_s: float
) -> None:
    """Save everything that later steps depend on, and the measurements so far.

    Args:
        trained: of `Loop.train_epoch`, for all of the epoch's steps so far.
    """
    state = {
        "model": loop.share.plain.state_dict(),
        **loop.optim.state(),
        "random": get_random(loop.share.devices),
        "steps": loop.progress.steps,
        "samples": loop.progress.amount,
        "epoch": epoch,
        "step": len(trained["loss"]),
        "elapsed_s": elapsed_s,
        "trained": trained | {"phases_s": torch.from_numpy(trained["phases_s"])},
        "report": report.state(),
    }
    checkpoint.save(report.folder, loop.rank, loop.progress.steps, state)


def restore(loop: Loop, report: TrainingReport) -> Start:
    """Restore the latest checkpoint, if there is one,
    except for the random numbers: see `set_random`.
    """
    state = checkpoint.load(report.folder, loop.rank)
    if state is None:
        return Start()
    # each rank's own: BatchNorm's statistics differ
    loop.share.plain.load_state_dict(state["model"])
    loop.optim.restore(state)
    loop.progress.steps = state["steps"]
    loop.progress.amount = state["samples"]
    report.restore(state["report"])
    trained = state["trained"] | {"phases_s": state["trained"]["phases_s"].numpy()}
    return Start(state["epoch"], state["step"], state["elapsed_s"], trained, state["random"])


def joined(before: dict[str, Any] | None, after: dict[str, Any]) -> dict[str, Any]:
    """The measurements of an epoch from those before and after a stop: seconds added,
    steps concatenated.
    """
    if before is None:
        return after
    phases_s = np.concatenate([before["phases_s"], after["phases_s"]])
    return {key: before[key] + after[key] for key in after if key != "phases_s"} | {
        "phases_s": phases_s
    }


def seed(number: int, devices: list[torch.device]) -> None:
    """Seed what a rank draws while it trains: dropout differs between ranks,
    and between the GPUs of one.
    """
    torch.manual_seed(number)
    for index, device in enumerate(devices):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number + index)


def get_random(devices: list[torch.device]) -> list[torch.Tensor]:
    """The states of the random number generators: the host's,
    and then those of the CUDA devices.
    """
    return [
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"),
    ]


def set_random(states: list[torch.Tensor], devices: list[torch.device]) -> None:
    """Restore the states that `get_random` returned."""
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=False):
        torch.cuda.set_rng_state(state, device)
