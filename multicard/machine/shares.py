"""Lease GPUs and cores of this machine to a cell, so that no other command of any user takes them.

Each GPU and core has an empty file in a shared folder. A command, and the process that it starts on
them, hold a shared lock (flock) on these files. The kernel releases a lock when the last of them
ends, however that happens, and lists its holders. Leases are chosen under a lock of the whole
folder. A run gets all that it needs or nothing, so commands cannot block each other.

Other users can keep a lease. That costs time, but runs no code. No link is followed. Files are
opened for reading only, because kernels forbid more for other users' files in a folder that all may
write to (fs.protected_regular). `filelock` opens them for writing, so it cannot be used.
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

VARIABLE = "MULTICARD_LEASES"  # This variable names another folder for the leases.
LOCKS = "/run/lock"
NAME = "multicard-leases"
CHOOSING = "choosing"  # This file is locked while a command chooses leases.
LEASES_POLL_S = 1.0
POLL_S = 0.01  # Such locks are held for milliseconds only.
SHARED_WITHIN_S = 5.0
LONGEST_COMMAND = 80  # Another command is shown up to this many characters.
# Follow no link, wait for no pipe, and let no other program inherit the file.
OPEN_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Demand = tuple[int | None, int]  # The number of GPUs (None on CPU ranks) and of cores.


def gpu(uuid: str) -> str:
    """Return the name of a GPU's lease."""
    return f"gpu-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}"


def core(number: int) -> str:
    """Return the name of a core's lease."""
    return f"core-{number}"


@dataclass
class Pool:
    """A set of GPUs, as CUDA_VISIBLE_DEVICES names them, and cores."""

    gpus: list[str]
    cpus: list[int]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the leases of these GPUs and cores."""
        return (*map(gpu, self.gpus), *map(core, self.cpus))

    def where(self, holds: Callable[[str], bool]) -> "Pool":
        """Return the subset whose leases satisfy `holds`, which takes a lease's name."""
        gpus = [uuid for uuid in self.gpus if holds(gpu(uuid))]
        return Pool(gpus, [number for number in self.cpus if holds(core(number))])

    def without(self, other: "Pool") -> "Pool":
        names = {*other.names}
        return self.where(lambda name: name not in names)


@dataclass(frozen=True)
class Lease:
    """Locks that this process holds, until it closes them or ends.

    Attributes:
        files: The descriptors of the locked files by the leases' names.
    """

    files: dict[str, int] = field(default_factory=dict)

    def close(self) -> None:
        for descriptor in self.files.values():
            os.close(descriptor)
        self.files.clear()


@dataclass(frozen=True)
class MachineShare:
    """The part of the machine that one cell has to itself. `gpus` is None on CPU ranks."""

    gpus: tuple[str, ...] | None
    cpus: tuple[int, ...]
    lease: Lease = field(default_factory=Lease, compare=False)

    @property
    def pool(self) -> Pool:
        return Pool([*(self.gpus or ())], [*self.cpus])

    @property
    def names(self) -> tuple[str, ...]:
        """The names of this share's leases."""
        return self.pool.names


def machine() -> Pool:
    """Return all GPUs and cores that this process may use."""
    return Pool(devices.named_gpus(), sorted(os.sched_getaffinity(0)))


def demand(config: RunConfig, whole: Pool) -> Demand:
    """Return the numbers of GPUs and cores that a cell gets.

    A CPU rank gets `cpus_per_gpu` cores, a GPU its part of all cores. A cell that wants more than
    there is gets the whole machine: its own checks say whether it can run there.
    """
    on_gpus = whole.gpus and config.device is not Device.cpu
    if config.exclusive is not False:
        return len(whole.gpus) if on_gpus else None, len(whole.cpus)
    cores_each = len(whole.cpus) // len(whole.gpus) if on_gpus else config.cpus_per_gpu
    cpus = min(config.gpus * max(cores_each, 1), len(whole.cpus))
    return min(config.gpus, len(whole.gpus)) if on_gpus else None, cpus


def allocate(wanted: Demand, free: Pool) -> MachineShare | None:
    """Return the first free GPUs, and cores that are preferably on their NUMA nodes.

    Return None if fewer are free than wanted.
    """
    gpus, cpus = wanted
    if (gpus or 0) > len(free.gpus) or cpus > len(free.cpus):
        return None
    chosen = free.gpus[: gpus or 0]
    near_cpus = (
        set[int]().union(*map(topology.cpus_near, chosen)) if cpus < len(free.cpus) else set[int]()
    )
    ordered_cpus = sorted(free.cpus, key=lambda cpu: cpu not in near_cpus)
    return MachineShare(None if gpus is None else tuple(chosen), tuple(ordered_cpus[:cpus]))


class MachineShares:
    """The GPUs and cores that remain for further cells of this command."""

    def __init__(self) -> None:
        self.whole = machine()
        self.free = machine()
        self.reported = set[str]()  # Holders of leases, and problems.
        # For each demand, when it was last found that others had leased too much.
        self.last_refused_s: dict[Demand, float] = {}

    def take(self, config: RunConfig) -> MachineShare | None:
        """Return a cell's share with its lease, or None if the cell has to wait."""
        wanted = demand(config, self.whole)
        if (
            allocate(wanted, self.free) is None
            or clock_s() - self.last_refused_s.get(wanted, -math.inf) < LEASES_POLL_S
        ):
            return None
        try:
            share = self._lease(wanted)
        except OSError as error:
            problem = Message(
                "leases.none",
                f"cannot lease in {folder()} ({error.strerror}), so other commands may take the"
                " same GPUs and cores",
                folder=str(folder()),
                reason=error.strerror,
            )
            self._say_once([problem], problem, error=True)
            share = allocate(wanted, self.free)
        if share is None:
            self.last_refused_s[wanted] = clock_s()
            return None
        self.free = self.free.without(share.pool)
        return share

    def give_back(self, share: MachineShare) -> None:
        share.lease.close()
        self.free.gpus[:0] = share.gpus or ()
        self.free.cpus[:0] = share.cpus

    def _lease(self, wanted: Demand) -> MachineShare | None:
        with choosing() as choice:
            if choice is None:
                return None
            unleased = self.free.where(choice.is_free)
            share = allocate(wanted, unleased)
            if share is not None:
                return replace(share, lease=choice.take(share.names))
        missing = self.free.without(unleased)
        held_by = holders(missing.names)
        parts = [
            count(len(part), noun)
            for part, noun in ((missing.gpus, "GPU"), (missing.cpus, "core"))
            if part
        ]
        wanted_parts = " and ".join(parts)
        line = Message(
            "leases.waiting",
            f"waiting for {wanted_parts}, leased by {' and '.join(held_by) or 'another command'}",
            gpus=len(missing.gpus),
            cores=len(missing.cpus),
            held_by=held_by,
        )
        self._say_once(held_by or [wanted_parts], line)
        return None

    def _say_once(self, topics: Iterable[str], line: str, error: bool = False) -> None:
        if not self.reported.issuperset(topics):
            self.reported.update(topics)
            say(line, error)


@contextmanager
def announced(configs: Iterable[RunConfig]) -> Iterator[None]:
    """Lease the GPUs and cores of runs in this process, which wait for nobody.

    Packed cells of other commands then avoid them.
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
    """Return the folder of the machine's leases, which is the same for all users."""
    if configured := os.environ.get(VARIABLE):
        return Path(configured)
    with suppress(OSError):
        mode = os.lstat(LOCKS).st_mode
        if stat.S_ISDIR(mode) and mode & 0o1777 == 0o1777:  # Every user may create files there.
            return Path(LOCKS, NAME)
    return Path("/tmp", NAME)


@dataclass
class Choice:
    """The leases as seen by the only command that may choose now."""

    directory: int
    # These files stay locked until the choice ends or they are taken.
    free: dict[str, int] = field(default_factory=dict)

    def is_free(self, name: str) -> bool:
        """Tell whether nobody holds the lease.

        Raises:
            OSError: The lease's file cannot be created or opened.
        """
        if name not in self.free:
            descriptor = _lock(self.directory, name, fcntl.LOCK_EX)
            if descriptor is not None:
                self.free[name] = descriptor
        return name in self.free

    def take(self, names: Iterable[str]) -> Lease:
        """Keep free leases beyond the end of the choice."""
        lease = Lease({name: self.free.pop(name) for name in names})
        for descriptor in lease.files.values():
            # Changing the lock releases it for a moment, but no other command chooses meanwhile.
            with suppress(BlockingIOError):
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return lease


@contextmanager
def choosing() -> Iterator[Choice | None]:
    """Let this command alone choose leases. Yield None if another command is choosing now.

    Raises:
        OSError: The folder or its file cannot be created or opened.
    """
    with _open_folder() as directory:
        lock = _lock(directory, CHOOSING, fcntl.LOCK_EX)
        choice = None if lock is None else Choice(directory)
        try:
            yield choice
        finally:
            if choice is not None and lock is not None:
                Lease(choice.free).close()
                os.close(lock)


def hold(names: Iterable[str]) -> Lease:
    """Hold leases of what this process computes on, even if others hold them too.

    Leases that cannot be locked are left out.
    """
    lease = Lease()
    ends_s = clock_s() + SHARED_WITHIN_S
    with suppress(OSError), _open_folder() as directory:
        for name in names:
            with suppress(OSError):  # A command that is choosing holds it for milliseconds.
                descriptor = _lock(directory, name, fcntl.LOCK_SH, ends_s)
                if descriptor is not None:
                    lease.files[name] = descriptor
    return lease


def holders(names: Iterable[str]) -> list[str]:
    """Return the commands that hold leases, as "pid 123 (alice: python train_vision.py ...)".

    Processes that they started are left out. The list is empty if the kernel does not list locks.
    """
    inodes = set[str]()
    locks = list[list[str]]()
    with suppress(OSError), _open_folder() as directory:
        for name in names:
            with suppress(OSError):
                status = os.stat(name, dir_fd=directory, follow_symlinks=False)
                inodes.add(
                    f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
                )
    with suppress(OSError):
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    matching_locks = [words for words in locks if "FLOCK" in words and words[-3] in inodes]
    pids = dict.fromkeys(int(words[-4]) for words in matching_locks if words[-4].isdigit())
    descriptions = []
    for pid in pids:
        line = ""
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if any(parent.pid in pids for parent in process.parents()):
                continue
            line = f"{process.username()}: {' '.join(process.cmdline())}"[:LONGEST_COMMAND]
        # Another user chose these words, which may hold control characters.
        printable = "".join(letter if letter.isprintable() else "?" for letter in line)
        descriptions.append(f"pid {pid} ({printable})" if line else f"pid {pid}")
    return descriptions


@contextmanager
def _open_folder() -> Iterator[int]:
    """Yield a descriptor of the folder of leases, and create the folder if it is missing.

    The descriptor stays valid even if the path leads elsewhere later.

    Raises:
        OSError: The folder can neither be created nor opened, or is a link.
    """
    path = folder()
    with suppress(FileExistsError):
        path.mkdir(parents=True)
        path.chmod(0o1777)  # The mode of mkdir would be reduced by the umask.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | OPEN_FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(directory: int, name: str, operation: int, ends_s: float = 0.0) -> int | None:
    """Lock a file of the folder and return its descriptor.

    Return None if another's lock forbids it until `ends_s`.
    """
    try:
        descriptor = os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        with suppress(FileExistsError):  # Another command has created it since.
            created = os.open(
                name, os.O_RDONLY | os.O_CREAT | os.O_EXCL | OPEN_FLAGS, 0o644, dir_fd=directory
            )
            os.fchmod(created, 0o644)  # Independent of the umask.
            os.close(created)
        descriptor = os.open(name, os.O_RDONLY | OPEN_FLAGS, dir_fd=directory)
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
