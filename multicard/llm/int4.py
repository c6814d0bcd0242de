"""A model computing as it would once it is quantised: int4 weights in groups, int8 activations.

`method=qat` trains for that, and is judged by it: by the loss of the held-out rows so, beside the
one of the simulated quantisation in training, and beside that of full tuning quantised afterwards.
The arithmetic is torchao's, of the modules to which `Int8DynActInt4WeightQATQuantizer.convert`
converts. Weights are quantised as a layer is called, when FSDP has gathered it,
so that no rank holds a second model.
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
# weights of a layer, as those that are quantised together have several float32 copies meanwhile
AT_ONCE = 1 << 22
GROUPS = (256, 128, 64, 32)  # weights that share a scale; those of method=qat first


def groupsize(config: LlmConfig, model: nn.Module) -> int | None:
    """The weights that share a scale; None where the model is not quantised: it has adapters,
    or other widths.

    Full tuning has the groups that method=qat has by default, where they divide the width of each
    linear, else the next smaller ones.
    """
    method = methods.chosen(config)
    if method.adapters or method.pairs:
        return None
    if isinstance(config.method, QatConfig):
        return config.method.groupsize
    widths = [linear.in_features for linear in linears(model)]
    return next((size for size in GROUPS if all(width % size == 0 for width in widths)), None)


def linears(model: nn.Module) -> list[nn.Linear]:
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


@contextmanager
def computing(layers: Sequence[nn.Linear], groupsize: int) -> Iterator[list[Exception]]:
    """Within, linear layers compute with int4 weights and int8 activations.

    Yields the failures of a layer, at most one: from then on all compute with their weights as they
    are, and what they compute is of no use. A rank that stopped would leave the others waiting for
    it in FSDP's next collective.
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
    def quantised() -> torch.Tensor:
        weight = weights(layer.weight, groupsize).to(inputs.dtype)
        return nn.functional.linear(activations(inputs), weight, layer.bias)

    return unless_failed(
        failures, quantised, lambda: nn.functional.linear(inputs, layer.weight, layer.bias)
    )


def unless_failed(
    failures: list[Exception],
    quantised: Callable[[], torch.Tensor],
    plain: Callable[[], torch.Tensor],
) -> torch.Tensor:
    """What `quantised` computes; what `plain` does once there is a failure, which is noted."""
    if not failures:
        try:
            return quantised()
        except Exception as error:  # of memory or of torchao; whatever it is, the model was trained
            note(failures, error)
    return plain()


def note(failures: list[Exception], error: Exception) -> None:
    """Write a failure to the rank's log, and keep it without its traceback,
    which would hold tensors.
    """
    traceback.print_exception(error)
    failures.append(error.with_traceback(None))


def weights(weight: torch.Tensor, groupsize: int) -> torch.Tensor:
    """Weights (out, in) as int4 says them, in groups along `in`, with one float32 scale a group.

    Groups lie within rows, so that some rows at a time are
    quantised: beside the result they take little memory.
    """
    rows = max(1, AT_ONCE // weight.shape[1])
    if len(weight) <= rows:
        return _quantised(weight, groupsize)
    made = torch.empty_like(weight)
    for own, part in zip(made.split(rows), weight.split(rows), strict=True):
        own.copy_(_quantised(part, groupsize))
    return made


def _quantised(weight: torch.Tensor, groupsize: int) -> torch.Tensor:
    from torchao.quantization.quant_primitives import dequantize_affine
    from torchao.quantization.utils import group_quantize_tensor_symmetric

    whole, scales, zeros = group_quantize_tensor_symmetric(weight, BITS, groupsize, torch.float32)
    least = -(2 ** (BITS - 1))
    most = 2 ** (BITS - 1) - 1
    return dequantize_affine(
        whole, (1, groupsize), scales, zeros, torch.int8, least, most, output_dtype=weight.dtype
    )


def activations(inputs: torch.Tensor) -> torch.Tensor:
    """Activations (..., in) as int8 says them, with one scale and zero point a token."""
    from torchao.quantization.utils import per_token_dynamic_quant

    least = torch.finfo(torch.float32).eps
    return per_token_dynamic_quant(
        inputs, scale_dtype=torch.float32, zero_point_dtype=torch.float32, eps=least
    )
