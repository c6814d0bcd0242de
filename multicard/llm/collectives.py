"""Count the bytes that a rank receives in collectives, and turn the exchange of FSDP or DDP off."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.nn.parallel import DistributedDataParallel

from multicard.measure.formulas import ring_all_reduce_bytes

KINDS = ("all_gather", "reduce_scatter", "all_reduce")


class ReceivedBytes:
    """Counts the received bytes for each kind of collective.

    With world size w, a rank receives (w - 1) / w of what is gathered or scattered, and
    2 (w - 1) / w of what is reduced.
    """

    def __init__(self) -> None:
        self.bytes: dict[str, float] = dict.fromkeys(KINDS, 0)

    def clear(self) -> None:
        """Start again from zero."""
        self.bytes.update(dict.fromkeys(KINDS, 0))

    def rounded_counts(self) -> dict[str, int]:
        """Return the rounded counts by kind of collective."""
        return {kind: round(count) for kind, count in self.bytes.items()}

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing within this context."""
        bytes_before = dict(self.bytes)
        try:
            yield
        finally:
            self.bytes.update(bytes_before)

    def watch(self, model: torch.nn.Module) -> None:
        """Count the bytes that FSDP gathers and scatters for `model`, or that DDP reduces.

        DDP reduces all gradients after a forward pass, except within `no_sync`.
        """
        counts = self.bytes
        gradients = sum(
            parameter.nbytes for parameter in model.parameters() if parameter.requires_grad
        )

        def count_reduced(ddp: DistributedDataParallel, *_: Any) -> None:
            if ddp.require_backward_grad_sync and torch.is_grad_enabled():
                counts["all_reduce"] += ring_all_reduce_bytes(gradients, dist.get_world_size())

        if isinstance(model, DistributedDataParallel):
            model.register_forward_pre_hook(count_reduced)

        class Gather(DefaultAllGather):
            def __call__(
                self,
                output_tensor: torch.Tensor,
                input_tensor: torch.Tensor,
                *rest: Any,
                **keywords: Any,
            ) -> Any:
                counts["all_gather"] += output_tensor.nbytes - input_tensor.nbytes
                return super().__call__(output_tensor, input_tensor, *rest, **keywords)

        class Scatter(DefaultReduceScatter):
            def __call__(
                self,
                output_tensor: torch.Tensor,
                input_tensor: torch.Tensor,
                *rest: Any,
                **keywords: Any,
            ) -> Any:
                counts["reduce_scatter"] += input_tensor.nbytes - output_tensor.nbytes
                return super().__call__(output_tensor, input_tensor, *rest, **keywords)

        _set_collectives(model, Gather(), Scatter())

    @contextmanager
    def all_reduces(self) -> Iterator[None]:
        """Count the all-reduces that the recipe itself calls (token counts, losses, rewards)."""
        all_reduce = dist.all_reduce

        def counting_all_reduce(tensor: torch.Tensor, *rest: Any, **keywords: Any) -> Any:
            self.bytes["all_reduce"] += ring_all_reduce_bytes(tensor.nbytes, dist.get_world_size())
            return all_reduce(tensor, *rest, **keywords)

        with mock.patch.object(dist, "all_reduce", counting_all_reduce):
            yield


class OwnShards(DefaultAllGather):
    """Copies a rank's own shard to the place of every other shard, on the rank's device."""

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        *_: Any,
        **__: Any,
    ) -> None:
        for shard in output_tensor.view(group.size(), -1):
            if shard.data_ptr() != input_tensor.data_ptr():  # FSDP's input is part of its output.
                shard.copy_(input_tensor.view(-1))


class NoGradients(DefaultReduceScatter):
    """Sets gradients to zero. The optimizer takes its usual time, but changes little."""

    def __call__(self, output_tensor: torch.Tensor, *_: Any, **__: Any) -> Any:
        output_tensor.zero_()


@contextmanager
def without_exchange(model: torch.nn.Module) -> Iterator[None]:
    """Stop ranks from exchanging weights and gradients.

    Steps take as long as before without the exchange, and their results are worthless. Use it after
    the measured training only, because the bytes of collectives are no longer counted afterwards.
    """
    if isinstance(model, DistributedDataParallel):
        with model.no_sync():
            yield
        return
    _set_collectives(model, OwnShards(), NoGradients())
    try:
        yield
    finally:
        _set_collectives(model, DefaultAllGather(), DefaultReduceScatter())


def _set_collectives(
    model: torch.nn.Module, gather: DefaultAllGather, scatter: DefaultReduceScatter
) -> None:
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(scatter)
