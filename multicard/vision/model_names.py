"""Names of the classifiers of torchvision and timm,
read from their source: importing them takes seconds.
"""

import difflib
import importlib.util
import re
from functools import cache
from pathlib import Path

from multicard.messages import Refusal

TIMM = "timm/"  # before a name that torchvision has too: timm's model of it
REGISTERED = re.compile(
    r"^@register_model(?:\([^\n]*\))?\n(?:@[^\n]*\n(?:    [^\n]*\n|\)\n)*)*def (\w+)\(",
    re.MULTILINE,
)


@cache
def registered(package: str) -> dict[str, str]:
    """The models that `package` registers, with their folder below its `models/`, as "detection";
    "" at its top.
    """
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is in requirements.txt"
    root = Path(spec.submodule_search_locations[0]) / "models"
    # the top, which has the last word, is last
    paths = sorted(root.rglob("*.py"), key=lambda path: -len(path.parts))
    files = {path: path.parent.relative_to(root).as_posix().strip(".") for path in paths}
    names = dict[str, str]()
    for path, folder in files.items():
        names |= dict.fromkeys(REGISTERED.findall(path.read_text()), folder)
    return names


def is_timm(name: str) -> bool:
    """True where timm builds the model of this name."""
    return registered("torchvision").get(name) != ""


@cache
def every() -> tuple[str, ...]:
    """The names that `model=` takes beside its files;
    with TIMM before those of timm that torchvision has too.
    """
    own = {name for name, folder in registered("torchvision").items() if not folder}
    timm = {*registered("timm")}
    return (*sorted(own | timm), *(f"{TIMM}{name}" for name in sorted(timm)))


def has(name: str) -> bool:
    """True for a name of `every`, and for one of timm's with a tag of weights,
    which timm judges.
    """
    untagged, dot, _ = name.partition(".")
    return name in every() or (bool(dot) and untagged.removeprefix(TIMM) in registered("timm"))


def check(name: str, own: list[str]) -> None:
    """Refuse a name that neither a library nor `own` has, or of a model that is no classifier."""
    folder = registered("torchvision").get(name)
    if folder and name not in every():
        raise Refusal(
            "classifier.other-task",
            f"model={name}: is of torchvision.models.{folder}: no classifier of images",
            key="model",
            model=name,
            folder=folder,
        )
    if name in own or has(name):
        return
    near = difflib.get_close_matches(name, {*own, *every()}, n=3) or ["mobilenet_v2", "resnet50"]
    raise Refusal(
        "classifier.unknown",
        f"model={name}: neither torchvision nor timm has it; nearest:"
        f" {', '.join(f'`model={each}`' for each in near)}",
        key="model",
        model=name,
        near=near,
    )
