"""Compute with a model as if it were quantised to int4 weights in groups and int8 activations.

`method=qat` trains for this use, so its held-out loss is also measured in this way. It can then be
compared with the loss under the simulated quantisation of the training, and with full tuning that
is quantised afterwards.

The arithmetic is torchao's: that of the modules which
`Int8DynActInt4WeightQATQuantizer.convert` creates. Weights are quantised when a layer is called,
after FSDP has gathered it, so that no rank holds a second model.
"""

import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import nn

from multicard.config.llm import LlmConfig
from multicard.llm import methods
from multicard.llm.method_options import QatConfig

BITS = 4
# Number of weights that are quantised together. Meanwhile there are several float32 copies of them.
WEIGHTS_AT_ONCE = 1 << 22
GROUPS = (256, 128, 64, 32)  # Possible group sizes. The first is the default of method=qat.


def groupsize(config: LlmConfig, model: nn.Module) -> int | None:
    """Return how many weights share a scale, or None if the model is not quantised.

    A model is not quantised if it has adapters or if no group size divides its widths. Full tuning
    uses the default of method=qat, or the next smaller size that divides the width of each linear.
    """
    method = methods.chosen(config)
    if method.adapters or method.pairs:
        return None
    if isinstance(config.method, QatConfig):
        return config.method.groupsize
    widths = [linear.in_features for linear in linears(model)]
    for size in GROUPS:
        if all(width % size == 0 for width in widths):
            return size
    return None


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


@contextmanager
def computing(layers: Sequence[nn.Linear], groupsize: int) -> Iterator[list[Exception]]:
    """Make linear layers compute with int4 weights and int8 activations within this context.

    Yields:
        The failures of layers, at most one. After a failure, all layers compute with their
        unquantised weights, and the results are useless. If the rank stopped instead, the others
        would wait for it in FSDP's next collective.
    """
    failures: list[Exception] = []
    for layer in layers:
        layer.forward = partial(_forward, layer, groupsize, failures)  # pyright: ignore[reportAttributeAccessIssue]
    try:
        yield failures
    finally:
        for layer in layers:
            del layer.forward


def _forward(
    layer: nn.Linear, groupsize: int, failures: list[Exception], inputs: torch.Tensor
) -> torch.Tensor:
    def compute_quantised() -> torch.Tensor:
        weight = weights(layer.weight, groupsize).to(inputs.dtype)
        return nn.functional.linear(activations(inputs), weight, layer.bias)

    return unless_failed(
        failures, compute_quantised, lambda: nn.functional.linear(inputs, layer.weight, layer.bias)
    )


def unless_failed(
    failures: list[Exception],
    compute_quantised: Callable[[], torch.Tensor],
    compute_plain: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """Return the result of `compute_quantised`, or of `compute_plain` after a failure.

    A failure of `compute_quantised` is added to `failures`.
    """
    if not failures:
        try:
            return compute_quantised()
        except Exception as error:  # Memory or torchao may fail. The model was trained anyway.
            store_failure(failures, error)
    return compute_plain()


def store_failure(failures: list[Exception], error: Exception) -> None:
    """Write a failure to the rank's log, and store it without its traceback.

    A traceback would keep tensors in memory.
    """
    traceback.print_exception(error)
    failures.append(error.with_traceback(None))


def weights(weight: torch.Tensor, groupsize: int) -> torch.Tensor:
    """Return weights (out, in) rounded to int4, in groups along `in` with one float32 scale each.

    Groups lie within rows, so a few rows at a time are quantised. This takes little memory in
    addition to the result.
    """
    row_count = max(1, WEIGHTS_AT_ONCE // weight.shape[1])
    if len(weight) <= row_count:
        return _round_to_int4(weight, groupsize)
    rounded = torch.empty_like(weight)
    for rounded_rows, weight_rows in zip(
        rounded.split(row_count), weight.split(row_count), strict=True
    ):
        rounded_rows.copy_(_round_to_int4(weight_rows, groupsize))
    return rounded


def _round_to_int4(weight: torch.Tensor, groupsize: int) -> torch.Tensor:
    from torchao.quantization.quant_primitives import dequantize_affine
    from torchao.quantization.utils import group_quantize_tensor_symmetric

    integers, scales, zeros = group_quantize_tensor_symmetric(
        weight, BITS, groupsize, torch.float32
    )
    lowest = -(2 ** (BITS - 1))
    highest = 2 ** (BITS - 1) - 1
    return dequantize_affine(
        integers,
        (1, groupsize),
        scales,
        zeros,
        torch.int8,
        lowest,
        highest,
        output_dtype=weight.dtype,
    )


def activations(inputs: torch.Tensor) -> torch.Tensor:
    """Return activations (..., in) rounded to int8, with a scale and a zero point a token."""
    from torchao.quantization.utils import per_token_dynamic_quant

    least = torch.finfo(torch.float32).eps
    return per_token_dynamic_quant(
        inputs, scale_dtype=torch.float32, zero_point_dtype=torch.float32, eps=least
    )
