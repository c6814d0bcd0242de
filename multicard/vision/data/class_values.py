"""What the names and values of a column say of it: classes, or anything else that rows may have.

A column that nobody names is taken for the classes where nothing speaks against it.
"""

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.job import count
from multicard.config.pasting import override
from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.vision.data.class_names import NUMBER, is_fraction
from multicard.vision.data.data_parts import WRITE_A_TABLE
from multicard.vision.data.folder_contents import IMAGE_SUFFIXES, are_numbered
from multicard.vision.data.stored_images import Encoded

WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# Words of columns that describe an image, its maker or its place in a file, and not its class
OTHER_THINGS = {
    *("id", "ids", "uuid", "guid", "index", "idx", "key", "hash", "md5", "sha", "checksum"),
    *("age", "date", "datetime", "time", "timestamp", "year", "month", "day", "created"),
    *("width", "height", "size", "bytes", "count", "number", "num", "score", "confidence"),
    *("url", "uri", "link", "text", "caption", "captions", "description", "title", "prompt"),
    *("comment", "comments", "note", "notes", "sentence", "ocr", "transcription", "answer"),
    *("photographer", "author", "artist", "user", "annotator", "source", "license", "copyright"),
    *("camera", "device", "scanner", "patient", "subject", "filename", "path", "filepath"),
    *("latitude", "longitude", "lat", "lon", "gps", "location", "fold", "split"),
    *("rle", "pixels", "mask", "bbox", "box", "boxes", "segmentation", "polygon", "thumbnail"),
}
# Names of columns that say where in an image an object is, without case and signs
BOXES = re.compile(
    r"(x|y)_?(min|max|center|centre|[12])|(min|max)_?(x|y)|b?box(_?(x|y|w|h|x1|y1|x2|y2))?"
    r"|bounding_?box|encoded_?pixels|rle|segmentation|polygon|region_shape_attributes",
    re.IGNORECASE,
)
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
ADDRESS = re.compile(r"(\w+://|www\.).*", re.DOTALL)
RUNS = re.compile(r"\d+( \d+)+")  # of pixels, as masks are written
MOST_WORDS = 8  # of the name of a class
# Between the labels of one image. A class may well be called `hot dog`, or have a comma
SEPARATORS = ("|", ";", "\n", ",", "/", "+", "&", " and ", " ")
LISTS = ("|", ";")
MOST_SINGLE = 20  # whole numbers that are of a row or two each, and may be classes
SHARE_OF_SEVERAL = 0.1  # of the images: as many with several labels are no mistakes


def named_otherwise(name: str) -> bool:
    """True of a column whose name says that it holds no classes."""
    words = {word.lower() for word in WORDS.findall(name)}
    return bool(words & OTHER_THINGS)


def why_no_classes(values: Sequence[str]) -> str | None:
    """Why the values of a column that is called like nothing known are no classes, in words;
    None where they may be.
    """
    given = [value for value in values if value]
    different = {*given}
    kinds = {
        "lists": lambda value: value[0] in "[{(",
        "dates": DATE.fullmatch,
        "addresses": ADDRESS.fullmatch,
        "runs of pixels": RUNS.fullmatch,
        "numbers with decimals": is_fraction,
        "names of images": lambda value: value.lower().endswith(IMAGE_SUFFIXES),
        "texts": lambda value: len(value.split()) > MOST_WORDS,
    }
    for kind, is_so in kinds.items():
        if any(is_so(value) for value in different):
            return f"its values are {kind}"
    if len(different) > len(given) / 2:
        return "most of its values are of one row alone"
    return None


def are_addresses(values: Iterable[str]) -> bool:
    """True where each value is an address of the network; False without values."""
    given = [value for value in values if value]
    return bool(given) and all(ADDRESS.fullmatch(value) for value in given)


def require_one_label_an_image(place: str, column: str, labels: Sequence[str]) -> None:
    """Refuse a column whose values are several labels each, by a separator or as lists."""
    found = _combined(labels)
    if found is None:
        return
    example, parts, separator = found
    otherwise = ""
    if separator == " ":
        otherwise = f", or write {'_'.join(parts)} if it is one class"
    raise Refusal(
        "photographs.several-labels",
        f"{place}: {column} gives an image several labels: {example!r} is"
        f" {' and '.join(parts[:3]) or 'none'}. A classifier needs one; keep the rows with one"
        f" label{otherwise}",
        key="dataset.root",
        column=column,
        example=example,
        labels=parts[:20],
    )


class SeveralLabels(NamedTuple):
    """A value that is several labels. separator: that is between them, "" of a list."""

    value: str
    labels: list[str]
    separator: str


def _combined(labels: Sequence[str]) -> SeveralLabels | None:
    """A value that is several labels; None where each is one."""
    different = sorted({*labels} - {""})
    for label in different:
        if label.startswith(("[", "(", "{")):
            listed = _listed(label)
            if listed is not None and len(listed) != 1:
                return SeveralLabels(label, listed, "")
    for separator in SEPARATORS:
        split = dict[str, list[str]]()
        alone = set[str]()
        for label in different:
            ended = label.strip(f"{separator} ") if separator in LISTS else label  # a|b|
            parts = [part.strip() for part in ended.split(separator)]
            if len(parts) > 1 and all(parts):
                split[label] = parts
            else:
                alone.add(ended)
        for label, parts in split.items():
            if {*parts} <= alone:
                return SeveralLabels(label, parts, separator)
        if separator in LISTS:
            moved = _in_other_places(split.values(), alone)
            for label, parts in split.items():
                if moved & {*parts}:
                    return SeveralLabels(label, parts, separator)
    return None


def _listed(text: str) -> list[str] | None:
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        value: Any = ast.literal_eval(text)
        if isinstance(value, (list, tuple, set)):
            return [str(each) for each in value]
    return None


def _in_other_places(splits: Iterable[Sequence[str]], alone: set[str]) -> set[str]:
    """Parts that are labels alone, or stand in several places of labels:
    of a hierarchy (bird|owl) they do not.
    """
    places = defaultdict[str, set[int]](set)
    for parts in splits:
        for number, part in enumerate(parts):
            places[part].add(number)
    return {part for part, numbers in places.items() if len(numbers) > 1 or part in alone}


def require_classes_not_measurements(place: str, column: str, labels: Sequence[str]) -> None:
    """Refuse a column of measured numbers: with decimals, or many, and most of one row alone."""
    given = [label for label in labels if label]
    different = {*given}
    if not all(NUMBER.fullmatch(label) for label in different):
        return
    are_many = any(map(is_fraction, different)) or len(different) > MOST_SINGLE
    if are_many and len(different) > len(given) / 2:
        raise Refusal(
            "photographs.measurements",
            f"{place}: {column} holds {len(different):,} different numbers in"
            f" {len(given):,} rows, which are no classes; give each image one of a few classes, as"
            " ranges of these numbers",
            key="dataset.root",
            column=column,
            different=len(different),
        )


def require_whole_images(
    place: str,
    columns: Sequence[str],
    images: Sequence[Hashable],
    labels: Sequence[str],
    parts: Sequence[str],
) -> None:
    """Refuse tables that have an image in several rows, one for each object or each label in it.

    Args:
        columns: all of the table. labels: "" where a row has none. parts: of each row.
    """
    rows = Counter(zip(images, parts, strict=True))
    several = sum(rows_of > 1 for rows_of in rows.values())
    if not several:
        return
    boxes = [name for name in columns if BOXES.fullmatch(re.sub(r"[ .-]+", "_", name.strip()))]
    if boxes:
        raise Refusal(
            "photographs.objects",
            f"{place}: gives places of objects ({', '.join(boxes[:4])}), with"
            f" {count(several, 'image')} in several rows, and a classifier takes whole images;"
            f" {WRITE_A_TABLE}",
            key="dataset.root",
            columns=boxes,
            images=several,
        )
    labels_of = defaultdict[Hashable, set[str]](set)
    for image, label in zip(images, labels, strict=True):
        labels_of[image].add(label)
    torn = sum(len(own - {""}) > 1 for own in labels_of.values())
    if torn > SHARE_OF_SEVERAL * len(labels_of) and torn > 1:
        raise Refusal(
            "photographs.several-rows",
            f"{place}: gives {torn:,} of {len(labels_of):,} images several labels, in a row each,"
            f" and a classifier needs one; {WRITE_A_TABLE}",
            key="dataset.root",
            images=torn,
            of=len(labels_of),
        )


def guessed_column(
    place: str,
    column: str,
    images: Sequence[Encoded],
    labels: Sequence[str],
    named: Mapping[str, str | None],
) -> Message:
    """That a column is taken for the classes as it is the only one beside that of the images.

    Raises:
        Refusal: its name or its values say that it holds something else, or folders of the images
            may be the classes.
    """
    remedy = override("dataset.columns", {**named, "label": column})
    folders = other_folders(images, labels)
    reason = why_no_classes(labels)
    if named_otherwise(column):
        reason = "its name says so"
    elif folders:
        shown = [folder.name for folder in folders[:3]]
        reason = f"the images lie in folders of other names, as {' and '.join(shown)}"
    if reason is None:
        return Message(
            "photographs.guessed-column",
            f"{place}: takes {column} for the classes, as it is the only column beside the images;"
            f" `{remedy}` names it",
            key="dataset.columns",
            place=place,
            column=column,
            remedy=remedy,
        )
    alone = _alone(folders)
    by_folders = f", or use `{alone}` if the folders are the classes" if alone else ""
    raise Refusal(
        "photographs.no-class-column",
        f"{place}: no column is called as classes are, and {column} may be anything else"
        f" ({reason}). Use `{remedy}` if it holds the classes{by_folders}",
        key="dataset.columns",
        column=column,
        remedy=remedy,
        folders=[folder.name for folder in folders[:20]],
    )


def other_folders(images: Sequence[Encoded], labels: Sequence[str]) -> list[Path]:
    """The folders of images that are called as classes may be, and divide the images otherwise
    than their labels do.
    """
    paths = [image for image in images if isinstance(image, Path)]
    if len(paths) < len(images):
        return []
    folders = sorted({path.parent for path in paths})
    names = {folder.name for folder in folders}
    if len(names) < 2 or are_numbered(names) or part_names.named(names):
        return []
    pairs = {(path.parent.name, label) for path, label in zip(paths, labels, strict=True)}
    return [] if len(pairs) == len(names) == len({*labels}) else folders


def _alone(folders: Sequence[Path]) -> str | None:
    """The overrides that take these folders for the classes; None where they do not lie together.

    They may lie in a part of the data, beside which others are.
    """
    above = {folder.parent for folder in folders}
    if len(above) != 1:
        return None
    return (
        f"{override('dataset.root', above.pop())} dataset.split=0.2"
        f" {override('dataset.columns', {'label': None})}"
    )
