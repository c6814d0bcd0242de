"""Find the image files that the rows of a table name.

A row may give a path, or only a name or id, which is looked up in the folders beside the table.
"""

import errno
import os
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Message
from multicard.records import part_names
from multicard.vision.data.data_parts import train_first
from multicard.vision.data.folder_contents import (
    IMAGE_SUFFIXES,
    images_in,
    is_hidden,
    is_note_folder,
    visible_folders,
)
from multicard.vision.data.image_copies import are_copies

NOT_NAMED = "images that no row names"
COPIES = "copies of images that rows name"


class TableImages(NamedTuple):
    """The image file of each row, which may not exist.

    Attributes:
        ignored: How many images beside them no row names, and how many are copies of a named one.
        ambiguous: By row, the images that have the row's name if there are several.
    """

    images: list[Path]
    ignored: Counter[str]
    ambiguous: dict[int, list[Path]]


def find_images(
    folder: Path, values: Sequence[str], first_folders: Sequence[Path] = ()
) -> TableImages:
    """Find the file that each value names.

    A value that is no valid path may have backslashes or different case. It may also begin with the
    name of the folder, or with a path on another machine. A name without a folder, with or without
    its ending, is looked up in the folders beside the table. Exactly one image must have it, apart
    from copies of this image. If the table lies in a folder of notes, such as splits/, the folder
    above is searched next.

    Args:
        folder: The folder of the table.
        values: The value of each row.
        first_folders: The folders in which names are looked up first.
    """
    images = [_path_of_value(folder, value) for value in values]
    if is_note_folder(folder) and not any(map(is_file, images)):
        folder = folder.parent
        images = [_path_of_value(folder, value) for value in values]
    ambiguous = dict[int, list[Path]]()
    copies = list[Path]()
    missing_rows = [row for row, image in enumerate(images) if not is_file(image)]
    if missing_rows:
        by_name = _images_by_name(folder, visible_folders(folder) if folder.is_dir() else [])
        first_by_name = _images_by_name(None, first_folders)
        prefix = _broken_prefix(folder, [values[row] for row in missing_rows], by_name)
        spellings = _Spellings()
        for row in missing_rows:
            value = values[row].replace("\\", "/").removeprefix(prefix)
            same_name = first_by_name.get(value) or by_name.get(value, [])
            path = folder / value
            if value and is_file(path):
                images[row] = path
            elif same_name and are_copies(same_name):
                images[row] = same_name[0]
                copies += same_name[1:]
            elif same_name:
                ambiguous[row] = same_name
            else:
                images[row] = spellings.find(path) or images[row]
    not_named = count_not_named([*images, *copies])
    return TableImages(images, Counter({NOT_NAMED: not_named, COPIES: len({*copies})}), ambiguous)


def is_file(path: Path) -> bool:
    """Tell whether a value of a table names a file. A longer text than any file name does not."""
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def folders_of_part(table: Path, root: Path) -> list[Path]:
    """Return the folders of the part that a table is named as: train/ for train_labels.csv.

    Args:
        root: The folder with the folders of images.
    """
    part = part_names.parsed(table.stem)
    folders = list[Path]()
    for folder in visible_folders(root) if root.is_dir() else []:
        name = part_names.parsed(folder.name)
        if part is not None and name is not None and name.kind is part.kind:
            folders.append(folder)
    return folders


def _broken_prefix(folder: Path, values: Sequence[str], by_name: Mapping[str, list[Path]]) -> str:
    """Return the prefix that all broken paths share, if a file exists without it.

    It may be the name of the folder itself, or the place of the data on another machine. Return ""
    if there is no such prefix.
    """
    paths = [value.replace("\\", "/") for value in values]
    first = paths[0] if paths else ""
    names = first.split("/")
    is_absolute = first.startswith("/") or re.match("[A-Za-z]:", first) is not None
    for count in range(1, len(names)):
        prefix = "/".join(names[:count]) + "/"
        if not is_absolute and prefix != f"{folder.name}/":
            break
        remainder = first.removeprefix(prefix)
        if not is_file(folder / remainder) and remainder not in by_name:
            continue
        return prefix if all(path.startswith(prefix) for path in paths) else ""
    return ""


class _Spellings:
    """Finds files whose names differ from the requested ones in case or in encoded accents."""

    def __init__(self) -> None:
        self._in_folder: dict[Path, dict[str, list[Path]]] = {}

    def find(self, path: Path) -> Path | None:
        """Return the file with this name in its folder, or None unless there is exactly one."""
        if path.parent not in self._in_folder:
            by_spelling = defaultdict[str, list[Path]](list)
            if path.parent.is_dir():
                for file in path.parent.iterdir():
                    by_spelling[_plain_spelling(file.name)].append(file)
            self._in_folder[path.parent] = by_spelling
        candidates = self._in_folder[path.parent].get(_plain_spelling(path.name), [])
        return candidates[0] if len(candidates) == 1 and candidates[0].is_file() else None


def _plain_spelling(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


def missing_image_message(folder: Path, ambiguous: Sequence[Path]) -> Message:
    """Return why the image of a row does not exist or is ambiguous.

    Args:
        folder: The folder of the table.
        ambiguous: The images that have the row's name, if there are several.
    """
    if not ambiguous:
        return Message(
            "photographs.no-such-image",
            "names no existing file; give paths relative to the table, or leave the row out",
        )
    places = {image.parent.relative_to(folder).as_posix() for image in ambiguous}
    folders = train_first(sorted(places))
    if len(folders) == 1:
        advice = "give it with its ending"
    else:
        advice = (
            f"give paths relative to the table's folder, such as {folders[0]}/NAME, or move the"
            " table into one of these folders"
        )
    shown = " and ".join(f"{name}/" for name in folders[:5])
    return Message(
        "photographs.image-twice",
        f"names several images, in {shown}; {advice}",
        folders=folders,
    )


def _path_of_value(folder: Path, value: str) -> Path:
    path = folder / value
    if "\\" not in value or is_file(path):
        return path
    slashed = folder / value.replace("\\", "/")
    return slashed if is_file(slashed) else path


def _images_by_name(folder: Path | None, folders: Sequence[Path]) -> dict[str, list[Path]]:
    """Map names, with and without ending, to the images in a folder and anywhere below others."""
    images_by_name = defaultdict[str, list[Path]](list)
    direct_images = list[Path]()
    if folder is not None:
        direct_images = [
            path
            for path in sorted(folder.iterdir())
            if path.name.lower().endswith(IMAGE_SUFFIXES) and path.is_file()
        ]
    below = list[Path]()
    for searched in folders:
        below.extend(images_in(searched)[0])
    for image in [*direct_images, *below]:
        if not is_hidden(image.name):
            images_by_name[image.name].append(image)
            images_by_name[image.stem].append(image)
    return images_by_name


def count_not_named(images: Sequence[Path]) -> int:
    """Count the images that lie in the folders of the given images without being one of them."""
    named_paths = {os.path.normpath(image) for image in images}
    count = 0
    for folder in {Path(path).parent for path in named_paths}:
        if folder.is_dir():
            with os.scandir(folder) as entries:
                count += sum(
                    entry.name.lower().endswith(IMAGE_SUFFIXES)
                    and not is_hidden(entry.name)
                    and entry.is_file()
                    and entry.path not in named_paths
                    for entry in entries
                )
    return count
