"""Judge by the name and the values of a column whether it holds classes, or something else.

If no column is named as classes are, a column is assumed to hold them unless its name or its values
suggest otherwise.
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
from multicard.vision.data.stored_images import EncodedImage

WORD_PATTERN = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# Words in the names of columns that describe an image, its maker or its place, but not its class.
WORDS_AGAINST_CLASSES = {
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
# Names of columns that give an object's place in the image, in upper or lower case.
BOXES = re.compile(
    r"(x|y)_?(min|max|center|centre|[12])|(min|max)_?(x|y)|b?box(_?(x|y|w|h|x1|y1|x2|y2))?"
    r"|bounding_?box|encoded_?pixels|rle|segmentation|polygon|region_shape_attributes",
    re.IGNORECASE,
)
DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([T ].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?")
ADDRESS = re.compile(r"(\w+://|www\.).*", re.DOTALL)
PIXEL_RUNS = re.compile(r"\d+( \d+)+")  # Run-length encoded masks.
MOST_WORDS = 8  # A value with more words is a sentence, not the name of a class.
# These may separate several labels of one image, but they also occur in names, such as `hot dog`.
SEPARATORS = ("|", ";", "\n", ",", "/", "+", "&", " and ", " ")
LIST_SEPARATORS = ("|", ";")
MOST_UNREPEATED = 20  # Up to this many whole numbers may be classes, even with one row each.
# If more of the images have several labels, the table means it. Fewer are errors in the table.
SHARE_OF_SEVERAL = 0.1


def name_speaks_against_classes(name: str) -> bool:
    """Tell whether the name of a column says that it holds something other than classes."""
    words = {word.lower() for word in WORD_PATTERN.findall(name)}
    return bool(words & WORDS_AGAINST_CLASSES)


def reason_against_classes(values: Sequence[str]) -> str | None:
    """Return, in words, why these values are hardly classes, or None if they may be.

    This judges columns whose names are not known to mean classes.
    """
    present_values = [value for value in values if value]
    distinct = {*present_values}
    kinds = {
        "lists": lambda value: value[0] in "[{(",
        "dates": DATE.fullmatch,
        "addresses": ADDRESS.fullmatch,
        "runs of pixels": PIXEL_RUNS.fullmatch,
        "numbers with decimals": is_fraction,
        "names of images": lambda value: value.lower().endswith(IMAGE_SUFFIXES),
        "texts": lambda value: len(value.split()) > MOST_WORDS,
    }
    for kind, matches_kind in kinds.items():
        if any(matches_kind(value) for value in distinct):
            return f"it has {kind}"
    if len(distinct) > len(present_values) / 2:
        return f"it has {len(distinct):,} different values in {len(present_values):,} rows"
    return None


def are_addresses(values: Iterable[str]) -> bool:
    """Tell whether all values are URLs. Return False if there are no values."""
    present_values = [value for value in values if value]
    return bool(present_values) and all(ADDRESS.fullmatch(value) for value in present_values)


def require_one_label_an_image(place: str, column: str, labels: Sequence[str]) -> None:
    """Refuse a column whose values hold several labels each, as lists or with a separator."""
    combined = _find_several_labels(labels)
    if combined is None:
        return
    example, parts, separator = combined
    or_one_class = ""
    if separator == " ":
        or_one_class = f", or write {'_'.join(parts)} if it is one class"
    raise Refusal(
        "photographs.several-labels",
        f"{place}: {column} gives an image several labels: {example!r} is"
        f" {' and '.join(parts[:3]) or 'none'}. A classifier needs one; keep the rows with one"
        f" label{or_one_class}",
        key="dataset.root",
        column=column,
        example=example,
        labels=parts[:20],
    )


class SeveralLabels(NamedTuple):
    """A value that holds several labels, and the separator between them ("" for a list)."""

    value: str
    labels: list[str]
    separator: str


def _find_several_labels(labels: Sequence[str]) -> SeveralLabels | None:
    """Find a value that holds several labels. Return None if each value is one label.

    A value holds several labels if it is a list, or if a separator divides it into parts each of
    which is also the whole of another value (`cat/dog` beside `cat` and `dog`). For `|` and `;`, it
    is enough that one part is, or that one part stands elsewhere in another value (`cat|dog`,
    `dog|cat`).
    """
    distinct = sorted({*labels} - {""})
    for label in distinct:
        if label.startswith(("[", "(", "{")):
            listed = _parse_list(label)
            if listed is not None and len(listed) != 1:
                return SeveralLabels(label, listed, "")
    for separator in SEPARATORS:
        parts_of = dict[str, list[str]]()
        undivided = set[str]()
        for label in distinct:
            # Some files end each list with a separator: a|b|
            label_text = label.strip(f"{separator} ") if separator in LIST_SEPARATORS else label
            parts = [part.strip() for part in label_text.split(separator)]
            if len(parts) > 1 and all(parts):
                parts_of[label] = parts
            else:
                undivided.add(label_text)
        for label, parts in parts_of.items():
            if {*parts} <= undivided:
                return SeveralLabels(label, parts, separator)
        if separator in LIST_SEPARATORS:
            free_parts = _parts_used_freely(parts_of.values(), undivided)
            for label, parts in parts_of.items():
                if free_parts & {*parts}:
                    return SeveralLabels(label, parts, separator)
    return None


def _parse_list(text: str) -> list[str] | None:
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        value: Any = ast.literal_eval(text)
        if isinstance(value, (list, tuple, set)):
            return [str(item) for item in value]
    return None


def _parts_used_freely(splits: Iterable[Sequence[str]], undivided: set[str]) -> set[str]:
    """Return the parts that are also a whole value, or stand at different positions in values.

    The levels of a hierarchy (bird|owl) keep their position, so they are not returned.
    """
    places = defaultdict[str, set[int]](set)
    for parts in splits:
        for number, part in enumerate(parts):
            places[part].add(number)
    return {part for part, numbers in places.items() if len(numbers) > 1 or part in undivided}


def require_classes_not_measurements(place: str, column: str, labels: Sequence[str]) -> None:
    """Refuse measurements: numbers that hardly repeat, if some have decimals or they are many."""
    present_values = [label for label in labels if label]
    distinct = {*present_values}
    if not all(NUMBER.fullmatch(label) for label in distinct):
        return
    may_be_measured = any(map(is_fraction, distinct)) or len(distinct) > MOST_UNREPEATED
    if may_be_measured and len(distinct) > len(present_values) / 2:
        raise Refusal(
            "photographs.measurements",
            f"{place}: {column} holds {len(distinct):,} different numbers in"
            f" {len(present_values):,} rows, which cannot be classes; give each image one of a few"
            " classes, such as ranges of these numbers",
            key="dataset.root",
            column=column,
            different=len(distinct),
        )


def require_whole_images(
    place: str,
    columns: Sequence[str],
    images: Sequence[Hashable],
    labels: Sequence[str],
    parts: Sequence[str],
) -> None:
    """Refuse a table with several rows per image, one for each object or label in it.

    Args:
        columns: The names of all columns of the table.
        labels: The label of each row, "" if it has none.
        parts: The part of each row.
    """
    rows = Counter(zip(images, parts, strict=True))
    repeated_images = sum(row_count > 1 for row_count in rows.values())
    if not repeated_images:
        return
    boxes = [name for name in columns if BOXES.fullmatch(re.sub(r"[ .-]+", "_", name.strip()))]
    if boxes:
        raise Refusal(
            "photographs.objects",
            f"{place}: gives the places of objects ({', '.join(boxes[:4])}), with"
            f" {count(repeated_images, 'image')} in several rows, but a classifier takes whole"
            f" images; {WRITE_A_TABLE}",
            key="dataset.root",
            columns=boxes,
            images=repeated_images,
        )
    labels_of = defaultdict[Hashable, set[str]](set)
    for image, label in zip(images, labels, strict=True):
        labels_of[image].add(label)
    images_with_several = sum(len(image_labels - {""}) > 1 for image_labels in labels_of.values())
    if images_with_several > SHARE_OF_SEVERAL * len(labels_of) and images_with_several > 1:
        raise Refusal(
            "photographs.several-rows",
            f"{place}: gives {images_with_several:,} of {len(labels_of):,} images several labels,"
            f" one per row, but a classifier needs one; {WRITE_A_TABLE}",
            key="dataset.root",
            images=images_with_several,
            of=len(labels_of),
        )


def guessed_column_notice(
    place: str,
    column: str,
    images: Sequence[EncodedImage],
    labels: Sequence[str],
    column_names: Mapping[str, str | None],
) -> Message:
    """Return the notice that a column is taken as the classes: the only one beside the images.

    Raises:
        Refusal: The column's name or values suggest otherwise, or the images lie in folders that
            may be the classes.
    """
    remedy = override("dataset.columns", {**column_names, "label": column})
    folders = other_folders(images, labels)
    reason = reason_against_classes(labels)
    if name_speaks_against_classes(column):
        reason = "its name suggests so"
    elif folders:
        shown = [folder.name for folder in folders[:3]]
        reason = f"the images lie in folders with other names, such as {' and '.join(shown)}"
    if reason is None:
        return Message(
            "photographs.guessed-column",
            f"{place}: takes {column} as the classes, because it is the only column besides the"
            f" images; `{remedy}` names it explicitly",
            key="dataset.columns",
            place=place,
            column=column,
            remedy=remedy,
        )
    folder_overrides = _overrides_for_folders(folders)
    by_folders = (
        f", or use `{folder_overrides}` if the folders are the classes" if folder_overrides else ""
    )
    raise Refusal(
        "photographs.no-class-column",
        f"{place}: no column has a name for classes, and {column} may hold something else"
        f" ({reason}). Use `{remedy}` if it holds the classes{by_folders}",
        key="dataset.columns",
        column=column,
        remedy=remedy,
        folders=[folder.name for folder in folders[:20]],
    )


def other_folders(images: Sequence[EncodedImage], labels: Sequence[str]) -> list[Path]:
    """Return the images' folders if they may be classes, and other ones than the labels.

    The result is empty if images have no folders (they are stored in the table), if the folders are
    numbered or are parts of the data such as `train`, or if folders and labels match one to one.
    """
    paths = [image for image in images if isinstance(image, Path)]
    if len(paths) < len(images):
        return []
    folders = sorted({path.parent for path in paths})
    names = {folder.name for folder in folders}
    if len(names) < 2 or are_numbered(names) or part_names.named(names):
        return []
    pairs = {(path.parent.name, label) for path, label in zip(paths, labels, strict=True)}
    match_one_to_one = len(pairs) == len(names) == len({*labels})
    return [] if match_one_to_one else folders


def _overrides_for_folders(folders: Sequence[Path]) -> str | None:
    """Return the overrides that take these folders as the classes.

    Return None if they do not lie in one folder. That folder may itself be one part of the data,
    such as `train`, so the overrides hold out a share of it.
    """
    above = {folder.parent for folder in folders}
    if len(above) != 1:
        return None
    return (
        f"{override('dataset.root', above.pop())} dataset.split=0.2"
        f" {override('dataset.columns', {'label': None})}"
    )
