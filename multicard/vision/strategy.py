"""Strategies: how a run's work is split over its GPUs.

`STRATEGIES` has one entry for each strategy, made of the functions in this file. torch is imported
only inside functions, because the controller reads these objects too, and never imports torch.
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

    Attributes:
        model: The model that is trained.
        plain: The same model without the wrapper that exchanges gradients.
        devices: All devices that the rank computes on. The first one is `Rank.device`.
        sampler: Yields the samples that the rank loads, `batch_size` at a time.
        batch_size: Samples in a batch of this rank.
        distinct: Different samples that all ranks together train on in an epoch.
        batches_per_step: Batches that the rank loads for each step.
        turn: Which of these batches the rank trains on, from 0.
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
    def evaluation_model(self) -> "nn.Module":
        """The model to evaluate with. It runs on all devices of this rank, without other ranks."""
        return self.model if len(self.devices) > 1 else self.plain

    @property
    def steps(self) -> int:
        """Steps in an epoch, which all ranks take together."""
        batches = -(-len(self.sampler) // self.batch_size)
        return -(-batches // self.batches_per_step)

    def distinct_part(self, ranks: int) -> float:
        """Return the distinct samples of an epoch as a share of all samples that `ranks` train on.

        All samples include padding and repetitions.
        """
        return self.distinct * self.batches_per_step / (len(self.sampler) * ranks)

    def loaded_samples(self, steps: int) -> int:
        """Return the samples that this rank loads in the first `steps` steps.

        All of these steps have full batches.
        """
        return steps * self.batches_per_step * self.batch_size


@dataclass(frozen=True)
class Traffic:
    """The sizes from which a strategy computes the bytes that a rank receives in a run.

    Attributes:
        world_size: Number of ranks.
        steps: Steps of the run.
        full_steps: Steps for which every rank has a batch.
        evaluations: Evaluations of the test set.
        parameters, gradients, buffers: Sizes in bytes.
        statistics: Bytes of the floating-point buffers.
        training_batches: Number of batches that rank 0 trained on, by batch size.
        evaluation_batches: Number of batches that rank 0 evaluated, by batch size.
        image_bytes, output_bytes: Bytes of one image as the model takes it, and of its outputs.
    """

    world_size: int
    steps: int
    full_steps: int
    evaluations: int
    parameters: int
    gradients: int
    buffers: int
    statistics: int
    training_batches: Mapping[int, int] = field(default_factory=dict)
    evaluation_batches: Mapping[int, int] = field(default_factory=dict)
    image_bytes: int = 0
    output_bytes: int = 0


@dataclass(frozen=True)
class Strategy:
    """How a run's work is split over its GPUs.

    Attributes:
        share: Makes a rank's `Share` from the model and the number of training samples.
        received: Computes the bytes that a rank receives, by name of the collective. It returns
            None if they are not known.
        refuse: Raises a `Refusal` if the strategy cannot run this configuration.
        options: The schema of `strategy.*`.
        shards: True if a rank reads only its own part of the training set in an epoch.
        takes_turns: True if the batches of an epoch go to the ranks in turn.
        compiles: True if a compiled model works. `compile=null` then compiles it on CUDA.
    """

    share: "Callable[[nn.Module, int, VisionConfig, Rank], Share]"
    received: Callable[[VisionConfig, Traffic], dict[str, int] | None]
    refuse: Callable[[VisionConfig, Placement], None]
    options: type[GroupOption] = DdpConfig
    shards: bool = False
    takes_turns: bool = False
    compiles: bool = True


def ddp_ds(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """Return the share of DDP with DistributedSampler: a rank loads and trains on its shard.

    Gradients are all-reduced in buckets during the backward pass. Rank 0's BatchNorm statistics
    are broadcast before each forward pass. The sampler repeats samples to fill the last round, so
    that all ranks have the same number.
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
    """Return the share of DDP in round robin: every rank loads every batch and trains on its own.

    A rank trains on the batches i with i mod world size = rank. Gradients are exchanged as in
    ddp_ds. Each input is moved to the device of every rank.
    """
    sampler = Shuffled(samples, config.seed)
    return replicated(
        model, sampler, samples, config, rank, batches_per_step=rank.world_size, turn=rank.rank
    )


def ddp(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """Return the share of DDP that does not distribute the data.

    Every rank trains on all samples, in an order of its own. An epoch takes as many steps as on one
    GPU, and trains on world size times as many samples.
    """
    return replicated(
        model, Shuffled(samples, config.seed, stream=rank.rank), samples, config, rank
    )


def dp(model: "nn.Module", samples: int, config: VisionConfig, rank: Rank) -> Share:
    """Return the share of nn.DataParallel: one process with a thread for each of its GPUs.

    The process loads `batch_size` images for each GPU and copies all of them to the first one.
    In each step DataParallel scatters them from there, broadcasts the parameters and buffers,
    gathers the outputs, and sums the gradients. BatchNorm normalises each GPU's part by itself, and
    the first GPU's running statistics are kept. All GPUs evaluate. On one GPU the model is not
    wrapped, as with the other strategies.
    """
    import torch

    devices = [torch.device(rank.device.type, index) for index in range(config.gpus)]
    sampler = Shuffled(samples, config.seed)
    if len(devices) == 1:
        return Share(model, model, [rank.device], sampler, config.rank_batch_size, samples)

    precision = choose(config.precision.name, rank.device)

    class InPrecision(torch.nn.Module):
        """The model with autocast in its forward pass.

        Without it, the threads of DataParallel would use autocast's default type.
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
    """Return the share of a rank whose model is wrapped in DistributedDataParallel.

    On a single rank the model is not wrapped. The plain model evaluates: DDP's forward pass would
    wait for ranks that have fewer batches.
    """
    from torch.nn import SyncBatchNorm, parallel

    options = config.strategy
    trained_model = model
    assert isinstance(options, DdpConfig)
    if rank.world_size > 1:
        if options.sync_batchnorm:
            model = SyncBatchNorm.convert_sync_batchnorm(model)
        trained_model = parallel.DistributedDataParallel(
            model,
            device_ids=[rank.device.index] if rank.device.type == "cuda" else None,
            bucket_cap_mb=options.bucket_cap_mb,
            gradient_as_bucket_view=options.gradient_as_bucket_view,
        )
    return Share(trained_model, model, [rank.device], sampler, config.batch_size, samples, **rounds)


def ddp_received(config: VisionConfig, traffic: Traffic) -> dict[str, int] | None:
    """Return the bytes that a rank receives under DDP.

    All-reduce: in a ring, a rank receives 2 (w - 1) / w of the gradients in each step. Broadcast
    from rank 0: parameters and buffers when DDP starts, all buffers before each training step for
    which every rank has a batch, and the BatchNorm statistics before each evaluation. Steps in
    which a rank has no batch do not use DDP's forward pass.
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
    """Return the bytes that DataParallel copies between all GPUs of its process.

    Scatter: the images of all GPUs except the first, and the gradients of their outputs. Broadcast:
    all parameters and buffers to each further GPU, also in evaluation. Gather: the outputs. Reduce:
    the gradients of all parameters, which are zeros for frozen ones.
    """
    training = formulas.on_further_gpus(traffic.training_batches, config.gpus)
    evaluation = formulas.on_further_gpus(traffic.evaluation_batches, config.gpus)
    images = training.samples + evaluation.samples
    replicas = training.replicas + evaluation.replicas
    return {
        "scatter": images * traffic.image_bytes + training.samples * traffic.output_bytes,
        "broadcast": replicas * (traffic.parameters + traffic.buffers),
        "gather": images * traffic.output_bytes,
        "reduce": training.replicas * traffic.parameters,
    }


def refuse_for_dp(config: VisionConfig, placement: Placement) -> None:
    """Refuse a configuration that strategy=dp cannot run."""
    if config.nodes > 1:
        raise Refusal(
            "strategy.dp-on-nodes",
            f"nodes={config.nodes}: strategy=dp has one process, which runs on one node; use"
            " `strategy=ddp_ds`",
            key="nodes",
            nodes=config.nodes,
        )
    if config.compile:
        value = compilation.word(config.compile)
        raise Refusal(
            "strategy.dp-compiled",
            f"compile={value}: strategy=dp would run the model that was compiled for the first GPU"
            " on all of them; use `compile=false` or `strategy=ddp_ds`",
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
    """Refuse a configuration that the strategies with DDP cannot run."""
    options = config.strategy
    assert isinstance(options, DdpConfig)
    if options.sync_batchnorm and STRATEGIES[options.name].takes_turns:
        raise Refusal(
            "strategy.sync-batchnorm-by-turns",
            f"strategy.sync_batchnorm=true: does not work with strategy={options.name}, whose last"
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
            f"strategy.bucket_cap_mb={options.bucket_cap_mb:g}: is below 1, and torch compiles a"
            " graph for each bucket, of which the first has 1 MiB; use `strategy.bucket_cap_mb=1`"
            " or more, or `compile=false`",
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
    """Return True if the model is compiled.

    `compile=null` compiles it on CUDA if the strategy allows it.
    """
    if config.compile is not None:
        return bool(config.compile)
    return device_type == "cuda" and STRATEGIES[config.strategy.name].compiles
