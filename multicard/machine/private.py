"""Files and folders that are closed to other users.

Otherwise another user could have code run as this one.
"""

import os
import stat
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from multicard.messages import Refusal
from multicard.repository import PACKAGES


def folder(path: Path, remedy: str) -> Path:
    """Create a folder that only its owner can enter, or close an existing one to all others.

    Args:
        remedy: What the refusal suggests.

    Raises:
        Refusal: The folder belongs to another user, who may have put anything there, or is a link.
        OSError: The folder cannot be created.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise Refusal(
            "private.not-own",
            f"{path}: belongs to another user or is a link; {remedy}",
            folder=str(path),
        )
    path.chmod(0o700)
    return path


def no_link(path: str | Path, flags: int, mode: int = 0o666, folder: int | None = None) -> int:
    """Open a file without following a link, relative to an open folder if one is given.

    A user who may write to a folder could plant a link there. This user would then write to another
    file.

    Raises:
        OSError: The file is a link, or a pipe that nobody reads.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, mode, dir_fd=folder)


def writers(path: Path) -> str | None:
    """Return who may write to a folder besides its owner, or None if nobody may.

    A group with the owner's number counts as the owner.
    """
    status = path.stat()
    if status.st_mode & stat.S_IWOTH:
        return "all users"
    return (
        f"group {status.st_gid}"
        if status.st_mode & stat.S_IWGRP and status.st_gid != status.st_uid
        else None
    )


def opened(path: str) -> Path:
    """Open a folder that `folder` made, and return a path that always leads to this same folder.

    The path is valid in this process only, whatever is later put at the original path.

    Raises:
        Refusal: The folder is not closed to others, so anybody may have put it there.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    status = os.fstat(descriptor)
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise Refusal(
            "private.open-to-others",
            f"{path}: belongs to another user or is open to others, so nothing in it is run",
            folder=path,
        )
    return Path(f"/proc/self/fd/{descriptor}")


@contextmanager
def umask(mask: int = 0o077) -> Iterator[int]:
    """Set the umask of this process and of processes that it starts. Yield the one before."""
    before = os.umask(mask)
    try:
        yield before
    finally:
        os.umask(before)


@contextmanager
def imports() -> Iterator[None]:
    """Make each Python that is started import this multicard, and nothing from the working folder.

    Others may write to the working folder, and it comes before the standard library.
    """
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "PYTHONSAFEPATH")}
    paths = [path for path in (before["PYTHONPATH"] or "").split(os.pathsep) if path]
    if str(PACKAGES) not in [*paths, *_searched_anyway()]:
        paths = [str(PACKAGES), *paths]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _searched_anyway() -> list[str]:
    """Return the folders of packages that this Python always searches.

    On PYTHONPATH, they would come before the standard library.
    """
    return [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
