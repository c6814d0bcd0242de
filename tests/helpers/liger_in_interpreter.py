"""Compares Liger's layers with transformers' in Triton's interpreter: a process of
`tests/llm/test_liger_layers.py`.

Prints the largest difference of outputs and gradients by layer, over the largest value. Triton
3.6's interpreter lacks three things that Liger 0.8.5 and NumPy 2.4 ask for: numbers of Python with
a type, `rsqrt`, and indices of one element.
"""

import json
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import liger_kernel.ops.rms_norm  # pyright: ignore[reportMissingImports]  an extra
import numpy as np
import torch
import triton
import triton.language as tl
from liger_kernel.transformers import (  # pyright: ignore[reportMissingImports]
    LigerRMSNorm,
    LigerSwiGLUMLP,
    liger_rotary_pos_emb,
)
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama
from triton.runtime import interpreter

WIDTH, HEADS, KEY_HEADS = 64, 4, 2
SIZES = LlamaConfig(
    hidden_size=WIDTH,
    intermediate_size=96,
    num_attention_heads=HEADS,
    num_key_value_heads=KEY_HEADS,
)
ROWS, TOKENS = 2, 7


@triton.jit
def rsqrt(x):
    return 1.0 / tl.sqrt(x)


def typed_argument(argument: Any, convert: Callable[[Any], Any] = interpreter._implicit_cvt) -> Any:
    """A kernel's argument, a number of Python as float32."""
    if not isinstance(argument, float):
        return convert(argument)
    values = np.array([argument], dtype=np.float32)
    return tl.tensor(interpreter.TensorHandle(values, tl.float32), tl.float32)


def patch_tensor(
    tensor: Any, scope: Any, patch: Callable[..., None] = interpreter._patch_lang_tensor
) -> None:
    patch(tensor, scope)
    tensor.__index__ = lambda self: int(self.handle.data.item())


def both(layers: Sequence[Callable[..., Any]], *inputs: torch.Tensor) -> float:
    """The largest difference of two layers' outputs and gradients,
    over the largest value of each.
    """
    found: list[list[torch.Tensor]] = []
    for layer in layers:
        own = [each.clone().requires_grad_() for each in inputs]
        results = layer(*own)
        outputs = list(results) if isinstance(results, tuple) else [results]
        towards = [torch.linspace(-1, 1, each.numel()).reshape(each.shape) for each in outputs]
        torch.autograd.backward(outputs, towards)
        weights = list(layer.parameters()) if isinstance(layer, nn.Module) else []
        found.append([*outputs, *(each.grad for each in [*own, *weights] if each.grad is not None)])
    plain, liger = found
    assert len(plain) == len(liger)
    pairs = zip(plain, liger, strict=True)
    return max(float((one - other).abs().max() / one.abs().max()) for one, other in pairs)


def differences() -> dict[str, float]:
    torch.manual_seed(0)
    tokens = torch.randn(ROWS, TOKENS, WIDTH)
    norm = modeling_llama.LlamaRMSNorm(WIDTH)
    nn.init.normal_(norm.weight)
    mlp = modeling_llama.LlamaMLP(SIZES)
    own_norm, own_mlp = LigerRMSNorm(WIDTH, eps=norm.variance_epsilon), LigerSwiGLUMLP(SIZES)
    own_norm.load_state_dict(norm.state_dict())
    own_mlp.load_state_dict(mlp.state_dict())
    queries = torch.randn(ROWS, HEADS, TOKENS, WIDTH // HEADS)
    keys = torch.randn(ROWS, KEY_HEADS, TOKENS, WIDTH // HEADS)
    cos, sin = modeling_llama.LlamaRotaryEmbedding(SIZES)(queries, torch.arange(TOKENS)[None])

    def rotated(by: Callable[..., Any]) -> Callable[..., Any]:
        return lambda queries, keys: by(queries, keys, cos, sin)

    rotations = rotated(modeling_llama.apply_rotary_pos_emb), rotated(liger_rotary_pos_emb)
    return {
        "norm": both((norm, own_norm), tokens),
        "gated layer": both((mlp, own_mlp), tokens),
        "rotary embedding": both(rotations, queries, keys),
    }


if __name__ == "__main__":
    with (
        mock.patch.object(interpreter, "_implicit_cvt", typed_argument),
        mock.patch.object(interpreter, "_patch_lang_tensor", patch_tensor),
        mock.patch.object(liger_kernel.ops.rms_norm, "rsqrt", rsqrt),
    ):
        print(json.dumps(differences()))
