"""Convert torchtune's random weights to transformers' names and order of a head's rows."""

from typing import Any

import torch

from multicard.config.llm import LlmConfig
from multicard.llm import models
from multicard.llm.torchtune_components import RandomWeight, random_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def weights(config: LlmConfig, cfg: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Return torchtune's random weights by transformers' names, and the adapters by PEFT's names.

    Each weight is only generated when it is read.
    """
    weights_by_name = {}
    component = {key: value for key, value in cfg["model"].items() if key != "quantize_base"}
    torchtune_weights: dict[str, Any] = random_weights(
        component, config.seed, DTYPES[config.formats.weights], device.type
    )
    for name, weight in torchtune_weights.items():
        weights_by_name[models.hugging_face_name(name, adapter=".default")] = DrawnWeight(
            name, weight, config
        )
    return weights_by_name


class DrawnWeight:
    """A random weight in transformers' order. Like a slice of a file, it is read by `[...]`."""

    def __init__(self, name: str, weight: RandomWeight, config: LlmConfig) -> None:
        self.name = name
        self.weight = weight
        self.config = config

    def __getitem__(self, _: Any) -> torch.Tensor:
        return self.to_transformers_order(self.weight.generate())

    def to_transformers_order(self, whole_tensor: torch.Tensor) -> torch.Tensor:
        """Return the weight in transformers' order. It was generated in torchtune's order."""
        return models.permute_heads(self.name, whole_tensor, self.config.model)
