"""What a rank does after its training was measured: profiled steps and ablations."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import cycle

from torch.optim.lr_scheduler import LambdaLR

from multicard.bottleneck import ablations
from multicard.config.base import WindowConfig
from multicard.profiling.capture import Window
from multicard.ranks.meeting import max_over_ranks
from multicard.vision.data.batch import Batch, Input
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.samplers import Rest
from multicard.vision.loop import Loop
from multicard.vision.rank_report import Report
from multicard.vision.strategy import Share


def after_training(loop: Loop, report: Report, sampler: Rest, training: Input, workers: int) -> None:
    """Take the steps that `profile` and `diagnose` ask for, and write what they gave. The weights stay as they are."""
    config = loop.config
    if not (isinstance(config.profile, WindowConfig) or config.diagnose):
        return
    if max_over_ranks(loop.rank, loop.board.stop_at):
        return  # the job is about to end, and the run itself is measured
    last = report.content["epochs"][-1]
    step_s = last["train_s"] / loop.share.steps
    loop.optim.schedule = LambdaLR(loop.optim.optimizer, lambda _: 0.0)
    loop.share.model.train()
    feed = endless(training, sampler, loop.share, config.epochs)
    if isinstance(config.profile, WindowConfig):
        report.content["profile"] = profiled(loop, report, feed, config.profile, step_s)
    if config.diagnose:
        prepared = LOADERS[config.loader.name].prepared(config.loader, workers)
        report.content["ablations"] = measured(loop, feed, step_s, prepared)
    report.write()


def endless(training: Input, sampler: Rest, share: Share, epoch: int) -> Iterator[Batch]:
    """The loader's batches, epoch after epoch, without those that fill no round; all of them where there is none."""
    whole = len(share.sampler) // share.batch_size // share.round * share.round
    while True:
        sampler.set_epoch(epoch)
        yield from (batch for number, batch in enumerate(training) if number < whole or not whole)
        epoch += 1


def profiled(
    loop: Loop, report: Report, feed: Iterator[Batch], config: WindowConfig, step_s: float
) -> dict[str, object]:
    window = Window(config, loop.rank, report.folder, loop.ranges, step_s)
    loop.timer.start()
    while window.boundary():
        counts, _ = loop.step(feed)
        window.count(counts["h2d_images_bytes"] + counts["h2d_labels_bytes"])
    loop.timer.stop()
    return window.result()


def measured(loop: Loop, feed: Iterator[Batch], step_s: float, prepared: int) -> dict[str, list[float]] | None:
    """The times of the ablations.

    Args:
        prepared: batches that the loader makes ahead of the step that asks for them.
    """
    share, rank = loop.share, loop.rank
    on_cuda = rank.device.type == "cuda"
    loop.timer.start()
    cached = [next(feed) for _ in range(share.round)]
    there = [on_device(loop, batch) for batch in cached]

    def steps(batches: Iterator[Batch], count: int) -> None:
        for _ in range(count):
            loop.step(batches)
        loop.timer.stop()  # its marks are not looked at
        loop.timer.start()

    def fetch(count: int) -> None:
        for _ in range(count * share.round):
            loop.move(next(feed), dict.fromkeys(("loaded", "h2d_images_bytes", "h2d_labels_bytes"), 0))

    def alone(batches: Iterator[Batch], count: int) -> None:
        with without_collectives(loop):
            steps(batches, count)

    def whole(count: int) -> None:
        steps(feed, count)

    chosen = {"whole": whole, "device": lambda count: steps(cycle(there), count), "input": fetch}
    if on_cuda:
        chosen["host"] = lambda count: steps(cycle(cached), count)
    if rank.world_size > 1:
        chosen["alone"] = lambda count: alone(feed, count)
        chosen["core"] = lambda count: alone(cycle(there), count)
    size = len(there[0].labels) // 2
    if size > 1 and not loop.compiled and len(share.devices) == 1:
        halves = [Batch(batch.images[:size], batch.labels[:size], 0, 0) for batch in there]
        chosen["half"] = lambda count: alone(cycle(halves), count)
    refill = {name: whole for name in ("whole", "alone") if name in chosen} | {"input": fetch}
    each = {name: ablations.timed(rank, take) for name, take in chosen.items()}
    return ablations.interleaved(
        each, refill, rank, step_s, -(-prepared // share.round), lambda: loop.board.stop_at > 0
    )


def on_device(loop: Loop, batch: Batch) -> Batch:
    images, labels = (part.to(loop.rank.device) for part in (batch.images, batch.labels))
    return Batch(images, labels, 0, 0)


@contextmanager
def without_collectives(loop: Loop) -> Iterator[None]:
    """Steps of the plain model: no gradient and no buffer crosses between ranks."""
    share = loop.share
    loop.share = replace(share, model=share.evaluated)
    try:
        yield
    finally:
        loop.share = share
