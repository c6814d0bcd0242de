"""Shares of this machine: GPUs and cores for a cell, which no other cell has,
nor any other command of any user.

Each GPU and core has an empty file in a shared folder. A command, and the process that it starts on
them, hold a shared lock (flock) on the files; the kernel releases it when the last of them ends,
however that happens, and lists who has it. Leases are chosen under the lock of the whole folder,
and a run gets all that it needs or nothing, so commands cannot block each other.

Other users can keep a lease: that costs time, and runs no code. No link is followed. Files are
opened for reading, as kernels forbid more with those of other users in a folder that all may write
to (fs.protected_regular): so this is no `filelock`, which opens them for writing.
"""

import fcntl
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from multicard.config.base import RunConfig
from multicard.config.job import Device, count
from multicard.machine import devices, topology
from multicard.measure.timing import clock_s, pause
from multicard.messages import Message, say

VARIABLE = "MULTICARD_LEASES"  # names another folder
LOCKS = "/run/lock"
NAME = "multicard-leases"
CHOOSING = "choosing"  # file that is locked while a command chooses
# between two looks at leases, and at a lock that is held for milliseconds
LEASES_POLL_S = 1.0
POLL_S = 0.01
SHARED_WITHIN_S = 5.0
LONGEST_COMMAND = 80  # characters of another command that are shown
# no link is followed, no pipe waited for, nothing inherited
CLOSED = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Demand = tuple[int | None, int]  # GPUs, None on CPU ranks; cores


def gpu(uuid: str) -> str:
    """The name of a GPU's lease."""
    return f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}"


def core(number: int) -> str:
    """The name of a core's lease."""
    return f"core-{number}"


@dataclass
class Pool:
    """GPUs, as CUDA_VISIBLE_DEVICES names them, and cores."""

    gpus: list[str]
    cpus: list[int]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of their leases."""
        return (*map(gpu, self.gpus), *map(core, self.cpus))

    def where(self, holds: Callable[[str], bool]) -> "Pool":
        """The subset whose leases satisfy `holds`, which takes a lease's name."""
        gpus = [uuid for uuid in self.gpus if holds(gpu(uuid))]
        return Pool(gpus, [number for number in self.cpus if holds(core(number))])

    def without(self, other: "Pool") -> "Pool":
        names = {*other.names}
        return self.where(lambda name: name not in names)


@dataclass(frozen=True)
class Lease:
    """Files whose locks this process holds, by name, until it closes them or ends."""

    files: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()


@dataclass(frozen=True)
class MachineShare:
    """The part of the machine that a cell has to itself. `gpus` is None on CPU ranks."""

    gpus: tuple[str, ...] | None
    cpus: tuple[int, ...]
    lease: Lease = field(default_factory=Lease, compare=False)

    @property
    def pool(self) -> Pool:
        return Pool([*(self.gpus or ())], [*self.cpus])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its leases."""
        return self.pool.names


def machine() -> Pool:
    """All GPUs and cores that this process may use."""
    return Pool(devices.named_gpus(), sorted(os.sched_getaffinity(0)))


def demand(config: RunConfig, whole: Pool) -> Demand:
    """The numbers of GPUs and cores that a cell gets: of CPU ranks `cpus_per_gpu` cores each, of a
    GPU its part of the machine's. A cell that wants more than there is gets the whole machine: its
    own checks say whether it can run so.
    """
    on_gpus = whole.gpus and config.device is not Device.cpu
    if config.exclusive is not False:
        return len(whole.gpus) if on_gpus else None, len(whole.cpus)
    cores_each = len(whole.cpus) // len(whole.gpus) if on_gpus else config.cpus_per_gpu
    cpus = min(config.gpus * max(cores_each, 1), len(whole.cpus))
    return min(config.gpus, len(whole.gpus)) if on_gpus else None, cpus


def allocate(wanted: Demand, free: Pool) -> MachineShare | None:
    """The first GPUs of `free`, and cores of their NUMA nodes before others;
    None where there are fewer than wanted.
    """
    gpus, cpus = wanted
    if (gpus or 0) > len(free.gpus) or cpus > len(free.cpus):
        return None
    chosen = free.gpus[: gpus or 0]
    near = (
        set[int]().union(*map(topology.cpus_near, chosen)) if cpus < len(free.cpus) else set[int]()
    )
    nearest = sorted(free.cpus, key=lambda cpu: cpu not in near)
    return MachineShare(None if gpus is None else tuple(chosen), tuple(nearest[:cpus]))


class MachineShares:
    """The GPUs and cores that are left for further cells of this command."""

    def __init__(self) -> None:
        self.whole = machine()
        self.free = machine()
        self.said = set[str]()  # holders, and problems
        # when others had leased too much, by what was wanted
        self.looked_s: dict[Demand, float] = {}

    def take(self, config: RunConfig) -> MachineShare | None:
        """A cell's share, with its lease; None while it has to wait."""
        wanted = demand(config, self.whole)
        if (
            allocate(wanted, self.free) is None
            or clock_s() - self.looked_s.get(wanted, -math.inf) < LEASES_POLL_S
        ):
            return None
        try:
            share = self._leased(wanted)
        except OSError as error:
            problem = Message(
                "leases.none",
                f"no leases in {folder()} ({error.strerror}): other commands may take the same GPUs"
                " and cores",
                folder=str(folder()),
                reason=error.strerror,
            )
            self._say_once([problem], problem, error=True)
            share = allocate(wanted, self.free)
        if share is None:
            self.looked_s[wanted] = clock_s()
            return None
        self.free = self.free.without(share.pool)
        return share

    def give_back(self, share: MachineShare) -> None:
        share.lease.close()
        self.free.gpus[:0] = share.gpus or ()
        self.free.cpus[:0] = share.cpus

    def _leased(self, wanted: Demand) -> MachineShare | None:
        with choosing() as choice:
            if choice is None:
                return None
            left = self.free.where(choice.is_free)
            share = allocate(wanted, left)
            if share is not None:
                return replace(share, lease=choice.take(share.names))
        missing = self.free.without(left)
        held_by = holders(missing.names)
        parts = [
            count(len(part), noun)
            for part, noun in ((missing.gpus, "GPU"), (missing.cpus, "core"))
            if part
        ]
        wanted_parts = " and ".join(parts)
        line = Message(
            "leases.waiting",
            f"waiting for {wanted_parts}: leased by {' and '.join(held_by) or 'another command'}",
            gpus=len(missing.gpus),
            cores=len(missing.cpus),
            held_by=held_by,
        )
        self._say_once(held_by or [wanted_parts], line)
        return None

    def _say_once(self, about: Iterable[str], line: str, error: bool = False) -> None:
        if not self.said.issuperset(about):
            self.said.update(about)
            say(line, error)


@contextmanager
def announced(configs: Iterable[RunConfig]) -> Iterator[None]:
    """Lease what runs of this process use, which wait for nobody:
    packed cells of other commands keep off it.
    """
    whole = machine()
    shares = [allocate(demand(config, whole), whole) for config in configs]
    names = set[str]()
    for share in shares:
        if share is not None:
            names.update(share.names)
    lease = hold(names)
    try:
        yield
    finally:
        lease.close()


# ---- the locks


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
    # locked until the choice ends, or they are taken
    free: dict[str, int] = field(default_factory=dict)

    def is_free(self, name: str) -> bool:
        """True where nobody holds the lease; an OSError says
        that its file cannot be made or opened.
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
            # released and taken anew: no other command chooses meanwhile
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return lease


@contextmanager
def choosing() -> Iterator[Choice | None]:
    """Have this command alone choose leases; None where another does now. An OSError says that the
    folder or its file cannot be made or opened.
    """
    with _opened() as directory:
        lock = _lock(directory, CHOOSING, fcntl.LOCK_EX)
        choice = None if lock is None else Choice(directory)
        try:
            yield choice
        finally:
            if choice is not None and lock is not None:
                Lease(choice.free).close()
                os.close(lock)


def hold(names: Iterable[str]) -> Lease:
    """Hold leases of what this process computes on, whoever else does.
    What cannot be locked is left out.
    """
    lease = Lease()
    ends_s = clock_s() + SHARED_WITHIN_S
    with suppress(OSError), _opened() as directory:
        for name in names:
            with suppress(OSError):  # a command that chooses has it, for milliseconds
                descriptor = _lock(directory, name, fcntl.LOCK_SH, ends_s)
                if descriptor is not None:
                    lease.files[name] = descriptor
    return lease


def holders(names: Iterable[str]) -> list[str]:
    """The commands that hold leases, as "pid 123 (alice: python train_vision.py ...)", without the
    processes that they started; empty where the kernel does not list locks.
    """
    files = set[str]()
    locks = list[list[str]]()
    with suppress(OSError), _opened() as directory:
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                files.add(
                    f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
                )
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
        # another user chose them
        printable = "".join(letter if letter.isprintable() else "?" for letter in line)
        described.append(f"pid {pid} ({printable})" if line else f"pid {pid}")
    return described


@contextmanager
def _opened() -> Iterator[int]:
    """A descriptor of the folder, which is made where it is missing; its path may lead elsewhere
    later. An OSError says that it can be neither created nor opened, or is a link.
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


def _lock(directory: int, name: str, operation: int, ends_s: float = 0.0) -> int | None:
    """The descriptor of a file of the folder that is locked;
    None where another's lock forbids it until `ends_s`.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | CLOSED, dir_fd=directory)
    except FileNotFoundError:
        with suppress(FileExistsError):  # made by another since
            created = os.open(
                name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | CLOSED, 0o644, dir_fd=directory
            )
            os.fchmod(created, 0o644)  # independent of the umask
            os.close(created)
        descriptor = os.open(name, os.O_RDONLY | CLOSED, dir_fd=directory)
    try:
        while True:
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, operation | fcntl.LOCK_NB)
                return descriptor
            if clock_s() >= ends_s:
                os.close(descriptor)
                return None
            pause(POLL_S)
    except OSError:
        os.close(descriptor)
        raise
