"""The attention that a GPU would compute: without one, torch falls back to `math`, which keeps matrices of sequence x
sequence, and says nothing."""

from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

HALVES = (torch.float16, torch.bfloat16)


class PackedMask(BlockMask):
    """Stands for flex attention's block mask, which torchtune makes of packed rows on a GPU.

    `row_numbers` (B, S) int64 is what the mask is computed from; its blocks of 128 x 128 are too few to count.
    """

    def __init__(self, row_numbers: torch.Tensor) -> None:
        self.row_numbers = row_numbers

    def to(self, *_: Any, **__: Any) -> "PackedMask":
        return self


class _Flex(torch.autograd.Function):
    """What compiled flex attention keeps: its inputs, its output and the log-sums of each query, in float32."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = torch.empty_like(query)
        log_sums = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, log_sums)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, ...]:
        query, key, value, _, log_sums = ctx.saved_tensors
        row_sums = torch.empty_like(log_sums)  # of the output times its gradient, which the kernel reads
        del row_sums
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def scaled_dot_product_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """torch's function of that name with the operator that a GPU from Ampere on takes: flash attention for 16-bit types
    without a mask, memory-efficient attention otherwise, and `math` for float64. (B, heads, S, width) each."""
    if isinstance(attn_mask, PackedMask):
        return _Flex.apply(query, key, value)  # pyright: ignore[reportReturnType]
    if enable_gqa:
        raise NotImplementedError("attention with grouped heads: no prediction")
    dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else query.dtype
    operators = torch.ops.aten
    if dtype is torch.float64:
        return operators._scaled_dot_product_attention_math(query, key, value, attn_mask, dropout_p, is_causal)[0]
    query, key, value = (part.to(dtype) for part in (query, key, value))
    if dtype in HALVES and attn_mask is None:
        width = query.shape[-1]
        if width % 8:
            padding = (0, 8 - width % 8)
            query, key, value = (torch.nn.functional.pad(part, padding) for part in (query, key, value))
        output = operators._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal)[0]
        return output[..., :width]
    mask = None
    if attn_mask is not None:
        mask = attn_mask
        if mask.dtype is torch.bool:
            mask = torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, float("-inf"))
        mask = mask.expand(*query.shape[:-1], key.shape[-2])
    return operators._scaled_dot_product_efficient_attention(query, key, value, mask, True, dropout_p, is_causal)[0]


def of_torchtune(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False
) -> torch.Tensor:
    """As torchtune's attention layer calls it; a mask of booleans is (B, S, S)."""
    mask = mask[:, None] if isinstance(mask, torch.Tensor) else mask
    return scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal)
