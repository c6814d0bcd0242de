"""Counts the bytes that a rank receives in collectives while a recipe trains, where FSDP and the recipe call them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather, DefaultReduceScatter

from multicard.measure.formulas import ring_all_reduce_bytes

KINDS = ("all_gather", "reduce_scatter", "all_reduce")


class ReceivedBytes:
    """Counts by kind of collective: (w - 1) / w of what is gathered or scattered, 2 (w - 1) / w of what is reduced."""

    def __init__(self) -> None:
        self.bytes: dict[str, float] = dict.fromkeys(KINDS, 0)

    def clear(self) -> None:
        """Start again from zero."""
        self.bytes.update(dict.fromkeys(KINDS, 0))

    def counted(self) -> dict[str, int]:
        return {kind: round(count) for kind, count in self.bytes.items()}

    def watch(self, model: torch.nn.Module) -> None:
        """Count what FSDP gathers and scatters for `model`, by its own hooks for custom collectives."""
        counts = self.bytes

        class Gather(DefaultAllGather):
            def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *rest: Any, **more: Any) -> Any:
                counts["all_gather"] += output_tensor.nbytes - input_tensor.nbytes
                return super().__call__(output_tensor, input_tensor, *rest, **more)

        class Scatter(DefaultReduceScatter):
            def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, *rest: Any, **more: Any) -> Any:
                counts["reduce_scatter"] += input_tensor.nbytes - output_tensor.nbytes
                return super().__call__(output_tensor, input_tensor, *rest, **more)

        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_custom_all_gather(Gather())
                module.set_custom_reduce_scatter(Scatter())

    @contextmanager
    def all_reduces(self) -> Iterator[None]:
        """Count the all-reduces that the recipe calls in between (token counts, losses, rewards)."""
        real = dist.all_reduce

        def counting(tensor: torch.Tensor, *rest: Any, **more: Any) -> Any:
            self.bytes["all_reduce"] += ring_all_reduce_bytes(tensor.nbytes, dist.get_world_size())
            return real(tensor, *rest, **more)

        with mock.patch.object(dist, "all_reduce", counting):
            yield
