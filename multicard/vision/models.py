"""The models: builders by name, and any other classifier of torchvision by its own name.

Imports torch and torchvision only inside functions: the controller checks the names.
"""

import difflib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from multicard.config.vision import ModelConfig, Pointwise

if TYPE_CHECKING:
    from torch import nn


def check(config: ModelConfig) -> None:
    """Refuse (ValueError) a name that no model has, with the nearest names of torchvision's."""
    if config.name in BUILDERS:
        return
    from torchvision import models  # takes seconds

    names = models.list_models(module=models)
    if config.name not in names:
        near = difflib.get_close_matches(config.name, names, n=3) or ["mobilenet_v2", "resnet50"]
        raise ValueError(f"model.name={config.name}: torchvision has no such classifier; nearest: {', '.join(near)}")


def build(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """The model with random weights, float32, on the CPU. Takes (B, 3, H, W), gives (B, classes)."""
    model = BUILDERS.get(config.name, torchvision_model)(config, classes, image_size)
    if config.pointwise is Pointwise.convolution:
        return model
    from multicard.vision.pointwise import with_matrix_products

    return with_matrix_products(model)


def mobilenet_v2(config: ModelConfig, classes: int, _: int) -> "nn.Module":
    from torchvision import models

    return models.mobilenet_v2(num_classes=classes, width_mult=config.width)


def torchvision_model(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    from torchvision import models

    options: dict[str, Any] = {}
    if config.name.startswith("vit_"):
        options = {"image_size": image_size}  # its position embedding has a fixed size
    elif config.name in ("googlenet", "inception_v3"):
        options = {"aux_logits": False, "init_weights": True}  # one output, as all others have
    return models.get_model(config.name, weights=None, num_classes=classes, **options)


BUILDERS: "dict[str, Callable[[ModelConfig, int, int], nn.Module]]" = {"mobilenet_v2": mobilenet_v2}
