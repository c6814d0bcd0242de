"""The files that the rows of a table name: by their paths, or by names or ids alone,
in a folder beside the table.
"""

import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Message
from multicard.vision.data.data_parts import train_first
from multicard.vision.data.folder_contents import (
    IMAGE_SUFFIXES,
    images_in,
    is_hidden,
    is_note_folder,
    visible_folders,
)

NOT_NAMED = "images that no row names"


class TableImages(NamedTuple):
    """The file of each row, which may not be there; and the
    images beside them that no row names, counted.

    several: by row, the images of a name that more than one has.
    """

    images: list[Path]
    ignored: Counter[str]
    several: dict[int, list[Path]]


def found(folder: Path, values: Sequence[str], own_folders: Sequence[Path] = ()) -> TableImages:
    """The files of a table's values.

    A value that is no path from the folder may have backslashes, begin with the name of the folder
    or with a path of another machine, or have other capitals. A name without a folder, with or
    without its ending, is looked for in the folders beside the table,
    and taken if one image there has it. Of a table in a folder of notes, as splits/, all this is
    looked for in the folder above where none is found there.

    Args:
        folder: of the table. values: a row each. own_folders: which are looked into first.
    """
    images = [_path(folder, value) for value in values]
    if is_note_folder(folder) and not any(image.is_file() for image in images):
        folder = folder.parent
        images = [_path(folder, value) for value in values]
    several = dict[int, list[Path]]()
    missing_rows = [row for row, image in enumerate(images) if not image.is_file()]
    if missing_rows:
        by_name = _by_name(folder, visible_folders(folder) if folder.is_dir() else [])
        own = _by_name(None, own_folders)
        prefix = _prefix(folder, [values[row] for row in missing_rows], by_name)
        spellings = _Spellings()
        for row in missing_rows:
            value = values[row].replace("\\", "/").removeprefix(prefix)
            named = own.get(value) or by_name.get(value, [])
            plain = folder / value
            if value and plain.is_file():
                images[row] = plain
            elif len(named) == 1:
                images[row] = named[0]
            elif named:
                several[row] = named
            else:
                images[row] = spellings.found(plain) or images[row]
    return TableImages(images, Counter({NOT_NAMED: not_named(images)}), several)


def _prefix(folder: Path, values: Sequence[str], by_name: Mapping[str, list[Path]]) -> str:
    """What all paths that lead nowhere begin with, and leads to a file where it is left out:
    the name of the folder itself, or the place of the data on another machine. "" of others.
    """
    paths = [value.replace("\\", "/") for value in values]
    first = next(iter(paths), "")
    names = first.split("/")
    is_absolute = first.startswith("/") or re.match("[A-Za-z]:", first) is not None
    for count in range(1, len(names)):
        prefix = "/".join(names[:count]) + "/"
        if not is_absolute and prefix != f"{folder.name}/":
            break
        rest = first.removeprefix(prefix)
        if not (folder / rest).is_file() and rest not in by_name:
            continue
        return prefix if all(path.startswith(prefix) for path in paths) else ""
    return ""


class _Spellings:
    """Files whose names differ from those asked for by capitals, or by how accents are written."""

    def __init__(self) -> None:
        self._in_folder: dict[Path, dict[str, list[Path]]] = {}

    def found(self, path: Path) -> Path | None:
        """The only file of this name in its folder; None where there is none, or several are."""
        if path.parent not in self._in_folder:
            named = defaultdict[str, list[Path]](list)
            if path.parent.is_dir():
                for each in path.parent.iterdir():
                    named[_plain(each.name)].append(each)
            self._in_folder[path.parent] = named
        same = self._in_folder[path.parent].get(_plain(path.name), [])
        return same[0] if len(same) == 1 and same[0].is_file() else None


def _plain(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def missing(folder: Path, several: Sequence[Path]) -> Message:
    """Why the image of a row is not there.

    Args:
        folder: that of the table, where the row names several images. several: these.
    """
    if not several:
        return Message(
            "photographs.no-such-image",
            "no such file; give paths relative to the table, or leave the row out",
        )
    places = {image.parent.relative_to(folder).as_posix() for image in several}
    folders = train_first(sorted(places))
    if len(folders) == 1:
        way = "give it with its ending"
    else:
        way = f"give paths from the folder of the table, as {folders[0]}/NAME"
    shown = " and ".join(f"{name}/" for name in folders[:5])
    return Message(
        "photographs.image-twice",
        f"several images of this name are there, in {shown}; {way}",
        folders=folders,
    )


def _path(folder: Path, value: str) -> Path:
    plain = folder / value
    if "\\" not in value or plain.is_file():
        return plain
    turned = folder / value.replace("\\", "/")
    return turned if turned.is_file() else plain


def _by_name(folder: Path | None, folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The images in a folder itself, and anywhere in others, by name,
    and by name without ending.
    """
    named = defaultdict[str, list[Path]](list)
    own = list[Path]()
    if folder is not None:
        own = [
            path
            for path in sorted(folder.iterdir())
            if path.name.lower().endswith(IMAGE_SUFFIXES) and path.is_file()
        ]
    below = list[Path]()
    for each in folders:
        below.extend(images_in(each)[0])
    for image in [*own, *below]:
        if not is_hidden(image.name):
            named[image.name].append(image)
            named[image.stem].append(image)
    return named


def not_named(images: Sequence[Path]) -> int:
    """How many images lie in the folders of these, and are none of them."""
    named = {os.path.normpath(image) for image in images}
    count = 0
    for folder in {Path(path).parent for path in named}:
        if folder.is_dir():
            with os.scandir(folder) as entries:
                count += sum(
                    entry.name.lower().endswith(IMAGE_SUFFIXES)
                    and not is_hidden(entry.name)
                    and entry.is_file()
                    and entry.path not in named
                    for entry in entries
                )
    return count
