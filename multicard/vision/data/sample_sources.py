"""Find the samples of `dataset=images` and divide them into parts.

They are in folders of classes, in a table of paths and labels, or in parquet or Arrow files that
hold the images. Each part gives its encoded images and their classes. Data that cannot be used are
refused by the key or file at fault. Whatever is not read is counted by kind.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.vision.data import (
    classes_in_names,
    known_layouts,
    part_tables,
    path_lists,
    text_lists,
)
from multicard.vision.data.class_folders import parts_of
from multicard.vision.data.data_parts import DATA_FORMS_HINT, FoundParts, choose_parts
from multicard.vision.data.folder_contents import are_numbered
from multicard.vision.data.image_columns import COLUMNS_KEY, NO_COLUMN_NAMES, ColumnNames
from multicard.vision.data.image_tables import table_parts
from multicard.vision.data.stored_parts import stored_parts

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
# The codes of refusals of images beside one another.
WITHOUT_CLASSES = ("photographs.no-classes", "photographs.part-without-classes")
NO_FOLDER_OF_PART = "photographs.no-folder-of-part"


def find_parts(
    root: Path, chosen: Sequence[str] | None = None, column_names: ColumnNames = NO_COLUMN_NAMES
) -> FoundParts:
    """Find the parts of the data in a folder or file.

    Args:
        chosen: `dataset.parts`, the parts to train and to test on. If empty, all data are one part.
        column_names: `dataset.columns`, the table's column for each of image, label and split.

    Raises:
        OSError: The data cannot be read.
    """
    if not root.exists():
        raise Refusal(
            "photographs.absent",
            f"dataset.root={root}: there is no such file or folder; {DATA_FORMS_HINT}",
            key="dataset.root",
            root=str(root),
        )
    as_one_part = chosen is not None and not chosen
    by_folders = column_names.get("label", "") is None
    if root.is_dir() and by_folders:
        return parts_of(root, chosen)
    if root.is_dir():
        source = _parts_of_files(root, chosen, column_names)
        if source is None:
            source = _parts_of_folders(root, chosen)
            if not source.tables:
                return source
    elif root.suffix.lower() in TABLES:
        if by_folders:
            raise _table_without_folders_refusal(root)
        source = table_parts(
            [root], by_split=not as_one_part, any_name=bool(chosen), column_names=column_names
        )
    else:
        known_refusal = known_layouts.archive_refusal(root)
        if known_refusal is None and root.suffix.lower() == text_lists.TEXT_LIST:
            known_refusal = text_lists.lists_refusal(root)
        if known_refusal is not None:
            raise known_refusal
        raise Refusal(
            "photographs.no-table",
            f"dataset.root={root}: is neither a folder nor a .csv, .tsv, .jsonl, .json or .parquet"
            f" file; {DATA_FORMS_HINT}",
            key="dataset.root",
            root=str(root),
        )
    return choose_parts(source, [*chosen], f"dataset.root={root}") if chosen else source


def _parts_of_files(
    root: Path, chosen: Sequence[str] | None, column_names: ColumnNames
) -> FoundParts | None:
    """Read a folder of parquet files, tables that are parts, or lists. Return None for any other.

    Raises:
        Refusal: `column_names` names columns, but there is no table.
    """
    as_one_part = chosen is not None and not chosen
    source = stored_parts(root, as_one_part, any_name=bool(chosen), column_names=column_names)
    if source is None and not as_one_part:
        source = part_tables.parts_of_tables_in_folders(root, column_names)
    if source is None and not as_one_part and column_names:
        source = part_tables.parts_of_named_tables(root, column_names)
    if source is None and column_names:
        raise _no_table_refusal(root)
    return source or known_layouts.parts_of_lists(root, as_one_part)


def _parts_of_folders(root: Path, chosen: Sequence[str] | None) -> FoundParts:
    """Read folders of classes, or tables beside them that are named as parts.

    Folders that are parts take precedence over tables. Tables take precedence over a flat folder of
    classes, which they divide into parts.
    """
    layout_refusal = known_layouts.several_classes_refusal(root) if chosen is None else None
    if layout_refusal is not None:
        raise layout_refusal
    try:
        found_parts = parts_of(root, chosen)
    except Refusal as refusal:
        if chosen and refusal.message.code == NO_FOLDER_OF_PART:
            parts_of_lists = _chosen_lists(root, chosen)
            if parts_of_lists is not None:
                return parts_of_lists
        parts_of_tables = part_tables.parts_of_named_tables(root)
        if parts_of_tables is not None:
            return parts_of_tables
        known_refusal = None
        if chosen is None:
            known_refusal = known_layouts.table_or_archive_refusal(root)
            known_refusal = known_refusal or text_lists.lists_refusal(root)
            if known_refusal is None and refusal.message.code in WITHOUT_CLASSES:
                known_refusal = classes_in_names.names_refusal(root)
        raise known_refusal or refusal from None
    if chosen is not None or any(part.kind is not None for part in found_parts.parts):
        return found_parts
    (part,) = found_parts.parts
    folders = part.read().classes
    if len(folders) == 1 or are_numbered(folders):
        parts_of_tables = part_tables.parts_of_named_tables(root)
        lists = text_lists.lists_refusal(root) if len(folders) == 1 else None
        if parts_of_tables is None and lists is not None:
            raise lists
        return parts_of_tables or found_parts
    parts_of_lists = path_lists.parts_by_lists(root, part.read(), found_parts.ignored)
    if parts_of_lists is not None:
        return parts_of_lists
    with suppress(Refusal):  # A table that names none of these images is refused.
        found_parts = part_tables.parts_of_named_tables(root) or found_parts
    if found_parts.tables:
        part_tables.require_same_classes_as_folders(
            root, found_parts.tables[0], found_parts.parts[0].read()
        )
    return found_parts


def _chosen_lists(root: Path, chosen: Sequence[str]) -> FoundParts | None:
    """Return the parts that `dataset.parts` names, if they are lists that divide the folders.

    Return None if the folders are not classes, or may be pieces of an archive, or if no lists
    divide them.
    """
    try:
        found_parts = parts_of(root)
    except Refusal:
        return None
    if any(part.kind is not None for part in found_parts.parts):
        return None
    (part,) = found_parts.parts
    if are_numbered(part.read().classes):
        return None
    parts_of_lists = path_lists.parts_by_lists(root, part.read(), found_parts.ignored)
    if parts_of_lists is None:
        return None
    return choose_parts(parts_of_lists, [*chosen], f"dataset.root={root}")


def _table_without_folders_refusal(root: Path) -> Refusal:
    return Refusal(
        "photographs.no-folders-to-take",
        f"{COLUMNS_KEY}.label=null: takes folders for the classes, but dataset.root={root} is a"
        f" table; give its folder, as `{override('dataset.root', root.parent)}`",
        key=COLUMNS_KEY,
        root=str(root),
    )


def _no_table_refusal(root: Path) -> Refusal:
    return Refusal(
        "photographs.no-table-to-name",
        f"{COLUMNS_KEY}: names columns, but dataset.root={root} holds folders of images; give the"
        f" table within it, or use `{COLUMNS_KEY}={{}}`",
        key=COLUMNS_KEY,
        root=str(root),
    )


def data_folder(root: Path) -> Path:
    """Return the folder that holds the data: `root`, or the folder of the table that it is."""
    return root.parent if root.is_file() else root
