"""After the measured tuning: the profiled steps and the ablations of `diagnose`.
See `multicard.observe.diagnosis`.

The engine's own loop takes these steps too, over batches that it gets one step at a time.
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
from multicard.llm.batches import COUNTS, Batch, count, half, mapped
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
    last = report.content.epochs[-1]
    step_s = last.train_s / max(1, last.steps)
    if window:
        feed = endless(engine.batches, config.epochs)
        report.content.profile = profiled(engine, probe, feed, window, step_s)
    if config.diagnose:
        report.content.ablations = measured(engine, probe, step_s)
    report.write()


def endless(batches: MeasuredBatches, epoch: int) -> Iterator[Batch]:
    """The loader's batches, epoch after epoch."""
    while True:
        batches.sampler.set_epoch(epoch)
        yield from batches.loader
        epoch += 1


def train_on(engine: TuningEngine, probe: Probe, batches: Iterator[Batch]) -> None:
    """Have the engine train until `batches` end, unmeasured."""
    with mock.patch.object(probe, "substitute", batches):
        engine.train_pass()


def step_batches(
    probe: Probe, feed: Iterator[Batch], proceed: Callable[[], bool]
) -> Iterator[Batch]:
    """Batches of whole steps from `feed`, while `proceed()`, called before each step,
    returns True.
    """
    while proceed():
        for _ in range(probe.config.gradient_accumulation_steps):
            yield probe.moved(mapped(next(feed), lambda tensor: tensor))


def profiled(
    engine: TuningEngine, probe: Probe, feed: Iterator[Batch], config: WindowConfig, step_s: float
) -> dict[str, object]:
    ranges = Ranges(probe.rank.device, nvtx=config.name == "nsys")
    window = Window(config, probe.rank, probe.report.folder, ranges, step_s)

    def counted() -> Iterator[Batch]:
        for batch in feed:
            window.count(
                count(batch, probe.pad_id, probe.rank.device.type, probe.copies)[
                    COUNTS.index("h2d_bytes")
                ]
            )
            yield batch

    with named_phases(engine, probe, ranges):
        train_on(engine, probe, step_batches(probe, counted(), window.boundary))
    ranges.close()
    return window.result()


@contextmanager
def named_phases(engine: TuningEngine, probe: Probe, ranges: Ranges) -> Iterator[None]:
    """Mark the engine's phases for a profiler: data (it asks for a batch), h2d (copies it), forward
    (calls the model, to the loss), backward (to the optimiser: clipping and the counts of tokens
    are in it) and optimizer.
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
    if not probe.config.optimizer_in_bwd:  # where weights are updated in the backward pass
        hooks.extend(
            optimizer.register_step_pre_hook(lambda *_: ranges.open("optimizer"))
            for optimizer in engine.optimizers
        )
    with (
        mock.patch.object(torchtune.utils, "batch_to_device", marked_copy),
        mock.patch.object(torch.Tensor, "backward", marked_backward),
        mock.patch.object(probe, "ranges", ranges),
    ):
        yield
    for hook in hooks:
        hook.remove()


def measured(engine: TuningEngine, probe: Probe, step_s: float) -> dict[str, list[float]] | None:
    """Times of the ablations. `alone` and `core` leave out the exchange of weights and gradients,
    not a recipe's all-reduces of counts and losses. All take the same batches in the same order:
    rows differ in length, and so do their steps.
    """
    rank = probe.rank
    per_step = probe.config.gradient_accumulation_steps

    def feed() -> Iterator[Batch]:
        return endless(engine.batches, probe.config.epochs)

    def on_device(batch: Batch) -> Batch:
        return mapped(batch, lambda tensor: tensor.to(rank.device))

    cached = list(islice(feed(), per_step * diagnosis.MOST_STEPS))
    resident = list(map(on_device, cached))

    def steps(batches: Iterator[Batch], count: int) -> float:
        marks_s: list[float] = []  # from the engine's first request for a batch

        def proceed() -> bool:
            if len(marks_s) in (0, count):
                timing.synchronize(rank.device)
            marks_s.append(timing.clock_s())
            return len(marks_s) <= count

        train_on(engine, probe, step_batches(probe, batches, proceed))
        return marks_s[-1] - marks_s[0]

    def fetch(count: int) -> None:
        for batch in islice(feed(), count * per_step):
            on_device(batch)

    def alone(batches: Iterator[Batch], count: int) -> float:
        with without_exchange(engine.model):
            return steps(batches, count)

    chosen: dict[str, diagnosis.Ablation] = {
        "whole": lambda count: steps(feed(), count),
        "device": lambda count: steps(iter(resident), count),
        "input": diagnosis.timed(rank, fetch),
    }
    if rank.device.type == "cuda":
        chosen["host"] = lambda count: steps(iter(cached), count)
    core = steps
    if isinstance(engine.model, FSDPModule | DistributedDataParallel) and rank.world_size > 1:
        core = alone
        chosen["alone"] = lambda count: alone(feed(), count)
        chosen["core"] = lambda count: alone(iter(resident), count)
    halves = [half(batch) for batch in resident]
    if all(batch is not None for batch in halves):
        tokens = [batch[0] if isinstance(batch, tuple) else batch["tokens"] for batch in cached]
        fixed = len({values.shape for values in tokens}) == 1

        def on_halves(count: int) -> float:
            # what is compiled, in the round that warms up,
            # must not replace the code for whole batches of one shape
            with torch._dynamo.config.patch(automatic_dynamic_shapes=not fixed):
                return core(iter(halves), count)

        chosen["half"] = on_halves
    # recipes' loaders have no workers, so no batch is prepared in advance
    board = probe.progress.board
    return diagnosis.interleaved(chosen, {}, rank, step_s, 0, lambda: board.stop_at > 0)
