"""The files that the rows of a table name: by their paths, or by names or ids alone,
in a folder beside the table.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Message
from multicard.vision.data.data_parts import train_first
from multicard.vision.data.folder_contents import SUFFIXES, class_folders, images_in, is_hidden

NOT_NAMED = "images that no row names"


class TableImages(NamedTuple):
    """The file of each row, which may not be there; and the
    images beside them that no row names, counted.

    several: by row, the images of a name that more than one has.
    """

    images: list[Path]
    ignored: Counter[str]
    several: dict[int, list[Path]]


def found(folder: Path, values: Sequence[str]) -> TableImages:
    """The files of a table's values.

    A value that is no path from the folder may have backslashes. A name without a folder, with or
    without its ending, is looked for in the folders beside the table,
    and taken if one image there has it.

    Args:
        folder: of the table. values: a row each.
    """
    images = [_path(folder, value) for value in values]
    several = dict[int, list[Path]]()
    if any(not image.is_file() for image in images):
        by_name = _by_name(folder)
        for row, value in enumerate(values):
            named = by_name.get(value, [])
            if images[row].is_file():
                continue
            if len(named) == 1:
                images[row] = named[0]
            elif named:
                several[row] = named
    return TableImages(images, Counter({NOT_NAMED: _not_named(images)}), several)


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


def _by_name(folder: Path) -> dict[str, list[Path]]:
    """The images in the folder of a table and the folders in it, by name,
    and by name without ending.
    """
    named = defaultdict[str, list[Path]](list)
    own = [
        path
        for path in sorted(folder.iterdir())
        if path.name.lower().endswith(SUFFIXES) and path.is_file()
    ]
    below = [image for each in class_folders(folder) for image in images_in(each)[0]]
    for image in [*own, *below]:
        if not is_hidden(image.name):
            named[image.name].append(image)
            named[image.stem].append(image)
    return named


def _not_named(images: Sequence[Path]) -> int:
    """How many images lie in the folders of these, and are none of them."""
    named = {os.path.normpath(image) for image in images}
    count = 0
    for folder in {Path(path).parent for path in named}:
        if folder.is_dir():
            with os.scandir(folder) as entries:
                count += sum(
                    entry.name.lower().endswith(SUFFIXES)
                    and not is_hidden(entry.name)
                    and entry.is_file()
                    and entry.path not in named
                    for entry in entries
                )
    return count
