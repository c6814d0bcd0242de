"""What lies in folders: images, folders and files that are not read, by their kind.
Hidden ones are left out.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Refusal

SUFFIXES = (
    ".jpg",
    ".jpeg",
    ".png",
    ".ppm",
    ".bmp",
    ".pgm",
    ".tif",
    ".tiff",
    ".webp",
    ".gif",
    ".jfif",
    ".avif",
)
# What systems and programs leave in folders; it counts as hidden,
# as all whose name begins with a dot does
LEFT_BY_OTHERS = {
    "__macosx",
    "@eadir",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "__pycache__",
}
LEFT_BY_OTHERS |= {"thumbs.db", "desktop.ini", "icon\r"}
NOTES = {
    ".txt",
    ".md",
    ".csv",
    ".tsv",
    ".json",
    ".jsonl",
    ".xml",
    ".mat",
    ".yaml",
    ".yml",
    ".pdf",
    ".html",
    ".py",
}
NOTES |= {".ipynb", ".xlsx", ".xls", ".rst", ".npy", ".pkl", ".names", ".cfg"}
# Names of folders of such files, in lower case, which are no classes beside others
NOTE_FOLDERS = {
    "meta",
    "metadata",
    "annotation",
    "annotations",
    "notes",
    "doc",
    "docs",
    "info",
    "about",
    "label",
}
NOTE_FOLDERS |= {
    "labels",
    "csv",
    "csvs",
    "json",
    "txt",
    "xml",
    "split",
    "splits",
    "list",
    "lists",
    "attributes",
}
OWN = ".multicard"  # holds decoded images
OUTSIDE = " outside of classes"  # is added to the kind of images there
LONGEST_ENDING = 8  # letters; what is longer is a part of a name


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in LEFT_BY_OTHERS


def kind_of_file(name: str) -> str:
    """The kind under which a file that is not read is counted: its ending."""
    ending = Path(name).suffix.lower()
    is_ending = 1 < len(ending) <= LONGEST_ENDING and ending[1:].isalnum()
    return ending if is_ending else "files without an ending"


class FolderListing(NamedTuple):
    """What lies directly in a folder: whether an image does,
    and its folders but for hidden ones.
    """

    has_images: bool
    folders: list[Path]

    @property
    def names(self) -> set[str]:
        return {folder.name for folder in self.folders}


def look(folder: Path) -> FolderListing:
    """A look into a folder, up to its first image: folders of classes may hold a million."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.name.lower().endswith(SUFFIXES):
                return FolderListing(True, [])
    return FolderListing(False, sorted(folders))


def class_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))


def images_in(folder: Path) -> tuple[list[Path], Counter[str]]:
    """All images below `folder` that neither are hidden nor lie in a hidden folder, by folder and
    name; and how many other files lie there, by kind.

    Circles of links and pipes are refused; an OSError is of a folder that cannot be read.
    """
    images = []
    others = Counter[str]()
    seen = set()
    folders = [os.fspath(folder)]
    while folders:
        part = folders.pop()
        real = os.path.realpath(part)
        if real in seen:
            raise Refusal(
                "photographs.circle",
                f"{part}: leads to a folder of {folder} that is read already; remove this link",
                path=part,
                folder=str(folder),
            )
        seen.add(real)
        with os.scandir(part) as entries:  # tells files without a call for each
            for entry in entries:
                if is_hidden(entry.name):
                    others["hidden"] += entry.name != OWN
                elif entry.is_dir():
                    folders.append(entry.path)
                elif not entry.name.lower().endswith(SUFFIXES):
                    others[kind_of_file(entry.name)] += 1
                elif entry.is_file():
                    images.append((part, entry.name))
                else:
                    raise Refusal(
                        "photographs.no-file",
                        f"{entry.path}: is no file, or a link that leads nowhere; remove it",
                        path=entry.path,
                    )
    return [Path(*image) for image in sorted(images)], +others


def holds_images(folder: Path) -> bool:
    """True where an image lies anywhere below a folder."""
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        if any(name.lower().endswith(SUFFIXES) and not is_hidden(name) for name in files):
            return True
    return False


def holds_notes(folder: Path) -> bool:
    """True of a folder of files about images alone, as meta/ of Food-101: neither an empty one, nor
    one with images of a form that is not read.
    """
    files = []
    for _, _, names in os.walk(folder):
        files.extend(name for name in names if not is_hidden(name))
    return bool(files) and all(Path(name).suffix.lower() in NOTES for name in files)


def called_as_notes(folder: Path) -> bool:
    return folder.name.lower() in NOTE_FOLDERS and holds_notes(folder)


def beside(folder: Path) -> Counter[str]:
    """The files directly in a folder, beside its folders, by kind."""
    found = Counter[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                found["hidden"] += entry.name != OWN
            elif not entry.is_dir():
                kind = kind_of_file(entry.name)
                found[f"{kind}{OUTSIDE}" if kind in SUFFIXES else kind] += 1
    return +found


def count_files(folder: Path) -> int:
    """The files below a folder that is not read."""
    return sum(len(files) for _, _, files in os.walk(folder))


def in_words(counts: Counter[str]) -> str:
    """What is not read: "50 .heic, 3 .txt"."""
    return ", ".join(f"{number:,} {kind}" for kind, number in counts.most_common())


def are_numbered(names: Iterable[str]) -> bool:
    """True of folders that divide an archive: images_001 and images_002, part_a and part_b, 0f."""
    return len({_words(name) for name in names}) == 1


def _words(name: str) -> tuple[str, ...]:
    """The words of a folder's name without numbers and letters: of images_001, part_a, and 0f."""
    if re.fullmatch(r"[0-9a-f]{1,2}", name.lower()):
        return ()
    return tuple(word for word in re.findall(r"[^\W\d_]+", name.lower()) if len(word) > 1)


def filled_names(folder: Path) -> set[str]:
    """The names of the folders in a folder that hold images."""
    return {each.name for each in class_folders(folder) if holds_images(each)}
