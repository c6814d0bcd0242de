"""Parquet and Arrow files of Hugging Face's `datasets`,
which hold images: parts by the names of files or folders.
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
    count_files,
    count_loose_files,
    holds_images,
    list_folder,
    visible_folders,
)
from multicard.vision.data.image_columns import NONE_NAMED, Named, label_of
from multicard.vision.data.image_tables import PARQUET, parts_of_rows, table_parts
from multicard.vision.data.stored_images import STREAM

# what `datasets` writes of its files
ABOUT = {"state.json", "dataset_info.json", "dataset_dict.json"}


def stored_parts(
    root: Path, whole: bool = False, any_name: bool = False, named: Named = NONE_NAMED
) -> FoundParts | None:
    """Parts by the names of files, as train-00000-of-00002.parquet, else of their folders, as
    train/data-*.arrow. They are in the folder and those of parts, or in the only one that has some,
    as the hub's default/ and data/. None where there is no such file.

    Files of one name, or of none that is a part's,
    have parts by a column as a table has (`table_parts`).

    Args:
        whole: take all files together, whatever they are called.
        any_name: as `table_parts` has it.
        named: `dataset.columns`.

    Raises:
        Refusal: several folders hold data of their own, as the configurations of a data set.
    """
    files = dict[str, list[Path]]()
    ignored = Counter[str]()
    folders = visible_folders(root)
    places = [root, *_folders_of_parts(folders)]
    for place in places:
        taken, others = _stored_files(place)
        _require_all_shards(place, taken)
        ignored += others
        for path in taken:
            files.setdefault(_part_of(path), []).append(path)
    if not files:
        return _within(root, folders, whole, any_name, named)
    known = [name for name in files if part_names.parsed(name) is not None]
    if not known and any(holds_images(folder) for folder in folders):
        return None  # a table beside folders of classes
    for folder in folders:
        if folder not in places:
            ignored[f"{folder.name}/"] += count_files(folder)
    every = sorted(chain.from_iterable(files.values()))
    if whole:
        return FoundParts(
            [DataPart(ALL_SAMPLES, None, partial(_read_files, every, named))], ignored
        )
    if not known or (len(files) == 1 and _splits_rows(every, named)):
        found = table_parts(every, any_name=any_name, named=named)
        return FoundParts(found.parts, ignored + found.ignored)
    for name in files.keys() - known:
        ignored.update(f"{path.name}, of no part" for path in files[name])
    trained = list[Path]()
    for name in known:
        if _is_to_train(name):
            trained.extend(files[name])
    label = label_of(trained, named) if trained else ""
    parts = []
    for name in sorted(known, key=test_order):
        part = part_names.parsed(name)
        assert part is not None
        to_test = None if part.kind is PartKind.train else label
        read = cache(partial(_read_files, files[name], named, to_test))
        parts.append(DataPart(name, part.kind, read, may_lack_labels=to_test is not None))
    return FoundParts(parts, ignored)


def _is_to_train(name: str) -> bool:
    part = part_names.parsed(name)
    return part is not None and part.kind is PartKind.train


def _folders_of_parts(folders: Sequence[Path]) -> list[Path]:
    names = part_names.named(folder.name for folder in folders)
    return [folder for folder in folders if folder.name in names]


def _within(
    root: Path, folders: Sequence[Path], whole: bool, any_name: bool, named: Named
) -> FoundParts | None:
    """The parts in the only folder of a folder that holds such files; None where none does."""
    filled = [folder for folder in folders if _holds_files(folder)]
    if not filled or any(holds_images(folder) for folder in folders):
        return None
    if len(filled) > 1:
        names = [folder.name for folder in filled]
        shown = f"{', '.join(names[:5])}{f' and {len(names) - 5} more' if len(names) > 5 else ''}"
        remedy = override("dataset.root", filled[0])
        raise Refusal(
            "photographs.configurations",
            f"dataset.root={root}: {shown} hold parquet or Arrow files each, as the configurations"
            f" of one data set; name one, as `{remedy}`",
            key="dataset.root",
            folders=names,
            remedy=remedy,
        )
    found = stored_parts(filled[0], whole, any_name, named)
    if found is None:
        return None
    others = Counter({f"{each.name}/": count_files(each) for each in folders if each != filled[0]})
    return replace(found, ignored=found.ignored + +others + count_loose_files(root))


def _holds_files(folder: Path, levels: int = 3) -> bool:
    """True where such files lie in a folder, or in folders in it.
    Those of images are not searched for others.
    """
    inside = list_folder(folder)
    if inside.has_images:
        return False
    for ending in (PARQUET, STREAM):
        if next(folder.glob(f"*{ending}"), None) is not None:
            return True
    return levels > 0 and any(_holds_files(each, levels - 1) for each in inside.folders)


def _stored_files(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The files of one data set in a folder, and what else lies there, by kind.

    `datasets` leaves cache-*.arrow of what was computed beside its files, which state.json lists.
    Without such a list, files of one ending are taken, parquet before Arrow.
    """
    others = Counter(
        {
            kind: count
            for kind, count in count_loose_files(folder).items()
            if kind not in (PARQUET, STREAM, ".json")
        }
    )
    found = {ending: sorted(folder.glob(f"*{ending}")) for ending in (PARQUET, STREAM, ".json")}
    others[".json"] = sum(path.name not in ABOUT for path in found.pop(".json"))
    listed = _listed_files(folder)
    taken = [path for path in found[STREAM] if path.name in listed]
    taken = taken or found[PARQUET] or found[STREAM]
    for ending, paths in found.items():
        left = sum(path not in taken for path in paths)
        others[f"{ending} not in state.json" if listed and ending == STREAM else ending] += left
    return taken, +others


def _require_all_shards(folder: Path, files: list[Path]) -> None:
    """Refuse numbered files, as train-00000-of-00002.parquet, of which some are missing."""
    missing = missing_shards(path.name for path in files)
    if missing:
        more = f" and {len(missing) - 1:,} more" if missing[1:] else ""
        raise Refusal(
            "photographs.missing-shards",
            f"dataset.root={folder}: {missing[0]}{more} is missing beside {files[0].name}; put it"
            " there, or rename the files, without -of- and the number behind it, to use them"
            " alone",
            key="dataset.root",
            folder=str(folder),
            missing=missing,
        )


def _listed_files(folder: Path) -> set[str]:
    """The names of the files that the state.json of a folder lists; none where it has none,
    or one of others.
    """
    with suppress(OSError, ValueError, LookupError, TypeError, AttributeError):
        listed = json.loads((folder / "state.json").read_bytes())["_data_files"]
        return {each["filename"] for each in listed}
    return set()


def _part_of(path: Path) -> str:
    """The part that a file is of, by its name,
    or else by that of its folder: as the record calls it.
    """
    for name in (path.stem, path.parent.name):
        part = part_names.parsed(name)
        if part is not None:
            return part.word
    return ""


def _read_files(paths: list[Path], named: Named, to_test: str | None = None) -> PartSamples:
    source = table_parts(paths, by_split=False, named=named, to_test=to_test)
    (part,) = source.parts
    return part.read()._replace(ignored=source.ignored)


def _splits_rows(paths: list[Path], named: Named) -> bool:
    """True where a column splits the rows of these files into parts to train and to test on:
    `datasets` calls a file of all rows train-00000-of-00001.parquet.
    """
    parts = [part_names.parsed(part) for part in {*parts_of_rows(paths, named)}]
    return None not in parts and len({part.kind for part in parts if part is not None}) > 1
