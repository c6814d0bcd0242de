"""Read the sizes of a transformers model, from which the FLOPs of a step are computed."""

from typing import Any

from torch import nn

from multicard.llm.trl.models import hidden_parameters
from multicard.llm.trl.text_part import text_modules
from multicard.records.rank_files import ModelSizes

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")  # Keys of config.json.


def of_model(model: Any) -> ModelSizes | None:
    """Return the sizes of a model's text part, with or without PEFT's adapters.

    Returns None for a mixture of experts, in which a token only uses some of the weights.
    """
    sizes = model.config.get_text_config()
    if any(getattr(sizes, name, None) for name in EXPERTS):
        return None
    parts = text_modules(model)
    parameters_by_id: dict[int, tuple[str, nn.Parameter]] = {}
    for name, part in parts.items():
        for key, parameter in part._parameters.items():
            if parameter is not None:
                parameters_by_id[id(parameter)] = (f"{name}.{key}", parameter)
    adapters = sum(
        parameter.numel() for name, parameter in parameters_by_id.values() if "lora_" in name
    )
    other_parameters = sum(
        parameter.numel() for name, parameter in parameters_by_id.values() if "lora_" not in name
    )
    output = model.get_output_embeddings()
    return ModelSizes(
        layers=sizes.num_hidden_layers,
        weights=linear_weights(parts),
        output=0 if output is None else output.weight.numel(),
        width=attention_width(sizes),
        parameters=other_parameters + hidden_parameters(parts.values()),
        adapters=adapters or None,
    )


def linear_weights(parts: dict[str, nn.Module]) -> int:
    """Return the number of weights that take part in products with a token, without adapters.

    These are all matrices. Tied embeddings count once, as the output.
    """
    total = 0
    for name, part in parts.items():
        weight = part._parameters.get("weight")
        is_read = weight is not None and weight.dim() == 2 and not isinstance(part, nn.Embedding)
        if weight is not None and is_read and "lora_" not in name:
            total += weight.numel()
    return total + hidden_parameters(parts.values())


def attention_width(sizes: Any) -> int:
    """Return the sum of the widths of all layers' queries, or 0 for a model without attention."""
    heads = getattr(sizes, "num_attention_heads", None)
    if heads is None:
        return 0
    head = getattr(sizes, "head_dim", None) or sizes.hidden_size // heads
    return sizes.num_hidden_layers * heads * head
