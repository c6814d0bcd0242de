"""Trials: whether a model trains as configured, and which images its weights expect.

The controller imports no torch. So it starts another process, `python -m multicard.vision.trial`.
That process reads a `Trial` as JSON from its standard input, and writes a `TrialOutcome` to its
standard output.
Outcomes are kept in a cache on disk.
"""

import hashlib
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from multicard.config.vision import ModelConfig
from multicard.messages import Message, Refusal, say
from multicard.records import run_folder
from multicard.repository import PACKAGES
from multicard.vision import model_names, models

if TYPE_CHECKING:
    from torch import nn


class Trial(msgspec.Struct, frozen=True):
    """A question: does this model take a training step, on tensors without values?

    Attributes:
        classes: Number of classes. For 0 no step is taken; only the expected images are returned.
        averages: True if ranks average gradients.
        class_names: The names of the classes in their order, if weights are loaded from a file.
    """

    model: ModelConfig
    classes: int = 0
    image_size: int = 0
    batch_size: int = 2
    averages: bool = False
    class_names: list[str] = []


class TrialOutcome(msgspec.Struct, frozen=True):
    """The answer to a `Trial`.

    Attributes:
        refusal: Why the step fails, as the parts of a message; None if it works.
        said: Notes on the weights, as the parts of messages.
        mean, std: Mean and standard deviation of R, G and B that the weights were trained with.
        image_size: Image size in pixels, if the model has a fixed one.
    """

    refusal: dict[str, Any] | None = None
    said: list[dict[str, Any]] = []
    mean: list[float] | None = None
    std: list[float] | None = None
    image_size: int | None = None

    @property
    def problem(self) -> Message | None:
        return None if self.refusal is None else Message.of(self.refusal)

    @property
    def notes(self) -> list[Message]:
        return [Message.of(parts) for parts in self.said]


def require_trainable(trial: Trial) -> None:
    """Refuse a model that cannot train as configured, and print notes on its weights."""
    models.weights_file(trial.model)
    problem = cached_outcome(
        msgspec.json.encode(trial), trial.model.weights == models.RANDOM
    ).problem
    if problem is not None:
        raise Refusal.of(problem)


def of_weights(name: str, otherwise: Any, *, _root_: Any) -> Any:
    """Resolve `${of_weights:mean,[...]}` in a configuration to what the model's weights expect.

    Args:
        name: A field of `TrialOutcome`: "mean", "std" or "image_size".
        otherwise: The value for random weights, and for weights that do not say.
    """
    model = _root_.get("model") or {}
    if model.get("weights", models.RANDOM) == models.RANDOM:
        return otherwise
    trial = msgspec.json.encode(Trial(ModelConfig(str(model["name"]))))
    expected_value = getattr(cached_outcome(trial, store=True), name)
    return otherwise if expected_value is None else expected_value


@cache
def cached_outcome(trial: bytes, store: bool) -> TrialOutcome:
    """Return the outcome of a trial from the cache, or from a process that carries it out.

    Args:
        trial: A `Trial` as JSON.
        store: Store the outcome in the cache for later commands.
    """
    libraries = [version(name) for name in ("torch", "torchvision", "timm")]
    code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    digits = hashlib.sha256(b"\0".join([trial, repr(libraries).encode(), *code])).hexdigest()
    path = run_folder.cache("models") / f"{digits}.json"
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=TrialOutcome)
    command = [sys.executable, "-m", "multicard.vision.trial"]
    process = subprocess.run(command, input=trial, capture_output=True, cwd=PACKAGES, check=False)
    if process.returncode:
        output = process.stderr.decode()[-200:].strip()
        name = msgspec.json.decode(trial, type=Trial).model.name
        failed_trial = Message(
            "trial.ended",
            f"model={name}: the process that tried it exited with {process.returncode}: {output}",
            key="model",
            exit_code=process.returncode,
            output=output,
        )
        return TrialOutcome(failed_trial.parts)
    outcome = msgspec.json.decode(process.stdout.splitlines()[-1], type=TrialOutcome)
    for note in outcome.notes:
        say(note)
    with suppress(OSError):
        if store and outcome.problem is None:
            run_folder.write_json(path, outcome)
    return outcome


# ---- in the process that answers


def try_model(trial: Trial) -> TrialOutcome:
    """Take a step of training and one of evaluation on tensors without values; load the weights."""
    import torch

    from multicard.vision import weights

    model = trial.model
    size = trial.image_size
    built = None
    try:
        expected_images = expected_images_of(model.name)
    except RuntimeError as error:  # timm raises it for a tag that it does not have.
        unknown = Message(
            "trial.unknown-tag",
            f"model={model.name}: {error} Leave out the tag, or use one from"
            " timm.list_pretrained()",
            key="model",
            why=str(error),
        )
        return TrialOutcome(unknown.parts)
    if not trial.classes:
        return expected_images
    try:
        with torch.device("meta"):
            built = models.build(model, trial.classes, size)
            problem = _step(built, trial)
    except Exception as error:  # A library's model may raise anything.
        problem = f"{type(error).__name__} in its own code"
        lines = str(error).strip().splitlines()
        if lines:
            problem = lines[0]
    if problem is not None:
        return TrialOutcome(
            _cannot_train(model.name, size, expected_images.image_size, problem).parts
        )
    assert built is not None
    try:
        notes = weights.load(built, model, trial.classes, size, trial.class_names)
    except Refusal as refusal:
        return TrialOutcome(refusal.message.parts)
    return TrialOutcome(None, [note.parts for note in notes])


def _cannot_train(model: str, size: int, own_size: int | None, problem: str) -> Message:
    remedy = "choose a larger dataset.image_size, or another model="
    if own_size not in (None, size):
        remedy = f"use `dataset.image_size={own_size}`, the model's own"
    return Message(
        "trial.cannot-train",
        f"model={model}: cannot train on images of {size} x {size} px ({problem}); {remedy}",
        key="model",
        model=model,
        image_size=size,
        own_image_size=own_size,
        why=problem,
    )


def _step(model: "nn.Module", trial: Trial) -> Message | None:
    """Take a step. Return why it cannot be taken, or None if it can."""
    import torch
    from torch.nn.functional import cross_entropy

    images = torch.zeros(trial.batch_size, 3, trial.image_size, trial.image_size)
    labels = torch.zeros(trial.batch_size)
    outputs = model.train()(images)
    expected_shape = (trial.batch_size, trial.classes)
    if not isinstance(outputs, torch.Tensor) or tuple(outputs.shape) != expected_shape:
        gives = (
            tuple(outputs.shape)
            if isinstance(outputs, torch.Tensor)
            else f"a {type(outputs).__name__} of outputs"
        )
        return Message(
            "trial.no-classifier",
            f"it is not a classifier: it returns {gives} instead of {expected_shape}",
            gives=gives,
            expected=expected_shape,
        )
    cross_entropy(outputs, labels.long()).backward()
    idle = [
        name
        for name, value in model.named_parameters()
        if value.requires_grad and value.grad is None
    ]
    if trial.averages and idle:
        return Message(
            "trial.idle-parameter",
            f"{idle[0]} does not contribute to the outputs, and ranks would wait for its gradients;"
            " only `gpus=1` works",
            parameter=idle[0],
        )
    with torch.no_grad():
        model.eval()(images)
    return None


def expected_images_of(name: str) -> TrialOutcome:
    """Return which images a library's weights of this name were trained on.

    The outcome is empty if the library does not say.
    """
    if not model_names.has(name):
        return TrialOutcome()
    if not model_names.is_timm(name):
        from torchvision.models import get_model_weights

        transforms = get_model_weights(name)["DEFAULT"].transforms()
        size = transforms.crop_size[0] if name.startswith(("vit_", "maxvit")) else None
        return TrialOutcome(mean=list(transforms.mean), std=list(transforms.std), image_size=size)
    import timm

    timm_config = timm.get_pretrained_cfg(name.removeprefix(model_names.TIMM))
    if timm_config is None:
        return TrialOutcome()
    return TrialOutcome(
        mean=[*timm_config.mean],
        std=[*timm_config.std],
        image_size=timm_config.input_size[1] if timm_config.fixed_input_size else None,
    )


if __name__ == "__main__":
    result = try_model(msgspec.json.decode(sys.stdin.buffer.read(), type=Trial))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(result) + b"\n")
