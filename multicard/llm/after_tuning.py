"""Take further steps after the measured tuning: profiled steps, and the ablations of `diagnose`.

The engine's own loop takes these steps too, on batches that it gets one step at a time. See
`multicard.observe.diagnosis`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any
from unittest import mock

import torch
import torchtune.utils
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from multicard.config.base import WindowConfig
from multicard.llm.batches import COUNTS, Batch, count, half_batch, map_tensors
from multicard.llm.collectives import without_exchange
from multicard.llm.step_probe import MeasuredBatches, Probe
from multicard.llm.tuning_engine import TuningEngine
from multicard.measure import timing
from multicard.measure.timing import Ranges
from multicard.observe import diagnosis
from multicard.observe.profiles.capture import Window


def after_tuning(engine: TuningEngine, probe: Probe) -> None:
    """Take the steps that `profile` and `diagnose` ask for, and write their results."""
    config = probe.config
    report = probe.report
    window = (
        config.profile
        if isinstance(config.profile, WindowConfig) and not config.profile.from_start
        else None
    )
    if not (window or config.diagnose):
        return
    last_epoch = report.content.epochs[-1]
    step_s = last_epoch.train_s / max(1, last_epoch.steps)
    if window:
        feed = endless_batches(engine.batches, config.epochs)
        report.content.profile = profile_steps(engine, probe, feed, window, step_s)
    if config.diagnose:
        report.content.ablations = measure_ablations(engine, probe, step_s)
    report.write()


def endless_batches(batches: MeasuredBatches, epoch: int) -> Iterator[Batch]:
    """Yield the loader's batches, epoch after epoch."""
    while True:
        batches.sampler.set_epoch(epoch)
        yield from batches.loader
        epoch += 1


def train_on(engine: TuningEngine, probe: Probe, batches: Iterator[Batch]) -> None:
    """Make the engine train until `batches` end, without measuring.

    While the probe has a substitute, the engine gets its batches from there.
    """
    with mock.patch.object(probe, "substitute", batches):
        engine.train_pass()


def step_batches(
    probe: Probe, feed: Iterator[Batch], proceed: Callable[[], bool]
) -> Iterator[Batch]:
    """Yield batches of whole steps from `feed` while `proceed()` returns True.

    `proceed()` is called before each step.
    """
    while proceed():
        for _ in range(probe.config.gradient_accumulation_steps):
            # Recipes remove entries from a batch, and ablations use it again.
            copied_batch = map_tensors(next(feed), lambda tensor: tensor)
            yield probe.to_device(copied_batch)


def profile_steps(
    engine: TuningEngine, probe: Probe, feed: Iterator[Batch], config: WindowConfig, step_s: float
) -> dict[str, object]:
    """Profile some steps, and return the result of the profiler."""
    ranges = Ranges(probe.rank.device, nvtx=config.name == "nsys")
    window = Window(config, probe.rank, probe.report.folder, ranges, step_s)

    def counted_batches() -> Iterator[Batch]:
        for batch in feed:
            window.count(
                count(batch, probe.pad_id, probe.rank.device.type, probe.copies)[
                    COUNTS.index("h2d_bytes")
                ]
            )
            yield batch

    with named_phases(engine, probe, ranges):
        train_on(engine, probe, step_batches(probe, counted_batches(), window.boundary))
    ranges.close()
    return window.result()


@contextmanager
def named_phases(engine: TuningEngine, probe: Probe, ranges: Ranges) -> Iterator[None]:
    """Mark the engine's phases for a profiler.

    In `data`, the engine waits for a batch, and in `h2d`, it copies the batch. `forward` calls the
    model and computes the loss. `backward` includes clipping and the counts of tokens. `optimizer`
    is the last phase.
    """
    batch_to_device = torchtune.utils.batch_to_device
    backward = torch.Tensor.backward

    def marked_copy(*arguments: Any, **keywords: Any) -> None:
        ranges.open("h2d")
        batch_to_device(*arguments, **keywords)

    def marked_backward(*arguments: Any, **keywords: Any) -> None:
        ranges.open("backward")
        backward(*arguments, **keywords)

    hooks = [engine.model.register_forward_pre_hook(lambda *_: ranges.open("forward"))]
    if not probe.config.optimizer_in_bwd:  # Else weights are updated in the backward pass.
        hooks.extend(
            optimizer.register_step_pre_hook(lambda *_: ranges.open("optimizer"))
            for optimizer in engine.optimizers
        )
    try:
        with (
            mock.patch.object(torchtune.utils, "batch_to_device", marked_copy),
            mock.patch.object(torch.Tensor, "backward", marked_backward),
            mock.patch.object(probe, "ranges", ranges),
        ):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def measure_ablations(
    engine: TuningEngine, probe: Probe, step_s: float
) -> dict[str, list[float]] | None:
    """Return the times of the ablations, each in seconds a step, by the names in `diagnosis`.

    `whole` is the step as it is. `device` and `host` have their batches on the device or in the
    host's memory, `input` only fetches and copies batches, and `half` has half of each batch.
    `alone` and `core` (`alone` with batches on the device) leave out the exchange of weights and
    gradients, but not a recipe's all-reduces of counts and losses.

    All ablations use the same batches in the same order, because rows, and thus steps, differ in
    length.
    """
    rank = probe.rank
    per_step = probe.config.gradient_accumulation_steps

    def feed() -> Iterator[Batch]:
        return endless_batches(engine.batches, probe.config.epochs)

    def copy_to_device(batch: Batch) -> Batch:
        return map_tensors(batch, lambda tensor: tensor.to(rank.device))

    host_batches = list(islice(feed(), per_step * diagnosis.MOST_STEPS))
    device_batches = list(map(copy_to_device, host_batches))

    def time_steps(batches: Iterator[Batch], steps: int) -> float:
        """Return the time from the first step's request for a batch to the end of the last."""
        marks_s: list[float] = []  # When the engine asked for a step's first batch.

        def proceed() -> bool:
            is_first_or_last = len(marks_s) in (0, steps)
            if is_first_or_last:  # The other marks are not used, so the device need not be idle.
                timing.synchronize(rank.device)
            marks_s.append(timing.clock_s())
            return len(marks_s) <= steps

        train_on(engine, probe, step_batches(probe, batches, proceed))
        return marks_s[-1] - marks_s[0]

    def fetch(steps: int) -> None:
        for batch in islice(feed(), steps * per_step):
            copy_to_device(batch)

    def time_alone(batches: Iterator[Batch], steps: int) -> float:
        with without_exchange(engine.model):
            return time_steps(batches, steps)

    ablations: dict[str, diagnosis.Ablation] = {
        "whole": lambda steps: time_steps(feed(), steps),
        "device": lambda steps: time_steps(iter(device_batches), steps),
        "input": diagnosis.timed(rank, fetch),
    }
    if rank.device.type == "cuda":
        ablations["host"] = lambda steps: time_steps(iter(host_batches), steps)
    exchanges = (
        isinstance(engine.model, FSDPModule | DistributedDataParallel) and rank.world_size > 1
    )
    if exchanges:
        ablations["alone"] = lambda steps: time_alone(feed(), steps)
        ablations["core"] = lambda steps: time_alone(iter(device_batches), steps)
    time_core = time_alone if exchanges else time_steps
    halves = [half_batch(batch) for batch in device_batches]
    if all(batch is not None for batch in halves):
        tokens = [
            batch[0] if isinstance(batch, tuple) else batch["tokens"] for batch in host_batches
        ]
        has_one_shape = len({values.shape for values in tokens}) == 1

        def time_halves(steps: int) -> float:
            # If all whole batches have one shape, code that is compiled for halves must not
            # replace theirs. Compilation happens in the round that warms up.
            with torch._dynamo.config.patch(automatic_dynamic_shapes=not has_one_shape):
                return time_core(iter(halves), steps)

        ablations["half"] = time_halves
    # The recipes' loaders have no workers, so no batch is prepared in advance.
    board = probe.progress.board
    return diagnosis.measure_interleaved(ablations, {}, rank, step_s, 0, lambda: board.stop_at > 0)
