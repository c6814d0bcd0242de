"""The process that answers a `Trial`: JSON from the standard input, and to the standard output."""

import sys

import msgspec
import torch
from torch.nn.functional import cross_entropy

from multicard.vision import model_names, models, weights
from multicard.vision.trial import Answer, Trial


def answer(trial: Trial) -> Answer:
    """Take a step of training and one of evaluation without values, and load the weights."""
    model, size, built = trial.model, trial.image_size, None
    try:
        own = expected(model.name)
    except RuntimeError as error:  # timm's, of a tag that it does not have
        return Answer(f"model={model.name}: {error} Leave the tag out, or use one that timm.list_pretrained() has")
    if not trial.classes:
        return own
    try:
        with torch.device("meta"):
            built = models.build(model, trial.classes, size)
            problem = _step(built, trial)
    except Exception as error:  # whatever a library's model raises
        problem = (str(error).strip().splitlines() or [f"{type(error).__name__} in its own code"])[0]
    if problem is not None:
        fixed = (
            f"use dataset.image_size={own.image_size}, the model's own" if own.image_size not in (None, size) else ""
        )
        remedy = fixed or "choose a larger dataset.image_size, or another model="
        return Answer(f"model={model.name}: cannot train on images of {size} x {size} px ({problem}); {remedy}")
    assert built is not None
    try:
        return Answer(None, weights.load(built, model, trial.classes, size))
    except ValueError as error:
        return Answer(str(error))


def _step(model: torch.nn.Module, trial: Trial) -> str | None:
    """Why a step cannot be; None where it can."""
    images, labels = torch.zeros(trial.batch_size, 3, trial.image_size, trial.image_size), torch.zeros(trial.batch_size)
    outputs, expected_shape = model.train()(images), (trial.batch_size, trial.classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != expected_shape:
        gives = tuple(outputs.shape) if isinstance(outputs, torch.Tensor) else f"a {type(outputs).__name__} of outputs"
        return f"it is no classifier: it gives {gives} and not {expected_shape}"
    cross_entropy(outputs, labels.long()).backward()
    idle = [name for name, value in model.named_parameters() if value.requires_grad and value.grad is None]
    if trial.averages and idle:
        return f"{idle[0]} has no part in the outputs, and ranks would wait for its gradients; only gpus=1 works"
    with torch.no_grad():
        model.eval()(images)
    return None


def expected(name: str) -> Answer:
    """The images that a library's weights of this name were trained on; nothing where none says so."""
    if not model_names.has(name):
        return Answer()
    if not model_names.is_timm(name):
        from torchvision.models import get_model_weights

        used = get_model_weights(name)["DEFAULT"].transforms()
        size = used.crop_size[0] if name.startswith(("vit_", "maxvit")) else None
        return Answer(mean=list(used.mean), std=list(used.std), image_size=size)
    import timm

    own = timm.get_pretrained_cfg(name.removeprefix(model_names.TIMM))
    if own is None:
        return Answer()
    return Answer(mean=[*own.mean], std=[*own.std], image_size=own.input_size[1] if own.fixed_input_size else None)


if __name__ == "__main__":
    result = answer(msgspec.json.decode(sys.stdin.buffer.read(), type=Trial))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(result) + b"\n")
