"""How the work is split over ranks: a plain model in, the parallel model and the rank's share of the data out."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DistributedSampler

from multicard.config.vision import DdpConfig, StrategyName, VisionConfig
from multicard.ranks.process import Rank
from multicard.vision.data.samplers import Shuffled
from multicard.vision.precision import Precision, choose


@dataclass
class Share:
    """What one rank does with the training set.

    It loads, and moves to its device, all that `sampler` yields, `batch_size` at a time; of every `round` batches
    it trains on the one at `turn`. `distinct` is the number of different samples that all ranks together train on
    in an epoch, `steps` the rounds in it.
    """

    model: nn.Module
    sampler: Shuffled | DistributedSampler[int]
    batch_size: int
    distinct: int
    round: int = 1
    turn: int = 0

    @property
    def batches(self) -> int:
        return -(-len(self.sampler) // self.batch_size)

    @property
    def steps(self) -> int:
        return -(-self.batches // self.round)

    def loaded(self, steps: int) -> int:
        """Samples that this rank loads in the first `steps` steps of an epoch, all batches being full."""
        return steps * self.round * self.batch_size


def ddp_ds(model: nn.Module, samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP with DistributedSampler: a rank loads and trains its shard. Gradients are all-reduced in buckets while the
    backward pass runs; rank 0's BatchNorm statistics are broadcast before each forward pass. The sampler fills the
    last round by repeating samples, so that all ranks have as many."""
    sampler = DistributedSampler(range(samples), rank.world_size, rank.rank, shuffle=True, seed=config.seed)  # pyright: ignore[reportArgumentType]
    return Share(replicate(model, config, rank), sampler, config.batch_size, distinct=samples)


def ddp_rr(model: nn.Module, samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP, round robin: every rank loads and moves every batch, and trains on batches i with i mod world = rank.
    The gradients travel as in ddp_ds; the input is moved world times."""
    sampler = Shuffled(samples, config.seed)
    parallel = replicate(model, config, rank)
    return Share(parallel, sampler, config.batch_size, samples, round=rank.world_size, turn=rank.rank)


def ddp(model: nn.Module, samples: int, config: VisionConfig, rank: Rank) -> Share:
    """DDP without distribution of the data: every rank trains on everything, in an order of its own. An epoch is
    as long as on one GPU, and trains world times as many samples."""
    sampler = Shuffled(samples, config.seed, stream=rank.rank)
    return Share(replicate(model, config, rank), sampler, config.batch_size, samples)


def dp(model: nn.Module, samples: int, config: VisionConfig, rank: Rank) -> Share:
    """nn.DataParallel: one process with a thread a GPU. Each step scatters the batch from GPU 0, broadcasts the
    parameters from it, gathers the outputs and sums the gradients there."""
    inner = InPrecision(model, choose(config.precision.name, rank.device), rank.device)
    parallel = DataParallel(inner, device_ids=list(range(config.gpus)))
    return Share(parallel, Shuffled(samples, config.seed), config.batch_size * config.gpus, samples)


class InPrecision(nn.Module):
    """The model with its arithmetic set inside: DataParallel's threads would take autocast's default type."""

    def __init__(self, model: nn.Module, precision: Precision, device: torch.device) -> None:
        super().__init__()
        self.model, self.precision, self.device = model, precision, device

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with self.precision.arithmetic(self.device):
            return self.model(images)


def replicate(model: nn.Module, config: VisionConfig, rank: Rank) -> nn.Module:
    """The model under DistributedDataParallel; as it is on a single rank, where nothing needs to travel."""
    if rank.world_size == 1:
        return model
    options = config.strategy
    assert isinstance(options, DdpConfig)
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    return DistributedDataParallel(
        model,
        device_ids=[rank.device.index] if rank.device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
    )


def devices_of(model: nn.Module, own: torch.device) -> list[torch.device]:
    """The devices that this rank uses: all GPUs with DataParallel, else its own."""
    return [torch.device("cuda", i) for i in model.device_ids] if isinstance(model, DataParallel) else [own]


def unwrap(model: nn.Module) -> nn.Module:
    return model.module if isinstance(model, DistributedDataParallel | DataParallel) else model


def share_gradients(model: nn.Module, ranks_with_batch: int) -> None:
    """Average the gradients of a round that has no batch for every rank, over the ranks that have one.

    torch's Join would let the others shadow DDP's collectives, but they would not step: their momentum, and the
    loss scale, would lag behind from then on. So all ranks take part here, with zeros where there was no batch, and
    all step.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = torch.cat([g.reshape(-1) for g in gradients])
    dist.all_reduce(flat)
    flat /= ranks_with_batch
    for gradient, averaged in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def synchronise_buffers(model: nn.Module, rank: Rank) -> None:
    """Give every rank the BatchNorm statistics of rank 0, so that all evaluate the same model."""
    if rank.world_size == 1:
        return
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if not buffers:
        return
    flat = torch.cat([b.reshape(-1) for b in buffers])
    dist.broadcast(flat, src=0)
    for buffer, received in zip(buffers, flat.split([b.numel() for b in buffers]), strict=True):
        buffer.copy_(received.view_as(buffer))


STRATEGIES: dict[str, Callable[[nn.Module, int, VisionConfig, Rank], Share]] = {
    StrategyName.ddp_ds: ddp_ds,
    StrategyName.ddp_rr: ddp_rr,
    StrategyName.ddp: ddp,
    StrategyName.dp: dp,
}
