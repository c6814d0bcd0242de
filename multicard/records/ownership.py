"""Who measures into a run folder now: a process, or a job of SLURM,
claims it until it has left a record.

A claim is a file beside the folder, of a name that nobody else takes, locked as long as its process
lives. Who claims makes the file and then looks at the others: of two at once at least one sees the
other. Whether another's claim still counts is known from SLURM for jobs; from the lock; without
locks from the process's number and start; and of a process elsewhere from when it touched its file
last.

A finished measurement is put aside meanwhile, until the new one has finished too.
"""

import fcntl
import os
import random
import secrets
import shutil
import struct
from contextlib import suppress
from glob import escape
from pathlib import Path
from threading import Thread

import msgspec
import psutil
from msgspec import Struct

from multicard.machine import private, slurm
from multicard.machine.environment import host
from multicard.measure.timing import age_s, pause, start_ticks
from multicard.messages import Refusal
from multicard.records.run_folder import DONE, RESULT, SEGMENTS, finished, read, read_json
from multicard.records.steps import STEPS

RUNNING = ".running"  # ends the name of a claim: ".CELL.RANDOM.running"
# a process elsewhere that has not touched its claim for so long is gone
BEAT_S = 10.0
LEASE_S = 120.0
# of processes that claim at the same moment, and the longest pause between two
TRIES = 5
RETRY_S = 0.02
LOCK = struct.Struct("@hhqqi0q")  # struct flock: kind, whence, start, length, process


class OwnershipClaim(Struct):
    """What stands in a claim. started: of the process, in clock ticks.
    locked: its file system has locks.
    """

    host: str = ""
    pid: int = 0
    job: str | None = None
    boot: str = ""
    namespace: int = 0
    started: int | None = None
    locked: bool = False


_own: dict[Path, int] = {}  # claims of this process, and their locked descriptors


def claim(folder: Path, job: str | None = None, keep: bool = False) -> bool:
    """Have this process, or SLURM's `job`, alone measure into `folder`, until `release`.

    Files of an earlier try are removed.

    Args:
        keep: keep the files of an earlier try, also where it was no start of the same job.

    Returns:
        True where files of an earlier try are still there: the same job was requeued, or `keep`.

    Raises:
        ValueError: another process, or job, is measuring into it,
            or it holds a measurement that cannot be read.
    """
    undo = _drop
    _drop(folder)
    keep = keep or (job is not None and is_held_by(folder, job))
    who = None
    try:
        for _ in range(TRIES):
            _mark(folder, job)
            who = owner(folder, job)
            if who is None:
                break
            _drop(folder)  # both may have just begun
            pause(random.uniform(0, RETRY_S))
        if who is not None:
            raise _in_use(folder, who)
        _forget(folder, job)
        if keep:
            return True
        measured = finished(folder) is not None
        status = (read_json(folder / RESULT) or {}).get("status")
        if not measured and status in DONE:
            raise _broken(folder)
        if measured and not _aside(folder).exists():
            folder.rename(_aside(folder))
        undo = disclaim
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except BaseException:
        undo(folder)
        raise
    return False


def _in_use(folder: Path, who: str) -> Refusal:
    files = [str(path) for path in claims(folder)]
    return Refusal(
        "claim.in-use",
        f"name={folder.parent.name}: {who} is measuring {folder.name}; wait for it "
        f"(if it is gone, remove {', '.join(files)})",
        key="name",
        cell=folder.name,
        who=who,
        files=files,
    )


def _broken(folder: Path) -> Refusal:
    """The refusal to replace a measurement that cannot be read."""
    name = folder.parent.name
    cell = folder.name
    if read(folder) is None:
        return Refusal(
            "claim.other-record",
            f"name={name}: {cell}/{RESULT} is of another version of multicard, or altered; use that"
            " version, choose another `name=NAME`, or remove the folder to measure again",
            key="name",
            cell=cell,
        )
    return Refusal(
        "claim.no-steps",
        f"name={name}: {cell}/{STEPS}, whose steps {RESULT} counts, is cut off or gone; put it"
        " back, choose another `name=NAME`, or remove the folder to measure again",
        key="name",
        cell=cell,
    )


def disclaim(folder: Path) -> None:
    """Undo a `claim` before anything was measured: what was put aside is back."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(FileNotFoundError):
        _aside(folder).rename(folder)
    _drop(folder)


def owner(folder: Path, job: str | None = None) -> str | None:
    """The process or job that measures into `folder` now, unless it is this process,
    or SLURM's `job`.
    """
    paths = claims(folder)
    own = next((path for path in paths if path in _own), None)
    now_s = None if own is None else own.stat().st_mtime  # by the file server's clock
    return next(
        filter(None, (_holder(path, job, now_s) for path in paths if path not in _own)), None
    )


def is_held_by(folder: Path, job: str) -> bool:
    """True where SLURM's `job` claims `folder`, or died before it could release it."""
    return any(_read(path).job == job for path in claims(folder))


def is_lost(folder: Path) -> bool:
    """True where others took this process for dead, and its claim with it."""
    return not any(path in _own for path in claims(folder))


def release(folder: Path, job: str | None = None) -> None:
    """End the claims of this process, of `job`, and of what is gone."""
    if (not is_lost(folder) or owner(folder, job) is None) and finished(folder) is not None:
        shutil.rmtree(_aside(folder), ignore_errors=True)
    _drop(folder)
    _forget(folder, job)


def claims(folder: Path) -> list[Path]:
    """The files of all claims of a folder."""
    folder = folder.absolute()
    found = folder.parent.glob(f".{escape(folder.name)}.*{RUNNING}")
    return sorted(path for path in found if _claimed_by(path) == folder)


def _claimed_by(path: Path) -> Path:
    """The folder that a claim is of."""
    return path.with_name(path.name[1:].rsplit(".", 2)[0])


def _mark(folder: Path, job: str | None) -> None:
    """Make a claim of this process, which counts at once."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}{RUNNING}")
    _own[path] = descriptor = private.no_link(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
    locked = _lock(descriptor, fcntl.F_OFD_SETLK) is not None
    os.write(
        descriptor, msgspec.json.encode(msgspec.structs.replace(_here(), job=job, locked=locked))
    )
    Thread(target=_touch, args=(path,), daemon=True).start()


def _touch(path: Path) -> None:
    with suppress(OSError):  # it is gone
        while True:
            pause(BEAT_S)
            os.utime(path, follow_symlinks=False)


def _drop(folder: Path) -> None:
    """End the claims of this process alone."""
    for path in [path for path in _own if _claimed_by(path) == folder.absolute()]:
        path.unlink(missing_ok=True)
        os.close(_own.pop(path))


def _forget(folder: Path, job: str | None) -> None:
    """Remove claims that no longer count."""
    for path in claims(folder):
        if path not in _own and _holder(path, job) is None:
            path.unlink(missing_ok=True)


def _here() -> OwnershipClaim:
    """This process."""
    boot = ""
    namespace = 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return OwnershipClaim(
        host(), os.getpid(), boot=boot, namespace=namespace, started=start_ticks()
    )


def _read(path: Path) -> OwnershipClaim:
    """What stands in a claim; of one that is just being made, or is none, nothing."""
    with suppress(OSError, ValueError), os.fdopen(private.no_link(path, os.O_RDONLY), "rb") as file:
        return msgspec.json.decode(file.read(1 << 12), type=OwnershipClaim)
    return OwnershipClaim()


def _holder(path: Path, job: str | None, now_s: float | None = None) -> str | None:
    """Who holds another's claim, unless it is SLURM's `job`; None where it is gone."""
    marked = _read(path)
    here = _here()
    if marked.job is not None and marked.job == job:
        # An earlier start of the job is gone, and its lock with it;
        # whoever has the lock is another task of this start
        return f"process {marked.pid}, another task of job {job}," if _is_locked(path) else None
    if marked.job is not None:
        return f"job {marked.job}" if slurm.is_alive(marked.job) else None
    where = "" if marked.host == here.host else f" on {marked.host or 'another machine'}"
    return f"process {marked.pid}{where}" if _is_alive(path, marked, here, now_s) else None


def _is_alive(
    path: Path, marked: OwnershipClaim, here: OwnershipClaim, now_s: float | None
) -> bool:
    try:
        with os.fdopen(private.no_link(path, os.O_RDONLY)) as file:
            status = os.fstat(file.fileno())
            is_free = _lock(file.fileno(), fcntl.F_OFD_GETLK)
    except OSError:  # it has been released, or is a link
        return False
    if is_free is False:
        return True
    if marked.boot == here.boot != "":
        if marked.locked and is_free:
            return False
        if marked.namespace == here.namespace:
            return psutil.pid_exists(marked.pid) and start_ticks(marked.pid) in (
                None,
                marked.started,
            )
    return age_s(status, now_s) < LEASE_S


def _is_locked(path: Path) -> bool:
    """True where a process that lives has the lock of a claim;
    False also where the file system has no locks.
    """
    with suppress(OSError), os.fdopen(private.no_link(path, os.O_RDONLY)) as file:
        return _lock(file.fileno(), fcntl.F_OFD_GETLK) is False
    return False


def _lock(descriptor: int, operation: int) -> bool | None:
    """Take the lock of a claim, or ask whether it is free;
    None where the file system has no locks.
    """
    try:
        asked = fcntl.fcntl(descriptor, operation, LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    return operation != fcntl.F_OFD_GETLK or LOCK.unpack(asked)[0] == fcntl.F_UNLCK


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def clear(folder: Path) -> None:
    """Remove what an earlier start of the same job left, but for the list of its starts."""
    for path in folder.iterdir():
        if path.name != SEGMENTS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def results(sweep: Path) -> dict[Path, tuple[int, int]]:
    """Inode and change time of each record of a sweep,
    by its folder: they tell it from one that replaces it.

    No time is compared with a clock, or with that of another file: nodes,
    file servers and their clocks differ.
    """
    known = {}
    for path in sweep.glob(f"[!.]*/{RESULT}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            known[path.parent] = (status.st_ino, status.st_mtime_ns)
    return known


def beside(folder: Path, hosts: set[str], before: dict[Path, tuple[int, int]]) -> int:
    """Other runs of the sweep that were measured on one of these
    hosts while the run in `folder` was, until now.

    Args:
        before: `results` of the sweep when the run began.
    """
    running = {_claimed_by(path): _read(path) for path in folder.parent.glob(f".*{RUNNING}")}
    mine = running.pop(folder, OwnershipClaim())
    count = sum(
        owner(other, mine.job) is not None
        for other, claim in running.items()
        if claim.host in hosts
    )
    for other in dict(results(folder.parent).items() - before.items()).keys() - {folder, *running}:
        ended = read(other)
        count += ended is not None and any(
            hosts & {*(part.hosts or ())} for part in ended.record.segments
        )
    return count
