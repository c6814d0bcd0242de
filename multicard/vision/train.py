"""Train and evaluate on one rank: load the data, build the model, apply the strategy, run the loop.

`train` is the function that every rank calls. It reads from top to bottom in the order of the work.
"""

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

# A cell of a race trains until the race stops it: this is more epochs than it will ever take.
ENDLESS_EPOCHS = 10**6
EPOCH_FIELDS = VisionRankEpoch.__struct_fields__
# These measurements go on over a restart. All others describe this process alone.
RESTORED_FIELDS = (
    "epochs",
    "segments",
    "peak_memory_bytes",
    "device_peaks_bytes",
)


@dataclass
class Start:
    """The point from which training starts: the first step, or the step after a stop.

    Attributes:
        epoch: The epoch to train in, from 0.
        step: The first step to train within this epoch, from 0.
        elapsed_s: Seconds that earlier starts spent in training and evaluation.
        trained: The result of `Loop.train_epoch` for the epoch's steps before the stop.
        random: The states of the random number generators at the stop (`get_random`).
    """

    epoch: int = 0
    step: int = 0
    elapsed_s: float = 0.0
    trained: dict[str, Any] | None = None
    random: list[torch.Tensor] | None = None


class TrainingReport(RankReportWriter[VisionReport]):
    """Writes the report of a rank that trains an image classifier."""

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
        """Return the measurements so far as plain values, which `restore` takes."""
        content = msgspec.to_builtins(self.content)
        return {name: content[name] for name in RESTORED_FIELDS}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from the measurements that `state` returned before the restart."""
        earlier = msgspec.convert({"kind": "vision", "rank": self.rank.rank, **state}, VisionReport)
        self.add({name: getattr(earlier, name) for name in RESTORED_FIELDS})

    def started(self, steps: int) -> None:
        """Begin a segment of training, after `steps` steps of earlier segments."""
        self.content.started_s = timing.clock_s()
        self.content.segments.append(Segment(first_step=steps, steps=0, trained_s=0.0))
        self.write()

    def epoch(self, figures: dict[str, Any], steps: int, span_s: tuple[float, float]) -> None:
        """Add an epoch that has been trained and evaluated.

        Args:
            figures: The results of `Loop.train_epoch` and `Loop.evaluate`, and the epoch's end.
            steps: Steps of the run at the end of the epoch.
            span_s: Start and end of the epoch in this process, on the machine's clock.
        """
        phases_s = figures["phases_s"]
        columns = {
            "step_s": phases_s.sum(axis=1),
            **{f"{phase}_s": phases_s[:, i] for i, phase in enumerate(PHASES)},
            **{name: np.asarray(figures[name]) for name in ("loss", *COUNTS)},
        }
        self.write_steps(figures["epoch"], columns)
        self.content.epochs.append(
            VisionRankEpoch(**{name: figures[name] for name in EPOCH_FIELDS})
        )
        self.reached(steps, figures["ended_s"], span_s)

    def reached(self, steps: int, elapsed_s: float, span_s: tuple[float, float]) -> None:
        """Update the segment when training reaches the end of an epoch or a stop."""
        self.content.spans_s.append(span_s)
        *earlier_segments, segment = self.content.segments
        segment.steps = steps - segment.first_step
        segment.trained_s = elapsed_s - sum(
            earlier.trained_s or 0.0 for earlier in earlier_segments
        )
        peaks_now = [memory.peak_memory_bytes(device) for device in self.devices]
        peaks_before = self.content.device_peaks_bytes or [0] * len(peaks_now)
        self.content.device_peaks_bytes = [
            max(peaks) for peaks in zip(peaks_before, peaks_now, strict=True)
        ]
        self.content.peak_memory_bytes = max(self.content.device_peaks_bytes)
        self.write()


def train(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """Train, evaluate after each epoch, and write this rank's report and steps into `folder`.

    If the controller asks for a stop, the state is saved and training ends. The next call with the
    same folder resumes there. A probe evaluates at its stop and ends.
    """
    device = rank.device
    precision = choose(config.precision.name, device)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    flags = precision.set_flags()
    torch.manual_seed(config.seed)  # the same weights on every rank

    # ---- data: every rank opens the whole data set; the strategy decides what it reads of it
    data = datasets.load(config.dataset, config.seed)

    # ---- model
    model = weights.build_with_weights(config.model, data.class_names, config.dataset.image_size)
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
    test_sampler = rank_test_samples(config, len(data.test), share.batch_size, rank)
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
    for used_device in share.devices:
        memory.reset_peak_memory(used_device)
    garbage.begin()
    came_to_end = run_epochs(loop, report, sampler, training, testing, start)
    if loop.compiled:
        report.add(compiling.cuda_graphs(device, config.compile))
    if loop.progress.gate is not None:
        report.content.probe = loop.progress.gate.result()
    note_lost_profile(loop, report)
    if came_to_end and config.save is not Save.none and rank.rank == 0:
        accuracy = report.content.epochs[-1].test_accuracy
        report.content.saved = kept_model.keep(
            share.plain, config, data.class_names, accuracy, folder
        )
    report.write()
    if came_to_end:
        after_training.after_training(loop, report, sampler, training, workers)


def note_lost_profile(loop: Loop, report: TrainingReport) -> None:
    """Record that the profile was lost if the run was stopped and resumed.

    A profile from the start of a run does not survive a restart.
    """
    # A run that is being stopped has little time left. It records the loss after its restart.
    if loop.window.config is None or loop.progress.is_stopped:
        return
    lost = Message(
        "vision.profile-lost",
        "profile.window=start: the profile was lost when the run was stopped, and the run went on"
        " without the profiler",
        key="profile.window",
    )
    report.content.profile = loop.window.close() or {"error": lost}


def rank_test_samples(config: VisionConfig, samples: int, batch_size: int, rank: Rank) -> range:
    """Return the test samples that this rank evaluates. Every sample is on exactly one rank."""
    rank_samples = range(rank.rank, samples, rank.world_size)
    # A cell of a race evaluates one batch, as the other cells wait for it.
    return rank_samples[:batch_size] if pauses(config) else rank_samples


def refuse_single_images(config: VisionConfig, share: Share, classes: int) -> None:
    """Refuse a last batch of one image if the last feature map is 1 x 1.

    BatchNorm would then see a single value per channel.
    """
    last_batch = torch.empty(len(share.sampler) % share.batch_size or share.batch_size)
    if len(last_batch.chunk(len(share.devices))[-1]) > 1:
        return
    size = config.dataset.image_size
    single_image_trial = Trial(
        replace(config.model, weights=models.RANDOM), classes, size, batch_size=1
    )
    if trial.try_model(single_image_trial).problem is not None:
        raise Refusal(
            "vision.single-image",
            f"batch_size={config.batch_size}: leaves a last batch of one image, on which BatchNorm"
            f" cannot train at {size} px; change batch_size, dataset.train_limit or"
            " dataset.image_size",
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
    """Train and evaluate from `start` on.

    Training ends after the last epoch, at a stop that the controller asks for, or if it diverged.

    Returns:
        True if training came to its end; False if it was stopped or diverged.
    """
    rank = loop.rank
    config = loop.config
    share = loop.share
    sampler.set_epoch(start.epoch, share.loaded_samples(start.step))
    batches = training
    if start.random is not None:
        # Starting the workers draws random numbers. They had started before the stop too, so they
        # start first, and the random state is restored after that.
        batches = iter(training)
        set_random(start.random, share.devices)
    report.started(loop.progress.steps)
    loop.progress.begin()
    meet(rank)
    if not loop.progress.steps:  # A resumed run trains on without the profiler.
        loop.window.open()
    elapsed_s = start.elapsed_s
    first_step = start.step
    trained_before = start.trained
    evaluated_s = None
    for epoch in range(start.epoch, epochs(config)):
        report.counters.read()
        started_s = timing.clock_s()
        trained = join_epoch_parts(trained_before, loop.train_epoch(epoch, batches, first_step))
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
        evaluated = loop.evaluate(testing, diverged=not math.isfinite(last_loss(trained)))
        evaluated_s = timing.clock_s()
        report.counters.read()
        elapsed_s += evaluated_s - started_s - trained["paused_s"]
        span_s = (started_s, evaluated_s)
        figures = {**trained, **evaluated, "epoch": epoch, "ended_s": elapsed_s}
        report.epoch(figures, loop.progress.steps, span_s)  # Writing the report is not timed.
        meet(rank)  # Waiting for ranks that take longer to write is not timed either.
        if evaluated["diverged"] and config.stop_on_divergence:
            return False  # All ranks return here, as `diverged` was reduced over all of them.
        target = None if pauses(config) else config.target_accuracy
        if config.stop_at_target and target is not None and evaluated["test_accuracy"] >= target:
            break  # All ranks break here, as the accuracy was reduced over all of them.
        if loop.progress.ends_with_epoch():
            break
        sampler.set_epoch(epoch + 1)
        batches = training
        first_step = 0
        trained_before = None
    return True


def last_loss(trained: dict[str, Any]) -> float:
    """Return the loss of the last step for which this rank had a batch, or 0 if it had none.

    Args:
        trained: The result of `Loop.train_epoch`.
    """
    loss = 0.0
    for step_loss, samples in zip(trained["loss"], trained["samples"], strict=True):
        if samples:
            loss = step_loss
    return loss


def epochs(config: VisionConfig) -> int:
    """Return the largest number of epochs to train. A cell of a race has no limit."""
    return ENDLESS_EPOCHS if pauses(config) else config.epochs


# ---- stopping and resuming


def save(
    loop: Loop, report: TrainingReport, epoch: int, trained: dict[str, Any], elapsed_s: float
) -> None:
    """Save a checkpoint: everything that later steps depend on, and the measurements so far.

    Args:
        trained: The result of `Loop.train_epoch`, for all of the epoch's steps so far.
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
    """Restore the latest checkpoint, if there is one, except for the random numbers.

    `set_random` restores the random numbers once the loader's workers have started.
    """
    state = checkpoint.load_checkpoint(report.folder, loop.rank)
    if state is None:
        return Start()
    # Each rank loads its own checkpoint, as BatchNorm's statistics differ between ranks.
    loop.share.plain.load_state_dict(state["model"])
    loop.optim.restore(state)
    loop.progress.steps = state["steps"]
    loop.progress.amount = state["samples"]
    report.restore(state["report"])
    trained = state["trained"] | {"phases_s": state["trained"]["phases_s"].numpy()}
    return Start(state["epoch"], state["step"], state["elapsed_s"], trained, state["random"])


def join_epoch_parts(
    before_stop: dict[str, Any] | None, after_stop: dict[str, Any]
) -> dict[str, Any]:
    """Join the measurements of an epoch's steps before and after a stop.

    Seconds are added, and lists of steps are concatenated.
    """
    if before_stop is None:
        return after_stop
    phases_s = np.concatenate([before_stop["phases_s"], after_stop["phases_s"]])
    return {key: before_stop[key] + after_stop[key] for key in after_stop if key != "phases_s"} | {
        "phases_s": phases_s
    }


def seed(number: int, devices: list[torch.device]) -> None:
    """Seed the random numbers that a rank draws while it trains.

    Dropout differs between the ranks, and between the GPUs of one rank.
    """
    torch.manual_seed(number)
    for index, device in enumerate(devices):
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number + index)


def get_random(devices: list[torch.device]) -> list[torch.Tensor]:
    """Return the states of the random number generators: the host's, then each CUDA device's."""
    return [
        torch.get_rng_state(),
        *(torch.cuda.get_rng_state(device) for device in devices if device.type == "cuda"),
    ]


def set_random(states: list[torch.Tensor], devices: list[torch.device]) -> None:
    """Restore the states that `get_random` returned."""
    torch.set_rng_state(states[0])
    for device, state in zip(devices, states[1:], strict=False):
        torch.cuda.set_rng_state(state, device)
