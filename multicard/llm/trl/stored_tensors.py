"""Refuse the tensors of a folder that do not fit the model of its config.json.

transformers reports such tensors in a table, and trains without them.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.distributed.tensor import DTensor, distribute_tensor

from multicard.messages import Refusal

# Buffers of earlier versions of transformers, which are computed anew.
COMPUTED = ("inv_freq", "masked_bias", "position_ids")


def check_shape(name: str, stored_shape: torch.Size, expected: torch.Size) -> None:
    """Refuse (ValueError) a weight whose shape differs from the folder's configuration."""
    if stored_shape != expected:
        raise Refusal(
            "llm.folder-shape",
            f"its {name} is {tuple(stored_shape)}, but config.json says {tuple(expected)}",
            tensor=name,
            shape=list(stored_shape),
            expected=list(expected),
        )


def check_loaded(model: Any, loading_info: Mapping[str, Any]) -> None:
    """Refuse (ValueError) weights that are missing, of another shape, or of no part of the model.

    Args:
        loading_info: what `from_pretrained` returns for `output_loading_info`.
    """
    for mismatch in sorted(loading_info["mismatched_keys"]):
        check_shape(*mismatch)
    missing = sorted(loading_info["missing_keys"])
    if missing:
        raise Refusal("llm.folder-missing-tensor", f"has no tensor {missing[0]}", tensor=missing[0])
    foreign = foreign_tensors(model, loading_info["unexpected_keys"])
    if foreign:
        raise Refusal(
            "llm.folder-foreign-tensor",
            f"has a tensor {foreign[0]}, which the model of its config.json lacks"
            f" (tensors: {len(foreign)})",
            tensor=foreign[0],
            count=len(foreign),
        )


def foreign_tensors(model: Any, names: Iterable[str]) -> list[str]:
    """Return the tensors that the model lacks within a part that it has.

    Without a layer, or with a layer that lacks its biases, the model computes something else.
    Other heads and encoders beside the language model do not change what it computes.
    """
    parts = {name for name, _ in model.named_modules()}
    outer = {"", model.base_model_prefix}
    foreign = list[str]()
    for name in sorted(names):
        path = name.split(".")
        owners = [".".join(path[:length]) for length in range(len(path) - 1, 0, -1)]
        owner = next((owner for owner in owners if owner in parts), "")
        if owner not in outer and path[-1] not in COMPUTED:
            foreign.append(name)
    return foreign


def check_ties(
    model: Any, parameters: Mapping[str, torch.Tensor], untaken: Mapping[str, torch.Tensor]
) -> None:
    """Refuse (ValueError) a weight that the model ties to another one with other values.

    A model that is read whole keeps both. In a model that is sharded before it is read, the second
    one has no place.

    Args:
        parameters: the model's parameters and shards, by their names in transformers.
        untaken: the stored weights that are no parameters.
    """
    ties = dict(model.get_expanded_tied_weights_keys(all_submodels=True))
    ties |= {source: target for target, source in ties.items()}
    for name, weight in untaken.items():
        twin = parameters.get(ties.get(name, ""))
        if twin is None or torch.equal(_local(twin), _local(_like(weight, twin))):
            continue
        raise Refusal(
            "llm.folder-two-outputs",
            f"its {name} differs from {ties[name]}, but config.json ties them; write"
            ' "tie_word_embeddings": false there',
            tensor=name,
            tied=ties[name],
        )


def _like(weight: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a weight on the device of a parameter, and sharded like it."""
    weight = weight.to(parameter.device, parameter.dtype)
    if isinstance(parameter, DTensor):
        return distribute_tensor(
            weight, parameter.device_mesh, parameter.placements, src_data_rank=None
        )
    return weight


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
