"""Warn of images that lose information when they are decoded to 8-bit RGB.

They have more than 8 bits of which few are used, further bands, or further pages. Bits and bands
are checked in a sample of the images.
"""

import struct
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicard.config.vision_data import ImagesConfig
from multicard.messages import Message
from multicard.vision.data import decoding
from multicard.vision.data.splits import DataSplits
from multicard.vision.data.stored_images import EncodedImage

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_OPENED = 200  # At most this many images are opened, evenly spaced among all.
SUFFIXES_WITH_MORE = (".png", ".tif", ".tiff", ".pgm", ".ppm")
TIFF_SUFFIXES = (".tif", ".tiff")
SUBFILE = 0xFE  # A tag of TIFF that says what a page is for.
BANDS_TAG = 0x115  # A tag of TIFF: samples per pixel.
TIFF_MAGIC = 42  # The magic number of a TIFF that is not a BigTIFF.
TAG_BYTES = 12
REDUCED_OR_MASK = 0b101  # Bits of SUBFILE: the page is a smaller copy of another, or its mask.
PAGES = "further pages of .tif"
WHITE = 2**16 - 1
QUARTER_OF_RANGE = 2**14  # If all values are below, they use at most a quarter of the range.


def notices_of_images(data: DataSplits, config: ImagesConfig) -> list[Message]:
    """Return notices about 16-bit images that use few of their bits, and about unread bands."""
    images = [*_encoded_images(data.train.images), *_encoded_images(data.test.images)]
    opened_images = _evenly_spaced([image for image in images if _may_have_more(image)])
    largest = list[int]()
    bands = 0
    for image in opened_images:
        inspection = _inspect(image)
        if inspection is None:
            continue
        largest += [] if inspection[0] is None else [inspection[0]]
        bands += inspection[1]
    notices = list[Message]()
    if largest and max(largest) < QUARTER_OF_RANGE:
        levels = (max(largest) * 255 + WHITE // 2) // WHITE + 1
        bits = max(largest).bit_length()
        notices.append(
            Message(
                "photographs.dark",
                f"dataset.root={config.root}: the {len(largest):,} inspected 16-bit images have"
                f" values up to {max(largest):,} of {WHITE:,} ({bits} bits). White stays"
                f" {WHITE:,}, so at most {levels} of 256 levels remain. If these are too few, scale"
                " the images to the full range, or save them with 8 bits",
                key="dataset.root",
                root=str(config.root),
                most=max(largest),
                bits=bits,
                levels=levels,
                images=len(largest),
            )
        )
    if bands:
        notices.append(
            Message(
                "photographs.further-band",
                f"dataset.root={config.root}: {bands:,} of {len(opened_images):,} inspected images"
                " have a further band that is not marked as transparency, and is not read",
                key="dataset.root",
                root=str(config.root),
                images=bands,
                opened=len(opened_images),
            )
        )
    return notices


def _encoded_images(images: np.ndarray | Sequence[EncodedImage]) -> Sequence[EncodedImage]:
    return () if isinstance(images, np.ndarray) else images


def _may_have_more(image: EncodedImage) -> bool:
    return not isinstance(image, Path) or image.suffix.lower() in SUFFIXES_WITH_MORE


def _evenly_spaced(images: Sequence[EncodedImage]) -> list[EncodedImage]:
    step = max(1, -(-len(images) // MOST_OPENED))
    return [*images[::step]]


def _inspect(encoded: EncodedImage) -> tuple[int | None, bool] | None:
    """Return the largest value of a 16-bit image, and whether the image has an unread band.

    The value is None for other images. Return None if the image cannot be decoded, which decoding
    reports.
    """
    from PIL import Image

    try:
        with encoded.open("rb") as file, Image.open(file) as image:
            band = _has_further_band(image)
            if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
                # With 12 bits, for instance, decoding already takes the full 12 bits as white.
                if _bits(image) < WHITE.bit_length():
                    return None, band
                return int(np.asarray(image).max()), band
            if _is_cut_to_8_bits(image):
                opaque = np.asarray(image.convert("RGBA"))[..., :3]
                return (int(opaque.max()) + 1) * 256 - 1, band
            return None, band
    except Exception:
        return None


def _has_further_band(image: "Image") -> bool:
    """Tell whether a TIFF has more bands than are shown, or one that Pillow mistakes for alpha."""
    tags: Any = getattr(image, "tag_v2", {})
    return decoding.has_other_band(image) or tags.get(BANDS_TAG, 0) > len(image.getbands())


def _bits(image: "Image") -> int:
    tags: Any = getattr(image, "tag_v2", {})
    return tags.get(decoding.BITS_PER_SAMPLE, (WHITE.bit_length(),))[0]


def _is_cut_to_8_bits(image: "Image") -> bool:
    """Tell whether Pillow reads only the upper 8 of 16 bits of a color image."""
    tiles = getattr(image, "tile", ())
    return image.mode in ("RGB", "RGBA", "LA") and any(";16" in str(tile) for tile in tiles)


def further_pages(images: Iterable[EncodedImage]) -> int:
    """Count the pages of TIFFs that are not read, without smaller copies of pages and masks."""
    return sum(
        _further_pages(image)
        for image in images
        if isinstance(image, Path) and image.suffix.lower() in TIFF_SUFFIXES
    )


@cache
def _further_pages(path: Path) -> int:
    from PIL import Image

    try:
        if not _may_have_pages(path):
            return 0
        with Image.open(path) as image:
            tags = list[int]()
            for page in range(getattr(image, "n_frames", 1)):
                image.seek(page)
                tags.append(getattr(image, "tag_v2", {}).get(SUBFILE, 0))
    except Exception:  # Decoding will name the broken file.
        return 0
    return sum(not tag & REDUCED_OR_MASK for tag in tags[1:])


def _may_have_pages(path: Path) -> bool:
    """Return False if the first page of a TIFF names no next page.

    Pillow takes thirty times as long to find out.
    """
    with path.open("rb") as file:
        order = file.read(2)
        kind = file.read(2)
        first = file.read(4)
        sign = "<" if order == b"II" else ">"
        if struct.unpack(f"{sign}H", kind)[0] != TIFF_MAGIC:
            return True  # The file is a BigTIFF, or no TIFF.
        file.seek(struct.unpack(f"{sign}I", first)[0])
        (tags,) = struct.unpack(f"{sign}H", file.read(2))
        file.seek(tags * TAG_BYTES, 1)
        return file.read(4) != bytes(4)
