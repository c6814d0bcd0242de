"""Strategies: how a run's work is split over its GPUs.

A strategy is one entry of `STRATEGIES` with the functions it names. Imports torch only inside
functions: the controller reads these objects too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from multicard.config import compilation
from multicard.config.base import GroupOption
from multicard.config.placement import Placement
from multicard.config.vision import DdpConfig, DpConfig, VisionConfig
from multicard.measure import formulas
from multicard.messages import Refusal
from multicard.ranks.process import Rank
from multicard.vision.data.splits import Shuffled
from multicard.vision.precision import choose

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DistributedSampler


@dataclass
class Share:
    """One rank's part of the training: its model, and what it loads and trains on in an epoch.

    model: the one that is trained.
    plain: the same, without the wrapper that exchanges gradients.
    devices: all that the rank computes on; the first is `Rank.device`.
    sampler: yields the samples that the rank loads, `batch_size` at a time.
    distinct: the different samples that all ranks together train on in an epoch.
    batches_per_step: batches that the rank loads for a step; turn: which of them, from 0,
    it trains on.
    """

    model: "nn.Module"
    plain: "nn.Module"
    devices: "list[torch.device]"
    sampler: "Shuffled | DistributedSampler[int]"
    batch_size: int
    distinct: int
    batches_per_step: int = 1
    turn: int = 0

    @property
    def evaluated(self) -> "nn.Module":
        """The model that evaluates, on all devices of this rank; it waits for no other rank."""
        return self.model if len(self.devices) > 1 else self.plain

    @property
    def steps(self) -> int:
        """Rounds in an epoch."""
        batches = -(-len(self.sampler) // self.batch_size)
        return -(-batches // self.batches_per_step)

    def distinct_part(self, ranks: int) -> float:
        """The distinct samples of an epoch, by all that `ranks` train in it,
        padding and repetitions included.
        """
        return self.distinct * self.batches_per_step / (len(self.sampler) * ranks)

    def loaded(self, steps: int) -> int:
        """Samples that this rank loads in the first `steps` steps of an epoch,
        all batches being full.
        """
        return steps * self.batches_per_step * self.batch_size


@dataclass(frozen=True)
class Traffic:
    """Sizes from which a strategy computes the bytes that a rank receives in a run.

    full_steps: those of the steps for which every rank has a batch.
    parameters, gradients, buffers, statistics: bytes; statistics are the floating-point buffers.
    trained, evaluated: how many batches rank 0 had, by their size.
    image_bytes, output_bytes: of an image as the model takes it, and of its outputs.
    """

    world_size: int
    steps: int
    full_steps: int
    evaluations: int
    parameters: int
    gradients: int
    buffers: int
    statistics: int
    trained: Mapping[int, int] = field(default_factory=dict)
    evaluated: Mapping[int, int] = field(default_factory=dict)
    image_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True)
class Strategy:
    """How a run's work is split over its GPUs.

    share: makes a rank's `Share` of the model and the number of training samples.
    received: bytes that a rank receives, by name of collective; None where that is not known.
    refuse: raises a `Refusal` for what the strategy cannot do.
    options: the schema of `strategy.*`.
    shards: in an epoch a rank reads its own part of the training set alone.
    takes_turns: the ranks train on the batches of an epoch by turns.
    compiles: a compiled model works, and `compile=null` compiles it on CUDA.
    """

    share: "Callable[[nn.Module, int, VisionConfig, Rank], Share]"
    received: Callable[[VisionConfig, Traffic], dict[str, int] | None]
    refuse: Callable[[VisionConfig, Placement], None]
    options: type[GroupOption] = DdpConfig
    shards: bool = False
    takes_turns: bool = False
    compiles: bool = True


def ddp_ds(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP with DistributedSampler: a rank loads and trains its shard.

    Gradients are all-reduced in buckets while the backward pass runs; rank 0's BatchNorm statistics
    are broadcast before each forward pass. The sampler fills the last round by repeating samples,
    so that all ranks have equally many.
    """
    from torch.utils.data import DistributedSampler

    sampler = DistributedSampler(
        range(samples),  # pyright: ignore[reportArgumentType]
        rank.world_size,
        rank.rank,
        shuffle=True,
        seed=config.seed,
    )
    return replicated(model, sampler, samples, config, rank)


def ddp_rr(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP, round robin: every rank loads and moves every batch,
    and trains on batches i with i mod world = rank.

    Gradients travel as in ddp_ds; the input is moved world times.
    """
    sampler = Shuffled(samples, config.seed)
    return replicated(
        model, sampler, samples, config, rank, batches_per_step=rank.world_size, turn=rank.rank
    )


def ddp(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP without distribution of the data: every rank trains on everything,
    in an order of its own.

    An epoch is as long as on one GPU, and trains world times as many samples.
    """
    return replicated(
        model, Shuffled(samples, config.seed, stream=rank.rank), samples, config, rank
    )


def dp(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """nn.DataParallel: one process with a thread for each of its GPUs.

    The process loads `batch_size` images for each GPU and copies all to the first one. In each step
    DataParallel scatters them from there, broadcasts the parameters and buffers, gathers the
    outputs, and sums the gradients. BatchNorm normalises each GPU's part by itself, and the first
    GPU's running statistics are kept. All GPUs evaluate. On one GPU the model is the plain one,
    as with the other strategies.
    """
    import torch

    devices = [torch.device(rank.device.type, index) for index in range(config.gpus)]
    sampler = Shuffled(samples, config.seed)
    if len(devices) == 1:
        return Share(model, model, [rank.device], sampler, config.rank_batch_size, samples)

    precision = choose(config.precision.name, rank.device)

    class InPrecision(torch.nn.Module):
        """The model with autocast in its forward pass:
        DataParallel's threads would take autocast's default type.
        """

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            with precision.arithmetic(rank.device):
                return self.model(images)

    parallel = torch.nn.DataParallel(InPrecision(), device_ids=list(range(config.gpus)))
    return Share(parallel, model, devices, sampler, config.rank_batch_size, samples)


def replicated(
    model: "nn.Module", sampler: Any, samples: int, config: VisionConfig, rank: Rank, **rounds: int
) -> Share:
    """The share of a rank whose model is under DistributedDataParallel;
    the plain model on a single rank.

    The plain model evaluates: DDP's forward pass would wait for ranks that have fewer batches.
    """
    from torch.nn import SyncBatchNorm, parallel

    options = config.strategy
    trained = model
    assert isinstance(options, DdpConfig)
    if rank.world_size > 1:
        if options.sync_batchnorm:
            model = SyncBatchNorm.convert_sync_batchnorm(model)
        trained = parallel.DistributedDataParallel(
            model,
            device_ids=[rank.device.index] if rank.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
        )
    return Share(trained, model, [rank.device], sampler, config.batch_size, samples, **rounds)


def ddp_received(config: VisionConfig, traffic: Traffic) -> dict[str, int] | None:
    """All-reduce: 2 (w - 1) / w of the gradients a step, as in a ring. Broadcast from rank 0:
    parameters and buffers when DDP starts, all buffers before each training step for which every
    rank has a batch (others go without DDP's forward pass), the BatchNorm statistics before each
    evaluation.
    """
    if isinstance(config.strategy, DdpConfig) and config.strategy.sync_batchnorm:
        return None
    if traffic.world_size <= 1 or not traffic.steps:
        return {"all_reduce": 0, "broadcast": 0}
    at_start = traffic.parameters + traffic.buffers
    return {
        "all_reduce": round(
            traffic.steps * formulas.ring_all_reduce_bytes(traffic.gradients, traffic.world_size)
        ),
        "broadcast": (
            at_start
            + traffic.full_steps * traffic.buffers
            + traffic.evaluations * traffic.statistics
        ),
    }


def dp_received(config: VisionConfig, traffic: Traffic) -> dict[str, int]:
    """What DataParallel copies between the GPUs of its process, all of them together.

    Scatter: the images of all GPUs but the first, and the gradients of their outputs. Broadcast:
    all parameters and buffers to each further GPU, in evaluation too. Gather: the outputs. Reduce:
    gradients of all parameters, zeros for frozen ones.
    """
    trained = formulas.on_further_gpus(traffic.trained, config.gpus)
    evaluated = formulas.on_further_gpus(traffic.evaluated, config.gpus)
    images = trained.samples + evaluated.samples
    replicas = trained.replicas + evaluated.replicas
    return {
        "scatter": images * traffic.image_bytes + trained.samples * traffic.output_bytes,
        "broadcast": replicas * (traffic.parameters + traffic.buffers),
        "gather": images * traffic.output_bytes,
        "reduce": trained.replicas * traffic.parameters,
    }


def refuse_for_dp(config: VisionConfig, placement: Placement) -> None:
    if config.nodes > 1:
        raise Refusal(
            "strategy.dp-on-nodes",
            f"nodes={config.nodes}: strategy=dp has one process, on one node; use"
            " `strategy=ddp_ds`",
            key="nodes",
            nodes=config.nodes,
        )
    if config.compile:
        value = compilation.word(config.compile)
        raise Refusal(
            "strategy.dp-compiled",
            f"compile={value}: strategy=dp would run the first GPU's compiled model on all of them;"
            " use `compile=false` or `strategy=ddp_ds`",
            key="compile",
            compile=value,
        )
    if config.gpus > 1 and placement.device == "cpu":
        raise Refusal(
            "strategy.dp-on-cpu",
            "strategy=dp: nn.DataParallel copies the model to further GPUs, and"
            f" gpus={config.gpus} would be CPU ranks; use `strategy=ddp_ds` or `gpus=1`",
            key="strategy",
            gpus=config.gpus,
        )
    if placement.oversubscribed:
        raise Refusal(
            "strategy.dp-oversubscribed",
            f"strategy=dp: its gpus={config.gpus} replicas cannot share a GPU; use"
            " `strategy=ddp_ds`, or fewer GPUs",
            key="strategy",
            gpus=config.gpus,
        )


def refuse_for_ddp(config: VisionConfig, placement: Placement) -> None:
    options = config.strategy
    assert isinstance(options, DdpConfig)
    if options.sync_batchnorm and STRATEGIES[options.name].takes_turns:
        raise Refusal(
            "strategy.sync-batchnorm-by-turns",
            f"strategy.sync_batchnorm=true: does not go with strategy={options.name}, whose last"
            " round may leave ranks without a batch while others wait for their statistics; use"
            " `strategy=ddp_ds`",
            key="strategy.sync_batchnorm",
            strategy=options.name,
        )
    if options.sync_batchnorm and placement.device != "cuda":
        raise Refusal(
            "strategy.sync-batchnorm-on-cpu",
            "strategy.sync_batchnorm=true: torch's SyncBatchNorm needs CUDA; use"
            " `strategy.sync_batchnorm=false`",
            key="strategy.sync_batchnorm",
        )
    several = config.gpus * config.nodes > 1
    if several and compiles(config, placement.device) and options.bucket_cap_mb < 1:
        raise Refusal(
            "strategy.small-buckets",
            f"strategy.bucket_cap_mb={options.bucket_cap_mb:g}: is below 1, and torch compiles by"
            " bucket, the first of 1 MiB; use `strategy.bucket_cap_mb=1` or more, or"
            " `compile=false`",
            key="strategy.bucket_cap_mb",
            value=options.bucket_cap_mb,
        )


STRATEGIES = {
    "ddp_ds": Strategy(ddp_ds, ddp_received, refuse_for_ddp, shards=True),
    "ddp_rr": Strategy(ddp_rr, ddp_received, refuse_for_ddp, takes_turns=True),
    "ddp": Strategy(ddp, ddp_received, refuse_for_ddp),
    "dp": Strategy(dp, dp_received, refuse_for_dp, options=DpConfig, compiles=False),
}


def compiles(config: VisionConfig, device_type: str) -> bool:
    """True if the model is compiled; `compile=null` compiles it on CUDA,
    where the strategy allows it.
    """
    if config.compile is not None:
        return bool(config.compile)
    return device_type == "cuda" and STRATEGIES[config.strategy.name].compiles
