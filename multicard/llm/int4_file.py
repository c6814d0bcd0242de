"""Store a tuned model with int4 weights and int8 activations (`save=int4`).

The format is that of torchao and transformers. A linear's weight becomes three tensors: integers
(int8, of which only the sixteen values of int4 occur), a float32 scale for each group, and zero
points. transformers reads them by `quantization_config` in config.json, and torchao by the metadata
of the safetensors file. The values are those of `int4` and of `Int8DynActInt4WeightQuantizer`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from multicard.llm.int4 import WEIGHTS_AT_ONCE
from multicard.llm.parts import TensorEntries, TensorPart, TrainedParts


@dataclass(frozen=True)
class QuantisedPart(TensorPart):
    """The weight (out, in) of a linear layer, to be written in int4.

    `groupsize` weights along `in` share a scale.
    """

    groupsize: int = 0

    def tensor_entries(self, name: str) -> TensorEntries:
        out, width = self.tensor.shape
        groups = (out, width // self.groupsize)
        prefix = name.removesuffix("weight")
        return {
            f"{prefix}_weight_qdata": (torch.int8, (out, width)),
            f"{prefix}_weight_scale": (torch.float32, groups),
            f"{prefix}_weight_zero_point": (torch.int8, groups),
        }

    def tensors_to_write(self, name: str, whole_tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        rows = max(1, WEIGHTS_AT_ONCE // whole_tensor.shape[1])
        pieces = [
            _flatten(name, _quantise(part, self.groupsize))[0] for part in whole_tensor.split(rows)
        ]
        return {
            key: torch.cat([piece[key] for piece in pieces]) for key in self.tensor_entries(name)
        }


def quantised_parts(trained: TrainedParts) -> dict[str, TensorPart]:
    """Return the parts of a model, with its linear layers quantised.

    Raises:
        ValueError: No group size divides the layers' widths.
    """
    groupsize = trained.groupsize
    if groupsize is None:
        raise ValueError("no groups of weights divide the widths of its layers")
    parts: dict[str, TensorPart] = {}
    for name, part in trained.parts.items():
        parts[name] = (
            QuantisedPart(part.tensor, part.form, groupsize) if name in trained.linears else part
        )
    return parts


def metadata(contents: dict[str, TensorPart]) -> dict[str, str]:
    """Return torchao's metadata for a safetensors file, which says of what kind each tensor is."""
    samples: dict[str, torch.Tensor] = {}
    for name, part in contents.items():
        samples[name] = torch.zeros(1, dtype=part.tensor.dtype)
        if isinstance(part, QuantisedPart):
            samples[name] = _quantise(
                torch.zeros(1, part.groupsize, dtype=part.tensor.dtype), part.groupsize
            )
    return _flatten_all(samples)[1]


def quantization_config(trained: TrainedParts) -> dict[str, Any]:
    """Return config.json's `quantization_config`, as transformers' TorchAoConfig writes it."""
    from torchao.core.config import config_to_dict

    assert trained.groupsize is not None
    return {
        "quant_method": "torchao",
        "quant_type": {"default": config_to_dict(_torchao_config(trained.groupsize))},
        "include_input_output_embeddings": False,
        "modules_to_not_convert": ["lm_head"] if trained.tied else [],
        "untie_embedding_weights": False,
    }


def _torchao_config(groupsize: int) -> Any:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup

    return Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4,  # pyright: ignore[reportAttributeAccessIssue]
        weight_granularity=PerGroup(groupsize),
        weight_scale_dtype=torch.float32,
    )


def _quantise(weight: torch.Tensor, groupsize: int) -> torch.Tensor:
    """Return a weight (rows, in) as a tensor of torchao's class."""
    from torchao.quantization import quantize_

    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    quantize_(layer, _torchao_config(groupsize))
    return layer.weight


def _flatten(name: str, weight: torch.Tensor) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    return _flatten_all({name: weight})


def _flatten_all(
    tensors: dict[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    untyped_tensors: Any = tensors  # torchao's annotation of this parameter is wrong.
    return flatten_tensor_state_dict(untyped_tensors)
