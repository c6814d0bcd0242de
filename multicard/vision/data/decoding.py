"""Photographs from files as a viewer shows them: 8-bit RGB, upright, the first frame,
transparency over white.

Colour profiles are not applied. All that decodes goes through here, but for DALI, whose own decoder
is what it is
measured for: it is not given files that it shows otherwise (`require_plain`).
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from multicard.messages import Refusal
from multicard.vision.data.stored_images import EncodedImage

if TYPE_CHECKING:
    from PIL.Image import Image

# Version of the pixels that `decode` returns. With another one, decoded caches are rebuilt and the
# data has another fingerprint. 2: 16-bit grey is scaled, not cut off at 255;
# transparency over white; turned by EXIF. 3: a fourth band of a TIFF is transparency where the
# file says so
VERSION = 3
# Pillow's transposition that turns an image upright, by EXIF's orientation (CIPA DC-008,
# 4.6.5.1.1); 1 is upright
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
# tags of EXIF and TIFF
ORIENTATION = 0x112
BITS_PER_SAMPLE = 0x102
PHOTOMETRIC = 0x106
EXTRA_SAMPLES = 0x152
ALPHA = {1, 2}  # values of EXTRA_SAMPLES
WHITE_IS_ZERO = 0  # a value of PHOTOMETRIC


def decode(encoded: EncodedImage, image_size: int) -> np.ndarray:
    """The photograph as uint8 (S, S, 3), of any size, mode and proportions.
    A broken file is refused by its name.
    """
    import torch
    from PIL import Image, UnidentifiedImageError
    from torchvision.transforms.v2 import functional

    try:
        with encoded.open("rb") as file, Image.open(file) as image:
            pixels = torch.from_numpy(np.array(shown(image))).permute(2, 0, 1)
    except MemoryError:
        raise
    # each decoder has its own: SyntaxError of a PNG, RuntimeError of an AVIF
    except Exception as error:
        why = (
            "no image of a known format"
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


def shown(image: "Image") -> "Image":
    """The first frame of an opened image in RGB, upright. Pixels of 32 bits,
    whose white is not known, are refused.
    """
    from PIL.Image import Transpose

    rgb = _rgb(image)
    # known once the pixels are read: Pillow turns a TIFF itself, and PNG may have it at its end
    turn = _turn(image)
    return rgb if turn is None else rgb.transpose(Transpose[turn])


def require_plain(encoded: EncodedImage) -> None:
    """Refuse, by its header alone, a file that only `decode` shows as a viewer does: GIF, AVIF,
    16 bits, transparency.

    JPEGs have neither, and are not opened. A file without a
    header that can be read passes: its decoding fails.
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
    except Exception:  # as in `decode`, which names it
        return
    if not is_plain:
        raise Refusal(
            "dali.shows-otherwise",
            f"{encoded}: is a GIF or AVIF, or has transparency or more than 8 bits, which"
            " loader=dali shows otherwise; use `dataset.cache=mmap` or `loader=torch`",
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
            "32 bits a pixel, whose white is not known; save it with 8 or 16",
        )
    if not image.has_transparency_data or has_other_band(image):
        return image.convert("RGB")
    white = Image.new("RGBA", image.size, "white")
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")


def has_other_band(image: "Image") -> bool:
    """True of a TIFF whose fourth band is near infrared or anything but transparency, for which
    Pillow takes it.
    """
    tags: Any = getattr(image, "tag_v2", None)
    if image.mode != "RGBA" or tags is None:
        return False
    extra = tags.get(EXTRA_SAMPLES, ())
    return not ALPHA & {*(extra if isinstance(extra, tuple) else (extra,))}


def _scaled_to_8_bits(image: "Image") -> "Image":
    """Grey of more than 8 bits in 8, rounded; a transparent level is white."""
    from PIL import Image

    values = np.asarray(image)
    tags: Any = getattr(image, "tag_v2", {})
    # Pillow takes 12 bits of a TIFF as they are
    most = 2 ** tags.get(BITS_PER_SAMPLE, (16,))[0] - 1
    levels = ((values.astype(np.uint32) * 255 + most // 2) // most).astype(np.uint8)
    if tags.get(PHOTOMETRIC) == WHITE_IS_ZERO:
        levels = 255 - levels
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        levels[values == transparent] = 255
    return Image.fromarray(levels)


def _turn(image: "Image") -> str | None:
    """The transposition that turns the image upright; None where it is,
    or where its EXIF is broken.
    """
    try:
        return TURNS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # EXIF is a TIFF of its own, and breaks in as many ways
        return None
