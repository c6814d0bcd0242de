"""Whether a model trains as configured, and what its weights expect of images: asked of another process (`tried`), as
this one imports no torch. Answers are kept in a cache on the disk."""

import hashlib
import subprocess
import sys
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

from multicard.config.keys import require
from multicard.config.vision import ModelConfig
from multicard.messages import say
from multicard.records import run_folder
from multicard.vision import models

ROOT = Path(__file__).parents[2]


class Trial(msgspec.Struct, frozen=True):
    """A step of training on tensors without values; with `classes` 0 no step, but what the weights expect alone.
    `averages`: whether ranks average gradients."""

    model: ModelConfig
    classes: int = 0
    image_size: int = 0
    batch_size: int = 2
    averages: bool = False


class Answer(msgspec.Struct, frozen=True):
    """Why a step fails; None if it does not. What to say of the weights, and what images they were trained on: `mean`
    and `std` of R, G, B, and `image_size` in pixels where the model has a fixed one."""

    problem: str | None = None
    note: str = ""
    mean: list[float] | None = None
    std: list[float] | None = None
    image_size: int | None = None


def check(trial: Trial) -> None:
    """Refuse a model that does not train so (ValueError); say which of its weights are new."""
    models.weights_file(trial.model)
    problem = ask(msgspec.json.encode(trial), trial.model.weights == models.RANDOM).problem
    require(problem is None, problem or "")


def of_weights(name: str, otherwise: Any, *, _root_: Any) -> Any:
    """`${of_weights:mean,[...]}` in a configuration: what the model's weights expect; else, as with random ones, what
    follows."""
    model = _root_.get("model") or {}
    if model.get("weights", models.RANDOM) == models.RANDOM:
        return otherwise
    found = getattr(ask(msgspec.json.encode(Trial(ModelConfig(str(model["name"])))), True), name)
    return otherwise if found is None else found


@cache
def ask(trial: bytes, keeps: bool) -> Answer:
    """The answer to a `Trial` as JSON; once found by a process, also for later commands where `keeps`."""
    libraries = [version(name) for name in ("torch", "torchvision", "timm")]
    code = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    digits = hashlib.sha256(b"\0".join([trial, repr(libraries).encode(), *code])).hexdigest()
    path = run_folder.cache("models") / f"{digits}.json"
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(path.read_bytes(), type=Answer)
    command = [sys.executable, "-m", "multicard.vision.tried"]
    done = subprocess.run(command, input=trial, capture_output=True, cwd=ROOT, check=False)
    if done.returncode:
        return Answer(f"model=: the trial of it ended with {done.returncode}: {done.stderr.decode()[-200:].strip()}")
    found = msgspec.json.decode(done.stdout.splitlines()[-1], type=Answer)
    if found.note:
        say(found.note)
    with suppress(OSError):
        if keeps and found.problem is None:
            run_folder.write_json(path, found)
    return found
