"""Models on several GPUs: what wraps them, and what ranks exchange outside the wrapper."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from multicard.config.vision import DdpConfig
from multicard.ranks.process import Rank
from multicard.vision.precision import Precision


def replicate(model: nn.Module, options: DdpConfig, rank: Rank) -> tuple[nn.Module, nn.Module]:
    """The model under DistributedDataParallel, and the model in it; the same twice on a single rank."""
    if rank.world_size == 1:
        return model, model
    if options.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    parallel = DistributedDataParallel(
        model,
        device_ids=[rank.device.index] if rank.device.type == "cuda" else None,
        bucket_cap_mb=options.bucket_cap_mb,
        gradient_as_bucket_view=options.gradient_as_bucket_view,
    )
    return parallel, model


class InPrecision(nn.Module):
    """The model with autocast inside its forward pass: DataParallel's threads would take autocast's default type."""

    def __init__(self, model: nn.Module, precision: Precision, device: torch.device) -> None:
        super().__init__()
        self.model, self.precision, self.device = model, precision, device

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        with self.precision.arithmetic(self.device):
            return self.model(images)


def average_gradients(model: nn.Module, ranks_with_batch: int) -> None:
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
    _copy_back(flat, gradients)


def broadcast_statistics(model: nn.Module, rank: Rank) -> None:
    """Give every rank the BatchNorm statistics of rank 0, so that all evaluate the same model."""
    buffers = [b for b in model.buffers() if b.is_floating_point()]
    if rank.world_size == 1 or not buffers:
        return
    flat = torch.cat([b.reshape(-1) for b in buffers])
    dist.broadcast(flat, src=0)
    _copy_back(flat, buffers)


def _copy_back(flat: torch.Tensor, parts: list[torch.Tensor]) -> None:
    for part, values in zip(parts, flat.split([p.numel() for p in parts]), strict=True):
        part.copy_(values.view_as(part))
