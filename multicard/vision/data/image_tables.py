"""Read images from tables: tables of paths and classes, and files that hold the images.

The former are .csv, .tsv and .jsonl files. The latter are parquet or Arrow files as Hugging Face's
`datasets` writes them.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.records.part_columns import named_parts
from multicard.records.part_names import PartKind
from multicard.vision.data import class_names, class_values, listed_labels, one_hot, table_images
from multicard.vision.data.data_parts import (
    ALL_SAMPLES,
    DATA_FORMS_HINT,
    DataPart,
    FoundParts,
    PartSamples,
    test_order,
)
from multicard.vision.data.image_columns import (
    LABELS,
    NO_COLUMN_NAMES,
    ColumnNames,
    UsableColumns,
    declared_class_names,
    no_columns_refusal,
    require_bytes,
    require_one_column_of_classes,
    split_columns,
    usable_columns,
)
from multicard.vision.data.open_tables import open_table, unreadable_refused
from multicard.vision.data.stored_images import (
    EncodedImage,
    ImageFile,
    StoredImage,
    open_dataset,
)
from multicard.vision.data.text_tables import text_table

NO_CLASS = "-1"  # Stands in place of the number of a class.


@dataclass(frozen=True)
class TableColumns:
    """The values that are read from a table, one per row.

    Attributes:
        labels: The class of each row, "" if it has none.
        parts: The part of each row. None if no column gives it.
        classes: The classes in the order that `datasets` declared in the file, if it did.
        ignored: The number of rows of each column that is not read.
        ambiguous: By row, the images with the row's name if several images have it.
        notices: What was assumed without being configured.
    """

    images: list[EncodedImage]
    labels: list[str]
    parts: list[str] | None
    classes: list[str]
    ignored: Counter[str]
    ambiguous: dict[int, list[Path]]
    notices: tuple[Message, ...]


def table_parts(
    paths: list[Path],
    by_split: bool = True,
    any_name: bool = False,
    column_names: ColumnNames = NO_COLUMN_NAMES,
    trained_label: str | None = None,
    first_folders: Sequence[Path] = (),
) -> FoundParts:
    """Read a table in one or more files. A column such as `split` divides it into parts.

    The rows of a part to test on may all lack a class, as test sets are often published without.

    Args:
        by_split: Divide the rows into parts by a column.
        any_name: Accept parts with any name, as `dataset.parts` chooses among them.
        column_names: `dataset.columns`.
        trained_label: The column that holds the classes in the part to train on. None unless all
            rows of this table are to be tested on.
        first_folders: The folders in which images given by name alone are looked up first.
    """
    first_folders = first_folders or table_images.folders_of_part(paths[0], paths[0].parent)
    table = _read_table(paths, by_split, column_names, trained_label, first_folders)
    parts = (
        [part.lower() for part in table.parts] if table.parts else [ALL_SAMPLES] * len(table.images)
    )
    samples_by_part: dict[str, PartSamples] = {
        part: PartSamples([], [], [], Counter(), table.notices) for part in parts
    }
    unlabelled = _without_labels(table.labels, parts, trained_label is not None)
    bad_rows: dict[Message, list[int]] = {}
    for row, (image, label, part) in enumerate(zip(table.images, table.labels, parts, strict=True)):
        if part in unlabelled:
            samples_by_part[part].images.append(image)
            samples_by_part[part].labels.append("")
            continue
        problem = _problem_of_row(
            image, label, None if any_name else part, table.ambiguous.get(row, [])
        )
        if problem is not None:
            bad_rows.setdefault(problem, []).append(row)
        samples_by_part[part].images.append(image)
        samples_by_part[part].labels.append(label)
    for problem, rows in bad_rows.items():
        more = f" and {len(rows) - 1:,} more" if rows[1:] else ""
        raise Refusal(
            "photographs.bad-rows",
            f"dataset.root={paths[0]}: row {rows[0] + 1} ({table.images[rows[0]]}){more}:"
            f" {problem}",
            key="dataset.root",
            row=rows[0] + 1,
            rows=len(rows),
            reason=problem,
        )
    if not samples_by_part:
        raise Refusal(
            "photographs.no-rows",
            f"dataset.root={paths[0]}: has no rows; {DATA_FORMS_HINT}",
            key="dataset.root",
        )
    parts_of_data = []
    for name in sorted(samples_by_part, key=test_order):
        samples = samples_by_part[name]
        samples.classes.extend(class_names.ordered_classes(samples.labels, table.classes))
        part = part_names.parsed(name)
        kind = None if part is None else part.kind
        parts_of_data.append(
            DataPart(name, kind, partial(PartSamples, *samples), may_lack_labels=name in unlabelled)
        )
    return FoundParts(parts_of_data, table.ignored)


def column_of_classes(path: Path, column_names: ColumnNames) -> tuple[str, bool]:
    """Return the column that holds the classes, in lower case, and whether it is a guess.

    The name is "" if there is no such column. A column of lists is a guess: its lists may be tags.
    """
    with unreadable_refused(path):
        schema = open_table([path], column_names).schema
    columns = usable_columns(schema, column_names, f"dataset.root={path}")
    is_list = bool(columns.label) and columns.fields[columns.label].type.num_fields > 0
    return columns.label, columns.is_guess or is_list


def names_paths(path: Path, column_names: ColumnNames) -> bool:
    """Tell whether a table gives the paths of its images instead of the images themselves."""
    with unreadable_refused(path):
        schema = open_table([path], column_names).schema
    columns = usable_columns(schema, column_names, f"dataset.root={path}")
    return columns.image not in columns.encoded


def parts_of_rows(paths: list[Path], column_names: ColumnNames) -> list[str]:
    """Return the part of each row, or an empty list if no column gives it."""
    return _read_table(paths, True, column_names, None, ()).parts or []


def _without_labels(labels: Sequence[str], parts: Sequence[str], all_to_test: bool) -> set[str]:
    """Find the parts to test on in which no row has a class: all are empty, or all are -1.

    Args:
        all_to_test: All parts are to be tested on. Otherwise at least one part must have classes.
    """
    labels_by_part = dict[str, set[str]]()
    for label, part in zip(labels, parts, strict=True):
        labels_by_part.setdefault(part, set()).add(label)
    empty = {
        part
        for part, part_labels in labels_by_part.items()
        if part_labels <= {""} or part_labels == {NO_CLASS}
    }
    if not all_to_test and len(empty) == len(labels_by_part):
        return set()
    names = {part: part_names.parsed(part) for part in empty}
    return {
        part
        for part, name in names.items()
        if all_to_test or name is None or name.kind is not PartKind.train
    }


def _problem_of_row(
    image: EncodedImage, label: str, part: str | None, ambiguous: Sequence[Path]
) -> Message | None:
    """Return why a row cannot be used, or None. If `part` is None, its part may have any name."""
    if not label:
        return Message(
            "photographs.no-label",
            "has no label (nothing, or -1 among other numbers); give each image its class, or"
            " leave its row out",
        )
    if isinstance(image, Path) and not table_images.is_file(image):
        return table_images.missing_image_message(image.parent, ambiguous)
    if part not in (None, ALL_SAMPLES) and part_names.parsed(part) is None:
        return Message(
            "photographs.unknown-split",
            f"has an unknown split ({part}); use train, validation or test, or name two with"
            " `dataset.parts=[TRAIN,TEST]`",
            part=part,
        )
    return None


def _read_table(
    paths: list[Path],
    by_split: bool,
    column_names: ColumnNames,
    trained_label: str | None,
    first_folders: Sequence[Path],
) -> TableColumns:
    """Read the columns of images, labels and parts, and refuse values that cannot be used."""
    place = f"dataset.root={paths[0]}"
    folder = paths[0].parent.absolute()  # Some paths in the table may be absolute.
    with unreadable_refused(paths[0]):
        opened_table = open_table(paths, column_names)
        columns_found, flags = _require_columns(
            opened_table, column_names, trained_label, place, folder
        )
        fields, encoded, image, label, is_guess = columns_found
        if encoded:
            require_bytes(paths, {"image": column_names.get("image")})
        splits = split_columns(columns_found, column_names) if by_split else []
        rival_columns = [name for name in LABELS if name in fields] if label in LABELS else []
        wanted_columns = {label, *rival_columns, *splits, image} & fields.keys() - encoded
        texts = _text_values(
            opened_table, {name: fields[name].name for name in wanted_columns}, place
        )
        counts = [open_dataset([path]).count_rows() for path in paths] if encoded else []
        rows = opened_table.count_rows()
    if rival_columns and trained_label is None and column_names.get("label") is None:
        require_one_column_of_classes(columns_found, column_names, texts, place)
    split, parts = named_parts(
        {name: texts[name] for name in splits}, is_named="split" in column_names
    )
    read_names = {fields[name].name for name in {image, label, split} & fields.keys() - {""}}
    read_names |= flags.keys()
    unread_names = [field.name for field in opened_table.schema if field.name not in read_names]
    unread_kinds = [
        f"column {name}" if name.strip() else "column without a name" for name in unread_names
    ]
    ignored = Counter(dict.fromkeys(unread_kinds, rows))
    if not encoded:
        _require_no_addresses(place, fields[image].name, texts[image])
    files = table_images.find_images(folder, texts.get(image, []), first_folders)
    images: list[EncodedImage] = [*files.images]
    ignored += files.ignored
    for path, count in zip(paths, counts, strict=bool(encoded)):
        file = ImageFile(path, fields[image], is_named="image" in column_names)
        images += [StoredImage(file, index) for index in range(count)]
    if parts is None and by_split and "split" not in column_names:
        parts = _parts_by_folder(files.images)
    labels = class_names.replace_no_class(texts.get(label, [""] * len(images)))
    if flags:
        labels = one_hot.labels_of_rows(flags)
    classes = declared_class_names(opened_table, columns_found.stored_name(label))
    if not classes and not flags:
        class_values.require_one_label_an_image(place, columns_found.stored_name(label), labels)
        class_values.require_classes_not_measurements(
            place, columns_found.stored_name(label), labels
        )
    columns = opened_table.schema.names
    class_values.require_whole_images(place, columns, images, labels, parts or [""] * len(images))
    notices = list[Message]()
    if flags:
        notices.append(one_hot.notice(place, [*flags]))
    if is_guess:
        guess = class_values.guessed_column_notice(
            place, columns_found.stored_name(label), images, labels, column_names
        )
        notices.append(guess)
    return TableColumns(images, labels, parts, classes, ignored, files.ambiguous, tuple(notices))


def _parts_by_folder(images: Sequence[Path]) -> list[str] | None:
    """Return the part of each row by its image's folder, such as train/ or test/.

    Return None if not all images lie in such folders.
    """
    if not images:
        return None
    common_folder = Path(os.path.commonpath([image.parent for image in images]))
    folders = list[str]()
    for image in images:
        below = image.parent.relative_to(common_folder).parts
        folders.append(below[0] if below else "")
    names = part_names.named({*folders})
    kinds = {part.kind for part in names.values()}
    if len(names) < len({*folders}) or PartKind.train not in kinds or len(kinds) < 2:
        return None
    return folders


class RequiredColumns(NamedTuple):
    """The columns of images and classes of a table.

    Attributes:
        columns: The columns; that of the classes is "" if `flags` gives them, or nothing does.
        flags: The values of one-hot columns, by their names. Empty if there are none.
    """

    columns: UsableColumns
    flags: dict[str, list[str]]


def _require_columns(
    opened_table: Any,
    column_names: ColumnNames,
    trained_label: str | None,
    place: str,
    folder: Path,
) -> RequiredColumns:
    """Find the columns of images and of classes, and refuse a table without them.

    Args:
        trained_label: As in `table_parts`.
        column_names: As in `table_parts`.
    """
    if trained_label is None:
        columns = usable_columns(opened_table.schema, column_names, place)
        flags = {} if columns.label else one_hot.columns_of_classes(opened_table, columns)
        if columns.image and (columns.label or flags):
            return RequiredColumns(columns, flags)
    else:
        others = {
            role: file_column for role, file_column in column_names.items() if role != "label"
        }
        if listed_labels.list_column(opened_table.schema, trained_label, LABELS) is not None:
            others["label"] = trained_label
        columns = usable_columns(opened_table.schema, others, place).with_label_of(trained_label)
        flags = {}
        if not columns.label and not trained_label and "label" not in column_names:
            flags = one_hot.columns_of_classes(opened_table, columns)
        if columns.image:
            return RequiredColumns(columns, flags)
    raise _missing_columns_refusal(opened_table, columns, column_names, place, folder)


def _text_values(opened_table: Any, names: Mapping[str, str], place: str) -> dict[str, list[str]]:
    """Read columns as text. `names` gives the file's name for each of our names."""
    table = opened_table.to_table([*names.values()])
    return {
        role: class_names.as_texts(
            listed_labels.single_values(table[file_column].to_pylist(), place, file_column),
            declared_class_names(opened_table, file_column),
        )
        for role, file_column in names.items()
    }


def _missing_columns_refusal(
    opened_table: Any, columns: UsableColumns, column_names: ColumnNames, place: str, folder: Path
) -> Refusal:
    """Make the refusal of a table without a column of images or classes.

    It suggests columns whose values name existing files.
    """
    if columns.holds_images:
        return no_columns_refusal(opened_table.schema, columns, column_names, place, None)
    all_columns = {name: field.name for name, field in columns.fields.items()}
    texts = _text_values(opened_table, all_columns, place)
    paths = list[str]()
    for name, values in texts.items():
        present_values = [value for value in values if value]
        if any(map(table_images.is_file, table_images.find_images(folder, present_values).images)):
            paths.append(name)
    for name, values in texts.items():
        if not paths:
            _require_no_addresses(place, columns.stored_name(name), values)
    image = columns.image
    if image not in paths:
        image = paths[0] if paths else ""
    if image:
        nothing = [""] * len(texts[image])
        class_values.require_whole_images(
            place, opened_table.schema.names, texts[image], nothing, nothing
        )
    return no_columns_refusal(opened_table.schema, columns, column_names, place, paths)


def _require_no_addresses(place: str, column: str, values: Sequence[str]) -> None:
    if class_values.are_addresses(values):
        raise Refusal(
            "photographs.addresses",
            f"{place}: {column} holds URLs, and nothing is downloaded; download the images into a"
            " folder beside the table, and give their names instead",
            key="dataset.root",
            column=column,
        )


def text_columns(path: Path) -> dict[str, list[str]]:
    """Read the columns of text and numbers of a .csv, .tsv or .jsonl as text.

    Raises:
        Refusal, ValueError: The file cannot be read.
    """
    table = text_table(path, to_train=False)
    plain = [field.name for field in table.schema if not field.type.num_fields]
    return {name: class_names.as_texts(table[name].to_pylist(), []) for name in plain}
