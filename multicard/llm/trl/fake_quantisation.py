"""Fake quantisation of a model of transformers, and its computation in int4."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle
from torchao.quantization.qat import Int8DynActInt4WeightQATQuantizer
from torchao.quantization.qat.linear import Int8DynActInt4WeightQATLinear

from multicard.config.llm import LlmConfig
from multicard.llm import int4, methods
from multicard.llm.drawn_weights import DTYPES
from multicard.llm.trl import checks


def simulate_quantisation(model: Any, config: LlmConfig) -> None:
    """Add fake quantisation to the linears, as torchtune does.

    The output is included unless it is tied to the embeddings.
    """
    if isinstance(config.method, methods.QatConfig):
        is_tied = model.get_output_embeddings().weight is model.get_input_embeddings().weight
        part = model.base_model if is_tied else model
        dtype = DTYPES[config.formats.weights]
        Int8DynActInt4WeightQATQuantizer(config.method.groupsize, precision=dtype).prepare(part)


def quantise_output(model: Any) -> None:
    """Make TRL's loss read the output's fake-quantised weights.

    The loss reads the weights without calling the layer, and would miss its fake quantisation.
    """
    output: Any = model.get_output_embeddings()
    if not isinstance(output, Int8DynActInt4WeightQATLinear):
        return
    quantise_weight = output.weight_fake_quantizer
    quantise_activations = output.activation_fake_quantizer
    assert quantise_weight is not None and quantise_activations is not None
    _replace_output(model, quantise_weight, quantise_activations)


def _replace_output(
    model: Any,
    quantise_weight: Callable[[Tensor], Tensor],
    quantise_activations: Callable[[Tensor], Tensor],
) -> RemovableHandle:
    """Replace the output that TRL's loss reads, and the activations that it multiplies with it.

    To undo this, remove the returned hook and delete `model.get_output_embeddings`.
    """
    output: Any = model.get_output_embeddings()

    def quantised_output() -> Any:
        whole_weight = (
            output.weight.full_tensor() if isinstance(output.weight, DTensor) else output.weight
        )
        return SimpleNamespace(weight=quantise_weight(whole_weight), bias=output.bias)

    def quantise_result(_: nn.Module, __: Any, result: Any) -> None:
        result.last_hidden_state = quantise_activations(result.last_hidden_state)

    model.get_output_embeddings = quantised_output
    return model.base_model.register_forward_hook(quantise_result)


@contextmanager
def in_int4(model: Any, groupsize: int) -> Iterator[list[Exception]]:
    """Within this context, the model computes as if it were quantised to int4.

    An output that is tied to the embeddings is not quantised. If the model simulates quantisation,
    its output already computes in int4.

    Yields:
        The failures of single layers, as in `int4.computing`.

    Raises:
        ValueError: Layers would stay as they are, so that the loss would not be that of int4.
    """
    unquantised = checks.unquantised_layers(model, nn.Linear)
    if unquantised:
        raise ValueError(f"{unquantised[0]} would not be quantised (layers: {len(unquantised)})")
    with int4.computing(int4.linears(model.base_model), groupsize) as failures:
        is_plain = type(model.get_output_embeddings()) is nn.Linear
        if (
            not is_plain
            or model.get_output_embeddings().weight is model.get_input_embeddings().weight
        ):
            yield failures
            return

        def quantise_weight(whole_weight: Tensor) -> Tensor:
            return int4.unless_failed(
                failures, lambda: int4.weights(whole_weight, groupsize), lambda: whole_weight
            )

        def quantise_activations(inputs: Tensor) -> Tensor:
            return int4.unless_failed(failures, lambda: int4.activations(inputs), lambda: inputs)

        hook = _replace_output(model, quantise_weight, quantise_activations)
        try:
            yield failures
        finally:
            hook.remove()
            del model.get_output_embeddings
