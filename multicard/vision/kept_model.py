"""The model that a run trained, kept in the run's folder.

The folder has the weights, under the names that the model's library uses, and a description of the
images that the model expects. Loading it needs torch, torchvision or timm, and safetensors;
`lines_to_load` shows how. torch is imported only inside functions, because the controller reads
`VisionModelInfo` too.
"""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from multicard.config.vision import ModelConfig, VisionConfig
from multicard.measure import timing
from multicard.messages import Message, Refusal
from multicard.records import kept
from multicard.records.schema_parts import SavedModel
from multicard.vision import model_names, models

if TYPE_CHECKING:
    from torch import nn

OWN_LIBRARY = "multicard"  # The library of a model that was added to `models.BUILDERS`.
FOLDER = "model"
WEIGHTS = "model.safetensors"
ABOUT = kept.IMAGE_MODEL


class VisionModelInfo(msgspec.Struct, frozen=True):
    """The content of `model.json`, which describes the weights in the same folder.

    Attributes:
        library: "torchvision" or "timm", whose builder takes `name` and `options`. "multicard" for
            a model of `models.BUILDERS`, whose options are the keys of `model`.
        classes: The names of the classes, in the order of the outputs.
        image_size: Side of the images in pixels.
        mean, std: Mean and standard deviation of R, G and B, for values in 0..1.
        resizes_bytes: True if images are resized as uint8, before they are normalised. Photographs
            and `loader=torch` do so. Otherwise images are resized after that, as float32.
        test_accuracy: The accuracy on the test images, as in the run's record.
    """

    library: str
    name: str
    options: dict[str, Any]
    classes: list[str]
    image_size: int
    mean: list[float]
    std: list[float]
    resizes_bytes: bool
    test_accuracy: float | None = None


def keep(
    model: "nn.Module",
    config: VisionConfig,
    classes: Sequence[str],
    test_accuracy: float | None,
    folder: Path,
) -> SavedModel:
    """Write a trained model into `folder`/model.

    Each file is replaced at once, so that a reader finds all of it or nothing. If the disk is full,
    or if anything else fails, the result's `problem` says so and no file remains. The run's
    measurements are not affected.

    Args:
        model: The model as the last evaluation used it.
        classes: The names of the classes, in the order of the model's outputs.
        folder: The run's folder.
    """
    started_s = timing.clock_s()
    place = folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        state = _plain_weights(model, config, len(classes), place)
        about = _model_info(config, list(classes), test_accuracy)
        size_bytes = _write_files(place, state, about)
    except Exception as error:  # Libraries raise many kinds. The run was measured in any case.
        shutil.rmtree(place, ignore_errors=True)
        why = kept.reason_of(error)
        problem = Message(
            "save.failed",
            f"save={config.save}: the model was not saved ({why})",
            key="save",
            reason=why,
        )
        return SavedModel(
            form=str(config.save), save_s=timing.clock_s() - started_s, problem=str(problem)
        )
    spent_s = timing.clock_s() - started_s
    return SavedModel(form=str(config.save), folder=FOLDER, bytes=size_bytes, save_s=spent_s)


def _plain_weights(
    model: "nn.Module", config: VisionConfig, classes: int, place: Path
) -> dict[str, Any]:
    """Copy the weights to the host, under the names that the library's own model has.

    Raises:
        ValueError: The trained model has other names.
        OSError: The disk has no room for the weights.
    """
    import torch

    state = {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in model.state_dict().items()
    }
    if _library(config.model) != OWN_LIBRARY:
        with torch.device("meta"):
            library_state = models.library_model(
                config.model, classes, config.dataset.image_size
            ).state_dict()
        if library_state.keys() != state.keys():
            differing = sorted(library_state.keys() ^ state.keys())[:3]
            raise ValueError(
                f"its tensors have other names than the library's: {', '.join(differing)}"
            )
    kept.require_room(place, sum(value.nbytes for value in state.values()))
    return state


def _library(model: ModelConfig) -> str:
    if model.name in model_names.classifier_names():
        return "timm" if model_names.is_timm(model.name) else "torchvision"
    return OWN_LIBRARY


def _model_info(
    config: VisionConfig, classes: list[str], test_accuracy: float | None
) -> VisionModelInfo:
    dataset = config.dataset
    model = config.model
    library = _library(model)
    options = (
        asdict(model)
        if library == OWN_LIBRARY
        else models.options(model, len(classes), dataset.image_size)
    )
    return VisionModelInfo(
        library=library,
        name=model.name.removeprefix(model_names.TIMM),
        options=options,
        classes=classes,
        image_size=dataset.image_size,
        mean=[float(value) for value in dataset.mean],
        std=[float(value) for value in dataset.std],
        resizes_bytes=dataset.name == "images" or config.loader.name == "torch",
        test_accuracy=test_accuracy,
    )


def _write_files(place: Path, state: dict[str, Any], about: VisionModelInfo) -> int:
    """Write both files, the weights first. Return the bytes of the weights."""
    from safetensors.torch import save_file

    weights = place / WEIGHTS
    info_file = place / ABOUT
    part = weights.with_name(WEIGHTS + kept.PART)
    save_file(state, part, metadata={"format": "pt"})
    part.replace(weights)
    part = info_file.with_name(ABOUT + kept.PART)
    part.write_text(json.dumps(msgspec.to_builtins(about), indent=2))
    part.replace(info_file)
    return weights.stat().st_size


def load(folder: Path) -> "nn.Module":
    """Load the model that a run kept, ready for evaluation.

    The model takes images (B, 3, S, S), as `preprocess` makes them, and returns (B, classes). It
    has two more attributes: `classes`, the names of the outputs, and `preprocess`, which takes a
    PIL image or a uint8 tensor (C, H, W).

    Args:
        folder: The folder of a run, or of a sweep in which only one run kept its model.

    Raises:
        Refusal: There is no model, there are several, or its files are damaged.
    """
    from safetensors.torch import load_file

    place = kept.place_of(folder)
    try:
        about = msgspec.json.decode((place / ABOUT).read_bytes(), type=VisionModelInfo)
        state = load_file(place / WEIGHTS)
    except Exception as error:  # Libraries raise many kinds.
        why = str(error).splitlines()[0]
        sentence = (
            f"{place}: the model cannot be read ({why}); train it again by `save=model rerun=true`"
        )
        raise Refusal(
            "save.unreadable", sentence, key="save", folder=str(place), reason=why
        ) from None
    model = _build_from_info(about)
    model.load_state_dict(state, assign=True)  # Keep the type that it was trained in.
    model.classes = about.classes  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    model.preprocess = preprocess(about)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model.eval()


def saved_classes(file: Path) -> list[str]:
    """Return the classes of weights that a run kept, in the order of the outputs.

    The list is empty for any other file.
    """
    about = file.parent / ABOUT
    if file.name != WEIGHTS or not about.is_file():
        return []
    with suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(about.read_bytes(), type=VisionModelInfo).classes
    return []


def _build_from_info(about: VisionModelInfo) -> "nn.Module":
    if about.library == "timm":
        import timm

        return timm.create_model(about.name, **about.options)
    if about.library == "torchvision":
        import torchvision

        options = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in about.options.items()
        }
        return torchvision.models.get_model(about.name, **options)
    config = msgspec.convert(about.options, ModelConfig)
    return models.BUILDERS[about.name](config, len(about.classes), about.image_size)


def preprocess(about: VisionModelInfo) -> Any:
    """Return the transforms of torchvision that turn an image into the model's input."""
    import torch
    from torchvision.transforms import v2

    resize = v2.Resize([about.image_size, about.image_size], antialias=True)
    to_numbers = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(about.mean, about.std)]
    steps = [resize, *to_numbers] if about.resizes_bytes else [*to_numbers, resize]
    return v2.Compose([v2.ToImage(), v2.RGB(), *steps])


def lines_to_load(folder: Path) -> list[str]:
    """Return lines of Python that load a run's model and classify an image.

    The lines do not need multicard, unless the model is one of its own.
    """
    place = kept.place_of(folder)
    about = msgspec.json.decode((place / ABOUT).read_bytes(), type=VisionModelInfo)
    if about.library == OWN_LIBRARY:
        return ["import multicard", f"model = multicard.load_model({str(place.parent)!r})"]
    options = "".join(f", {name}={value!r}" for name, value in about.options.items())
    create = "timm.create_model" if about.library == "timm" else "torchvision.models.get_model"
    size = f"[{about.image_size}, {about.image_size}]"
    steps = [
        f"image = functional.resize(image, {size}, antialias=True)",
        'image = functional.normalize(image / 255, about["mean"], about["std"])',
    ]
    return [
        f"import json, {'timm, ' if about.library == 'timm' else ''}torch, torchvision",
        "from safetensors.torch import load_file",
        "from torchvision.transforms.v2 import functional",
        f"model = {create}({about.name!r}{options}).eval()",
        f"model.load_state_dict(load_file({str(place / WEIGHTS)!r}))",
        f"about = json.load(open({str(place / ABOUT)!r}))",
        'image = torchvision.io.decode_image("IMAGE", mode="RGB", apply_exif_orientation=True)',
        *(steps if about.resizes_bytes else [steps[1], steps[0]]),
        'print(about["classes"][model(image[None]).argmax()])',
    ]
