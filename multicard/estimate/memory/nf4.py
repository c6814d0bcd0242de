"""NF4 tensors by shape alone: torchao quantises by value, and torchtune then swaps tensors, which fake ones refuse."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torchao.dtypes.nf4tensor import NF4Tensor, SubclassTensorArgs
from torchtune.modules.low_precision import nf4_linear
from torchtune.modules.peft import lora


def nf4_like(weight: torch.Tensor, block_size: int = 64, scaler_block_size: int = 256) -> NF4Tensor:
    """The NF4 tensor that `torchao.dtypes.nf4tensor.to_nf4` makes of a weight, without its values."""
    blocks = weight.numel() // block_size
    offset = int(weight.storage_offset())
    meta = SubclassTensorArgs(weight.shape, weight.stride(), offset, weight.dtype, weight.device, weight.requires_grad)

    def empty(size: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(size, dtype=dtype, device=weight.device)

    make: Any = NF4Tensor
    return make(
        meta,
        block_size,
        blocks,
        scaler_block_size,
        empty(blocks, torch.int8),
        empty(blocks // scaler_block_size, weight.dtype),
        empty((), weight.dtype),
        empty(weight.numel() // 2, torch.uint8),
        empty(16, weight.dtype),
    )


def _init(
    self: Any, in_dim: int, out_dim: int, bias: bool = False, device: Any = None, dtype: Any = None, **_: Any
) -> None:
    nn.Linear.__init__(self, in_dim, out_dim, bias=bias, device=device, dtype=dtype)
    if self.bias is not None:
        self.bias.requires_grad_(False)
    self.weight = nn.Parameter(nf4_like(self.weight.detach()), requires_grad=False)


@contextmanager
def by_shape() -> Iterator[None]:
    """Within, torchtune's frozen linears hold NF4 tensors without values."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nf4_linear.FrozenNF4Linear, "__init__", _init))
        for module in (nf4_linear, lora):
            stack.enter_context(mock.patch.object(module, "to_nf4", nf4_like))
        yield
