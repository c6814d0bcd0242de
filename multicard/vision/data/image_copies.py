"""Recognize copies of an image: files of one name with the same bytes in several folders.

Some archives hold a folder twice, such as images_part_1/ and Images_part_1/.
"""

import filecmp
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from multicard.records import part_names
from multicard.records.part_names import PartKind

MOST_REMEMBERED = 100_000  # Each table beside the images asks again, so results are kept.


def are_copies(images: Sequence[Path]) -> bool:
    """Tell whether images have one name, the same bytes, and belong to the same part.

    An image that is trained on and tested on is no mere copy.

    Raises:
        OSError: A file cannot be read.
    """
    first, *others = images
    return all(
        other.name == first.name
        and _part_kinds(other) == _part_kinds(first)
        and _have_same_bytes(first, other, _version(first), _version(other))
        for other in others
    )


def _part_kinds(image: Path) -> list[PartKind]:
    names = map(part_names.parsed, image.parent.parts)
    return [name.kind for name in names if name is not None]


def _version(image: Path) -> tuple[int, int]:
    """Return the file's size and time, which differ once it has changed."""
    status = image.stat()
    return status.st_size, status.st_mtime_ns


@lru_cache(MOST_REMEMBERED)
def _have_same_bytes(
    first: Path, other: Path, first_version: tuple[int, int], other_version: tuple[int, int]
) -> bool:
    same_size = first_version[0] == other_version[0]
    return same_size and filecmp.cmp(first, other, shallow=False)
