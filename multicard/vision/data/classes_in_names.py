"""Recognize images whose names begin with their classes, such as cat.0.jpg of Dogs vs. Cats.

Such names are not read, because IMG_0001.jpg and DSC_0001.jpg look alike. A command writes a table
of them.
"""

import re
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.records.text_table import first_few
from multicard.vision.data.folder_contents import (
    IMAGE_SUFFIXES,
    is_hidden,
    list_folder,
    visible_folders,
)
from multicard.vision.data.known_layouts import overrides_to_read_alone

TABLE = "labels.csv"
LEAST_IMAGES = 2  # In each class.
SHOWN_CLASSES = 3
LETTER = re.compile(r"[^\W\d_]")
# The name of a class and the number of an image: "n01440764_10026", "cat12". Sed and Python read
# them alike.
FORMS = (r"(.*[^._ ()-])[._ (-]+[0-9]+\)?", r"(.*[^0-9._ ()-])[0-9]+")


def names_refusal(root: Path) -> Refusal | None:
    """Return the refusal of a folder or part whose images may have their classes in their names.

    Return None if they have no such names, or if a table would be overwritten.
    """
    for folder in (root, *_parts_to_train(root)):
        if not list_folder(folder).has_images or (folder / TABLE).exists():
            continue
        images = _image_names(folder)
        for form in FORMS:
            classes = _classes(images, form)
            if len(classes) > 1 and min(classes.values()) >= LEAST_IMAGES:
                return _refusal(root, folder, images, form, sorted(classes))
    return None


def _parts_to_train(root: Path) -> list[Path]:
    named = {folder: part_names.parsed(folder.name) for folder in visible_folders(root)}
    return [
        folder for folder, name in named.items() if name is not None and name.kind is PartKind.train
    ]


def _image_names(folder: Path) -> list[str]:
    return [
        path.name
        for path in folder.iterdir()
        if path.suffix.lower() in IMAGE_SUFFIXES and not is_hidden(path.name)
    ]


def _classes(names: Sequence[str], form: str) -> Counter[str]:
    """Return how many images have each class; none if the name of an image has another form."""
    classes = Counter[str]()
    for name in names:
        match = re.fullmatch(form, Path(name).stem)
        if match is None or '"' in name or not LETTER.search(match[1]):
            return Counter()
        classes[match[1]] += 1
    return classes


def _refusal(
    root: Path, folder: Path, images: Sequence[str], form: str, classes: list[str]
) -> Refusal:
    table = folder / TABLE
    suffixes = sorted({Path(name).suffix.removeprefix(".") for name in images})
    expression = rf's/^{form}\.({"|".join(suffixes)})$/"&","\1"/p'
    command = (
        f"ls {shlex.quote(str(folder))} | sed -nE -e '1i path,label' -e {shlex.quote(expression)}"
        f" > {shlex.quote(str(table))}"
    )
    overrides = overrides_to_read_alone(table)
    shown = first_few(classes, SHOWN_CLASSES)
    return Refusal(
        "photographs.classes-in-names",
        f"dataset.root={root}: {folder.name} holds images, and no folders of classes; if their"
        f" names begin with their classes ({shown}), write a table of them by `{command}`, and use"
        f" `{overrides}`",
        key="dataset.root",
        folder=str(folder),
        classes=classes,
        command=command,
        remedy=overrides,
    )
