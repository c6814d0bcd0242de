"""GPUs and cores that a run has to itself on this machine, whoever else starts runs there.

Each GPU and core has an empty file in a folder that all users share. Whoever computes on it holds a shared lock (flock)
on its file: the command that chose it, and the process that runs on it. The kernel gives a lock back when the last of
them ends, however that happens. A command chooses under the lock of the whole folder: it sees what nobody holds, and
takes all that a run needs or nothing. So commands that wait for one another cannot block each other.

Nothing is read from the files or written to them: who holds a lock is for the kernel to say (/proc/locks). Another user
may hold a lock for nothing, or remove a file of their own. That costs others time or quiet, and runs no code.

Who waits, and in which order, is in `tickets`.
"""

import fcntl
import os
import pwd
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from multicard.measure.timing import clock_s, pause

VARIABLE = "MULTICARD_LEASES"  # names another folder
SHARED_BY_ALL = ("/run/lock", "/tmp")  # folders: the first in which every user may make files
NAME = "multicard-leases"
CHOOSING = "choosing"  # file: its lock is held, for milliseconds, while a command chooses
CHOSEN_WITHIN_S = 5.0
TURN_WITHIN_S, TURN_POLL_S = 60.0, 0.05
LONGEST_COMMAND = 80  # characters of another command that are shown
CLOSED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no link is followed, no pipe waited for, nothing inherited


@dataclass(frozen=True)
class Lease:
    """Files whose locks this process holds, by name, until it closes them or ends."""

    files: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()


def gpu(uuid: str) -> str:
    """The name of a GPU's file."""
    return f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}"


def core(number: int) -> str:
    return f"core-{number}"


def folder() -> Path:
    """The folder of the machine's leases, the same for all users."""
    named = os.environ.get(VARIABLE)
    if named:
        return Path(named)
    for shared in SHARED_BY_ALL[:-1]:
        with suppress(OSError):
            status = os.lstat(shared)
            if stat.S_ISDIR(status.st_mode) and status.st_mode & 0o1777 == 0o1777:
                return Path(shared) / NAME
    return Path(SHARED_BY_ALL[-1]) / NAME


@contextmanager
def opened() -> Iterator[int]:
    """A descriptor of the folder, whatever is put at its path later. It is made where it is not there.

    Raises:
        OSError: it can be neither created nor opened, or is a link.
    """
    path = folder()
    with suppress(FileExistsError):
        path.mkdir(parents=True)
        path.chmod(0o1777)  # mkdir is subject to the umask
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | CLOSED)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass
class Choice:
    """What a command sees while it holds the lock of the folder: none else takes or gives a lease by choice."""

    directory: int
    free: dict[str, int] = field(default_factory=dict)  # locked exclusively for as long as the choice takes

    def is_free(self, name: str) -> bool:
        """Whether nobody holds it.

        Raises:
            OSError: its file cannot be made or opened.
        """
        if name not in self.free:
            descriptor = _lock(self.directory, name, fcntl.LOCK_EX)
            if descriptor is not None:
                self.free[name] = descriptor
        return name in self.free

    def take(self, names: Iterable[str]) -> Lease:
        """Keep what is free; the rest is given back at the end of the choice."""
        lease = Lease({name: self.free.pop(name) for name in names})
        for descriptor in lease.files.values():
            with suppress(BlockingIOError):  # given up and taken anew: no other command chooses meanwhile
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return lease


@contextmanager
def choice(directory: int) -> Iterator[Choice | None]:
    """Within it this command chooses, and no other does; None where one does just now.

    Raises:
        OSError: the folder's file cannot be made or opened.
    """
    lock = _lock(directory, CHOOSING, fcntl.LOCK_EX)
    if lock is None:
        yield None
        return
    chosen = Choice(directory)
    try:
        yield chosen
    finally:
        Lease(chosen.free).close()
        os.close(lock)


@contextmanager
def turn(directory: int, name: str) -> Iterator[None]:
    """Within it no other command is within its turn of that name. Nobody waits for it longer than TURN_WITHIN_S.

    Raises:
        OSError: its file cannot be made or opened.
    """
    ends_s = clock_s() + TURN_WITHIN_S
    while (lock := _lock(directory, name, fcntl.LOCK_EX)) is None and clock_s() < ends_s:
        pause(TURN_POLL_S)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def share(names: Iterable[str]) -> Lease:
    """Hold what this process computes on, whoever else does. What cannot be locked is left out."""
    lease, left, ends_s = Lease(), [*names], clock_s() + CHOSEN_WITHIN_S
    with suppress(OSError), opened() as directory:
        while left and clock_s() < ends_s:
            for name in [*left]:
                with suppress(OSError):
                    descriptor = _lock(directory, name, fcntl.LOCK_SH)
                    if descriptor is None:
                        continue
                    lease.files[name] = descriptor
                left.remove(name)
            if left:  # a command that chooses has what is free, for milliseconds
                pause(0.01)
    return lease


def holders(names: Iterable[str]) -> list[str]:
    """Who holds leases, as "pid 123 (alice: python train_vision.py ...)"; of a command and its processes the command
    alone; none where the kernel does not say."""
    files: set[str] = set()
    with suppress(OSError), opened() as directory:
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                files.add(f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}")
    words: list[list[str]] = []
    with suppress(OSError):
        words = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    held = [line for line in words if "FLOCK" in line and line[-3] in files]
    processes = dict.fromkeys(int(line[-4]) for line in held if line[-4].isdigit())
    return [_in_words(process) for process in processes if not processes.keys() & _ancestors(process)]


def _ancestors(process: int) -> set[int]:
    with suppress(psutil.Error):
        return {parent.pid for parent in psutil.Process(process).parents()}
    return set()


def _in_words(process: int) -> str:
    """A process with its user and command, which another user chose: no letter of it reaches a terminal unread."""
    with suppress(OSError, KeyError):
        user = pwd.getpwuid(Path(f"/proc/{process}").stat().st_uid).pw_name
        command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ").strip()
        line = "".join(letter if letter.isprintable() else "?" for letter in f"{user}: {command}")
        return f"pid {process} ({line[:LONGEST_COMMAND]})"
    return f"pid {process}"


def _lock(directory: int, name: str, operation: int) -> int | None:
    """The descriptor of a file that is locked now; None where another's lock forbids it."""
    descriptor = _open(directory, name)
    try:
        fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
        there = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if os.path.samestat(there, os.fstat(descriptor)):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError:
        os.close(descriptor)
        raise
    os.close(descriptor)  # locked, or its owner removed the file meanwhile
    return None


def _open(directory: int, name: str) -> int:
    """A file of the folder, for its lock alone. Another's is opened without O_CREAT, which kernels forbid in a folder
    that all may write to (fs.protected_regular)."""
    with suppress(FileNotFoundError):
        return os.open(name, os.O_RDONLY | CLOSED, dir_fd=directory)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | CLOSED, 0o644, dir_fd=directory)
    except FileExistsError:  # made by another since
        return os.open(name, os.O_RDONLY | CLOSED, dir_fd=directory)
    os.fchmod(descriptor, 0o644)  # whatever the umask: others must open it
    return descriptor
