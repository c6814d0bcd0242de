"""The names of the classifiers of torchvision and timm.

They are read from the libraries' source, because importing the libraries takes seconds.
"""

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path

from multicard.messages import Refusal

TIMM = "timm/"  # A prefix that asks for timm's model if torchvision has one of the same name.
REGISTERED = re.compile(
    r"^@register_model(?:\([^\n]*\))?\n(?:@[^\n]*\n(?:    [^\n]*\n|\)\n)*)*def (\w+)\(",
    re.MULTILINE,
)


@cache
def registered(package: str) -> dict[str, str]:
    """Return the models that `package` registers, each with its folder below `models/`.

    The folder is "detection", for example, or "" for a model at the top.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is in requirements.txt"
    root = Path(spec.submodule_search_locations[0]) / "models"
    # Files at the top come last, so that their entries overwrite the others.
    paths = sorted(root.rglob("*.py"), key=lambda path: -len(path.parts))
    files = {path: path.parent.relative_to(root).as_posix().strip(".") for path in paths}
    names = dict[str, str]()
    for path, folder in files.items():
        names |= dict.fromkeys(REGISTERED.findall(path.read_text()), folder)
    return names


def is_timm(name: str) -> bool:
    """Return True if timm builds the model of this name."""
    return registered("torchvision").get(name) != ""


@cache
def classifier_names() -> tuple[str, ...]:
    """Return all names that `model=` takes besides those of files in conf/.

    timm's names are there with the prefix TIMM, and without it if torchvision does not have them.
    """
    torchvision_names = {name for name, folder in registered("torchvision").items() if not folder}
    timm_names = {*registered("timm")}
    return (
        *sorted(torchvision_names | timm_names),
        *(f"{TIMM}{name}" for name in sorted(timm_names)),
    )


def has(name: str) -> bool:
    """Return True for a name of a classifier, also with one of timm's tags of weights.

    Whether the tag exists is left to timm.
    """
    untagged, dot, _ = name.partition(".")
    return name in classifier_names() or (
        bool(dot) and untagged.removeprefix(TIMM) in registered("timm")
    )


def refuse_unknown(name: str, other_names: list[str]) -> None:
    """Refuse a name that is not known, or whose model does not classify images.

    Args:
        other_names: Names that are known in addition to those of the libraries.
    """
    folder = registered("torchvision").get(name)
    if folder and name not in classifier_names():
        raise Refusal(
            "classifier.other-task",
            f"model={name}: belongs to torchvision.models.{folder} and does not classify images",
            key="model",
            model=name,
            folder=folder,
        )
    if name in other_names or has(name):
        return
    nearest_names = difflib.get_close_matches(name, {*other_names, *classifier_names()}, n=3) or [
        "mobilenet_v2",
        "resnet50",
    ]
    raise Refusal(
        "classifier.unknown",
        f"model={name}: neither torchvision nor timm has this model; nearest:"
        f" {', '.join(f'`model={name}`' for name in nearest_names)}",
        key="model",
        model=name,
        near=nearest_names,
    )
