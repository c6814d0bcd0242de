"""Which columns of a table hold images, their classes and their parts: by `dataset.columns`,
else by their names.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.records.part_columns import SPLITS
from multicard.vision.data import listed_labels
from multicard.vision.data.stored_images import opened

PATHS = ("path", "file", "filename", "file_name", "image", "img")  # names of columns, in any case
# of images, where no such column is there
IDS = ("image_id", "id_code", "image_name", "imageid", "id", "filepath")
LABELS = ("label", "labels", "class", "target", "category", "diagnosis")
HOLDS_BYTES = re.compile("struct<.*bytes: |(large_)?binary")  # types of encoded images
OF_CLASSES = re.compile(
    "label|class|categor|species|breed|target|diagnos|^dx$|^choice$", re.IGNORECASE
)  # in the names of others

# Names of columns that hold a pixel each: 1x1 and pixel0 of MNIST's tables; or all of them,
# as of FER2013
PIXELS = re.compile(r"\d+x\d+|(pixel|px)s?[ _.-]?\d*", re.IGNORECASE)
NUMBERS = re.compile(r"\d+")
MANY = 16

KEY = "dataset.columns"
Named = Mapping[str, str | None]  # `dataset.columns`: by image, label or split the file's own name
NONE_NAMED: Named = {}


class Usable(NamedTuple):
    """The columns of a table that may be read.

    fields: by name, in lower case without blanks around it. inside: those of encoded images. image,
    label: the names of the columns that are read as such, "" of none.
    """

    fields: dict[str, Any]
    inside: set[str]
    image: str
    label: str
    is_guess: bool = False

    def with_label_of(self, trained: str) -> "Usable":
        """The same with the column of classes that is trained on, or one that is called so;
        with none by a guess.
        """
        if trained in self.fields:
            return self._replace(label=trained, is_guess=False)
        if self.label in LABELS:
            return self
        return self._replace(label="", is_guess=False)

    @property
    def holds_images(self) -> bool:
        """True where a column has the bytes of images, which may not be called so."""
        return any(HOLDS_BYTES.match(str(field.type)) for field in self.fields.values())

    def stored(self, name: str) -> str:
        """A column's name as the file has it."""
        return self.fields[name].name if name else ""


def usable(schema: Any, named: Named = NONE_NAMED, place: str = "") -> Usable:
    """The columns of a schema.

    Args:
        place: what refusals begin with, as "dataset.root=a.csv".

    Raises:
        Refusal: `named` names a column that is not there.
    """
    kept = [
        field for field in schema if not field.type.num_fields or HOLDS_BYTES.match(str(field.type))
    ]
    fields = {field.name.strip().lower(): field for field in kept}
    named_label = named.get("label")
    if named_label is not None or not any(name in fields for name in LABELS):
        in_lists = listed_labels.listed(schema, named_label, LABELS)
        if in_lists is not None:
            fields[in_lists.name.strip().lower()] = in_lists
    given = {
        ours: _given(fields, ours, theirs, place)
        for ours, theirs in named.items()
        if theirs is not None
    }
    taken = {*given.values()}
    free = {name for name in fields if name not in taken}
    wanted = [given["image"]] if "image" in given else [name for name in PATHS if name in free]
    inside = {name for name in wanted if HOLDS_BYTES.match(str(fields[name].type))}
    image = next((name for name in wanted if name in inside), next(iter(wanted), ""))
    label = given.get("label") or next((name for name in LABELS if name in free), "")
    if not image:
        image = next((name for name in IDS if name in free), "")
    rest = free - {image, label, *SPLITS, ""}
    is_guess = False
    if image and not label and len(rest) == 1:  # a table of two columns
        (label,) = rest
        is_guess = not OF_CLASSES.search(label)
    return Usable(fields, inside, image, label, is_guess)


def _given(fields: Mapping[str, Any], ours: str, theirs: str, place: str) -> str:
    name = theirs.strip().lower()
    if name in fields:
        return name
    known = [field.name for field in fields.values()]
    near = difflib.get_close_matches(theirs, known, n=1, cutoff=0.3) or known[:1]
    remedy = override(KEY, {ours: near[0]} if near else {})
    raise Refusal(
        "photographs.column-absent",
        f"{KEY}.{ours}={theirs}: {place} has no such column that can be read; it has"
        f" {', '.join(known) or 'none'}: use `{remedy}`",
        key=KEY,
        value=theirs,
        found=known,
        remedy=remedy,
    )


def no_columns(
    schema: Any, found: Usable, named: Named, place: str, paths: Sequence[str] | None
) -> Refusal:
    """The refusal of a table without a column of images, or of classes,
    with names for those that look like them.

    Args:
        paths: the columns, in lower case, whose values name files; None of a table that holds its
            images.
    """
    require_no_pixels(schema.names, place)
    shown = list[str]()
    for each in schema:
        kind = "" if each in found.fields.values() else f" ({str(each.type).partition('<')[0]})"
        shown.append(f"{each.name}{kind}")
    remedy = _guessed(found, named, paths)
    hint = f", or name the columns, as `{remedy}`" if remedy else ""
    return Refusal(
        "photographs.columns",
        f"{place}: has the columns {', '.join(shown)}; call that of the images (paths, or encoded)"
        f" one of {', '.join(PATHS)}, that of the classes (text or numbers) one of"
        f" {', '.join(LABELS)}{hint}",
        key="dataset.root",
        columns=shown,
        remedy=remedy,
    )


def require_no_pixels(columns: Sequence[str], place: str) -> None:
    """Refuse columns that hold the pixels of images as numbers, by their names."""
    named = [name for name in columns if PIXELS.fullmatch(name.strip())]
    # a first row without names
    numbered = [name for name in columns if NUMBERS.fullmatch(name.strip())]
    pixels = named or (numbered if len(numbered) >= MANY else [])
    if pixels:
        raise Refusal(
            "photographs.pixels",
            f"{place}: holds the pixels of its images as numbers ({', '.join(pixels[:3])}), which"
            " are not read; write each row as an image file into a folder of its class",
            key="dataset.root",
            columns=pixels[:20],
        )


def _guessed(found: Usable, named: Named, paths: Sequence[str] | None) -> str | None:
    """An override that names the columns which look like images and classes;
    None where none does.
    """
    own = {ours: theirs for ours, theirs in named.items() if theirs is not None}
    encoded = [name for name, field in found.fields.items() if HOLDS_BYTES.match(str(field.type))]
    image = found.image
    if paths is None:
        image = image or next(iter(encoded), "")
    elif image not in paths:
        image = next(iter(paths), "")
    labels = [
        name for name in found.fields if name not in (image, *encoded) and OF_CLASSES.search(name)
    ]
    label = found.label if found.label != image else ""
    label = label or next(iter(labels), "")
    if not image or not label:
        return None
    if image != found.image:
        own["image"] = found.stored(image)
    if not found.label:
        own["label"] = found.stored(label)
    return override(KEY, own)


def require_same_columns(paths: Sequence[Path], form: Any, named: Named) -> None:
    """Refuse files of one part whose images or labels are in columns of other names,
    or of which some are paths.
    """
    first: list[Any] = []
    for path in paths:
        schema = opened([path], form).schema
        own = usable(schema, named, f"dataset.root={path}")
        found = [own.stored(own.image), own.stored(own.label)]
        first = first or [*found, own.image in own.inside]
        if [*found, own.image in own.inside] != first:
            raise Refusal(
                "photographs.other-columns",
                f"dataset.root={path}: has the columns {', '.join(schema.names)}, and"
                f" {paths[0].name} has its images in {first[0] or 'none'} and its classes in"
                f" {first[1] or 'none'}; give the files of a part the same columns, of one type",
                key="dataset.root",
                file=str(path),
                columns=schema.names,
                expected=first[:2],
            )


def require_bytes(paths: Sequence[Path], named: Named) -> None:
    """Refuse files of encoded images that hold none: only paths,
    with the type null in place of bytes.
    """
    from pyarrow import types

    for path in paths:
        found = usable(opened([path]).schema, named)
        kind = found.fields[found.image].type
        if types.is_null(kind.field("bytes").type if kind.num_fields else kind):
            raise Refusal(
                "photographs.only-paths",
                f"dataset.root={path}: the bytes of its images in {found.stored(found.image)} are"
                " all null; save it with them, as Dataset.to_parquet does, or give a table of"
                " paths",
                key="dataset.root",
                file=str(path),
                column=found.stored(found.image),
            )


def declared(stored: Any, name: str) -> list[str]:
    """The names that `datasets` declared for the numbers of a column; none where it did not."""
    # metadata of others, or of a column without names
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        features = json.loads(stored.schema.metadata[b"huggingface"])["info"]["features"]
        return listed_labels.names_of(features[name])
    return []


def require_one_column_of_classes(
    found: Usable, named: Named, columns: Mapping[str, Sequence[str]], place: str
) -> None:
    """Refuse a table with several columns that are called as the classes are, of which the first
    does not say what the others do.

    Args:
        columns: by name in lower case, the values that were read.
    """
    values = columns[found.label]
    for name in LABELS:
        if name == found.label or name not in columns:
            continue
        pairs = {*zip(values, columns[name], strict=True)}
        if len(pairs) == len({*values}):  # the other follows from it, as a coarser class does
            continue
        remedies = [
            override(KEY, {**named, "label": found.stored(each)}) for each in (found.label, name)
        ]
        raise Refusal(
            "photographs.two-columns-of-classes",
            f"{place}: {found.stored(found.label)} and {found.stored(name)} give images other"
            f" classes; use `{remedies[0]}` or `{remedies[1]}`",
            key=KEY,
            columns=[found.stored(found.label), found.stored(name)],
        )


def label_of(paths: Sequence[Path], named: Named) -> str:
    """The column of the classes in files of one part, in lower case; "" where they have none."""
    return usable(opened([paths[0]]).schema, named, f"dataset.root={paths[0]}").label


def splits_of(found: Usable, named: Named) -> list[str]:
    """The columns that may name the part of each row."""
    if "split" not in named:
        return [
            name
            for name in SPLITS
            if name in found.fields and name not in (found.image, found.label)
        ]
    theirs = named["split"]
    return [] if theirs is None else [theirs.strip().lower()]
