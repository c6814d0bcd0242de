"""Folders and files that no other user of the machine can read or write, whatever the umask."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multicard.config.keys import require


def folder(path: Path) -> Path:
    """Create a folder that its owner alone can enter, or close an existing one to all others. Returns it.

    Raises:
        ValueError: it belongs to another user, who may have put anything there.
        OSError: it cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    require(own, f"{path}: is a link, or belongs to another user, who could have code run as yours; remove it")
    path.chmod(0o700)
    return path


@contextmanager
def files() -> Iterator[int]:
    """Have this process, and what it starts, create files that their owner alone can read. Gives the umask before."""
    before = os.umask(0o077)
    try:
        yield before
    finally:
        os.umask(before)
