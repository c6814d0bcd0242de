"""Find images that a data set holds more than once: in training and test, or with two labels.

Two images are the same if they are one file (also through links and hard links) or have the same
bytes. Only images of equal size are read: first their beginnings, then the whole of those that are
still equal. If that is too much to read, some sizes are left out, the same ones every time. The
record therefore says how many images were compared.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any
from zlib import crc32

from multicard.records.schema_data import RepeatedImages
from multicard.vision.data.splits import Split
from multicard.vision.data.stored_images import EncodedImage, StoredImage, files_of

FIRST_BYTES = 4096  # Nearly all different images differ within this beginning.
MOST_READ = 20_000  # At most this many images have their beginnings read.
MOST_BYTES = 256 << 20  # At most this much is read of whole images.
MOST_TABLE_BYTES = 1 << 30  # If the files that hold images exceed this, they are not compared.


@dataclass(frozen=True)
class ImagePlace:
    """Where an image is stored, and its size in bytes.

    Two paths to the same file have the same `where`.
    """

    where: Hashable
    size: int


def count_repeated(train: Split, test: Split) -> RepeatedImages | None:
    """Count the repeated images. Return None for images that are not encoded (built-in data sets).

    Raises:
        OSError: A file cannot be read.
    """
    if not isinstance(train.images, list) or not isinstance(test.images, list):
        return None
    images = [*train.images, *test.images]
    labels = [*train.labels.tolist(), *test.labels.tolist()]
    places = _locate_images(images)
    digests, compared = _digest_images(images, places)
    contents = [
        None if place is None else digests.get(place.where, place.where) for place in places
    ]
    labels_of: dict[Hashable, set[int]] = {}
    for content, label in zip(contents, labels, strict=True):
        labels_of.setdefault(content, set()).add(label)
    two_labels = sum(content is not None and len(labels_of[content]) > 1 for content in contents)
    trained = {*contents[: len(train)]} - {None}
    tested = contents[len(train) :]
    for file in files_of(images):
        file.release()
    return RepeatedImages(
        sum(content in trained for content in tested),
        two_labels,
        len(tested),
        compared,
        len(images),
    )


def _locate_images(images: Sequence[EncodedImage]) -> list[ImagePlace | None]:
    """Locate each image. The place is None for images without bytes, or in too large tables."""
    files = files_of(images)
    too_large = sum(file.path.stat().st_size for file in files) > MOST_TABLE_BYTES
    sizes = {} if too_large else {file: _lengths(file.load()) for file in files}
    places: list[ImagePlace | None] = []
    for image in images:
        if not isinstance(image, StoredImage):
            status = image.stat()
            places.append(ImagePlace((status.st_dev, status.st_ino), status.st_size))
        else:
            size = None if too_large else sizes[image.file][image.index]
            places.append(
                None if size is None else ImagePlace((image.file.path, image.index), size)
            )
    return places


def _lengths(column: Any) -> list[int | None]:
    import pyarrow.compute as pc

    return pc.call_function("binary_length", [column]).to_pylist()


def _digest_images(
    images: Sequence[EncodedImage], places: Sequence[ImagePlace | None]
) -> tuple[dict[Hashable, str], int]:
    """Compute digests of the images that share their size with another one.

    Returns:
        The digests by the image's place, and how many images of the data set were compared with all
        others.
    """
    of_size: dict[int, dict[Hashable, EncodedImage]] = {}
    for image, place in zip(images, places, strict=True):
        if place is not None:
            of_size.setdefault(place.size, {}).setdefault(place.where, image)
    groups = {size: group for size, group in of_size.items() if len(group) > 1 and size}
    order = sorted(groups, key=lambda size: crc32(str(size).encode()))
    digests: dict[Hashable, str] = {}
    sizes_left_out = set[int]()
    images_read = 0
    bytes_read = 0
    for size in order:
        group = groups[size]
        if images_read + len(group) > MOST_READ:
            sizes_left_out.add(size)
            continue
        images_read += len(group)
        first = {where: _digest(image, FIRST_BYTES) for where, image in group.items()}
        equal_so_far = _with_equal_digest(first)
        if size > FIRST_BYTES and bytes_read + size * len(equal_so_far) > MOST_BYTES:
            sizes_left_out.add(size)
            continue
        for where in equal_so_far:
            digests[where] = first[where] if size <= FIRST_BYTES else _digest(group[where])
        bytes_read += size * len(equal_so_far) if size > FIRST_BYTES else 0
    compared = sum(place is not None and place.size not in sizes_left_out for place in places)
    return digests, compared


def _with_equal_digest(digests: dict[Hashable, str]) -> list[Hashable]:
    counts = Counter(digests.values())
    return [where for where, digest in digests.items() if counts[digest] > 1]


def _digest(image: EncodedImage, length: int = -1) -> str:
    with image.open("rb") as file:
        return sha256(file.read(length)).hexdigest()
