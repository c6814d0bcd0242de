"""Find tables beside folders of images that give the images other classes than the folders do.

An archive may divide its images into folders that are no classes at all, and keep the classes in a
table. Training on such folders would be meaningless.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.records.part_columns import SPLITS
from multicard.vision.data.data_parts import WRITE_A_TABLE, DataPart, PartSamples
from multicard.vision.data.folder_contents import (
    are_numbered,
    holds_notes,
    is_hidden,
    visible_folders,
)
from multicard.vision.data.image_columns import (
    COLUMNS_KEY,
    LABELS,
    NO_NAME,
    PROBABLY_CLASSES,
)
from multicard.vision.data.image_copies import are_copies
from multicard.vision.data.image_tables import text_columns
from multicard.vision.data.one_hot import one_hot_columns
from multicard.vision.data.text_tables import JSON_LINES

TABLES = (".csv", ".tsv", JSON_LINES)
# A table is about the images if it names this share of them, or if this share of its rows does.
SHARE_NAMED = 0.5
SUBMISSION = "submission"  # Kaggle's name for a form in which contestants fill in the classes.


class LabelTable(NamedTuple):
    """A table that names the images of a folder.

    Attributes:
        image: The column that names the images.
        likely_labels: Columns that are named as classes are.
        possible_labels: Other columns whose values repeat.
        matching_columns: Columns whose values agree with the images' folders.
        one_hot: Columns that each stand for a class, exactly one of which is 1 in each row.
        names_several: Whether a row names several images, as of a folder and its resized copy.
    """

    path: Path
    columns: list[str]
    image: str
    likely_labels: list[str]
    possible_labels: list[str]
    matching_columns: frozenset[str]
    one_hot: list[str]
    names_several: bool

    @property
    def label(self) -> str | None:
        """The column that most probably holds the classes."""
        usual_names = [name for name in self.likely_labels if name.strip().lower() in LABELS]
        # A one-hot column only says whether an image belongs to one particular class.
        other_columns = [name for name in self.possible_labels if name not in self.one_hot]
        by_preference = [*usual_names, *self.likely_labels, *other_columns]
        return by_preference[0] if by_preference else None


def require_folders_are_classes(
    root: Path,
    samples: PartSamples,
    test: DataPart | None,
    overrides_for: Callable[[LabelTable], str | None],
) -> list[LabelTable]:
    """Refuse folders as classes if a table beside them gives their images other classes.

    Args:
        root: `dataset.root`.
        samples: The samples of the part to train on.
        test: The part to test on, if there is one.
        overrides_for: Returns the overrides that read a table, or None if it cannot be read.

    Returns:
        Tables that name these images, but have no column of classes. They are not read.
    """
    images = [image for image in samples.images if isinstance(image, Path)]
    if not images or len(images) < len(samples.images):
        return []
    unread = list[LabelTable]()
    is_one_class = len(samples.classes) == 1
    are_numbered_folders = are_numbered(samples.classes)
    files = _files_beside_images(root, images, (*TABLES, *([".json"] if is_one_class else [])))
    for path in files:
        table = None
        # Files that are no readable table say nothing about these images.
        with suppress(Refusal, OSError, ValueError, LookupError, NotImplementedError):
            table = compare_with_images(path, images, samples.labels)
        if table is None:
            continue
        class_columns = table.likely_labels
        if not class_columns and (is_one_class or (are_numbered_folders and test is None)):
            class_columns = table.possible_labels
        if class_columns and (is_one_class or not table.matching_columns & {*class_columns}):
            as_classes = override(COLUMNS_KEY, {"label": None})
            if test is None:
                as_classes += " dataset.split=0.2"
            raise _other_classes_refusal(
                root, table, samples.classes, as_classes, overrides_for(table)
            )
        if not table.matching_columns:
            unread.append(table)
    return unread


def is_submission(path: Path) -> bool:
    """Tell whether a table is a submission form, whose classes mean nothing."""
    return SUBMISSION in path.stem.lower()


def _files_beside_images(root: Path, images: Sequence[Path], endings: Sequence[str]) -> list[Path]:
    """Find files with these endings beside the images.

    They lie on the path from `root` to the images' common folder, or in folders of notes there.
    Files named train come first.
    """
    below = Path(os.path.commonpath([image.parent for image in images]))
    places = [
        place
        for place in (*reversed(below.parents), below)
        if place == root or root in place.parents
    ]
    files = list[Path]()
    for place in places:
        notes = []
        for folder in visible_folders(place):
            if holds_notes(folder):
                notes.extend(folder.iterdir())
        all_paths = [*place.iterdir(), *notes]
        for path in sorted(
            all_paths, key=lambda path: ("train" not in path.stem.lower(), path.name)
        ):
            if (
                path.suffix.lower() in endings
                and not is_hidden(path.name)
                and not is_submission(path)
            ):
                files.append(path)
    return files


def compare_with_images(
    path: Path, images: Sequence[Path], labels: Sequence[str]
) -> LabelTable | None:
    """Compare a table with the images' folders. Return None if it names too few of the images.

    Args:
        images: Images in folders that are classes or parts.
        labels: The folder of each image.
    """
    columns = text_columns(path)
    rows = max(map(len, columns.values()), default=0)
    folders, shared_keys = _labels_by_image_name(images, labels)
    keys = {
        name: [_image_key(value, folders) for value in values] for name, values in columns.items()
    }
    named = {name: _rows_of_images(columns[name], folders, shared_keys) for name in keys}
    image = max(named, key=lambda name: sum(named[name]), default=None)
    if image is None:
        return None
    is_named = named[image]
    if sum(is_named) < SHARE_NAMED * min(len(images), rows):
        return None
    likely_labels = list[str]()
    possible_labels = list[str]()
    matching_columns = set[str]()
    for name, values in columns.items():
        # A column that divides the rows into parts holds no classes, even if its values repeat.
        if name == image or not name.strip() or name.strip().lower() in SPLITS:
            continue
        by_folder = dict[str, set[str]]()
        for key, value, is_there in zip(keys[image], values, is_named, strict=True):
            if is_there:
                by_folder.setdefault(folders.get(key, ""), set()).add(value)
        distinct = set[str]().union(*by_folder.values())
        if name.strip().lower() in LABELS or PROBABLY_CLASSES.search(name):
            likely_labels += [name] if len(distinct) > 1 else []
        elif 1 < len(distinct) <= rows / 2:
            possible_labels.append(name)
        if (
            all(len(folder_values) == 1 for folder_values in by_folder.values())
            and len(distinct) > 1
        ):
            matching_columns.add(name)
    possible_labels.sort(key=lambda name: _is_number(columns[name]))
    one_hot = one_hot_columns({name: columns[name] for name in possible_labels})
    return LabelTable(
        path,
        [*columns],
        image,
        likely_labels,
        possible_labels,
        frozenset(matching_columns),
        one_hot,
        names_several=not shared_keys.isdisjoint(columns[image]),
    )


def _rows_of_images(
    values: Sequence[str], folders: Mapping[str, str], shared_keys: set[str]
) -> list[bool]:
    """Tell for each row of a column whether its value names an image.

    A name without a folder that images of several folders share counts if it is no mere number, and
    no other row has it. These folders are probably versions, as a folder and its resized copy.
    """
    rows_of_value = Counter(values)
    return [
        _image_key(value, folders) in folders
        or (
            value in shared_keys
            and rows_of_value[value] == 1
            and not PurePath(value).stem.isdecimal()
        )
        for value in values
    ]


def _labels_by_image_name(
    images: Sequence[Path], labels: Sequence[str]
) -> tuple[dict[str, str], set[str]]:
    """Map the names of images, with and without folder and ending, to their labels.

    Returns:
        The labels by name, and the names that different images with different labels share. The
        first has these only with their folders.
    """
    labels_by_key = dict[str, str]()
    first_images = dict[str, Path]()
    ambiguous_keys = set[str]()
    for image, label in zip(images, labels, strict=True):
        for key in (image.name, image.stem):
            first = first_images.setdefault(key, image)
            is_other_label = labels_by_key.setdefault(key, label) != label
            if is_other_label and key not in ambiguous_keys and not are_copies([first, image]):
                ambiguous_keys.add(key)
        for key in (image.name, image.stem):
            labels_by_key[f"{image.parent.name}/{key}"] = label
    for key in ambiguous_keys:
        del labels_by_key[key]
    return labels_by_key, ambiguous_keys


def _image_key(value: str, folders: Mapping[str, str]) -> str:
    """Return the image name that a value gives, with its folder if that is known."""
    *above, name = value.replace("\\", "/").split("/")
    with_folder = f"{above[-1]}/{name}" if above else name
    return with_folder if with_folder in folders else name


def _is_number(values: Sequence[str]) -> bool:
    return all(re.fullmatch(r"-?\d*\.?\d*", value) for value in values)


def _other_classes_refusal(
    root: Path, table: LabelTable, folders: Sequence[str], as_classes: str, remedy: str | None
) -> Refusal:
    """Make the refusal of folders as classes because a table contradicts them.

    Args:
        as_classes: The overrides that take the folders for classes nevertheless.
        remedy: The overrides that read the table.
    """
    shown = f"{', '.join(folders[:3])}{f' and {len(folders) - 3} more' if len(folders) > 3 else ''}"
    use_table = "" if remedy is None else f"Use `{remedy}`, or"
    advice = f"{use_table or 'Use'} `{as_classes}` if the folders are the classes"
    if remedy is None and table.names_several:
        advice += ". To read one folder with the classes of the table, move the table into it"
    if len(folders) == 1:
        advice = f"Use `{remedy}`" if remedy else f"Instead, {WRITE_A_TABLE}"
    columns = ", ".join(name or NO_NAME for name in table.columns)
    return Refusal(
        "photographs.table-of-classes",
        f"dataset.root={root}: {table.path.relative_to(root).as_posix()} (with the columns"
        f" {columns}) names these images, but gives them other classes than their folders do"
        f" ({shown}). {advice}",
        key="dataset.root",
        table=str(table.path),
        columns=table.columns,
        folders=[*folders[:20]],
        remedy=remedy,
    )
