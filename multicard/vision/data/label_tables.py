"""Tables beside folders of images that say other classes than the
folders do: parts of an archive are no classes.
"""

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.vision.data.data_parts import TABLE, DataPart, PartSamples
from multicard.vision.data.folder_contents import (
    are_numbered,
    class_folders,
    holds_notes,
    is_hidden,
)
from multicard.vision.data.image_columns import KEY, LABELS, OF_CLASSES
from multicard.vision.data.image_tables import text_columns
from multicard.vision.data.text_tables import LINES

TABLES = (".csv", ".tsv", LINES)
SHARE = 0.5  # of the images, or of the rows: a table that names as many is of these images
FLAGS = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}
SUBMISSION = "submission"  # in the name of a table whose classes are to be guessed (Kaggle)


class LabelTable(NamedTuple):
    """A table that names images of a folder.

    image: the column that does. strong, weak: columns that are called as classes are, and others
    whose values repeat.
    one_hot: columns that are classes themselves, one of which is 1 in each row.
    """

    path: Path
    columns: list[str]
    image: str
    strong: list[str]
    weak: list[str]
    agrees: frozenset[str]
    one_hot: list[str]

    @property
    def label(self) -> str | None:
        """The column that holds the classes, as it seems."""
        own = [name for name in self.strong if name.strip().lower() in LABELS]
        # one class against all others
        weak = [name for name in self.weak if name not in self.one_hot]
        return next(iter([*own, *self.strong, *weak]), None)


def require_folders_are_classes(
    root: Path,
    samples: PartSamples,
    test: DataPart | None,
    reading: Callable[[LabelTable], str | None],
) -> list[LabelTable]:
    """Refuse folders that are taken for classes where a table
    beside them gives their images other ones.

    Args:
        root: `dataset.root`. samples: of the part to train on. test: the part to test on,
            if there is one. reading: the overrides that read a table; None where it cannot be read.

    Returns:
        Tables of these images that have no column of classes, which are not read.
    """
    images = [image for image in samples.images if isinstance(image, Path)]
    if not images or len(images) < len(samples.images):
        return []
    unread = list[LabelTable]()
    alone = len(samples.classes) == 1
    numbered = are_numbered(samples.classes)
    for path in _files(root, images, TABLES):
        table = None
        with suppress(
            Refusal, OSError, ValueError, LookupError, NotImplementedError
        ):  # of another form, which says nothing of images
            table = _of_images(path, images, samples.labels)
        if table is None:
            continue
        said = table.strong or (table.weak if alone or (numbered and test is None) else [])
        if said and (alone or not table.agrees & {*said}):
            as_classes = override(KEY, {"label": None})
            if test is None:
                as_classes += " dataset.split=0.2"
            raise _other_classes(root, table, samples.classes, as_classes, reading(table))
        if not table.agrees:
            unread.append(table)
    for path in _files(root, images, (".json",)) if alone else []:
        if _labels_images(path, images):
            raise Refusal(
                "photographs.labels-in-json",
                f"dataset.root={root}: {path.relative_to(root).as_posix()} names these images and"
                f" their classes, as FiftyOne writes them, and is not read; {TABLE}",
                key="dataset.root",
                file=str(path),
            )
    return unread


def is_submission(path: Path) -> bool:
    """True of a form to be filled in, whose classes mean nothing."""
    return SUBMISSION in path.stem.lower()


def _files(root: Path, images: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """The files of these endings in a folder, on the way to where its images part,
    and in folders of notes beside them.

    Those called train come first.
    """
    below = Path(os.path.commonpath([image.parent for image in images]))
    places = [
        place
        for place in (*reversed(below.parents), below)
        if place == root or root in place.parents
    ]
    found = list[Path]()
    for place in places:
        beside = []
        for folder in class_folders(place):
            if holds_notes(folder):
                beside.extend(folder.iterdir())
        every = [*place.iterdir(), *beside]
        for path in sorted(every, key=lambda path: ("train" not in path.stem.lower(), path.name)):
            if (
                path.suffix.lower() in endings
                and not is_hidden(path.name)
                and not is_submission(path)
            ):
                found.append(path)
    return found


def _labels_images(path: Path, images: Sequence[Path]) -> bool:
    """True of a JSON object whose `labels` are by the names of these images,
    or by these without their endings.
    """
    with suppress(OSError, ValueError, RecursionError):
        held = json.loads(path.read_bytes())
        labels = held.get("labels") if isinstance(held, dict) else None
        if isinstance(labels, dict):
            return sum(
                image.name in labels or image.stem in labels for image in images
            ) >= SHARE * len(images)
    return False


def _of_images(path: Path, images: Sequence[Path], labels: Sequence[str]) -> LabelTable | None:
    """What a table says of these images; None where it names too few of them."""
    columns = text_columns(path)
    rows = max(map(len, columns.values()), default=0)
    folders = _by_name(images, labels)
    keys = {name: [_key_of(value, folders) for value in values] for name, values in columns.items()}
    image = max(keys, key=lambda name: sum(key in folders for key in keys[name]), default=None)
    if image is None:
        return None
    named = [key in folders for key in keys[image]]
    if sum(named) < SHARE * min(len(images), rows):
        return None
    strong = list[str]()
    weak = list[str]()
    agrees = set[str]()
    for name, values in columns.items():
        if name == image or not name.strip():
            continue
        by_folder = dict[str, set[str]]()
        for key, value, is_there in zip(keys[image], values, named, strict=True):
            if is_there:
                by_folder.setdefault(folders[key], set()).add(value)
        different = set[str]().union(*by_folder.values())
        if name.strip().lower() in LABELS or OF_CLASSES.search(name):
            strong += [name] if len(different) > 1 else []
        elif 1 < len(different) <= rows / 2:
            weak.append(name)
        if all(len(own) == 1 for own in by_folder.values()) and len(different) > 1:
            agrees.add(name)
    weak.sort(key=lambda name: _is_number(columns[name]))
    one_hot = _one_hot({name: columns[name] for name in weak})
    return LabelTable(path, [*columns], image, strong, weak, frozenset(agrees), one_hot)


def _one_hot(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Of these columns the ones of 0 and 1, where exactly one of them is 1 in each row."""
    flags = {}
    for name, values in columns.items():
        if all(value in FLAGS for value in values):
            flags[name] = [FLAGS[value] for value in values]
    if len(flags) > 1 and all(sum(row) == 1 for row in zip(*flags.values(), strict=True)):
        return [*flags]
    return []


def _by_name(images: Sequence[Path], labels: Sequence[str]) -> dict[str, str]:
    """The labels of images, by their names with the folder, and without where one label has them;
    with and without ending.
    """
    found = dict[str, str]()
    of_several = set[str]()
    for image, label in zip(images, labels, strict=True):
        for key in (image.name, image.stem):
            if found.setdefault(key, label) != label:
                of_several.add(key)
        for key in (image.name, image.stem):
            found[f"{image.parent.name}/{key}"] = label
    for key in of_several:
        del found[key]
    return found


def _key_of(value: str, folders: Mapping[str, str]) -> str:
    """The name of the image that a value is, with its folder where that is known."""
    *above, name = value.replace("\\", "/").split("/")
    with_folder = f"{above[-1]}/{name}" if above else name
    return with_folder if with_folder in folders else name


def _is_number(values: Sequence[str]) -> bool:
    return all(re.fullmatch(r"-?\d*\.?\d*", value) for value in values)


def _other_classes(
    root: Path, table: LabelTable, folders: Sequence[str], as_classes: str, remedy: str | None
) -> Refusal:
    """The refusal of folders that are no classes by a table.

    Args:
        as_classes: the overrides that take them for classes all the same. remedy: those that read
            the table.
    """
    shown = f"{', '.join(folders[:3])}{f' and {len(folders) - 3} more' if len(folders) > 3 else ''}"
    use = "" if remedy is None else f"Use `{remedy}`, or"
    kept = f"{use or 'Use'} `{as_classes}` if the folders are the classes"
    if len(folders) == 1:
        kept = f"Use `{remedy}`" if remedy else f"Instead, {TABLE}"
    columns = ", ".join(table.columns)
    return Refusal(
        "photographs.table-of-classes",
        f"dataset.root={root}: {table.path.relative_to(root).as_posix()} (with the columns"
        f" {columns}) names these images, and gives them other classes than their folders do"
        f" ({shown}). {kept}",
        key="dataset.root",
        table=str(table.path),
        columns=table.columns,
        folders=[*folders[:20]],
        remedy=remedy,
    )
