"""Where the samples of `dataset=images` are: folders of classes, a table of paths and labels, or
parquet or Arrow files that hold the images. Of each come parts by name,
and of a part the encoded images and their classes.

What cannot be used is refused by its key, or its file. What is not read is counted by its kind.
"""

from collections.abc import Sequence
from pathlib import Path

from multicard.messages import Refusal
from multicard.vision.data import known_layouts
from multicard.vision.data.class_folders import parts_of
from multicard.vision.data.data_parts import FORMS, FoundParts, chosen_parts
from multicard.vision.data.image_columns import KEY, NONE_NAMED, Named
from multicard.vision.data.image_tables import table_parts
from multicard.vision.data.stored_parts import stored_parts

TABLES = (".csv", ".tsv", ".jsonl", ".parquet")


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
    if root.is_dir():
        source = stored_parts(root, whole, any_name=bool(chosen), named=named)
        if source is None and not whole:
            source = known_layouts.metadata_parts(root, named)
        if source is None and named:
            raise _no_columns(root)
        if source is None:
            source = known_layouts.listed_parts(root, whole)
        if source is None:
            several = known_layouts.without_classes(root) if chosen is None else None
            if several is not None:
                raise several
            try:
                return parts_of(root, chosen)
            except Refusal as refusal:
                known = known_layouts.refusal(root) if chosen is None else None
                raise known or refusal from None
    elif root.suffix.lower() in TABLES:
        source = table_parts([root], by_split=not whole, any_name=bool(chosen), named=named)
    elif (packed := known_layouts.packed(root)) is not None:
        raise packed
    else:
        raise Refusal(
            "photographs.no-table",
            f"dataset.root={root}: is neither a folder nor a .csv, .tsv, .jsonl or .parquet file;"
            f" {FORMS}",
            key="dataset.root",
            root=str(root),
        )
    return chosen_parts(source, [*chosen], f"dataset.root={root}") if chosen else source


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
