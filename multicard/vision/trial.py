"""Whether a model trains as configured, and what its weights expect of images: the controller,
which imports no torch, asks another process, `python -m multicard.vision.trial`, which reads JSON
from its standard input and writes the answer to its standard output.
Answers are kept in a cache on the disk.
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
    """A step of training on tensors without values; with `classes` 0 no step, but what the weights
    expect alone.
    `averages`: whether ranks average gradients.
    """

    model: ModelConfig
    classes: int = 0
    image_size: int = 0
    batch_size: int = 2
    averages: bool = False


class TrialOutcome(msgspec.Struct, frozen=True):
    """Why a step fails; None if it does not. What to say of the weights, and what images they were
    trained on: `mean` and `std` of R, G, B, and `image_size`
    in pixels where the model has a fixed one.

    `refusal` and each of `said` are the parts of messages.
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


def check(trial: Trial) -> None:
    """Refuse a model that does not train so; say which weights it gets."""
    models.weights_file(trial.model)
    problem = ask(msgspec.json.encode(trial), trial.model.weights == models.RANDOM).problem
    if problem is not None:
        raise Refusal.of(problem)


def of_weights(name: str, otherwise: Any, *, _root_: Any) -> Any:
    """`${of_weights:mean,[...]}` in a configuration: what the model's weights expect; else, as with
    random ones, what follows.
    """
    model = _root_.get("model") or {}
    if model.get("weights", models.RANDOM) == models.RANDOM:
        return otherwise
    found = getattr(ask(msgspec.json.encode(Trial(ModelConfig(str(model["name"])))), True), name)
    return otherwise if found is None else found


@cache
def ask(trial: bytes, keeps: bool) -> TrialOutcome:
    """The answer to a `Trial` as JSON; once found by a process,
    also for later commands where `keeps`.
    """
    libraries = [version(name) for name in ("torch", "torchvision", "timm")]
    code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    digits = hashlib.sha256(b"\0".join([trial, repr(libraries).encode(), *code])).hexdigest()
    path = run_folder.cache("models") / f"{digits}.json"
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=TrialOutcome)
    command = [sys.executable, "-m", "multicard.vision.trial"]
    done = subprocess.run(command, input=trial, capture_output=True, cwd=PACKAGES, check=False)
    if done.returncode:
        output = done.stderr.decode()[-200:].strip()
        name = msgspec.json.decode(trial, type=Trial).model.name
        ended = Message(
            "trial.ended",
            f"model={name}: the trial of it ended with {done.returncode}: {output}",
            key="model",
            exit_code=done.returncode,
            output=output,
        )
        return TrialOutcome(ended.parts)
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=TrialOutcome)
    for note in found.notes:
        say(note)
    with suppress(OSError):
        if keeps and found.problem is None:
            run_folder.write_json(path, found)
    return found


# ---- in the process that answers


def answer(trial: Trial) -> TrialOutcome:
    """Take a step of training and one of evaluation without values, and load the weights."""
    import torch

    from multicard.vision import weights

    model = trial.model
    size = trial.image_size
    built = None
    try:
        own = expected(model.name)
    except RuntimeError as error:  # timm's, of a tag that it does not have
        unknown = Message(
            "trial.unknown-tag",
            f"model={model.name}: {error} Leave the tag out, or use one that"
            " timm.list_pretrained() has",
            key="model",
            why=str(error),
        )
        return TrialOutcome(unknown.parts)
    if not trial.classes:
        return own
    try:
        with torch.device("meta"):
            built = models.build(model, trial.classes, size)
            problem = _step(built, trial)
    except Exception as error:  # whatever a library's model raises
        problem = (str(error).strip().splitlines() or [f"{type(error).__name__} in its own code"])[
            0
        ]
    if problem is not None:
        return TrialOutcome(_cannot_train(model.name, size, own.image_size, problem).parts)
    assert built is not None
    try:
        notes = weights.load(built, model, trial.classes, size)
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
    """Why a step cannot be; None where it can."""
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
            f"it is no classifier: it gives {gives} and not {expected_shape}",
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
            f"{idle[0]} has no part in the outputs, and ranks would wait for its gradients; only"
            " `gpus=1` works",
            parameter=idle[0],
        )
    with torch.no_grad():
        model.eval()(images)
    return None


def expected(name: str) -> TrialOutcome:
    """The images that a library's weights of this name were trained on;
    nothing where none says so.
    """
    if not model_names.has(name):
        return TrialOutcome()
    if not model_names.is_timm(name):
        from torchvision.models import get_model_weights

        used = get_model_weights(name)["DEFAULT"].transforms()
        size = used.crop_size[0] if name.startswith(("vit_", "maxvit")) else None
        return TrialOutcome(mean=list(used.mean), std=list(used.std), image_size=size)
    import timm

    own = timm.get_pretrained_cfg(name.removeprefix(model_names.TIMM))
    if own is None:
        return TrialOutcome()
    return TrialOutcome(
        mean=[*own.mean],
        std=[*own.std],
        image_size=own.input_size[1] if own.fixed_input_size else None,
    )


if __name__ == "__main__":
    result = answer(msgspec.json.decode(sys.stdin.buffer.read(), type=Trial))
    sys.stdout.buffer.write(b"\n" + msgspec.json.encode(result) + b"\n")
