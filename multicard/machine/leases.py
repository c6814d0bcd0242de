"""Locks on the GPUs and cores of this machine, for all commands of all users.

Each GPU and core has an empty file in a shared folder. A command, and the process that it starts on them, hold a shared
lock (flock) on the files; the kernel releases it when the last of them ends, however that happens. Leases are chosen
under the lock of the whole folder, and a run gets all that it needs or nothing, so commands cannot block each other.

A command that has to wait leaves a ticket: a locked file that says what it waits for. Commands that come later leave
that free, so nobody is overtaken for ever. A ticket counts as long as its command lives and looks at the queue.

Other users can keep a lease, or write a false ticket: that costs time, and runs no code. No link is followed, and the
content of a ticket is two numbers and names.
"""

import fcntl
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
import psutil

from multicard.measure.timing import age_s, clock_s, pause, since_epoch_s

VARIABLE = "MULTICARD_LEASES"  # names another folder
LOCKS, NAME = "/run/lock", "multicard-leases"
CHOOSING = "choosing"  # file that is locked while a command chooses
TICKET = re.compile(r"waiting-\d{17}")
LONGEST_TICKET = 1 << 16  # bytes that are read
ASLEEP_S = 60.0  # after which a command that has not looked again is passed by
SHARED_WITHIN_S, POLL_S = 5.0, 0.01
LONGEST_COMMAND = 80  # characters of another command that are shown
CLOSED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # no link is followed, no pipe waited for, nothing inherited

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 20)]


class Request(msgspec.Struct, frozen=True):
    """The number of GPUs and cores that a command waits for, and the names of the leases that it would take."""

    gpus: Count
    cores: Count
    names: frozenset[str]


@dataclass(frozen=True)
class Lease:
    """Files whose locks this process holds, by name, until it closes them or ends."""

    files: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()


def gpu(uuid: str) -> str:
    """The name of a GPU's lease."""
    return f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}"


def core(number: int) -> str:
    """The name of a core's lease."""
    return f"core-{number}"


def folder() -> Path:
    """The folder of the machine's leases, the same for all users."""
    if named := os.environ.get(VARIABLE):
        return Path(named)
    with suppress(OSError):
        mode = os.lstat(LOCKS).st_mode
        if stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777:  # every user may make files there
            return Path(LOCKS, NAME)
    return Path("/tmp", NAME)


@dataclass
class Choice:
    """The leases as the only command sees them that chooses now."""

    directory: int
    free: dict[str, int] = field(default_factory=dict)  # locked until the choice ends, or they are taken

    def is_free(self, name: str) -> bool:
        """True where nobody holds the lease.

        Raises:
            OSError: its file cannot be made or opened.
        """
        if name not in self.free:
            descriptor = _lock(self.directory, name, fcntl.LOCK_EX)
            if descriptor is not None:
                self.free[name] = descriptor
        return name in self.free

    def take(self, names: Iterable[str]) -> Lease:
        """Keep free leases beyond the choice."""
        lease = Lease({name: self.free.pop(name) for name in names})
        for descriptor in lease.files.values():
            with suppress(BlockingIOError):  # released and taken anew: no other command chooses meanwhile
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return lease

    def queue(self, request: Request) -> Lease:
        """Wait behind all other commands, until the ticket that is returned is closed.

        Raises:
            OSError: the ticket cannot be written.
        """
        name = f"waiting-{int(since_epoch_s() * 1e6):017d}"
        ticket = Lease({name: _create(self.directory, name)})
        try:
            fcntl.flock(ticket.files[name], fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(ticket.files[name], msgspec.json.encode(request))
        except OSError:
            ticket.close()
            raise
        return ticket

    def ahead(self, own: Lease | None = None) -> dict[str, Request]:
        """The requests of other commands' tickets, first come first; with `own`, those before it."""
        names = sorted(entry.name for entry in os.scandir(self.directory) if TICKET.fullmatch(entry.name))
        if own is not None:
            ((name, descriptor),) = own.files.items()
            os.utime(descriptor)  # this command looks
            names = [other for other in names if other < name]
        requests = {name: self._request(name) for name in names}
        return {name: request for name, request in requests.items() if request is not None}

    def _request(self, name: str) -> Request | None:
        """The request of a ticket; None where nobody waits with it."""
        with suppress(OSError, msgspec.DecodeError):
            descriptor = os.open(name, os.O_RDONLY | CLOSED, dir_fd=self.directory)
            try:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                    os.unlink(name, dir_fd=self.directory)  # unlocked: nobody waits with it any more
                    return None
                if age_s(os.fstat(descriptor)) <= ASLEEP_S:
                    return msgspec.json.decode(os.read(descriptor, LONGEST_TICKET), type=Request)
            finally:
                os.close(descriptor)
        return None


@contextmanager
def choosing(within_s: float = 0.0) -> Iterator[Choice | None]:
    """Have this command alone choose leases; None where another did all of `within_s`.

    Raises:
        OSError: the folder or its file cannot be made or opened.
    """
    ends_s = clock_s() + within_s
    with _opened() as directory:
        while (lock := _lock(directory, CHOOSING, fcntl.LOCK_EX)) is None and clock_s() < ends_s:
            pause(POLL_S)
        if lock is None:
            yield None
            return
        choice = Choice(directory)
        try:
            yield choice
        finally:
            Lease(choice.free).close()
            os.close(lock)


def share(names: Iterable[str]) -> Lease:
    """Hold leases of what this process computes on, whoever else does. What cannot be locked is left out."""
    lease, ends_s = Lease(), clock_s() + SHARED_WITHIN_S
    with suppress(OSError), _opened() as directory:
        for name in names:
            with suppress(OSError):
                while (descriptor := _lock(directory, name, fcntl.LOCK_SH)) is None and clock_s() < ends_s:
                    pause(POLL_S)  # a command that chooses has it, for milliseconds
                if descriptor is not None:
                    lease.files[name] = descriptor
    return lease


def holders(names: Iterable[str]) -> list[str]:
    """The commands that hold leases or tickets, as "pid 123 (alice: python train_vision.py ...)", without the processes
    that they started; empty where the kernel does not list locks."""
    files: set[str] = set()
    with suppress(OSError), _opened() as directory:
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                files.add(f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}")
    locks: list[list[str]] = []
    with suppress(OSError):
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    held = [words for words in locks if "FLOCK" in words and words[-3] in files]
    pids = dict.fromkeys(int(words[-4]) for words in held if words[-4].isdigit())
    described = []
    for pid in pids:
        line = ""
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if any(parent.pid in pids for parent in process.parents()):
                continue
            line = f"{process.username()}: {' '.join(process.cmdline())}"[:LONGEST_COMMAND]
        printable = "".join(letter if letter.isprintable() else "?" for letter in line)  # another user chose them
        described.append(f"pid {pid} ({printable})" if line else f"pid {pid}")
    return described


@contextmanager
def _opened() -> Iterator[int]:
    """A descriptor of the folder, which is made where it is missing; its path may lead elsewhere later.

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
    """A descriptor of a file of the folder. Another user's file is opened without O_CREAT, which kernels forbid in a
    folder that all may write to (fs.protected_regular)."""
    with suppress(FileNotFoundError):
        return os.open(name, os.O_RDONLY | CLOSED, dir_fd=directory)
    with suppress(FileExistsError):
        return _create(directory, name)
    return os.open(name, os.O_RDONLY | CLOSED, dir_fd=directory)  # made by another since


def _create(directory: int, name: str) -> int:
    """A descriptor of a new file, which all users can read."""
    descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | CLOSED, 0o644, dir_fd=directory)
    os.fchmod(descriptor, 0o644)  # independent of the umask
    return descriptor
