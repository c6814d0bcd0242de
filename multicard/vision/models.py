"""The models: MobileNetV2, and any other classifier of torchvision by its name."""

import difflib
from typing import Any

from torch import nn

from multicard.config.vision import ModelConfig


def check(config: ModelConfig) -> None:
    """See that torchvision has the model.

    Raises:
        ValueError: where it has none of that name, with the nearest names.
    """
    from torchvision import models

    known = models.list_models(module=models)
    if config.name not in known:
        near = difflib.get_close_matches(config.name, known, n=3) or ["mobilenet_v2", "resnet50"]
        raise ValueError(f"model.name={config.name}: torchvision has no such classifier; nearest: {', '.join(near)}")


def build(config: ModelConfig, classes: int, image_size: int) -> nn.Module:
    """The model with random weights, float32, on the CPU. Takes (B, 3, H, W), gives (B, classes)."""
    from torchvision import models

    options: dict[str, Any] = {"num_classes": classes}
    if config.name == "mobilenet_v2":
        options["width_mult"] = config.width
    elif config.name.startswith("vit_"):
        options["image_size"] = image_size  # its position embedding has a fixed size
    elif config.name in ("googlenet", "inception_v3"):
        options |= {"aux_logits": False, "init_weights": True}  # one output, as all others have
    return models.get_model(config.name, weights=None, **options)
