"""Decode photographs as a viewer shows them: 8-bit RGB, upright, first frame, on a white ground.

Color profiles are not applied. All decoding goes through here except DALI's own decoder, which is
meant to be measured as it is. DALI is not given files that it would show differently
(`require_plain`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicard.messages import Refusal
from multicard.vision.data.stored_images import EncodedImage

if TYPE_CHECKING:
    from PIL.Image import Image

# The version of the pixels that `decode` returns. A new version rebuilds decoded caches and changes
# the fingerprint of the data.
# 2: 16-bit grey is scaled, not clipped at 255; transparency over white; turned by EXIF.
# 3: The fourth band of a TIFF is transparency only if the file says so.
VERSION = 3
# The Pillow transposition that turns an image upright, by EXIF's orientation (CIPA DC-008,
# 4.6.5.1.1). Orientation 1 is upright.
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
# Tags of EXIF and TIFF.
ORIENTATION = 0x112
BITS_PER_SAMPLE = 0x102
PHOTOMETRIC = 0x106
EXTRA_SAMPLES = 0x152
ALPHA = {1, 2}  # Values of EXTRA_SAMPLES that mean transparency.
WHITE_IS_ZERO = 0  # A value of PHOTOMETRIC.


def decode(encoded: EncodedImage, image_size: int) -> np.ndarray:
    """Decode a photograph of any size, mode and proportions as uint8 (S, S, 3).

    Raises:
        Refusal: The file is broken.
    """
    import torch
    from PIL import Image, UnidentifiedImageError
    from torchvision.transforms.v2 import functional

    try:
        with encoded.open("rb") as file, Image.open(file) as image:
            pixels = torch.from_numpy(np.array(upright_rgb(image))).permute(2, 0, 1)
    except MemoryError:
        raise
    # Each decoder raises its own exceptions: SyntaxError for PNG, RuntimeError for AVIF.
    except Exception as error:
        why = (
            "not an image of a known format"
            if isinstance(error, UnidentifiedImageError)
            else str(error)
        )
        raise Refusal(
            "photographs.broken",
            f"{encoded}: cannot be decoded ({why or type(error).__name__}); replace or remove it,"
            " or leave such images out with `dataset.skip_broken=true dataset.cache=mmap`",
            image=str(encoded),
            why=why,
        ) from None
    return (
        functional.resize(pixels, [image_size, image_size], antialias=True).permute(1, 2, 0).numpy()
    )


def upright_rgb(image: "Image") -> "Image":
    """Return the first frame of an opened image in RGB, upright.

    Raises:
        Refusal: The image has 32 bits per pixel, so that the value of white is unknown.
    """
    from PIL.Image import Transpose

    rgb = _rgb(image)
    # The orientation is known only after the pixels were read. Pillow turns a TIFF itself, and a
    # PNG may have its EXIF at the end.
    turn = _upright_transposition(image)
    return rgb if turn is None else rgb.transpose(Transpose[turn])


def require_plain(encoded: EncodedImage) -> None:
    """Refuse a file that DALI shows differently than a viewer: GIF, AVIF, 16 bits, transparency.

    Only the header is read. JPEGs have none of these and are not opened. A file with an unreadable
    header passes, as its decoding will fail.
    """
    from PIL import Image

    if isinstance(encoded, Path) and encoded.suffix.lower() in (".jpg", ".jpeg"):
        return
    try:
        with encoded.open("rb") as file, Image.open(file) as image:
            is_plain = not (
                image.format in ("GIF", "AVIF")
                or image.mode[0] in "IF"
                or image.has_transparency_data
            )
    except Exception:  # `decode` will name the broken file.
        return
    if not is_plain:
        raise Refusal(
            "dali.shows-otherwise",
            f"{encoded}: is a GIF or AVIF, or has transparency or more than 8 bits, which"
            " loader=dali shows differently; use `dataset.cache=mmap` or `loader=torch`",
            key="loader",
            image=str(encoded),
        )


def _rgb(image: "Image") -> "Image":
    from PIL import Image

    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM"):
        return _scaled_to_8_bits(image).convert("RGB")
    if image.mode in ("I", "F"):
        raise Refusal(
            "photographs.white-unknown",
            "it has 32 bits per pixel, so the value of white is unknown; save it with 8 or 16",
        )
    if not image.has_transparency_data or has_other_band(image):
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def has_other_band(image: "Image") -> bool:
    """Tell whether Pillow takes the fourth band of a TIFF, such as near infrared, for alpha."""
    tags: Any = getattr(image, "tag_v2", None)
    if image.mode != "RGBA" or tags is None:
        return False
    extra = tags.get(EXTRA_SAMPLES, ())
    return not ALPHA & {*(extra if isinstance(extra, tuple) else (extra,))}


def _scaled_to_8_bits(image: "Image") -> "Image":
    """Scale grey of more than 8 bits to 8, rounded. A transparent level becomes white."""
    from PIL import Image

    values = np.asarray(image)
    tags: Any = getattr(image, "tag_v2", {})
    # Pillow does not scale the 12 bits of a TIFF to 16.
    largest_value = 2 ** tags.get(BITS_PER_SAMPLE, (16,))[0] - 1
    levels = ((values.astype(np.uint32) * 255 + largest_value // 2) // largest_value).astype(
        np.uint8
    )
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        levels = 255 - levels
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        levels[values == transparent] = 255
    return Image.fromarray(levels)


def _upright_transposition(image: "Image") -> str | None:
    """Return the transposition that turns the image upright, or None if it is upright.

    Broken EXIF also gives None.
    """
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # EXIF is itself a TIFF and breaks in as many ways.
        return None
