"""Recognize lists of images and the numbers of their classes, as Caffe and others keep them.

Each line of such a text has an image and a number: "n01440764/10026.JPEG 0". They are not read, but
a command turns them into tables.
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind
from multicard.vision.data import table_images
from multicard.vision.data.data_parts import train_first
from multicard.vision.data.folder_contents import is_hidden, is_note_folder, visible_folders
from multicard.vision.data.known_layouts import overrides_to_read_alone

TEXT_LIST = ".txt"
MOST_LISTS = 20  # If a folder has more texts, none of them is looked at.
# Words in the name of a list whose numbers may be parts: CelebA's list_eval_partition.txt. A list
# of a split's own part has classes, such as train_split1.txt.
PARTITION = re.compile(r"partitions?", re.IGNORECASE)
SPLIT = re.compile(r"splits?", re.IGNORECASE)
LINE = re.compile(r"\s*(?P<image>\S.*?)\s+\d+\s*")
# Writes the names of the columns above, and each line as "image",number.
TO_TABLE = r's/^[[:space:]]*(.*[^[:space:]])[[:space:]]+([0-9]+)[[:space:]]*$/"\1",\2/'


def lists_refusal(root: Path) -> Refusal | None:
    """Return the refusal of a folder whose images such lists give classes, or of a list itself.

    Return None if there are no lists, or if they name other images.
    """
    if root.is_file():
        return _refusal([root], root) if _lists_images(root, root.parent) else None
    notes = [folder for folder in visible_folders(root) if is_note_folder(folder)]
    for place in (root, *notes):
        lists = [path for path in _candidates(place) if _lists_images(path, root)]
        names = part_names.named(path.stem for path in lists)
        kinds = {part.kind for part in names.values()}
        if PartKind.train in kinds and len(kinds) > 1:
            by_name = {path.stem: path for path in lists if path.stem in names}
            return _refusal([by_name[name] for name in train_first(by_name)], root)
        if lists:
            return _refusal(lists[:1], root)
    return None


def _candidates(folder: Path) -> list[Path]:
    """Return the texts in a folder. If there are many, they are labels of an image each."""
    texts = [path for path in sorted(folder.glob(f"*{TEXT_LIST}")) if not is_hidden(path.name)]
    return [path for path in texts if not _lists_parts(path)] if len(texts) <= MOST_LISTS else []


def _lists_parts(path: Path) -> bool:
    """Tell by its name whether a list gives images their part instead of their class."""
    if PARTITION.search(path.stem):
        return True
    return SPLIT.search(path.stem) is not None and part_names.parsed(path.stem) is None


def _lists_images(path: Path, root: Path) -> bool:
    """Tell whether each line has an image and a number, and the first image exists."""
    try:
        lines = [line for line in path.read_text("utf-8-sig").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError):
        return False
    matches = [LINE.fullmatch(line) for line in lines]
    if not matches or not all(matches) or matches[0] is None:
        return False
    folders = table_images.folders_of_part(path, root)
    first_image = matches[0]["image"]
    found = table_images.find_images(path.parent.absolute(), [first_image], folders)
    return found.images[0].is_file()


def _refusal(lists: Sequence[Path], root: Path) -> Refusal:
    tables = [path.with_suffix(".csv") for path in lists]
    commands = [
        f"sed -E -e '1i path,label' -e {shlex.quote(TO_TABLE)} {shlex.quote(str(path))}"
        f" > {shlex.quote(str(table))}"
        for path, table in zip(lists, tables, strict=True)
    ]
    command = " && ".join(commands)
    overrides = None  # Tables of parts are found in the folder.
    if len(lists) == 1:
        overrides = overrides_to_read_alone(tables[0])
    use = "" if overrides is None else f", and use `{overrides}`"
    shown = ", ".join(path.name for path in lists)
    return Refusal(
        "photographs.text-lists",
        f"dataset.root={root}: the classes of these images are in lists ({shown}), which are not"
        f" read; write tables of them by `{command}`{use}",
        key="dataset.root",
        files=[str(path) for path in lists],
        command=command,
        remedy=overrides,
    )
