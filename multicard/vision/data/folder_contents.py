"""List what a folder holds: images, subfolders, and the files that are not read, counted by kind.

Hidden files and folders are left out.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from multicard.messages import Refusal

IMAGE_SUFFIXES = (
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
# Names, in lower case, that operating systems and programs leave in folders. They count as hidden,
# like all names that begin with a dot.
SYSTEM_NAMES = {
    "__macosx",
    "@eadir",
    "$recycle.bin",
    "system volume information",
    "lost+found",
    "__pycache__",
}
SYSTEM_NAMES |= {"thumbs.db", "desktop.ini", "icon\r"}
# Endings of files about images, such as their annotations.
NOTE_SUFFIXES = {
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
NOTE_SUFFIXES |= {".ipynb", ".xlsx", ".xls", ".rst", ".npy", ".pkl", ".names", ".cfg"}
# Names, in lower case, of folders that hold such files. Beside folders of classes, they are no
# class themselves.
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
CACHE_FOLDER = ".multicard"  # Our own decoded images; they do not count as ignored.
OUTSIDE_CLASSES = " outside of classes"  # Follows the kind of an image that lies in no class.
LONGEST_ENDING = 8  # Letters. Whatever is longer belongs to the name.


def is_hidden(name: str) -> bool:
    return name.startswith(".") or name.lower() in SYSTEM_NAMES


def kind_of_file(name: str) -> str:
    """Return the kind under which an unread file is counted: its ending."""
    ending = Path(name).suffix.lower()
    is_ending = 1 < len(ending) <= LONGEST_ENDING and ending[1:].isalnum()
    return ending if is_ending else "files without an ending"


class FolderListing(NamedTuple):
    """The direct content of a folder: whether it holds an image, and its visible subfolders.

    If it holds an image, `folders` is empty.
    """

    has_images: bool
    folders: list[Path]

    @property
    def names(self) -> set[str]:
        return {folder.name for folder in self.folders}


def list_folder(folder: Path) -> FolderListing:
    """List a folder, stopping at its first image: a class may hold a million of them."""
    folders = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                continue
            if entry.is_dir():
                folders.append(Path(entry.path))
            elif entry.name.lower().endswith(IMAGE_SUFFIXES):
                return FolderListing(True, [])
    return FolderListing(False, sorted(folders))


def visible_folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name))


def images_in(folder: Path) -> tuple[list[Path], Counter[str]]:
    """Find all images below `folder`, except hidden ones and ones in hidden folders.

    Returns:
        The images, sorted by folder and name, and the number of other files by kind.

    Raises:
        Refusal: a link leads into a circle, or an image is a pipe or a broken link.
        OSError: a folder cannot be read.
    """
    images = []
    other_files = Counter[str]()
    visited = set()
    folders = [os.fspath(folder)]
    while folders:
        part = folders.pop()
        real = os.path.realpath(part)
        if real in visited:
            raise Refusal(
                "photographs.circle",
                f"{part}: leads to a folder of {folder} that was already read; remove this link",
                path=part,
                folder=str(folder),
            )
        visited.add(real)
        with os.scandir(part) as entries:  # Needs no system call per file to recognize folders.
            for entry in entries:
                if is_hidden(entry.name):
                    other_files["hidden"] += entry.name != CACHE_FOLDER
                elif entry.is_dir():
                    folders.append(entry.path)
                elif not entry.name.lower().endswith(IMAGE_SUFFIXES):
                    other_files[kind_of_file(entry.name)] += 1
                elif entry.is_file():
                    images.append((part, entry.name))
                else:
                    raise Refusal(
                        "photographs.no-file",
                        f"{entry.path}: is not a file, or is a link that leads nowhere; remove it",
                        path=entry.path,
                    )
    return [Path(*image) for image in sorted(images)], +other_files


def holds_images(folder: Path) -> bool:
    """Tell whether an image lies anywhere below a folder."""
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]
        if any(name.lower().endswith(IMAGE_SUFFIXES) and not is_hidden(name) for name in files):
            return True
    return False


def holds_notes(folder: Path) -> bool:
    """Tell whether a folder holds only files about images, like meta/ of Food-101.

    An empty folder does not, nor does a folder with images in a format that is not read.
    """
    all_names = []
    for _, _, file_names in os.walk(folder):
        all_names.extend(name for name in file_names if not is_hidden(name))
    return bool(all_names) and all(Path(name).suffix.lower() in NOTE_SUFFIXES for name in all_names)


def is_note_folder(folder: Path) -> bool:
    return folder.name.lower() in NOTE_FOLDERS and holds_notes(folder)


def count_loose_files(folder: Path) -> Counter[str]:
    """Count the files that lie directly in a folder, beside its subfolders, by kind."""
    counts = Counter[str]()
    with os.scandir(folder) as entries:
        for entry in entries:
            if is_hidden(entry.name):
                counts["hidden"] += entry.name != CACHE_FOLDER
            elif not entry.is_dir():
                kind = kind_of_file(entry.name)
                counts[f"{kind}{OUTSIDE_CLASSES}" if kind in IMAGE_SUFFIXES else kind] += 1
    return +counts


def count_files(folder: Path) -> int:
    """Count all files below a folder."""
    return sum(len(files) for _, _, files in os.walk(folder))


def count_unread_beside(folder: Path, read: Path) -> Counter[str]:
    """Count by kind what lies in `folder` beside the subfolder that is read."""
    others = Counter(
        {
            f"{subfolder.name}/": count_files(subfolder)
            for subfolder in visible_folders(folder)
            if subfolder != read
        }
    )
    return +others + count_loose_files(folder)


def format_counts(counts: Counter[str]) -> str:
    """Format counts by kind, the largest first: "50 .heic, 3 .txt"."""
    return ", ".join(f"{number:,} {kind}" for kind, number in counts.most_common())


def are_numbered(names: Iterable[str]) -> bool:
    """Tell whether names only number the pieces of an archive: images_001, part_a, 0f."""
    return len({_words(name) for name in names}) == 1


def _words(name: str) -> tuple[str, ...]:
    """Split a name into words, without numbers, single letters, and names such as 0f."""
    if re.fullmatch(r"[0-9a-f]{1,2}", name.lower()):
        return ()
    return tuple(word for word in re.findall(r"[^\W\d_]+", name.lower()) if len(word) > 1)


def names_with_images(folder: Path) -> set[str]:
    """Return the names of the subfolders that hold images."""
    return {subfolder.name for subfolder in visible_folders(folder) if holds_images(subfolder)}
