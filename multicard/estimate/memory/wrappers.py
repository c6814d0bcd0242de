"""What stands for DistributedDataParallel and DataParallel without a network: the same tensors, at the same times."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

from multicard.estimate.memory.tracker import Tracker
from multicard.vision import replicas

FIRST_BUCKET_BYTES = dist._DEFAULT_FIRST_BUCKET_BYTES  # pyright: ignore[reportPrivateImportUsage]
MIB = 1 << 20


def bucket_sizes(parameters: Sequence[torch.Tensor], cap_mb: float) -> list[list[int]]:
    """The indices of the parameters of each of DDP's buckets: filled in the order in which gradients come, to
    `cap_mb` MiB, the first to 1 MiB."""
    order = list(range(len(parameters)))[::-1]
    limits = [min(FIRST_BUCKET_BYTES, int(cap_mb * MIB)), int(cap_mb * MIB)]
    assign: Any = dist._compute_bucket_assignment_by_size  # pyright: ignore[reportPrivateImportUsage]
    buckets, _ = assign([parameters[i] for i in order], limits)
    return [[order[i] for i in bucket] for bucket in buckets]


class Replicated(nn.Module):
    """A module under DistributedDataParallel: a flat bucket beside the gradients of each group of parameters, or, with
    `gradient_as_bucket_view`, in their place."""

    def __init__(
        self, module: nn.Module, tracker: Tracker, bucket_cap_mb: float, gradient_as_bucket_view: bool
    ) -> None:
        super().__init__()
        self.module = module
        parameters = [p for p in module.parameters() if p.requires_grad]
        self.buckets: list[torch.Tensor] = []
        for members in bucket_sizes(parameters, bucket_cap_mb):
            inside = [parameters[i] for i in members]
            size = sum(p.numel() for p in inside)
            bucket = torch.empty(size, dtype=inside[0].dtype, device=inside[0].device)
            self.buckets.append(bucket)
            tracker.note(bucket, "buckets")
            if gradient_as_bucket_view:
                offset = 0
                for parameter in inside:
                    view = bucket.as_strided(parameter.size(), parameter.stride(), offset)
                    parameter.register_post_accumulate_grad_hook(lambda p, view=view: setattr(p, "grad", view))
                    offset += parameter.numel()

    def forward(self, *arguments: Any) -> Any:
        return self.module(*arguments)


class _Broadcast(torch.autograd.Function):
    """Replicas of the parameters, and the sum of their gradients in memory of its own (`ReduceAddCoalesced`)."""

    @staticmethod
    def forward(ctx: Any, *parameters: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(parameter.detach() for parameter in parameters)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(torch.empty_like(gradient) for gradient in gradients)


class FirstOfParallel(nn.Module):
    """A module under DataParallel, as its first GPU sees it: all of the batch and the outputs, a share of the work, and
    the gradients twice, its own and the sum."""

    def __init__(self, module: nn.Module, device_ids: list[int]) -> None:
        super().__init__()
        self.module, self.devices = module, len(device_ids)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        parameters = dict(self.module.named_parameters())
        copies = _Broadcast.apply(*parameters.values())
        part = images.chunk(self.devices)[0]
        outputs = torch.func.functional_call(self.module, dict(zip(parameters, copies, strict=True)), (part,))
        return torch.cat([outputs] * self.devices)[: len(images)]


@contextmanager
def standing_in(tracker: Tracker) -> Iterator[None]:
    """Within, strategies wrap models in these."""

    def replicated(module: nn.Module, device_ids: Any = None, **options: Any) -> Replicated:
        return Replicated(module, tracker, **options)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(replicas, "DistributedDataParallel", replicated))
        stack.enter_context(mock.patch.object(nn, "DataParallel", FirstOfParallel))
        yield
