"""Public layouts of images that are no folders of classes: what each is, and what to make of it."""

from collections import Counter
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from multicard.config.pasting import override
from multicard.messages import Message, Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data.data_parts import (
    TABLE,
    WHOLE,
    DataPart,
    FoundParts,
    PartSamples,
)
from multicard.vision.data.folder_contents import beside, class_folders, count_files, is_hidden
from multicard.vision.data.image_tables import table_parts
from multicard.vision.data.label_tables import is_submission
from multicard.vision.data.text_tables import LINES

ARCHIVES = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".zip")
ONE_HOT = "_classes.csv"  # of Roboflow's export, in each part

# of CUB-200, a line an image: its number, and what it has
LISTS = ("images.txt", "image_class_labels.txt")
SPLIT = "train_test_split.txt"


def listed_parts(root: Path, whole: bool) -> FoundParts | None:
    """The parts of a folder with the lists of CUB-200; None of any other.

    Args:
        whole: take all images together, whatever their list of parts says.
    """
    if not all((root / name).is_file() for name in LISTS) or not (root / "images").is_dir():
        return None
    paths, labels = (_listed(root / name) for name in LISTS)
    parts = {} if whole or not (root / SPLIT).is_file() else _listed(root / SPLIT)
    names = _listed(root / "classes.txt") if (root / "classes.txt").is_file() else {}
    found: dict[str, PartSamples] = {}
    for number, path in paths.items():
        part = WHOLE if not parts else {"1": "train", "0": "test"}.get(parts.get(number, ""), "")
        if not part or number not in labels or not (root / "images" / path).is_file():
            raise Refusal(
                "photographs.bad-list",
                f"dataset.root={root}: image {number} ({path}) is not there, or has no class or"
                f" part in the lists beside images/; use `{_alone(root / 'images')}` to read its"
                " folders alone",
                key="dataset.root",
                number=number,
                path=path,
            )
        samples = found.setdefault(part, PartSamples([], [], [], Counter()))
        samples.images.append(root / "images" / path)
        samples.labels.append(names.get(labels[number], labels[number]))
    for samples in found.values():
        samples.classes.extend(sorted({*samples.labels}))
    ignored = beside(root)
    ignored[".txt"] -= len(LISTS) + bool(parts) + bool(names)
    for folder in class_folders(root):
        if folder.name != "images":
            ignored[f"{folder.name}/"] += count_files(folder)
    kinds = {"train": PartKind.train, "test": PartKind.test}
    return FoundParts(
        [
            DataPart(name, kinds.get(name), partial(PartSamples, *found[name]))
            for name in sorted(found)
        ],
        +ignored,
    )


def _alone(path: Path) -> str:
    """The overrides that read a folder or a table, and test on a fifth of it."""
    return f"{override('dataset.root', path)} dataset.split=0.2"


def _listed(path: Path) -> dict[str, str]:
    """What a list has of each number."""
    lines = (
        line.strip().partition(" ") for line in path.read_text("utf-8").splitlines() if line.strip()
    )
    return {number: text.strip() for number, _, text in lines}


def without_classes(root: Path) -> Refusal | None:
    """The refusal of a folder in which images have several classes; None of any other."""
    while len(folders := class_folders(root)) == 1:  # VOCdevkit/VOC2012
        (root,) = folders
    if any((folder / ONE_HOT).is_file() for folder in (root, *folders)):
        return Refusal(
            "photographs.one-hot",
            f"dataset.root={root}: {ONE_HOT} gives an image any number of classes, and a classifier"
            f" needs one; {TABLE}",
            key="dataset.root",
            root=str(root),
        )
    if {"JPEGImages", "Annotations"} <= {folder.name for folder in folders}:
        return Refusal(
            "photographs.boxes",
            f"dataset.root={root}: holds Annotations of objects, as Pascal VOC does, not of whole"
            f" images; {TABLE}",
            key="dataset.root",
            root=str(root),
        )
    return None


def refusal(root: Path) -> Refusal | None:
    """The refusal of a folder that cannot be read, by a table or an archive in it;
    None where it has neither.
    """
    tables = _tables(root)
    for part in class_folders(root):
        name = part_names.parsed(part.name)
        if name is not None and name.kind is PartKind.train:
            tables += _tables(part)  # metadata.csv in train/, as of `imagefolder`
    for table in tables:
        if table.refusal is None:
            shown = table.path.relative_to(root).as_posix()
            use = override("dataset.root", table.path)
            if not table.has_parts:
                use = _alone(table.path)
            return Refusal(
                "photographs.table-beside",
                f"dataset.root={root}: holds {shown}, which names images and their classes; use"
                f" `{use}`",
                key="dataset.root",
                table=str(table.path),
            )
    for table in tables:
        reason = None if table.refusal is None else table.refusal.message.facts.get("reason")
        if isinstance(reason, Message) and reason.code == "photographs.image-twice":
            return table.refusal
    for path in sorted(root.iterdir()):
        archive = packed(path)
        if archive is not None:
            return archive
    return None


class NearTable(NamedTuple):
    """A table in a folder of images. refusal: why it cannot be used; None where it can.
    has_parts: its rows are to train and to test on.
    """

    path: Path
    refusal: Refusal | None
    has_parts: bool = False


def _tables(root: Path) -> list[NearTable]:
    """Tables in a folder; those called as a part to train on first."""
    paths = [
        path for path in sorted(root.iterdir()) if path.suffix.lower() in (".csv", ".tsv", LINES)
    ]
    found = []
    for path in sorted(paths, key=lambda path: part_names.parsed(path.stem) is None):
        if is_hidden(path.name) or is_submission(path):
            continue
        with suppress(OSError):
            try:
                parts = table_parts([path]).parts
                found.append(NearTable(path, None, has_parts=len(parts) > 1))
            except Refusal as refusal:
                found.append(NearTable(path, refusal))
    return found


def packed(path: Path) -> Refusal | None:
    """The refusal of an archive, as of WebDataset; None of any other file."""
    if not path.name.lower().endswith(ARCHIVES) or is_hidden(path.name):
        return None
    return Refusal(
        "photographs.packed",
        f"dataset.root={path}: is an archive, which is not read; unpack it and give its folder. If"
        f" classes are in .cls files, as of WebDataset, {TABLE}",
        key="dataset.root",
        file=str(path),
    )
