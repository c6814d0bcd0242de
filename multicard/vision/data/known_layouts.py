"""Recognize public layouts of images that are not folders of classes.

The lists of CUB-200 are read. Other layouts are refused with a remedy.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import (
    ALL_SAMPLES,
    WRITE_A_TABLE,
    DataPart,
    FoundParts,
    PartSamples,
)
from multicard.vision.data.folder_contents import (
    count_files,
    count_loose_files,
    count_unread_beside,
    is_hidden,
    visible_folders,
)
from multicard.vision.data.image_tables import table_parts
from multicard.vision.data.label_tables import is_submission
from multicard.vision.data.text_tables import JSON_LINES

ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
ONE_HOT_TABLE = "_classes.csv"  # Roboflow's export has this file in each part.

# The lists of CUB-200. Each line has an image's number, and the image's path, class or part.
LISTS = ("images.txt", "image_class_labels.txt")
SPLIT_LIST = "train_test_split.txt"


def parts_of_lists(root: Path, whole: bool) -> FoundParts | None:
    """Read a folder with the lists of CUB-200, or with one such folder. Return None for any other.

    The archive of CUB-200 holds attributes.txt beside that folder, and some copies segmentations/.

    Args:
        whole: Take all images together and ignore the list of parts.
    """
    if not _has_lists(root):
        with_lists = [folder for folder in visible_folders(root) if _has_lists(folder)]
        if len(with_lists) != 1:
            return None
        inner_parts = parts_of_lists(with_lists[0], whole)
        assert inner_parts is not None  # always: the folder has the lists
        unread = count_unread_beside(root, with_lists[0])
        return replace(inner_parts, ignored=inner_parts.ignored + unread)
    paths, labels = (_read_list(root / name) for name in LISTS)
    parts = {} if whole or not (root / SPLIT_LIST).is_file() else _read_list(root / SPLIT_LIST)
    class_names = _read_list(root / "classes.txt") if (root / "classes.txt").is_file() else {}
    samples_by_part: dict[str, PartSamples] = {}
    for number, path in paths.items():
        part = (
            ALL_SAMPLES if not parts else {"1": "train", "0": "test"}.get(parts.get(number, ""), "")
        )
        if not part or number not in labels or not (root / "images" / path).is_file():
            raise Refusal(
                "photographs.bad-list",
                f"dataset.root={root}: image {number} ({path}) is missing, or has no class or"
                " part in the lists beside images/; use"
                f" `{overrides_to_read_alone(root / 'images')}` to read its folders alone",
                key="dataset.root",
                number=number,
                path=path,
            )
        samples = samples_by_part.setdefault(part, PartSamples([], [], [], Counter()))
        samples.images.append(root / "images" / path)
        samples.labels.append(class_names.get(labels[number], labels[number]))
    for samples in samples_by_part.values():
        samples.classes.extend(sorted({*samples.labels}))
    ignored = count_loose_files(root)
    ignored[".txt"] -= len(LISTS) + bool(parts) + bool(class_names)
    for folder in visible_folders(root):
        if folder.name != "images":
            ignored[f"{folder.name}/"] += count_files(folder)
    kinds = {"train": PartKind.train, "test": PartKind.test}
    return FoundParts(
        [
            DataPart(name, kinds.get(name), partial(PartSamples, *samples_by_part[name]))
            for name in sorted(samples_by_part)
        ],
        +ignored,
    )


def _has_lists(folder: Path) -> bool:
    return all((folder / name).is_file() for name in LISTS) and (folder / "images").is_dir()


def overrides_to_read_alone(path: Path) -> str:
    """Return the overrides that read a folder or table alone and test on a fifth of it."""
    return f"{override('dataset.root', path)} dataset.split=0.2"


def _read_list(path: Path) -> dict[str, str]:
    """Read a list as the text behind each image's number."""
    lines = (
        line.strip().partition(" ") for line in path.read_text("utf-8").splitlines() if line.strip()
    )
    return {number: text.strip() for number, _, text in lines}


def several_classes_refusal(root: Path) -> Refusal | None:
    """Return the refusal of a folder whose images have several classes, or None."""
    while len(folders := visible_folders(root)) == 1:  # Data may be nested: VOCdevkit/VOC2012.
        (root,) = folders
    if any((folder / ONE_HOT_TABLE).is_file() for folder in (root, *folders)):
        return Refusal(
            "photographs.one-hot",
            f"dataset.root={root}: {ONE_HOT_TABLE} gives an image any number of classes, but a"
            f" classifier needs one; {WRITE_A_TABLE}",
            key="dataset.root",
            root=str(root),
        )
    if {"JPEGImages", "Annotations"} <= {folder.name for folder in folders}:
        return Refusal(
            "photographs.boxes",
            f"dataset.root={root}: holds Annotations of objects, like Pascal VOC, not of whole"
            f" images; {WRITE_A_TABLE}",
            key="dataset.root",
            root=str(root),
        )
    return None


def table_or_archive_refusal(root: Path) -> Refusal | None:
    """Return a refusal that names the table or archive in an unreadable folder, if it has one."""
    tables = _tables_in(root)
    for part in visible_folders(root):
        name = part_names.parsed(part.name)
        if name is not None and name.kind is PartKind.train:
            tables += _tables_in(part)  # An imagefolder has metadata.csv in train/.
    for table in tables:
        if table.refusal is None:
            shown = table.path.relative_to(root).as_posix()
            overrides = override("dataset.root", table.path)
            if not table.has_parts:
                overrides = overrides_to_read_alone(table.path)
            return Refusal(
                "photographs.table-beside",
                f"dataset.root={root}: holds {shown}, which names images and their classes; use"
                f" `{overrides}`",
                key="dataset.root",
                table=str(table.path),
            )
    for table in tables:
        reason = None if table.refusal is None else table.refusal.message.facts.get("reason")
        if isinstance(reason, Message) and reason.code == "photographs.image-twice":
            return table.refusal
    for path in sorted(root.iterdir()):
        archive = archive_refusal(path)
        if archive is not None:
            return archive
    return None


class NearTable(NamedTuple):
    """A table in a folder of images.

    Attributes:
        refusal: Why the table cannot be used, or None if it can.
        has_parts: Whether its rows are divided into parts.
    """

    path: Path
    refusal: Refusal | None
    has_parts: bool = False


def _tables_in(root: Path) -> list[NearTable]:
    """Try all tables in a folder. Tables named as a part to train on come first."""
    paths = [
        path
        for path in sorted(root.iterdir())
        if path.suffix.lower() in (".csv", ".tsv", JSON_LINES)
    ]
    tables = []
    for path in sorted(paths, key=lambda path: part_names.parsed(path.stem) is None):
        if is_hidden(path.name) or is_submission(path):
            continue
        with suppress(OSError):
            try:
                parts = table_parts([path]).parts
                tables.append(NearTable(path, None, has_parts=len(parts) > 1))
            except Refusal as refusal:
                tables.append(NearTable(path, refusal))
    return tables


def archive_refusal(path: Path) -> Refusal | None:
    """Return the refusal of an archive, such as a shard of WebDataset, or None for other files."""
    if not path.name.lower().endswith(ARCHIVES) or is_hidden(path.name):
        return None
    return Refusal(
        "photographs.packed",
        f"dataset.root={path}: is an archive, which is not read; unpack it and give its folder. If"
        f" the classes are in .cls files, as in WebDataset, {WRITE_A_TABLE}",
        key="dataset.root",
        file=str(path),
    )
