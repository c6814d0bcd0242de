"""Finds the model that a run saved, by the file next to the weights that describes them.

Does not import torch.
"""

import errno
import os
import shutil
from pathlib import Path

from multicard.messages import Refusal

IMAGE_MODEL = "model.json"
TUNED_MODEL = "tuned.json"
PART = ".part"  # Ends a file's name until the file is complete.
SPARE_BYTES = 1 << 20  # This much disk space must remain for the record.


def place_of(folder: Path) -> Path:
    """Return the folder of the only model saved below a folder, which may be a run's or a sweep's.

    Raises:
        Refusal: no model is saved there, or several are.
    """
    if any((folder / name).is_file() for name in (IMAGE_MODEL, TUNED_MODEL)):
        return folder
    files = [*folder.glob(f"**/{IMAGE_MODEL}"), *folder.glob(f"**/{TUNED_MODEL}")]
    folders = sorted(file.parent for file in files)
    if len(folders) == 1:
        return folders[0]
    if not folders:
        sentence = (
            f"{folder}: no model is saved there; add `save=model` to its command, or, for adapters,"
            " `save=adapter`, "
        )
        raise Refusal("save.none", f"{sentence}and `rerun=true`", key="save", folder=str(folder))
    names = [str(path.parent) for path in folders]
    sentence = (
        f"{folder}: {len(folders)} models are saved there; name one of their folders, as {names[0]}"
    )
    raise Refusal("save.several", sentence, folder=str(folder), folders=names)


def require_room(place: Path, weights_bytes: int) -> None:
    """Raise OSError (ENOSPC) if the disk of a folder has no room for this many bytes of weights."""
    if shutil.disk_usage(place).free < weights_bytes + SPARE_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def reason_of(error: BaseException) -> str:
    """Return why nothing could be written, in one line."""
    return getattr(error, "strerror", None) or f"{type(error).__name__}: {error}".splitlines()[0]
