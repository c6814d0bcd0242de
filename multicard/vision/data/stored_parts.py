"""Read parquet and Arrow files that hold images, as Hugging Face's `datasets` writes them.

The names of the files or of their folders give the parts.
"""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

from multicard.config.pasting import override
from multicard.config.shards import missing_shards
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import (
    ALL_SAMPLES,
    DataPart,
    FoundParts,
    PartSamples,
    test_order,
)
from multicard.vision.data.folder_contents import (
    OUTSIDE_CLASSES,
    count_files,
    count_loose_files,
    holds_images,
    list_folder,
    visible_folders,
)
from multicard.vision.data.image_columns import NO_COLUMN_NAMES, ColumnNames
from multicard.vision.data.image_tables import (
    column_of_classes,
    names_paths,
    parts_of_rows,
    table_parts,
)
from multicard.vision.data.open_tables import PARQUET_SUFFIX
from multicard.vision.data.part_tables import require_same_classes_as_folders
from multicard.vision.data.stored_images import ARROW_SUFFIX
from multicard.vision.data.table_images import NOT_NAMED, count_not_named

# The files in which `datasets` describes its data files.
METADATA_FILES = {"state.json", "dataset_info.json", "dataset_dict.json"}
METADATA_TABLE = "metadata.parquet"  # A table of paths that `datasets` reads in an imagefolder.


def stored_parts(
    root: Path,
    whole: bool = False,
    any_name: bool = False,
    column_names: ColumnNames = NO_COLUMN_NAMES,
) -> FoundParts | None:
    """Find parts by the names of files (train-00000-of-00002.parquet) or folders (train/*.arrow).

    The files lie directly in the folder and in folders named as parts. They may also lie in the
    only folder with such files, such as the hub's default/ and data/. If all files have one name,
    or none is named as a part, a column gives the parts, as in other tables (`table_parts`).

    Args:
        whole: Take all files together, whatever their names.
        any_name: As in `table_parts`.
        column_names: `dataset.columns`.

    Returns:
        The parts, or None if there are no such files.

    Raises:
        Refusal: Several folders hold data sets, such as the configurations of one data set.
    """
    files = dict[str, list[Path]]()
    ignored = Counter[str]()
    folders = visible_folders(root)
    places = [root, *_folders_of_parts(folders)]
    for place in places:
        data_files, other_files = _stored_files(place)
        _require_all_shards(place, data_files)
        ignored += other_files
        for path in data_files:
            files.setdefault(_part_word(path), []).append(path)
    if not files:
        return _parts_in_only_folder(root, folders, whole, any_name, column_names)
    part_words = [name for name in files if part_names.parsed(name) is not None]
    if not part_words and any(holds_images(folder) for folder in folders):
        return None  # The file is a table beside folders of classes.
    for folder in folders:
        if folder not in places:
            ignored[f"{folder.name}/"] += count_files(folder)
    all_files = sorted(chain.from_iterable(files.values()))
    if whole:
        read_all = cache(partial(_read_files, all_files, column_names))
        found_parts = FoundParts([DataPart(ALL_SAMPLES, None, read_all)], ignored)
        return _without_named_images(root, found_parts, all_files, column_names)
    if not part_words or (len(files) == 1 and _has_split_column(all_files, column_names)):
        parts_by_column = table_parts(all_files, any_name=any_name, column_names=column_names)
        found_parts = replace(parts_by_column, ignored=ignored + parts_by_column.ignored)
        return _without_named_images(root, found_parts, all_files, column_names)
    for name in files.keys() - part_words:
        ignored.update(f"{path.name}, of no part" for path in files[name])
    train_files = list[Path]()
    for name in part_words:
        if _is_to_train(name):
            train_files.extend(files[name])
    label = column_of_classes(train_files[0], column_names)[0] if train_files else ""
    parts = []
    for name in sorted(part_words, key=test_order):
        part = part_names.parsed(name)
        assert part is not None
        trained_label = None if part.kind is PartKind.train else label
        read_part = cache(partial(_read_files, files[name], column_names, trained_label))
        parts.append(
            DataPart(name, part.kind, read_part, may_lack_labels=trained_label is not None)
        )
    return _without_named_images(root, FoundParts(parts, ignored), all_files, column_names)


def _without_named_images(
    root: Path, found_parts: FoundParts, files: Sequence[Path], column_names: ColumnNames
) -> FoundParts:
    """Count, of the images beside files that give paths, only those that no row names.

    Return the parts as they are if the files hold the images.
    """
    if not names_paths(files[0], column_names):
        return found_parts
    samples = [part.read() for part in found_parts.parts]
    paths = list[Path]()
    for part_samples in samples:
        paths.extend(image for image in part_samples.images if isinstance(image, Path))
    image_folders = [folder for folder in visible_folders(root) if holds_images(folder)]
    places = {f"{folder.name}/" for folder in image_folders}
    ignored = Counter[str]()
    for kind, number in found_parts.ignored.items():
        if kind not in places and not kind.endswith(OUTSIDE_CLASSES):
            ignored[kind] = number
    ignored[NOT_NAMED] = count_not_named(paths)
    parts = list[DataPart]()
    for part, part_samples in zip(found_parts.parts, samples, strict=True):
        del part_samples.ignored[NOT_NAMED]  # Another part may have these images.
        parts.append(replace(part, read=partial(PartSamples, *part_samples)))
        metadata = next((file for file in files if file.name == METADATA_TABLE), None)
        if metadata is not None and "label" not in column_names:
            require_same_classes_as_folders(root, metadata, part_samples)
    return replace(found_parts, parts=parts, ignored=+ignored)


def _is_to_train(name: str) -> bool:
    part = part_names.parsed(name)
    return part is not None and part.kind is PartKind.train


def _folders_of_parts(folders: Sequence[Path]) -> list[Path]:
    names = part_names.named(folder.name for folder in folders)
    return [folder for folder in folders if folder.name in names]


def _parts_in_only_folder(
    root: Path, folders: Sequence[Path], whole: bool, any_name: bool, column_names: ColumnNames
) -> FoundParts | None:
    """Find the parts in the only subfolder that holds such files. Return None if none does."""
    filled_folders = [folder for folder in folders if _holds_files(folder)]
    if not filled_folders or any(holds_images(folder) for folder in folders):
        return None
    if len(filled_folders) > 1:
        names = [folder.name for folder in filled_folders]
        shown = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        remedy = override("dataset.root", filled_folders[0])
        raise Refusal(
            "photographs.configurations",
            f"dataset.root={root}: {shown} each hold parquet or Arrow files, like the"
            f" configurations of one data set; name one, as `{remedy}`",
            key="dataset.root",
            folders=names,
            remedy=remedy,
        )
    inner_parts = stored_parts(filled_folders[0], whole, any_name, column_names)
    if inner_parts is None:
        return None
    others = Counter(
        {
            f"{folder.name}/": count_files(folder)
            for folder in folders
            if folder != filled_folders[0]
        }
    )
    return replace(inner_parts, ignored=inner_parts.ignored + +others + count_loose_files(root))


def _holds_files(folder: Path, levels: int = 3) -> bool:
    """Tell whether such files lie in a folder or below it. Folders of images are not searched."""
    listing = list_folder(folder)
    if listing.has_images:
        return False
    for ending in (PARQUET_SUFFIX, ARROW_SUFFIX):
        if next(folder.glob(f"*{ending}"), None) is not None:
            return True
    return levels > 0 and any(_holds_files(subfolder, levels - 1) for subfolder in listing.folders)


def _stored_files(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Return a folder's data files, and the number of its other files by kind.

    `datasets` leaves cached results (cache-*.arrow) beside its data files, which state.json lists.
    Without such a list, files of one format are taken, and parquet is preferred to Arrow.
    """
    others = Counter(
        {
            kind: count
            for kind, count in count_loose_files(folder).items()
            if kind not in (PARQUET_SUFFIX, ARROW_SUFFIX, ".json")
        }
    )
    files_by_ending = {
        ending: sorted(folder.glob(f"*{ending}"))
        for ending in (PARQUET_SUFFIX, ARROW_SUFFIX, ".json")
    }
    others[".json"] = sum(path.name not in METADATA_FILES for path in files_by_ending.pop(".json"))
    listed_names = _listed_files(folder)
    data_files = [path for path in files_by_ending[ARROW_SUFFIX] if path.name in listed_names]
    data_files = data_files or files_by_ending[PARQUET_SUFFIX] or files_by_ending[ARROW_SUFFIX]
    for ending, paths in files_by_ending.items():
        unread = sum(path not in data_files for path in paths)
        others[
            f"{ending} not in state.json" if listed_names and ending == ARROW_SUFFIX else ending
        ] += unread
    return data_files, +others


def _require_all_shards(folder: Path, files: list[Path]) -> None:
    """Refuse numbered files, such as train-00000-of-00002.parquet, if some are missing."""
    missing = missing_shards(path.name for path in files)
    if missing:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        raise Refusal(
            "photographs.missing-shards",
            f"dataset.root={folder}: {missing[0]}{more} is missing beside {files[0].name}; put it"
            " there, or drop -of- and the number behind it from the files' names to use them"
            " alone",
            key="dataset.root",
            folder=str(folder),
            missing=missing,
        )


def _listed_files(folder: Path) -> set[str]:
    """Return the names of the files that a folder's state.json lists, if it has one."""
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        entries = json.loads((folder / "state.json").read_bytes())["_data_files"]
        return {entry["filename"] for entry in entries}
    return set()


def _part_word(path: Path) -> str:
    """Return the part to which a file belongs, by its name or else by its folder's name."""
    for name in (path.stem, path.parent.name):
        part = part_names.parsed(name)
        if part is not None:
            return part.word
    return ""


def _read_files(
    paths: list[Path], column_names: ColumnNames, trained_label: str | None = None
) -> PartSamples:
    source = table_parts(
        paths, by_split=False, column_names=column_names, trained_label=trained_label
    )
    (part,) = source.parts
    return part.read()._replace(ignored=source.ignored)


def _has_split_column(paths: list[Path], column_names: ColumnNames) -> bool:
    """Tell whether a column divides the rows into parts to train and to test on.

    `datasets` names a file train-00000-of-00001.parquet even if it holds all rows.
    """
    parts = [part_names.parsed(part) for part in {*parts_of_rows(paths, column_names)}]
    return None not in parts and len({part.kind for part in parts if part is not None}) > 1
