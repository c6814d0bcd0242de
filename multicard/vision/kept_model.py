"""The model that a run trained, kept in its folder: weights by its own library's names,
and what images it expects.

Whoever loads it needs torch, torchvision or timm, and safetensors; `lines_to_load` shows how.
Imports torch only inside
functions: the controller reads `VisionModelInfo` too.
"""

import json
import shutil
from collections.abc import Sequence
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

OWN = "multicard"  # the library of a model that was added to BUILDERS
FOLDER = "model"
WEIGHTS = "model.safetensors"
ABOUT = kept.IMAGE_MODEL


class VisionModelInfo(msgspec.Struct, frozen=True):
    """What `model.json` says of the weights beside it.

    library: torchvision or timm, whose own builder takes `name` and `options`; multicard for a
    model of `BUILDERS`,
        which takes them as keys of `model`.
    classes: their names, in the order of the outputs.
    image_size: side of the images, in pixels. mean, std: of R, G, B, with values in 0..1.
    resizes_bytes: images are resized as uint8, before they are normalised, as photographs and
    `loader=torch` do it;
        else after that, as numbers.
    test_accuracy: what the run's record has, of its test images.
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
    """Write a trained model into `folder`/model, each file
    at once: a reader finds all of it, or none.

    A disk that has no room for it, or any other failure, is told in the result's `problem`, and
    leaves nothing behind. The run stays as it was measured.

    Args:
        model: as the last evaluation saw it.
        classes: their names, in the order of the model's outputs.
        folder: of the run.
    """
    started_s = timing.clock_s()
    place = folder / FOLDER
    try:
        place.mkdir(exist_ok=True)
        state = _plain_weights(model, config, len(classes), place)
        about = _about(config, list(classes), test_accuracy)
        size_bytes = _written(place, state, about)
    except Exception as error:  # of several libraries; whatever it is, the run itself was measured
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
    """The weights on the host, by the names that the library's own model has.

    Raises:
        ValueError: the trained model has other names.
        OSError: the disk has no room for them.
    """
    import torch

    state = {
        name: value.detach().to("cpu", copy=True).contiguous()
        for name, value in model.state_dict().items()
    }
    if _library(config.model) != OWN:
        with torch.device("meta"):
            own = models.library_model(
                config.model, classes, config.dataset.image_size
            ).state_dict()
        if own.keys() != state.keys():
            differing = sorted(own.keys() ^ state.keys())[:3]
            raise ValueError(
                f"its layers have other names than the library's: {', '.join(differing)}"
            )
    kept.require_room(place, sum(value.nbytes for value in state.values()))
    return state


def _library(model: ModelConfig) -> str:
    if model.name in model_names.every():
        return "timm" if model_names.is_timm(model.name) else "torchvision"
    return OWN


def _about(
    config: VisionConfig, classes: list[str], test_accuracy: float | None
) -> VisionModelInfo:
    dataset = config.dataset
    model = config.model
    library = _library(model)
    options = (
        asdict(model) if library == OWN else models.options(model, len(classes), dataset.image_size)
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


def _written(place: Path, state: dict[str, Any], about: VisionModelInfo) -> int:
    """Write both files, the weights first; returns the bytes of the weights."""
    from safetensors.torch import save_file

    weights = place / WEIGHTS
    described = place / ABOUT
    part = weights.with_name(WEIGHTS + kept.PART)
    save_file(state, part, metadata={"format": "pt"})
    part.replace(weights)
    part = described.with_name(ABOUT + kept.PART)
    part.write_text(json.dumps(msgspec.to_builtins(about), indent=2))
    part.replace(described)
    return weights.stat().st_size


def load(folder: Path) -> "nn.Module":
    """The model that is kept below a run's folder, or below that of a sweep that kept one alone,
    for evaluation.

    It takes (B, 3, S, S) as `preprocess` makes them, and gives (B, classes). Two attributes are
    added: `classes`, the names of the outputs, and `preprocess`,
    which takes an image of PIL or a uint8 tensor (C, H, W).

    Raises:
        Refusal: no model was kept there, several were, or its files are not whole.
    """
    from safetensors.torch import load_file

    place = kept.place_of(folder)
    try:
        about = msgspec.json.decode((place / ABOUT).read_bytes(), type=VisionModelInfo)
        state = load_file(place / WEIGHTS)
    except Exception as error:  # of several libraries
        why = str(error).splitlines()[0]
        said = (
            f"{place}: the model cannot be read ({why}); train it again by `save=model rerun=true`"
        )
        raise Refusal("save.unreadable", said, key="save", folder=str(place), reason=why) from None
    model = _built(about)
    model.load_state_dict(state, assign=True)  # in the type that it was trained in
    model.classes = about.classes  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    model.preprocess = preprocess(about)  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    return model.eval()


def _built(about: VisionModelInfo) -> "nn.Module":
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
    """What makes an image as the run's own were: torchvision's transforms."""
    import torch
    from torchvision.transforms import v2

    resize = v2.Resize([about.image_size, about.image_size], antialias=True)
    to_numbers = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(about.mean, about.std)]
    steps = [resize, *to_numbers] if about.resizes_bytes else [*to_numbers, resize]
    return v2.Compose([v2.ToImage(), v2.RGB(), *steps])


def lines_to_load(folder: Path) -> list[str]:
    """Lines of Python that load the model of a run and classify an image,
    without this project but for OWN models.
    """
    place = kept.place_of(folder)
    about = msgspec.json.decode((place / ABOUT).read_bytes(), type=VisionModelInfo)
    if about.library == OWN:
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
