"""Read tables that are parts of the data, by their names or by the names of their folders.

Examples are train.csv and val.csv, or train/metadata.csv and test/metadata.csv.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from multicard.config.pasting import override
from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind, PartName
from multicard.vision.data import json_lists, one_hot
from multicard.vision.data.class_values import other_folders
from multicard.vision.data.data_parts import DataPart, FoundParts, PartSamples, test_order
from multicard.vision.data.folder_contents import (
    OUTSIDE_CLASSES,
    are_numbered,
    count_files,
    count_loose_files,
    is_hidden,
    is_note_folder,
    names_with_images,
    visible_folders,
)
from multicard.vision.data.image_columns import (
    COLUMNS_KEY,
    NO_COLUMN_NAMES,
    ColumnNames,
    usable_columns,
)
from multicard.vision.data.image_tables import column_of_classes, table_parts
from multicard.vision.data.label_tables import (
    TABLES,
    LabelTable,
    compare_with_images,
    is_submission,
)
from multicard.vision.data.open_tables import open_table, unreadable_refused
from multicard.vision.data.table_images import NOT_NAMED, count_not_named

METADATA = ("metadata.csv", "metadata.jsonl")  # The tables that `datasets` reads in an imagefolder.
LABELS_FILE = "labels.json"
ONE_HOT_TABLE = "_classes.csv"  # Roboflow's export has this file in each part.


def parts_of_tables_in_folders(
    root: Path, column_names: ColumnNames = NO_COLUMN_NAMES
) -> FoundParts | None:
    """Read a folder whose part folders (train/, test/) have a table each, like `datasets` does.

    If these folders hold folders of classes, their tables count only if they have a column of
    classes. Return None for any other layout, and if the parts to test on have no table.

    Args:
        column_names: `dataset.columns`.
    """
    names = part_names.named(folder.name for folder in visible_folders(root))
    tables = dict[str, Path]()
    for name in names:
        table = _part_table(root / name)
        tables |= {name: table} if table is not None else {}
    train_names = [name for name in tables if names[name].kind is PartKind.train]
    if not train_names or len(train_names) == len(tables):
        return None
    train = tables[train_names[0]]
    filled_folders = names_with_images(train.parent)
    if (
        len(filled_folders) > 1
        and not are_numbered(filled_folders)
        and column_names.get("label") is None
    ):
        trained_label, is_guess = column_of_classes(train, column_names)
        if not trained_label or is_guess or train.name not in METADATA:
            return None
        (part,) = table_parts([train], by_split=False, column_names=column_names).parts
        require_same_classes_as_folders(root, train, part.read())
    ignored = count_loose_files(root)
    for folder in visible_folders(root):
        if folder.name not in tables:
            ignored[f"{folder.name}/"] += count_files(folder)
    return _make_parts(tables, names, column_names, ignored, {})


def _part_table(folder: Path) -> Path | None:
    """Return the table of a part: metadata.csv or metadata.jsonl, or else the only table.

    FiftyOne exports a labels.json of each part.
    """
    tables = [folder / name for name in METADATA if (folder / name).is_file()]
    labels = folder / LABELS_FILE
    if not tables and json_lists.is_file_of_labels(labels):
        tables = [labels]
    tables = tables or [
        path for path in _tables_in(folder) if path.name != ONE_HOT_TABLE or _is_one_hot(path)
    ]
    return tables[0] if len(tables) == 1 else None


def _is_one_hot(path: Path) -> bool:
    """Tell whether a table of flags gives each image exactly one class."""
    with suppress(Refusal), unreadable_refused(path):
        table = open_table([path], NO_COLUMN_NAMES)
        return bool(one_hot.columns_of_classes(table, usable_columns(table.schema)))
    return False


def _tables_in(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in TABLES and not is_hidden(path.name) and not is_submission(path)
    ]


def require_same_classes_as_folders(root: Path, table: Path, samples: PartSamples) -> None:
    """Refuse a table that gives images other classes than their folders do.

    Args:
        samples: The samples of the table.
    """
    folders = other_folders(samples.images, samples.labels)
    if not folders:
        return
    column = column_of_classes(table, NO_COLUMN_NAMES)[0]
    by_table = override(COLUMNS_KEY, {"label": column})
    by_folder = override(COLUMNS_KEY, {"label": None})
    shown = table.relative_to(root).as_posix()
    raise Refusal(
        "photographs.table-or-folders",
        f"dataset.root={root}: the column {column} of {shown} gives images other classes than"
        f" their folders do; use `{by_table}` to take the column, or `{by_folder}` to take the"
        " folders for the classes",
        key=COLUMNS_KEY,
        table=str(table),
        column=column,
        folders=[folder.name for folder in folders[:20]],
    )


def parts_of_named_tables(
    root: Path, column_names: ColumnNames = NO_COLUMN_NAMES
) -> FoundParts | None:
    """Read tables that are named as parts (train.csv, test.csv), in a folder or its notes.

    Images that a table gives by name alone are looked up in the folders of its part first. Return
    None if there are no such tables.

    Raises:
        Refusal: A table cannot be read, or two tables are named as the same part.
    """
    notes = [folder for folder in visible_folders(root) if is_note_folder(folder)]
    for place in (root, *notes):
        paths = _tables_named_as_parts(place)
        if paths:
            return _parts_of_named_tables(root, place, paths, column_names)
    return None


def _tables_named_as_parts(folder: Path) -> list[Path]:
    """Return the tables in a folder that are named as parts, if both kinds of parts are there."""
    names = part_names.named(path.stem for path in _tables_in(folder))
    kinds = {part.kind for part in names.values()}
    if PartKind.train not in kinds or len(kinds) < 2:
        return []
    return [path for path in _tables_in(folder) if path.stem in names]


def _parts_of_named_tables(
    root: Path, place: Path, paths: Sequence[Path], column_names: ColumnNames
) -> FoundParts:
    """Make the parts of these tables.

    Args:
        root: The folder with the folders of images.
        place: The folder with the tables.
    """
    names = part_names.named(path.stem for path in paths)
    word_counts = Counter(names[path.stem].word for path in paths)
    repeated_words = [word for word, count in word_counts.items() if count > 1]
    if repeated_words:
        files = [path.name for path in paths]
        raise Refusal(
            "photographs.tables-of-one-part",
            f"dataset.root={place}: {', '.join(files)} are named as parts, and {repeated_words[0]}"
            " is there more than once; keep one table per part here",
            key="dataset.root",
            files=files,
        )
    folders = defaultdict[PartKind, list[Path]](list)
    for folder in visible_folders(root):
        part = part_names.parsed(folder.name)
        if part is not None:
            folders[part.kind].append(folder)
    ignored = Counter[str]()
    for kind, count in count_loose_files(root).items():
        if not kind.endswith(OUTSIDE_CLASSES):  # The tables may name these images.
            ignored[kind] += count
    for folder in visible_folders(root):
        if is_note_folder(folder):
            ignored[f"{folder.name}/"] += count_files(folder)
    for path in paths:
        ignored[path.suffix.lower() if place == root else f"{place.name}/"] -= 1
    return _make_parts({path.stem: path for path in paths}, names, column_names, +ignored, folders)


def folder_of_part_table(table: Path) -> Path | None:
    """Return the folder of a table that is one part of the data beside tables of other parts.

    Return None for any other table, and if the tables cannot be read.
    """
    if part_names.parsed(table.stem) is None:
        return None
    folder = table.absolute().parent
    try:
        parts = parts_of_named_tables(folder)
    except Refusal:
        return None
    return folder if parts is not None and table.absolute() in parts.tables else None


def overrides_to_label_tests(root: Path, trained: PartSamples) -> str | None:
    """Return the overrides that read tables of all parts, each of which gives images classes.

    Return None if there are no such tables.

    Args:
        trained: The samples of the part to train on, by their folders.
    """
    images = [image for image in trained.images if isinstance(image, Path)]
    for path in _tables_named_as_parts(root):
        # Files that are no readable table say nothing about these images.
        with suppress(Refusal, OSError, ValueError, LookupError, NotImplementedError):
            table = compare_with_images(path, images, trained.labels)
            if table is None or table.label is None:
                continue
            columns = {"image": table.image, "label": table.label}
            parts_found = parts_of_named_tables(root, columns)
            if parts_found is not None and all(part.has_labels for part in parts_found.parts):
                return override(COLUMNS_KEY, columns)
    return None


def _make_parts(
    tables: Mapping[str, Path],
    names: Mapping[str, PartName],
    column_names: ColumnNames,
    ignored: Counter[str],
    folders: Mapping[PartKind, Sequence[Path]],
) -> FoundParts:
    """Make a part of each table. Parts to test on use the label column of the part to train on."""
    train_names = [name for name in tables if names[name].kind is PartKind.train]
    trained_label, _ = column_of_classes(tables[sorted(train_names)[0]], column_names)
    parts = list[DataPart]()
    for name in sorted(tables, key=test_order):
        kind = names[name].kind
        source = table_parts(
            [tables[name]],
            by_split=False,
            column_names=column_names,
            trained_label=None if kind is PartKind.train else trained_label,
            first_folders=folders.get(kind, ()),
        )
        (part,) = source.parts
        parts.append(replace(part, name=name, kind=kind))
        del source.ignored[NOT_NAMED]  # Another table may name these images.
        ignored = ignored + source.ignored
    paths = list[Path]()
    for part in parts:
        paths.extend(image for image in part.read().images if isinstance(image, Path))
    ignored[NOT_NAMED] = count_not_named(paths)
    ordered = tuple(tables[part.name] for part in parts)
    return FoundParts(parts, +ignored, tables=ordered)


def unread_table_notices(root: Path, tables: Sequence[LabelTable]) -> list[Message]:
    """Return a notice per table that names the images but is not read, as folders are classes."""
    notices = list[Message]()
    for table in tables:
        use = ""
        remedy = None if table.label is None else reading_overrides(root, table)
        if remedy is not None:
            use = f"; use `{remedy}` if its {table.label} is the class"
        shown = table.path.relative_to(root).as_posix()
        notices.append(
            Message(
                "photographs.table-not-read",
                f"dataset.root={root}: takes folders for the classes and does not read {shown}"
                f" ({', '.join(table.columns)}){use}",
                key=COLUMNS_KEY,
                table=str(table.path),
                columns=table.columns,
                remedy=remedy,
            )
        )
    return notices


def reading_overrides(root: Path, table: LabelTable) -> str | None:
    """Return the overrides that read a table about the images in a folder.

    Where possible, they read it as one of several parts. Return None if it cannot be read.
    """
    column_names: list[Mapping[str, str | None]] = [{}]
    if table.label is not None:
        column_names = [{"label": table.label}, {}, {"image": table.image, "label": table.label}]
    for columns in column_names:
        for parts_of in (parts_of_tables_in_folders, parts_of_named_tables):
            with suppress(Refusal, OSError):
                parts_found = parts_of(root, columns) if columns else None
                if parts_found is not None and table.path in parts_found.tables:
                    return override(COLUMNS_KEY, columns)
    for columns in column_names:
        with suppress(Refusal, OSError):
            parts = table_parts([table.path], column_names=columns).parts
            words = [override("dataset.root", table.path)]
            if columns:
                words.append(override(COLUMNS_KEY, columns))
            if len(parts) == 1:
                words.append("dataset.split=0.2")
            return " ".join(words)
    return None
