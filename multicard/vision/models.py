"""The models: builders by name, and any other classifier of torchvision or timm by its own name.

Imports torch, torchvision and timm only inside functions: the controller checks the names.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from multicard.config.vision import Depthwise, Freeze, ModelConfig, Pointwise
from multicard.messages import Refusal
from multicard.records.content import Blob
from multicard.vision import model_names

if TYPE_CHECKING:
    from torch import nn

# values of model.weights that are no file
RANDOM = "random"
PRETRAINED = "pretrained"


def refuse(name: str) -> None:
    """Refuse a name that no classifier has, with the nearest names."""
    if name not in BUILDERS:
        model_names.check(name, [*BUILDERS])


def is_tried(config: ModelConfig) -> bool:
    """False for the project's own models from random weights, which are known to train."""
    return config.name not in BUILDERS or config.weights != RANDOM


def describe(config: ModelConfig) -> str:
    """The model in a few words."""
    known = {RANDOM: "", PRETRAINED: "pretrained "}
    frozen = " with a frozen backbone" if config.freeze is Freeze.backbone else ""
    return f"{known.get(config.weights, 'loaded ')}{config.name}{frozen}"


def weights_file(config: ModelConfig) -> Path | None:
    """The user's file of weights; None where the model starts from others.
    A file that is not there is refused.
    """
    if config.weights in (RANDOM, PRETRAINED):
        return None
    file = Path(config.weights).expanduser()
    if not file.is_file():
        raise Refusal(
            "weights.no-file",
            f"model.weights={config.weights}: no such file; use `model.weights=random`,"
            " `model.weights=pretrained`, or the path of a .safetensors or .pth file",
            key="model.weights",
            file=config.weights,
        )
    return file


def content(config: ModelConfig) -> dict[str, list[Blob]]:
    """The file of weights, which is a part of what is trained on."""
    file = weights_file(config)
    return {"weights": [] if file is None else [("weights", file)]}


def build(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """The model with random weights, float32, on the CPU. Takes (B, 3, H, W), gives (B,
    classes).
    """
    model = BUILDERS.get(config.name, library_model)(config, classes, image_size)
    if config.freeze is Freeze.backbone:
        freeze_backbone(model)
    if config.pointwise is Pointwise.linear:
        from multicard.vision.convolutions import PointwiseLinear

        turn_into(PointwiseLinear, model)
    if config.depthwise is Depthwise.triton:
        from multicard.vision.depthwise import DepthwiseTriton

        turn_into(DepthwiseTriton, model)
    return model


def turn_into(kind: Any, model: "nn.Module") -> None:
    """Turn the convolutions that a kind of layer computes into it, in place;
    parameters and their names stay.
    """
    from torch import nn

    for module in model.modules():
        if type(module) is nn.Conv2d and kind.computes(module):
            module.__class__ = kind


def library_model(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """The library's own model, with random weights and nothing of this project's in it."""
    if model_names.is_timm(config.name):
        return timm_model(config, classes, image_size)
    return torchvision_model(config, classes, image_size)


def options(config: ModelConfig, classes: int, image_size: int) -> dict[str, Any]:
    """What the library's own builder of the model is called with, beside its name."""
    if model_names.is_timm(config.name):
        return _timm_options(config, classes, image_size)
    return _torchvision_options(config, classes, image_size)


def _torchvision_options(config: ModelConfig, classes: int, image_size: int) -> dict[str, Any]:
    chosen: dict[str, Any] = {"num_classes": classes}
    if config.name == "mobilenet_v2":
        chosen["width_mult"] = config.width
    elif config.name.startswith("vit_"):
        chosen["image_size"] = image_size  # its position embedding has a fixed size
    elif config.name.startswith("maxvit"):
        chosen["input_size"] = (image_size, image_size)  # and its windows
    elif config.name in ("googlenet", "inception_v3"):  # one output, as all others have
        chosen |= {
            "aux_logits": False,
            "init_weights": True,
            "transform_input": config.weights != RANDOM,
        }
    return chosen


def torchvision_model(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    from torchvision import models
    from torchvision.models.regnet import BlockParams

    chosen = _torchvision_options(config, classes, image_size)
    with mock.patch.object(
        BlockParams, "from_init_params", _regnet_widths(BlockParams.from_init_params)
    ):
        return models.get_model(config.name, weights=None, **chosen)


def _regnet_widths(compute: Callable[..., Any]) -> Callable[..., Any]:
    """RegNet's stages, which torchvision computes by the values of tensors: with values,
    whatever the model has.
    """

    def computed(*arguments: Any, **keywords: Any) -> Any:
        import torch
        from torch._subclasses.fake_tensor import unset_fake_temporarily

        with unset_fake_temporarily(), torch.device("cpu"):
            return compute(*arguments, **keywords)

    return computed


def timm_model(
    config: ModelConfig, classes: int, image_size: int, pretrained: bool = False
) -> "nn.Module":
    """timm's model; `pretrained` loads timm's weights for it,
    fetched where they are not in the cache.
    """
    import timm

    name = config.name.removeprefix(model_names.TIMM)
    return timm.create_model(
        name, pretrained=pretrained, **_timm_options(config, classes, image_size)
    )


def _timm_options(config: ModelConfig, classes: int, image_size: int) -> dict[str, Any]:
    import timm

    own = timm.get_pretrained_cfg(config.name.removeprefix(model_names.TIMM))
    size: dict[str, Any] = (
        {"img_size": image_size} if own is not None and own.fixed_input_size else {}
    )
    return {"num_classes": classes, "in_chans": 3, **size}


def heads(model: "nn.Module") -> list[str]:
    """The names of the layers that give the classes: timm's own word for them, else the last linear
    layer or convolution. Empty where there is none.
    """
    from torch import nn

    named = getattr(model, "pretrained_cfg", None) or {}
    classifier = named.get("classifier") or ()
    found = [classifier] if isinstance(classifier, str) else [*classifier]
    layers = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    return found or layers[-1:]


def freeze_backbone(model: "nn.Module") -> None:
    """Have all but the heads keep their weights, and compute as in evaluation while the heads
    train: the statistics of BatchNorm stay, and dropout is off.
    """
    trained = [model.get_submodule(name) for name in heads(model)]
    model.requires_grad_(False)
    switch = model.train
    for head in trained:
        head.requires_grad_(True)

    def train(mode: bool = True) -> "nn.Module":
        switch(False)
        for head in trained:
            head.train(mode)
        return model

    model.train = train


BUILDERS: "dict[str, Callable[[ModelConfig, int, int], nn.Module]]" = {
    "mobilenet_v2": torchvision_model
}
