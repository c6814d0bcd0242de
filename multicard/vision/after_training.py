"""Take further steps after the measured training: for profiles, and for `diagnose`'s ablations."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import cycle

import torch
from torch.optim.lr_scheduler import LambdaLR

from multicard.config.base import WindowConfig
from multicard.config.compilation import GRAPH_PASSES
from multicard.observe import diagnosis
from multicard.observe.profiles.capture import Window
from multicard.ranks.process import max_over_ranks
from multicard.records.rank_files import VisionReport
from multicard.run.rank_report import RankReportWriter
from multicard.vision.data.batch import Batch, Input, PendingBatch, copy_ahead
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.splits import Remaining
from multicard.vision.loop import COUNTS, Loop
from multicard.vision.strategy import Share


def after_training(
    loop: Loop,
    report: RankReportWriter[VisionReport],
    sampler: Remaining,
    training: Input,
    workers: int,
) -> None:
    """Take the steps that `profile` and `diagnose` ask for, and write their results.

    The weights do not change, because the learning rate is 0.
    """
    config = loop.config
    window = (
        config.profile
        if isinstance(config.profile, WindowConfig) and not config.profile.from_start
        else None
    )
    if not (window or config.diagnose):
        return
    if max_over_ranks(loop.rank, loop.progress.board.stop_at):
        return  # The job is about to end. The run itself has been measured.
    step_s = report.content.epochs[-1].train_s / loop.share.steps
    loop.optim.schedule = LambdaLR(loop.optim.optimizer, lambda _: 0.0)
    loop.share.model.train()
    feed = endless_batches(training, sampler, loop.share, config.epochs)
    if window:
        report.content.profile = profile_steps(loop, report, feed, window, step_s)
    if config.diagnose:
        prepared = LOADERS[config.loader.name].prepared(config.loader, workers)
        report.content.ablations = time_ablations(loop, feed, step_s, prepared)
    report.write()


def endless_batches(
    training: Input, sampler: Remaining, share: Share, epoch: int
) -> Iterator[Batch]:
    """Yield the loader's batches, epoch after epoch, but only those of complete rounds.

    If an epoch has no complete round, yield all of its batches.
    """
    complete = (
        len(share.sampler) // share.batch_size // share.batches_per_step * share.batches_per_step
    )
    while True:
        sampler.set_epoch(epoch)
        yield from (
            batch for number, batch in enumerate(training) if number < complete or not complete
        )
        epoch += 1


def profile_steps(
    loop: Loop,
    report: RankReportWriter[VisionReport],
    feed: Iterator[Batch],
    config: WindowConfig,
    step_s: float,
) -> dict[str, object]:
    """Take steps under the profiler, and return its result."""
    window = Window(config, loop.rank, report.folder, loop.ranges, step_s)
    loop.timer.start()
    while window.boundary():
        counts, _ = loop.step(feed)
        window.count(counts["h2d_images_bytes"] + counts["h2d_labels_bytes"])
    loop.timer.stop()
    return window.result()


def time_ablations(
    loop: Loop, feed: Iterator[Batch], step_s: float, prepared: int
) -> dict[str, list[float]] | None:
    """Time the ablations: steps with one cost removed. Return the seconds of each, by name.

    Args:
        prepared: Number of batches that the loader makes ahead of the step that asks for them.
    """
    share = loop.share
    rank = loop.rank
    loop.timer.start()
    loaded_batches = [next(feed) for _ in range(share.batches_per_step)]
    on_device = [
        Batch(*loop.move(batch, dict.fromkeys(COUNTS, 0)), images_bytes=0, labels_bytes=0)
        for batch in loaded_batches
    ]

    def steps(batches: Iterator[Batch], count: int) -> None:
        for _ in range(count):
            loop.step(batches)
        loop.timer.stop()  # This discards the recorded times, which are not needed.
        loop.timer.start()

    def fetch(count: int) -> None:
        for _ in range(count * share.batches_per_step):
            loop.move(next(feed), dict.fromkeys(COUNTS, 0))

    def train_alone(batches: Iterator[Batch], count: int, size: int = share.batch_size) -> None:
        """Train the plain model: ranks exchange neither gradients nor buffers.

        A compiled model is compiled again for another `size`, and its CUDA graphs are recorded, in
        the round that warms up.
        """
        loop.share = replace(share, model=share.plain, batch_size=size)
        try:
            steps(batches, count)
        finally:
            loop.share = share

    def take_whole_steps(count: int) -> None:
        steps(feed, count)

    step_takers = {
        "whole": take_whole_steps,
        "device": lambda count: steps(cycle(on_device), count),
        "input": fetch,
    }
    if rank.device.type == "cuda":
        from_host = resend_from_host(loaded_batches, rank.device)
        step_takers["host"] = lambda count: steps(from_host, count)
    if rank.world_size > 1:
        step_takers["alone"] = lambda count: train_alone(feed, count)
        step_takers["core"] = lambda count: train_alone(cycle(on_device), count)
    size = len(on_device[0].labels) // 2
    if size > 1 and len(share.devices) == 1:
        halves = [Batch(batch.images[:size], batch.labels[:size], 0, 0) for batch in on_device]
        step_takers["half"] = lambda count: train_alone(cycle(halves), count, size)
    refill = {name: take_whole_steps for name in ("whole", "alone") if name in step_takers} | {
        "input": fetch
    }
    timed = {name: diagnosis.timed(rank, take_steps) for name, take_steps in step_takers.items()}
    rounds_ahead = -(-prepared // share.batches_per_step)
    warm_up = GRAPH_PASSES if loop.cuda_graphs else 1
    return diagnosis.measure_interleaved(
        timed, refill, rank, step_s, rounds_ahead, lambda: loop.progress.board.stop_at > 0, warm_up
    )


def resend_from_host(loaded_batches: list[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield these batches again and again, copied from the host as the loader copies them.

    The copy is made in the step or ahead of it.
    """
    if loaded_batches[0].ready is None:
        return cycle(loaded_batches)
    parts = [
        (batch.images.cpu().pin_memory(), batch.labels.cpu().pin_memory())
        for batch in loaded_batches
    ]
    on_host = [Batch(*pair, *batch[2:4]) for pair, batch in zip(parts, loaded_batches, strict=True)]
    return copy_ahead((PendingBatch(batch) for batch in cycle(on_host)), device)
