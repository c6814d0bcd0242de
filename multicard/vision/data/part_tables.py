"""Tables that are parts of the data by their names, or by those of the folders in which they lie:
train.csv and val.csv, train/metadata.csv and test/metadata.csv.
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
from multicard.vision.data.image_columns import KEY, NONE_NAMED, Named
from multicard.vision.data.image_tables import column_of_classes, table_parts
from multicard.vision.data.label_tables import TABLES, LabelTable, is_submission
from multicard.vision.data.table_images import NOT_NAMED, not_named

METADATA = ("metadata.csv", "metadata.jsonl")  # of an `imagefolder` of `datasets`
ONE_HOT = "_classes.csv"  # of Roboflow's export, in each part


def in_folders_of_parts(root: Path, named: Named = NONE_NAMED) -> FoundParts | None:
    """The parts of a folder whose folders of parts have a table each, as `datasets` reads an
    `imagefolder`; None of any other, and of one whose parts to test on have no table.

    Where these folders hold folders of classes, a table counts that has a column of them.

    Args:
        named: `dataset.columns`.
    """
    names = part_names.named(folder.name for folder in visible_folders(root))
    tables = dict[str, Path]()
    for name in names:
        found = _table_in(root / name)
        tables |= {name: found} if found is not None else {}
    trains = [name for name in tables if names[name].kind is PartKind.train]
    if not trains or len(trains) == len(tables):
        return None
    train = tables[trains[0]]
    filled = names_with_images(train.parent)
    if len(filled) > 1 and not are_numbered(filled) and named.get("label") is None:
        trained, is_guess = column_of_classes(train, named)
        if not trained or is_guess or train.name not in METADATA:
            return None
        (part,) = table_parts([train], by_split=False, named=named).parts
        require_the_classes_of_folders(root, train, part.read())
    ignored = count_loose_files(root)
    for folder in visible_folders(root):
        if folder.name not in tables:
            ignored[f"{folder.name}/"] += count_files(folder)
    return _of_tables(tables, names, named, ignored, {})


def _table_in(folder: Path) -> Path | None:
    """The table of a part: that of an `imagefolder`, or the only one."""
    found = [folder / name for name in METADATA if (folder / name).is_file()]
    found = found or [path for path in _tables(folder) if path.name != ONE_HOT]
    return found[0] if len(found) == 1 else None


def _tables(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in TABLES and not is_hidden(path.name) and not is_submission(path)
    ]


def require_the_classes_of_folders(root: Path, table: Path, samples: PartSamples) -> None:
    """Refuse a table that gives images other classes than the folders in which they lie.

    Args:
        samples: of the table.
    """
    folders = other_folders(samples.images, samples.labels)
    if not folders:
        return
    column = column_of_classes(table, NONE_NAMED)[0]
    by_table = override(KEY, {"label": column})
    by_folder = override(KEY, {"label": None})
    shown = table.relative_to(root).as_posix()
    raise Refusal(
        "photographs.table-or-folders",
        f"dataset.root={root}: the column {column} of {shown} gives images other classes than"
        f" their folders do; use `{by_table}` to take the column, or `{by_folder}` to take the"
        " folders",
        key=KEY,
        table=str(table),
        column=column,
        folders=[folder.name for folder in folders[:20]],
    )


def beside_folders(root: Path, named: Named = NONE_NAMED) -> FoundParts | None:
    """The parts of a folder with tables that are called as parts to train and to test on, there or
    in a folder of notes; None of any other.

    Images that a table gives by their names alone are looked for in the folders of its part first.

    Raises:
        Refusal: such a table cannot be read, or two are called as the same part.
    """
    notes = [folder for folder in visible_folders(root) if is_note_folder(folder)]
    for place in (root, *notes):
        paths = _called_as_parts(place)
        if paths:
            return _beside_folders(root, place, paths, named)
    return None


def _called_as_parts(folder: Path) -> list[Path]:
    """The tables in a folder that are called as parts to train and to test on."""
    names = part_names.named(path.stem for path in _tables(folder))
    kinds = {part.kind for part in names.values()}
    if PartKind.train not in kinds or len(kinds) < 2:
        return []
    return [path for path in _tables(folder) if path.stem in names]


def _beside_folders(root: Path, place: Path, paths: Sequence[Path], named: Named) -> FoundParts:
    """The parts by tables.

    Args:
        root: that has the folders of images. place: that has the tables.
    """
    names = part_names.named(path.stem for path in paths)
    called = Counter(names[path.stem].word for path in paths)
    twice = [word for word, count in called.items() if count > 1]
    if twice:
        files = [path.name for path in paths]
        raise Refusal(
            "photographs.tables-of-one-part",
            f"dataset.root={place}: {', '.join(files)} are called as parts, of which {twice[0]} is"
            " there more than once; keep one table of each part here",
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
        if not kind.endswith(OUTSIDE_CLASSES):  # images there may be those of the tables
            ignored[kind] += count
    for folder in visible_folders(root):
        if is_note_folder(folder):
            ignored[f"{folder.name}/"] += count_files(folder)
    for path in paths:
        ignored[path.suffix.lower() if place == root else f"{place.name}/"] -= 1
    return _of_tables({path.stem: path for path in paths}, names, named, +ignored, folders)


def folder_of(table: Path) -> Path | None:
    """The folder of a table that is one part of the data, beside those of others;
    None of any other table, and where they cannot be read.
    """
    if part_names.parsed(table.stem) is None:
        return None
    folder = table.absolute().parent
    try:
        found = beside_folders(folder)
    except Refusal:
        return None
    return folder if found is not None and table.absolute() in found.tables else None


def _of_tables(
    tables: Mapping[str, Path],
    names: Mapping[str, PartName],
    named: Named,
    ignored: Counter[str],
    folders: Mapping[PartKind, Sequence[Path]],
) -> FoundParts:
    """A part for each table. Those to test on have the column of classes that is trained on."""
    trains = [name for name in tables if names[name].kind is PartKind.train]
    trained, _ = column_of_classes(tables[sorted(trains)[0]], named)
    parts = list[DataPart]()
    for name in sorted(tables, key=test_order):
        kind = names[name].kind
        source = table_parts(
            [tables[name]],
            by_split=False,
            named=named,
            to_test=None if kind is PartKind.train else trained,
            own_folders=folders.get(kind, ()),
        )
        (part,) = source.parts
        parts.append(replace(part, name=name, kind=kind))
        del source.ignored[NOT_NAMED]  # another table may
        ignored = ignored + source.ignored
    paths = list[Path]()
    for part in parts:
        paths.extend(image for image in part.read().images if isinstance(image, Path))
    ignored[NOT_NAMED] = not_named(paths)
    ordered = tuple(tables[part.name] for part in parts)
    return FoundParts(parts, +ignored, tables=ordered)


def tables_not_read(root: Path, tables: Sequence[LabelTable]) -> list[Message]:
    """That folders are taken for the classes, and these tables of their images are not read."""
    notices = list[Message]()
    for table in tables:
        use = ""
        remedy = None if table.label is None else reading(root, table)
        if remedy is not None:
            use = f"; use `{remedy}` if its {table.label} is the class"
        shown = table.path.relative_to(root).as_posix()
        notices.append(
            Message(
                "photographs.table-not-read",
                f"dataset.root={root}: takes folders for the classes, and does not read {shown}"
                f" ({', '.join(table.columns)}){use}",
                key=KEY,
                table=str(table.path),
                columns=table.columns,
                remedy=remedy,
            )
        )
    return notices


def reading(root: Path, table: LabelTable) -> str | None:
    """The overrides that read a table of the images in a folder: as one of each part where there
    are some. None where it cannot be read.
    """
    named: list[Mapping[str, str | None]] = [{}]
    if table.label is not None:
        named = [{"label": table.label}, {}, {"image": table.image, "label": table.label}]
    for columns in named:
        for parts_of in (in_folders_of_parts, beside_folders):
            with suppress(Refusal, OSError):
                found = parts_of(root, columns) if columns else None
                if found is not None and table.path in found.tables:
                    return override(KEY, columns)
    for columns in named:
        with suppress(Refusal, OSError):
            parts = table_parts([table.path], named=columns).parts
            words = [override("dataset.root", table.path)]
            if columns:
                words.append(override(KEY, columns))
            if len(parts) == 1:
                words.append("dataset.split=0.2")
            return " ".join(words)
    return None
