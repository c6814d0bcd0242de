"""Decide which columns of a table hold images, classes and parts.

`dataset.columns` names them. Otherwise the columns are recognized by their own names.
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
from multicard.vision.data.stored_images import open_dataset

PATHS = ("path", "file", "filename", "file_name", "image", "img")  # Column names, in any case.
# These columns name the images if none of `PATHS` is there.
IDS = ("image_id", "id_code", "image_name", "imageid", "id", "filepath")
LABELS = ("label", "labels", "class", "target", "category", "diagnosis")
HOLDS_BYTES = re.compile("struct<.*bytes: |(large_)?binary")  # Column types of encoded images.
# Names of further columns that probably hold classes. They are only suggested.
PROBABLY_CLASSES = re.compile(
    "label|class|categor|species|breed|target|diagnos|^dx$|^choice$", re.IGNORECASE
)

# Names of columns that hold one pixel each (1x1 or pixel0 in MNIST's tables) or all pixels of an
# image (FER2013).
PIXELS = re.compile(r"\d+x\d+|(pixel|px)s?[ _.-]?\d*", re.IGNORECASE)
NUMBERS = re.compile(r"\d+")
MANY = 16

NO_NAME = "(no name)"  # Stands for a column without one, such as the index that pandas writes.
COLUMNS_KEY = "dataset.columns"
# The value of `dataset.columns`: the table's column for each of image, label and split. None means
# that no column holds it.
ColumnNames = Mapping[str, str | None]
NO_COLUMN_NAMES: ColumnNames = {}


class UsableColumns(NamedTuple):
    """The columns of a table that can be read, and which of them hold images and labels.

    Attributes:
        fields: The fields by name, in lower case and without surrounding blanks.
        encoded: Names of the columns of encoded images.
        image: The name of the column of images, "" if there is none.
        label: The name of the column of labels, "" if there is none.
        is_guess: Whether `label` is only the one remaining column, whose name says nothing.
    """

    fields: dict[str, Any]
    encoded: set[str]
    image: str
    label: str
    is_guess: bool = False

    def with_label_of(self, trained: str) -> "UsableColumns":
        """Take the labels from the column that is trained on, for a part to test on.

        If it is absent, a column with a usual name for labels serves, but never a guessed one.
        """
        if trained in self.fields:
            return self._replace(label=trained, is_guess=False)
        if self.label in LABELS:
            return self
        return self._replace(label="", is_guess=False)

    @property
    def holds_images(self) -> bool:
        """Tell whether any column holds encoded images, whatever its name."""
        return any(HOLDS_BYTES.match(str(field.type)) for field in self.fields.values())

    def stored_name(self, name: str) -> str:
        """Return a column's name as the file spells it."""
        return self.fields[name].name if name else ""


def usable_columns(
    schema: Any, column_names: ColumnNames = NO_COLUMN_NAMES, place: str = ""
) -> UsableColumns:
    """Find the columns of images and labels in a schema.

    Args:
        place: The beginning of refusals, such as "dataset.root=a.csv".

    Raises:
        Refusal: `column_names` names a column that does not exist.
    """
    readable_fields = [
        field for field in schema if not field.type.num_fields or HOLDS_BYTES.match(str(field.type))
    ]
    fields = {field.name.strip().lower(): field for field in readable_fields}
    named_label = column_names.get("label")
    if named_label is not None or not any(name in fields for name in LABELS):
        list_field = listed_labels.list_column(schema, named_label, LABELS)
        if list_field is not None:
            fields[list_field.name.strip().lower()] = list_field
    named_columns = {
        role: _require_named_column(fields, role, file_column, place)
        for role, file_column in column_names.items()
        if file_column is not None
    }
    named_set = {*named_columns.values()}
    free_names = {name for name in fields if name not in named_set}
    image_names = [name for name in PATHS if name in free_names]
    if "image" in named_columns:
        image_names = [named_columns["image"]]
    encoded_names = {name for name in image_names if HOLDS_BYTES.match(str(fields[name].type))}
    # Columns that hold the images are preferred to columns of paths.
    by_preference = [*(name for name in image_names if name in encoded_names), *image_names]
    image = by_preference[0] if by_preference else ""
    label = named_columns.get("label") or next((name for name in LABELS if name in free_names), "")
    if not image:
        image = next((name for name in IDS if name in free_names), "")
    other_names = free_names - {image, label, *SPLITS, ""}
    is_guess = False
    if image and not label and len(other_names) == 1:  # The table has two columns.
        (label,) = other_names
        is_guess = not PROBABLY_CLASSES.search(label)
    return UsableColumns(fields, encoded_names, image, label, is_guess)


def _require_named_column(
    fields: Mapping[str, Any], role: str, file_column: str, place: str
) -> str:
    """Find the column that `dataset.columns` names, ignoring case and surrounding blanks."""
    name = file_column.strip().lower()
    if name in fields:
        return name
    column_spellings = [field.name for field in fields.values()]
    closest = (
        difflib.get_close_matches(file_column, column_spellings, n=1, cutoff=0.3)
        or column_spellings[:1]
    )
    remedy = override(COLUMNS_KEY, {role: closest[0]} if closest else {})
    raise Refusal(
        "photographs.column-absent",
        f"{COLUMNS_KEY}.{role}={file_column}: {place} has no readable column with this name; it has"
        f" {', '.join(column_spellings) or 'none'}: use `{remedy}`",
        key=COLUMNS_KEY,
        value=file_column,
        found=column_spellings,
        remedy=remedy,
    )


def no_columns_refusal(
    schema: Any,
    table_columns: UsableColumns,
    column_names: ColumnNames,
    place: str,
    paths: Sequence[str] | None,
) -> Refusal:
    """Make the refusal of a table without a column of images or of classes.

    It suggests columns that look like them.

    Args:
        paths: The columns, in lower case, whose values name files. None if the table itself holds
            the images.
    """
    require_no_pixels(schema.names, place)
    shown = list[str]()
    for table_field in schema:
        kind = (
            ""
            if table_field in table_columns.fields.values()
            else f" ({str(table_field.type).partition('<')[0]})"
        )
        shown.append(f"{table_field.name or NO_NAME}{kind}")
    remedy = _suggested_override(table_columns, column_names, paths)
    hint = f", or name the columns, as `{remedy}`" if remedy else ""
    return Refusal(
        "photographs.columns",
        f"{place}: has the columns {', '.join(shown)}; name the column of images (paths, or"
        f" encoded) one of {', '.join(PATHS)}, and the column of classes (text or numbers) one of"
        f" {', '.join(LABELS)}{hint}",
        key="dataset.root",
        columns=shown,
        remedy=remedy,
    )


def require_no_pixels(columns: Sequence[str], place: str) -> None:
    """Refuse a table whose column names show that it holds pixels as numbers."""
    pixel_columns = [name for name in columns if PIXELS.fullmatch(name.strip())]
    # A table without a row of names has its first image as the names.
    numbered_columns = [name for name in columns if NUMBERS.fullmatch(name.strip())]
    pixels = pixel_columns or (numbered_columns if len(numbered_columns) >= MANY else [])
    if pixels:
        raise Refusal(
            "photographs.pixels",
            f"{place}: holds the pixels of its images as numbers ({', '.join(pixels[:3])}), which"
            " are not read; write each row as an image file into a folder of its class",
            key="dataset.root",
            columns=pixels[:20],
        )


def _suggested_override(
    table_columns: UsableColumns, column_names: ColumnNames, paths: Sequence[str] | None
) -> str | None:
    """Return an override that names the columns which look like images and classes, or None."""
    suggested = {
        role: file_column for role, file_column in column_names.items() if file_column is not None
    }
    encoded = [
        name for name, field in table_columns.fields.items() if HOLDS_BYTES.match(str(field.type))
    ]
    image = table_columns.image
    if paths is None:
        if not image and encoded:
            image = encoded[0]
    elif image not in paths:
        image = paths[0] if paths else ""
    labels = [
        name
        for name in table_columns.fields
        if name not in (image, *encoded) and PROBABLY_CLASSES.search(name)
    ]
    label = table_columns.label if table_columns.label != image else ""
    if not label and labels:
        label = labels[0]
    if not image or not label:
        return None
    if image != table_columns.image:
        suggested["image"] = table_columns.stored_name(image)
    if not table_columns.label:
        suggested["label"] = table_columns.stored_name(label)
    return override(COLUMNS_KEY, suggested)


def require_same_columns(paths: Sequence[Path], form: Any, column_names: ColumnNames) -> None:
    """Refuse the files of one part if their columns of images or labels differ in name or kind."""
    first_file: list[Any] = []
    for path in paths:
        schema = open_dataset([path], form).schema
        file_columns = usable_columns(schema, column_names, f"dataset.root={path}")
        column_pair = [
            file_columns.stored_name(file_columns.image),
            file_columns.stored_name(file_columns.label),
        ]
        first_file = first_file or [*column_pair, file_columns.image in file_columns.encoded]
        if [*column_pair, file_columns.image in file_columns.encoded] != first_file:
            raise Refusal(
                "photographs.other-columns",
                f"dataset.root={path}: has the columns {', '.join(schema.names)}, and"
                f" {paths[0].name} has its images in {first_file[0] or 'none'} and its classes in"
                f" {first_file[1] or 'none'}; give the files of a part the same columns, with the"
                " same types",
                key="dataset.root",
                file=str(path),
                columns=schema.names,
                expected=first_file[:2],
            )


def require_bytes(paths: Sequence[Path], column_names: ColumnNames) -> None:
    """Refuse files whose images have only paths: their column of bytes has the type null."""
    from pyarrow import types

    for path in paths:
        table_columns = usable_columns(open_dataset([path]).schema, column_names)
        kind = table_columns.fields[table_columns.image].type
        if types.is_null(kind.field("bytes").type if kind.num_fields else kind):
            raise Refusal(
                "photographs.only-paths",
                f"dataset.root={path}: the bytes of its images in"
                f" {table_columns.stored_name(table_columns.image)} are all null; save the file"
                " with the bytes, as Dataset.to_parquet does, or give a table of paths",
                key="dataset.root",
                file=str(path),
                column=table_columns.stored_name(table_columns.image),
            )


def declared_class_names(dataset: Any, name: str) -> list[str]:
    """Return the class names that `datasets` declared for the numbers of a column, if it did."""
    # Other programs write other metadata, and a column need not have declared names.
    with suppress(ValueError, TypeError, LookupError, AttributeError):
        features = json.loads(dataset.schema.metadata[b"huggingface"])["info"]["features"]
        return listed_labels.names_of(features[name])
    return []


def require_one_column_of_classes(
    table_columns: UsableColumns,
    column_names: ColumnNames,
    columns: Mapping[str, Sequence[str]],
    place: str,
) -> None:
    """Refuse a table with several columns of classes that contradict each other.

    Args:
        columns: The values of each column, by its name in lower case.
    """
    values = columns[table_columns.label]
    for name in LABELS:
        if name == table_columns.label or name not in columns:
            continue
        pairs = {*zip(values, columns[name], strict=True)}
        if len(pairs) == len({*values}):  # The other column only gives coarser classes.
            continue
        remedies = [
            override(COLUMNS_KEY, {**column_names, "label": table_columns.stored_name(column_name)})
            for column_name in (table_columns.label, name)
        ]
        raise Refusal(
            "photographs.two-columns-of-classes",
            f"{place}: {table_columns.stored_name(table_columns.label)} and"
            f" {table_columns.stored_name(name)} give images different classes; use"
            f" `{remedies[0]}` or `{remedies[1]}`",
            key=COLUMNS_KEY,
            columns=[
                table_columns.stored_name(table_columns.label),
                table_columns.stored_name(name),
            ],
        )


def split_columns(table_columns: UsableColumns, column_names: ColumnNames) -> list[str]:
    """Return the columns that may name the part of each row."""
    if "split" not in column_names:
        return [
            name
            for name in SPLITS
            if name in table_columns.fields
            and name not in (table_columns.image, table_columns.label)
        ]
    file_column = column_names["split"]
    return [] if file_column is None else [file_column.strip().lower()]
