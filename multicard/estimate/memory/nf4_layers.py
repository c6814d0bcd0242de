"""bitsandbytes' NF4 linear layers on fake tensors with their true sizes.

bitsandbytes quantizes by values, and its parameters cannot hold fake tensors. The layers and their
products are bitsandbytes' own. The tensors that they hold are made here by size.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from bitsandbytes.autograd._functions import MatMul4Bit
from bitsandbytes.functional import QuantState, dequantize_4bit
from bitsandbytes.nn.modules import Linear4bit
from torch import Tensor, nn
from transformers.integrations.bitsandbytes import replace_with_bnb_linear
from transformers.quantizers.base import get_keys_to_not_convert

from multicard.estimate.memory.torch_internals import patched

SCALES = 256  # Scales are quantized together in blocks of this size.


class DequantizedProduct(MatMul4Bit):
    """The product as a GPU computes it for a training batch.

    The whole weight is dequantized for the time of the product.
    """

    @staticmethod
    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]  names of its own
        ctx: Any,
        inputs: Tensor,
        packed: Tensor,
        out: Any = None,
        bias: Tensor | None = None,
        quant_state: Any = None,
    ) -> Tensor:
        ctx.is_empty = False
        ctx.state = quant_state
        ctx.tensors = (None, packed)
        ctx.dtype_A = inputs.dtype
        ctx.dtype_B = packed.dtype
        ctx.dtype_bias = None if bias is None else bias.dtype
        return torch.nn.functional.linear(
            inputs, dequantize_4bit(packed, quant_state).to(inputs.dtype), bias
        )


def quantised(model: Any, options: transformers.BitsAndBytesConfig, device: torch.device) -> Any:
    """Replace the linear layers that transformers would quantize by NF4 layers.

    Args:
        model: a model of fake tensors in its precision.
        options: the result of `models.nf4_config`.
    """
    dtypes = {
        name: part.weight.dtype for name, part in model.named_modules() if hasattr(part, "weight")
    }
    with patched(
        {
            "bitsandbytes.nn.modules.Params4bit": lambda data, **_: nn.Parameter(
                data, requires_grad=False
            )
        }
    ):
        unquantized_names = [*get_keys_to_not_convert(model), *(model._keep_in_fp32_modules or ())]
        model = replace_with_bnb_linear(model, unquantized_names, options)
    for name, layer in model.named_modules():
        if isinstance(layer, Linear4bit):
            fill_layer(layer, dtypes[name], options, device)
    model.is_loaded_in_4bit = model.is_quantized = True
    model.hf_quantizer = SimpleNamespace(
        is_trainable=True, is_qat_trainable=False, quantization_config=options
    )
    model.quantization_method = options.quant_method
    model.config.quantization_config = options
    return model


def fill_layer(
    layer: Any, dtype: torch.dtype, options: transformers.BitsAndBytesConfig, device: torch.device
) -> None:
    """Give a layer its tensors: 4 bits a weight, and a scale of 8 bits per block of 64 weights."""

    def empty(size: int, dtype_of_part: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(size, dtype=dtype_of_part, device=device)

    shape = torch.Size((layer.out_features, layer.in_features))
    count = layer.in_features * layer.out_features
    storage = options.bnb_4bit_quant_storage
    blocks = -(-count // 64)
    scales = QuantState(
        empty(-(-blocks // SCALES)), code=empty(256), blocksize=SCALES, dtype=torch.float32
    )
    state = QuantState(
        empty(blocks, torch.uint8),
        shape=shape,
        code=empty(16),
        blocksize=64,
        quant_type=options.bnb_4bit_quant_type,
        dtype=dtype,
        offset=torch.empty((), device=device),
        state2=scales,
    )
    packed = torch.empty((-(-count // (2 * storage.itemsize)), 1), dtype=storage, device=device)
    layer.weight = nn.Parameter(packed, requires_grad=False)
    layer.quant_state = state
    recover_quantization(layer)
    if layer.bias is not None:
        layer.bias = nn.Parameter(empty(layer.out_features, dtype), requires_grad=False)


def recover_quantization(layer: Any) -> None:
    """Tell a layer's weight how it is quantized, because a gathered weight has lost it."""
    weight = layer.weight
    state = layer.quant_state
    if getattr(weight, "quant_state", None) is None:
        weight.quant_state = state
        weight.module = layer
        weight.bnb_quantized = True
        weight.blocksize = state.blocksize
        weight.compress_statistics = True
        weight.quant_type = state.quant_type
        weight.quant_storage = weight.dtype


def scales(model: nn.Module) -> Iterator[Tensor]:
    """Yield the tensors that NF4 layers hold outside their parameters. They are not sharded."""
    for layer in model.modules():
        state = layer.quant_state if isinstance(layer, Linear4bit) else None
        if state is not None:
            yield from (
                state.absmax,
                state.code,
                state.offset,
                state.state2.absmax,
                state.state2.code,
            )


# Patches for `torch_internals.patched`.
WITHOUT_VALUES: dict[str, Any] = {
    "bitsandbytes.nn.modules.fix_4bit_weight_quant_state_from_module": recover_quantization
}
ON_GPU: dict[str, Any] = {"bitsandbytes.autograd._functions.MatMul4Bit": DequantizedProduct}
