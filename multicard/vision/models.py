"""The models: the project's own builders by name, and every classifier of torchvision and timm.

torch, torchvision and timm are imported only inside functions, because the controller, which
imports no torch, checks the names here.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from multicard.config.pasting import override
from multicard.config.vision import Depthwise, Freeze, ModelConfig, Pointwise
from multicard.messages import Refusal
from multicard.records.content import Blob
from multicard.vision import model_names

if TYPE_CHECKING:
    from torch import nn

# Values of model.weights that do not name a file.
RANDOM = "random"
PRETRAINED = "pretrained"
OTHER_ENDINGS = (".pth", ".pt", ".ckpt", ".bin", ".tar")


def refuse(name: str) -> None:
    """Refuse a name that no classifier has, and list the nearest names."""
    if name not in BUILDERS:
        model_names.refuse_unknown(name, [*BUILDERS])


def is_tried(config: ModelConfig) -> bool:
    """Return True if the model needs a trial before the run.

    The project's own models from random weights are known to train.
    """
    return config.name not in BUILDERS or config.weights != RANDOM


def describe(config: ModelConfig) -> str:
    """Return the model in a few words, as in "pretrained resnet18 with a frozen backbone"."""
    origins = {RANDOM: "", PRETRAINED: "pretrained "}
    frozen = " with a frozen backbone" if config.freeze is Freeze.backbone else ""
    return f"{origins.get(config.weights, 'loaded ')}{config.name}{frozen}"


def weights_file(config: ModelConfig) -> Path | None:
    """Return the user's file of weights, or None if the model does not start from a file.

    Raises:
        Refusal: The file does not exist, or is a folder.
    """
    if config.weights in (RANDOM, PRETRAINED):
        return None
    file = Path(config.weights).expanduser()
    if file.is_dir():
        raise _folder_refusal(config.weights, file)
    if not file.is_file():
        raise Refusal(
            "weights.no-file",
            f"model.weights={config.weights}: no such file; use `model.weights=random`,"
            " `model.weights=pretrained`, or the path of a .safetensors or .pth file",
            key="model.weights",
            file=config.weights,
        )
    return file


def _folder_refusal(weights: str, folder: Path) -> Refusal:
    """Make the refusal of a folder, as of a download from a hub, that names a file in it."""
    safetensors = [*folder.glob("*.safetensors")]
    files = safetensors or [path for path in folder.iterdir() if path.suffix in OTHER_ENDINGS]
    remedy = override("model.weights", files[0]) if len(files) == 1 else None
    advice = "give the path of a .safetensors or .pth file" if remedy is None else f"use `{remedy}`"
    return Refusal(
        "weights.folder",
        f"model.weights={weights}: is a folder, not a file of weights; {advice}",
        key="model.weights",
        folder=str(folder),
        remedy=remedy,
    )


def content(config: ModelConfig) -> dict[str, list[Blob]]:
    """Return the file of weights, which is a part of the data that the run trains on."""
    file = weights_file(config)
    return {"weights": [] if file is None else [("weights", file)]}


def build(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """Build the model with random weights, in float32 on the CPU.

    The model takes images (B, 3, H, W) and returns outputs (B, classes).
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
    """Turn the convolutions that a kind of layer can compute into that kind, in place.

    The parameters and their names stay the same.

    Args:
        kind: A subclass of `nn.Conv2d` with a static method `computes`.
    """
    from torch import nn

    for module in model.modules():
        if type(module) is nn.Conv2d and kind.computes(module):
            module.__class__ = kind


def library_model(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    """Build the library's own model with random weights, without any layer of this project."""
    if model_names.is_timm(config.name):
        return timm_model(config, classes, image_size)
    return torchvision_model(config, classes, image_size)


def options(config: ModelConfig, classes: int, image_size: int) -> dict[str, Any]:
    """Return the arguments that the library's builder of this model takes besides its name."""
    if model_names.is_timm(config.name):
        return _timm_options(config, classes, image_size)
    return _torchvision_options(config, classes, image_size)


def _torchvision_options(config: ModelConfig, classes: int, image_size: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"num_classes": classes}
    if config.name == "mobilenet_v2":
        arguments["width_mult"] = config.width
    elif config.name.startswith("vit_"):
        arguments["image_size"] = image_size  # The position embedding has a fixed size.
    elif config.name.startswith("maxvit"):
        arguments["input_size"] = (image_size, image_size)  # The windows have a fixed size.
    elif config.name in ("googlenet", "inception_v3"):  # One output, as in all other models.
        arguments |= {
            "aux_logits": False,
            "init_weights": True,
            "transform_input": config.weights != RANDOM,
        }
    return arguments


def torchvision_model(config: ModelConfig, classes: int, image_size: int) -> "nn.Module":
    from torchvision import models
    from torchvision.models.regnet import BlockParams

    arguments = _torchvision_options(config, classes, image_size)
    with mock.patch.object(
        BlockParams, "from_init_params", _with_real_values(BlockParams.from_init_params)
    ):
        return models.get_model(config.name, weights=None, **arguments)


def _with_real_values(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torchvision's computation of RegNet's stages so that it always has real values.

    torchvision reads the values of tensors there, and the model may be built without values (on
    "meta", or with fake tensors).
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
    """Build timm's model.

    Args:
        pretrained: Load timm's weights for it, and fetch them if they are not in the cache.
    """
    import timm

    name = config.name.removeprefix(model_names.TIMM)
    return timm.create_model(
        name, pretrained=pretrained, **_timm_options(config, classes, image_size)
    )


def _timm_options(config: ModelConfig, classes: int, image_size: int) -> dict[str, Any]:
    import timm

    timm_config = timm.get_pretrained_cfg(config.name.removeprefix(model_names.TIMM))
    size: dict[str, Any] = (
        {"img_size": image_size} if timm_config is not None and timm_config.fixed_input_size else {}
    )
    return {"num_classes": classes, "in_chans": 3, **size}


def heads(model: "nn.Module") -> list[str]:
    """Return the names of the layers that compute the outputs for the classes.

    timm names these layers. In other models it is the last linear layer or convolution. The list
    is empty if the model has none.
    """
    from torch import nn

    timm_config = getattr(model, "pretrained_cfg", None) or {}
    classifier = timm_config.get("classifier") or ()
    named_heads = [classifier] if isinstance(classifier, str) else [*classifier]
    layers = [
        name for name, module in model.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)
    ]
    return named_heads or layers[-1:]


def freeze_backbone(model: "nn.Module") -> None:
    """Freeze all layers except the heads.

    The other layers compute as in evaluation while the heads train: the statistics of BatchNorm
    stay, and dropout is off.
    """
    heads_to_train = [model.get_submodule(name) for name in heads(model)]
    model.requires_grad_(False)
    set_mode = model.train
    for head in heads_to_train:
        head.requires_grad_(True)

    def train(mode: bool = True) -> "nn.Module":
        set_mode(False)
        for head in heads_to_train:
            head.train(mode)
        return model

    model.train = train


BUILDERS: "dict[str, Callable[[ModelConfig, int, int], nn.Module]]" = {
    "mobilenet_v2": torchvision_model
}
