"""Strategies: how a run's work is split over its GPUs.

A strategy is one entry of `STRATEGIES` with the functions it names. Imports torch only inside functions: the
controller reads these objects too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multicard.config.keys import require
from multicard.config.placement import Placement
from multicard.config.vision import VisionConfig
from multicard.measure import formulas
from multicard.ranks.process import Rank
from multicard.vision.data.splits import Shuffled

if TYPE_CHECKING:
    from torch import nn
    from torch.utils.data import DistributedSampler


@dataclass
class Share:
    """One rank's part of the training: its model, and what it loads and trains on in an epoch.

    model: the one that is trained.
    plain: the same, without the wrapper that exchanges gradients; it evaluates too.
    sampler: yields the samples that the rank loads, `batch_size` at a time.
    distinct: the different samples that all ranks together train on in an epoch.
    batches_per_step: batches that the rank loads for a step; turn: which of them, from 0, it trains on.
    """

    model: "nn.Module"
    plain: "nn.Module"
    sampler: "Shuffled | DistributedSampler[int]"
    batch_size: int
    distinct: int
    batches_per_step: int = 1
    turn: int = 0

    @property
    def steps(self) -> int:
        """Rounds in an epoch."""
        batches = -(-len(self.sampler) // self.batch_size)
        return -(-batches // self.batches_per_step)

    def distinct_part(self, ranks: int) -> float:
        """The distinct samples of an epoch, by all that `ranks` train in it, padding and repetitions included."""
        return self.distinct * self.batches_per_step / (len(self.sampler) * ranks)

    def loaded(self, steps: int) -> int:
        """Samples that this rank loads in the first `steps` steps of an epoch, all batches being full."""
        return steps * self.batches_per_step * self.batch_size


@dataclass(frozen=True)
class Traffic:
    """Sizes from which a strategy computes the bytes that a rank receives in a run.

    full_steps: those of the steps for which every rank has a batch.
    parameters, gradients, buffers, statistics: bytes; statistics are the floating-point buffers.
    """

    world_size: int
    steps: int
    full_steps: int
    evaluations: int
    parameters: int
    gradients: int
    buffers: int
    statistics: int


@dataclass(frozen=True)
class Strategy:
    """How a run's work is split over its GPUs.

    share: makes a rank's `Share` of the model and the number of training samples.
    received: bytes that a rank receives, by name of collective; None where that is not known.
    refuse: raises ValueError, with the key and the remedy, for what the strategy cannot do.
    shards: in an epoch a rank reads its own part of the training set alone.
    takes_turns: the ranks train on the batches of an epoch by turns.
    """

    share: "Callable[[nn.Module, int, VisionConfig, Rank], Share]"
    received: Callable[[VisionConfig, Traffic], dict[str, int] | None]
    refuse: Callable[[VisionConfig, Placement], None]
    shards: bool = False
    takes_turns: bool = False


def ddp_ds(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP with DistributedSampler: a rank loads and trains its shard.

    Gradients are all-reduced in buckets while the backward pass runs; rank 0's BatchNorm statistics are broadcast
    before each forward pass. The sampler fills the last round by repeating samples, so that all ranks have equally
    many.
    """
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(range(samples), rank.world_size, rank.rank, shuffle=True, seed=config.seed)  # pyright: ignore[reportArgumentType]
    return replicated(model, sampler, samples, config, rank)


def ddp_rr(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP, round robin: every rank loads and moves every batch, and trains on batches i with i mod world = rank.

    Gradients travel as in ddp_ds; the input is moved world times.
    """
    sampler = Shuffled(samples, config.seed)
    return replicated(model, sampler, samples, config, rank, batches_per_step=rank.world_size, turn=rank.rank)


def ddp(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP without distribution of the data: every rank trains on everything, in an order of its own.

    An epoch is as long as on one GPU, and trains world times as many samples.
    """
    return replicated(model, Shuffled(samples, config.seed, stream=rank.rank), samples, config, rank)


def replicated(
    model: "nn.Module", sampler: Any, samples: int, config: VisionConfig, rank: Rank, **rounds: int
) -> Share:
    """The share of a rank whose model is under DistributedDataParallel; the plain model on a single rank.

    The plain model evaluates: DDP's forward pass would wait for ranks that have fewer batches.
    """
    from torch.nn import SyncBatchNorm, parallel

    options, trained = config.strategy, model
    if rank.world_size > 1:
        if options.sync_batchnorm:
            model = SyncBatchNorm.convert_sync_batchnorm(model)
        trained = parallel.DistributedDataParallel(
            model,
            device_ids=[rank.device.index] if rank.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
        )
    return Share(trained, model, sampler, config.batch_size, samples, **rounds)


def ddp_received(config: VisionConfig, traffic: Traffic) -> dict[str, int] | None:
    """All-reduce: 2 (w - 1) / w of the gradients a step, as in a ring. Broadcast from rank 0: parameters and buffers
    when DDP starts, all buffers before each training step for which every rank has a batch (others go without DDP's
    forward pass), the BatchNorm statistics before each evaluation."""
    if config.strategy.sync_batchnorm:
        return None
    if traffic.world_size <= 1 or not traffic.steps:
        return {"all_reduce": 0, "broadcast": 0}
    at_start = traffic.parameters + traffic.buffers
    return {
        "all_reduce": round(traffic.steps * formulas.ring_all_reduce_bytes(traffic.gradients, traffic.world_size)),
        "broadcast": at_start + traffic.full_steps * traffic.buffers + traffic.evaluations * traffic.statistics,
    }


def refuse_for_ddp(config: VisionConfig, placement: Placement) -> None:
    options = config.strategy
    if options.sync_batchnorm:
        key, rounds = "strategy.sync_batchnorm=true", STRATEGIES[options.name].takes_turns
        reason = "its last round may have no batch for some ranks, and the others would wait for their statistics"
        require(not rounds, f"{key}: does not go with {options.name}: {reason}; use ddp_ds")
        require(placement.device == "cuda", f"{key}: torch's SyncBatchNorm needs CUDA; leave it false")
    if config.gpus * config.nodes > 1 and compiles(config, placement.device):
        problem = "strategy.bucket_cap_mb: is below 1, and torch compiles by bucket, the first of 1 MiB"
        require(options.bucket_cap_mb >= 1, f"{problem}; use 1 or more, or compile=false")


STRATEGIES = {
    "ddp_ds": Strategy(ddp_ds, ddp_received, refuse_for_ddp, shards=True),
    "ddp_rr": Strategy(ddp_rr, ddp_received, refuse_for_ddp, takes_turns=True),
    "ddp": Strategy(ddp, ddp_received, refuse_for_ddp),
}


def compiles(config: VisionConfig, device_type: str) -> bool:
    """True if the model is compiled; `compile=null` compiles it on CUDA."""
    if config.compile is not None:
        return bool(config.compile)
    return device_type == "cuda"
