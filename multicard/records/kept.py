"""Where a run's folder holds what it trained, by the file beside
the weights that says what they are. No torch.
"""

import errno
import os
import shutil
from pathlib import Path

from multicard.messages import Refusal

IMAGE_MODEL = "model.json"
TUNED_MODEL = "tuned.json"
PART = ".part"  # of a file's name, until the whole of it is there
SPARE_BYTES = 1 << 20  # that a disk keeps beside the weights, for the record


def place_of(folder: Path) -> Path:
    """The folder of the one model that is kept below a folder: a run's, a sweep's, or its own.

    Raises:
        Refusal: none is kept there, or several are.
    """
    if any((folder / name).is_file() for name in (IMAGE_MODEL, TUNED_MODEL)):
        return folder
    files = [*folder.glob(f"**/{IMAGE_MODEL}"), *folder.glob(f"**/{TUNED_MODEL}")]
    found = sorted(file.parent for file in files)
    if len(found) == 1:
        return found[0]
    if not found:
        said = (
            f"{folder}: no model is kept there; add `save=model` to its command, or of adapters"
            " `save=adapter`, "
        )
        raise Refusal("save.none", f"{said}and `rerun=true`", key="save", folder=str(folder))
    several = [str(path.parent) for path in found]
    said = (
        f"{folder}: {len(found)} models are kept there; name one of their folders, as {several[0]}"
    )
    raise Refusal("save.several", said, folder=str(folder), folders=several)


def require_room(place: Path, weights_bytes: int) -> None:
    """OSError (ENOSPC) where the disk of a folder has no room for so many bytes of weights."""
    if shutil.disk_usage(place).free < weights_bytes + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reason_of(error: BaseException) -> str:
    """Why nothing could be written, in a line."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}".splitlines()[0]
