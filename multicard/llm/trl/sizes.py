"""Sizes of a model of transformers, by which its work is counted."""

from typing import Any

from torch import nn

from multicard.llm.trl.models import hidden
from multicard.llm.trl.text_part import text_modules
from multicard.records.rank_files import ModelSizes

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # in config.json


def of_model(model: Any) -> ModelSizes | None:
    """The sizes of a model's text part, with PEFT's adapters or without; None of mixtures of
    experts, of which a token reads a part.
    """
    sizes = model.config.get_text_config()
    if any(getattr(sizes, name, None) for name in EXPERTS):
        return None
    parts = text_modules(model)
    own: dict[int, tuple[str, nn.Parameter]] = {}
    for name, part in parts.items():
        for key, parameter in part._parameters.items():
            if parameter is not None:
                own[id(parameter)] = (f"{name}.{key}", parameter)
    adapters = sum(one.numel() for name, one in own.values() if "lora_" in name)
    others = sum(one.numel() for name, one in own.values() if "lora_" not in name)
    output = model.get_output_embeddings()
    return ModelSizes(
        layers=sizes.num_hidden_layers,
        weights=linear_weights(parts),
        output=0 if output is None else output.weight.numel(),
        width=attention_width(sizes),
        parameters=others + hidden(parts.values()),
        adapters=adapters or None,
    )


def linear_weights(parts: dict[str, nn.Module]) -> int:
    """Weights that products with a token read, without adapters: all that are matrices, and shared
    embeddings as the output's."""
    total = 0
    for name, part in parts.items():
        weight = part._parameters.get("weight")
        is_read = weight is not None and weight.dim() == 2 and not isinstance(part, nn.Embedding)
        if weight is not None and is_read and "lora_" not in name:
            total += weight.numel()
    return total + hidden(parts.values())


def attention_width(sizes: Any) -> int:
    """Width of the queries of all layers; 0 without attention."""
    heads = getattr(sizes, "num_attention_heads", None)
    if heads is None:
        return 0
    head = getattr(sizes, "head_dim", None) or sizes.hidden_size // heads
    return sizes.num_hidden_layers * heads * head
