"""One rank's part of a training run: data, model, strategy, optimiser, loop."""

import gc
from pathlib import Path

import torch
from torch.amp.grad_scaler import GradScaler
from torch.utils.data import Sampler

from multicard.config.vision import (
    LayoutName,
    StrategyName,
    VisionConfig,
)
from multicard.measure import memory, timing
from multicard.ranks.meeting import meet
from multicard.ranks.process import Rank
from multicard.vision import after_training, compiling, models, resume
from multicard.vision.data import datasets, decoded_cache, splits
from multicard.vision.data.batch import Input, Source
from multicard.vision.data.loaders import LOADERS
from multicard.vision.data.samplers import Rest, Strided
from multicard.vision.loop import Loop
from multicard.vision.optim import OPTIMIZERS, SCHEDULES
from multicard.vision.precision import choose
from multicard.vision.rank_report import Report
from multicard.vision.strategy import STRATEGIES


def train(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """Train, evaluate after each epoch, and leave rank files and steps in `folder`.

    Where the controller asks for a stop, the state is saved and training ends there; another call goes on from it.
    """
    device = rank.device
    precision = choose(config.precision.name, device)
    torch.backends.cudnn.benchmark = config.cudnn_benchmark
    flags = precision.set_flags()
    torch.manual_seed(config.seed)  # the same weights on every rank

    # ---- data: every rank reads the set; its share of it follows from the strategy
    content = datasets.load(config.dataset, config.seed)
    if content.shared:
        meet(rank)
        if rank.local_rank == 0:
            decoded_cache.forget(content)

    # ---- model
    model = models.build(config.model, content.classes, config.dataset.image_size)
    memory_format = torch.channels_last if config.layout.name is LayoutName.nhwc else torch.contiguous_format
    model = model.to(device, precision.model).to(memory_format=memory_format)  # pyright: ignore[reportCallIssue]
    if compiling.wanted(config, device):
        model.compile(dynamic=False)

    # ---- strategy
    share = STRATEGIES[config.strategy.name](model, len(content.train), config, rank)
    pin = config.pin_memory and device.type == "cuda"
    sampler = Rest(share.sampler, len(content.train))
    test = Strided(len(content.test), rank.rank, rank.world_size)
    sharded = config.strategy.name is StrategyName.ddp_ds and rank.world_size > 1

    def load(split: splits.Split, order: Sampler[int], **which: bool) -> Input:
        read = (split, order, share.batch_size, workers, config, precision.transfer, pin, device)
        return LOADERS[config.loader.name](Source(*read, **which))

    training = load(content.train, sampler, sharded=sharded)
    testing = load(content.test, test, training=False)

    replicas = config.gpus if config.strategy.name is StrategyName.dp else 1
    if config.dataset.image_size <= 32 and smallest_batch(len(share.sampler), share.batch_size, replicas) == 1:
        # the last feature map is 1 x 1: one value a channel
        problem = f"batch_size={config.batch_size}: leaves a batch of one image, which BatchNorm cannot train on"
        raise ValueError(f"{problem} at 32 px; change batch_size, dataset.train_limit or dataset.image_size")

    # ---- optimiser
    optimizer = OPTIMIZERS[config.optimizer.name](share.model, config.lr, config.optimizer)
    schedule = SCHEDULES[config.schedule](optimizer, config.lr, config.epochs * share.steps)
    scaler = GradScaler(device.type, enabled=precision.scale_loss)

    # ---- loop
    torch.manual_seed(config.seed + rank.rank)  # dropout differs between ranks
    loop = Loop(rank, config, precision, memory_format, share, optimizer, schedule, scaler, folder)
    report = Report(rank, folder, share, flags, workers)
    report.reads({"loader": config.loader.name.value, "train": training.facts, "test": testing.facts, **content.facts})
    report.content["setup_h2d_bytes"] = {"train": training.setup_bytes, "evaluate": testing.setup_bytes}
    if loop.compiled:
        report.content["compile_s"] = compiling.compile_now(loop, report.devices)
    start = resume.restore(loop, report)
    for used in report.devices:
        memory.reset_peak_memory(used)
    gc.collect()
    gc.freeze()
    gc.disable()
    run_epochs(loop, report, sampler, training, testing, start)
    if not loop.stopped:
        after_training.after_training(loop, report, sampler, training, workers)


def run_epochs(
    loop: "Loop", report: Report, sampler: Rest, training: Input, testing: Input, start: resume.Start
) -> None:
    """Train and evaluate from `start` to the end, or to the step at which a stop is asked for."""
    rank, config, share = loop.rank, loop.config, loop.share
    sampler.set_epoch(start.epoch, share.loaded(start.step))
    batches = training
    if start.random is not None:
        batches = iter(training)  # starts the workers: as in an epoch under way, they are ahead of the first step
        resume.set_random(start.random, report.devices)
    report.started(loop.steps)
    meet(rank)
    elapsed_s, first, before, evaluated_s = start.elapsed_s, start.step, start.trained, None
    for epoch in range(start.epoch, config.epochs):
        started_s = timing.clock_s()
        trained = resume.joined(before, loop.train_epoch(epoch, batches, first))
        trained["gap_s"] = None if evaluated_s is None else started_s - evaluated_s + trained["first_batch_s"]
        if loop.stopped:
            stopped_s = timing.clock_s()
            elapsed_s += stopped_s - started_s
            report.reached(loop.steps, elapsed_s, (started_s, stopped_s))
            resume.save(loop, report, epoch, trained, elapsed_s)
            return
        evaluated = loop.evaluate(testing)
        evaluated_s = timing.clock_s()
        elapsed_s += evaluated_s - started_s
        span_s = (started_s, evaluated_s)
        report.epoch(epoch, trained, evaluated, loop.steps, elapsed_s, span_s)  # what we write is no part of it
        meet(rank)  # nor is the wait for a rank that wrote longer
        target = config.target_accuracy
        if config.stop_at_target and target is not None and evaluated["test_accuracy"] >= target:
            break  # on all ranks alike: the counts were reduced over all of them
        sampler.set_epoch(epoch + 1)
        batches, first, before = training, 0, None


def smallest_batch(samples: int, batch_size: int, replicas: int) -> int:
    """The fewest images that a model sees in a step: of the last batch, or its last chunk where `replicas` share it."""
    last = samples % batch_size or batch_size
    chunk = -(-last // replicas)  # torch.chunk
    return last - chunk * ((last - 1) // chunk)
