"""Where the samples of `dataset=images` are: folders of classes, a table of paths and labels, or
parquet or Arrow files that hold the images. Of each come parts by name,
and of a part the encoded images and their classes.

What cannot be used is refused by its key, or its file. What is not read is counted by its kind.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from multicard.config.pasting import override
from multicard.messages import Refusal
from multicard.vision.data import known_layouts, part_tables
from multicard.vision.data.class_folders import parts_of
from multicard.vision.data.data_parts import FORMS, FoundParts, chosen_parts
from multicard.vision.data.folder_contents import are_numbered
from multicard.vision.data.image_columns import KEY, NONE_NAMED, Named
from multicard.vision.data.image_tables import table_parts
from multicard.vision.data.stored_parts import stored_parts

TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


def find(root: Path, chosen: Sequence[str] | None = None, named: Named = NONE_NAMED) -> FoundParts:
    """The parts of the data at a folder or file; OSError for what cannot be read.

    Args:
        chosen: `dataset.parts`: the parts to train and to test on; empty: all is one part.
        named: `dataset.columns`: by image, label or split the column of a table.
    """
    if not root.exists():
        raise Refusal(
            "photographs.absent",
            f"dataset.root={root}: no such file or folder; {FORMS}",
            key="dataset.root",
            root=str(root),
        )
    whole = chosen is not None and not chosen
    by_folders = named.get("label", "") is None
    if root.is_dir() and by_folders:
        return parts_of(root, chosen)
    if root.is_dir():
        source = _stored_in(root, chosen, named)
        if source is None:
            source = _in_folders(root, chosen)
            if not source.tables:
                return source
    elif root.suffix.lower() in TABLES:
        if by_folders:
            raise _no_folders(root)
        source = table_parts([root], by_split=not whole, any_name=bool(chosen), named=named)
    elif (packed := known_layouts.packed(root)) is not None:
        raise packed
    else:
        raise Refusal(
            "photographs.no-table",
            f"dataset.root={root}: is neither a folder nor a .csv, .tsv, .jsonl, .json or .parquet"
            f" file; {FORMS}",
            key="dataset.root",
            root=str(root),
        )
    return chosen_parts(source, [*chosen], f"dataset.root={root}") if chosen else source


def _stored_in(root: Path, chosen: Sequence[str] | None, named: Named) -> FoundParts | None:
    """The parts of a folder of parquet files, tables of parts or lists; None of any other.

    Raises:
        Refusal: there is no table whose columns `named` could name.
    """
    whole = chosen is not None and not chosen
    source = stored_parts(root, whole, any_name=bool(chosen), named=named)
    if source is None and not whole:
        source = part_tables.in_folders_of_parts(root, named)
    if source is None and not whole and named:
        source = part_tables.beside_folders(root, named)
    if source is None and named:
        raise _no_columns(root)
    return source or known_layouts.listed_parts(root, whole)


def _in_folders(root: Path, chosen: Sequence[str] | None) -> FoundParts:
    """The parts of folders of classes, or of tables beside them that are called as parts.

    Folders that are parts count before tables, and those tables before a flat folder of classes:
    they divide it.
    """
    several = known_layouts.without_classes(root) if chosen is None else None
    if several is not None:
        raise several
    try:
        found = parts_of(root, chosen)
    except Refusal as refusal:
        tables = part_tables.beside_folders(root)
        if tables is not None:
            return tables
        known = known_layouts.refusal(root) if chosen is None else None
        raise known or refusal from None
    if chosen is not None or any(part.kind is not None for part in found.parts):
        return found
    (part,) = found.parts
    folders = part.read().classes
    if len(folders) == 1 or are_numbered(folders):
        return part_tables.beside_folders(root) or found
    with suppress(Refusal):  # of a table that names nothing here
        found = part_tables.beside_folders(root) or found
    if found.tables:
        part_tables.require_the_classes_of_folders(root, found.tables[0], found.parts[0].read())
    return found


def _no_folders(root: Path) -> Refusal:
    return Refusal(
        "photographs.no-folders-to-take",
        f"{KEY}.label=null: takes folders for the classes, and dataset.root={root} is a table; give"
        f" its folder, as `{override('dataset.root', root.parent)}`",
        key=KEY,
        root=str(root),
    )


def _no_columns(root: Path) -> Refusal:
    return Refusal(
        "photographs.no-table-to-name",
        f"{KEY}: names columns, but dataset.root={root} holds folders of images; give the table in"
        f" it, or use `{KEY}={{}}`",
        key=KEY,
        root=str(root),
    )


def folder_of(root: Path) -> Path:
    """The folder that holds the data: `root`, or that of its table."""
    return root.parent if root.is_file() else root
