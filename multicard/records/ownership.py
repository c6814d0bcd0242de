"""Makes sure that one process or SLURM job at a time measures into a run folder.

A process claims the folder until it has left a record. A claim is a file next to the folder. Its
name is random, and it stays locked as long as its process lives. A process first makes its claim
and then looks for other claims: if two processes start at once, at least one sees the other.

Whether another claim is still valid depends on its owner. For a job, SLURM says whether it is
alive. For a process on this node, the lock says so, or without locks, its process id and start
time. For a process elsewhere, the claim is valid if it was touched recently.

If the folder holds a finished measurement, it is set aside until the new one has finished, too.
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
from multicard.records.run_folder import DONE, RESULT, SEGMENTS, finished, read_json, read_run
from multicard.records.steps import STEPS

RUNNING = ".running"  # A claim's file is called ".CELL.RANDOM.running".
# A process elsewhere touches its claim every BEAT_S. If it has not for LEASE_S, it is dead.
BEAT_S = 10.0
LEASE_S = 120.0
# Processes that claim at the same moment back off for at most RETRY_S, and try TRIES times.
TRIES = 5
RETRY_S = 0.02
LOCK = struct.Struct("@hhqqi0q")  # struct flock: type, whence, start, length, pid


class OwnershipClaim(Struct):
    """The content of a claim.

    started: the start time of the process, in clock ticks.
    locked: whether the file system supports locks.
    """

    host: str = ""
    pid: int = 0
    job: str | None = None
    boot: str = ""
    namespace: int = 0
    started: int | None = None
    locked: bool = False


# The claims of this process, with the descriptors that hold their locks.
_own_claims: dict[Path, int] = {}


def claim(folder: Path, job: str | None = None, keep: bool = False) -> bool:
    """Reserve `folder` for this process, or for SLURM's `job`, until `release`.

    The files of an earlier attempt are removed.

    Args:
        keep: keep the files of an earlier attempt even if it was not a start of the same job.

    Returns:
        True if files of an earlier attempt are still there: the same job was requeued, or `keep`
        was set.

    Raises:
        ValueError: another process or job is measuring into the folder, or it holds a measurement
            that cannot be read.
    """
    undo = _end_own_claims
    _end_own_claims(folder)
    keep = keep or (job is not None and is_held_by(folder, job))
    holder = None
    try:
        for _ in range(TRIES):
            _make_claim(folder, job)
            holder = owner(folder, job)
            if holder is None:
                break
            _end_own_claims(folder)  # The other process may have begun at the same moment.
            pause(random.uniform(0, RETRY_S))
        if holder is not None:
            raise _in_use(folder, holder)
        _remove_stale_claims(folder, job)
        if keep:
            return True
        measured = finished(folder) is not None
        status = (read_json(folder / RESULT) or {}).get("status")
        if not measured and status in DONE:
            raise _unreadable_measurement(folder)
        if measured and not _set_aside_path(folder).exists():
            folder.rename(_set_aside_path(folder))
        undo = disclaim
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
    except BaseException:
        undo(folder)
        raise
    return False


def _in_use(folder: Path, holder: str) -> Refusal:
    files = [str(path) for path in claims(folder)]
    return Refusal(
        "claim.in-use",
        f"name={folder.parent.name}: {holder} is measuring {folder.name}; wait for it "
        f"(if it is gone, remove {', '.join(files)})",
        key="name",
        cell=folder.name,
        who=holder,
        files=files,
    )


def _unreadable_measurement(folder: Path) -> Refusal:
    """Return the refusal to replace a measurement that cannot be read."""
    name = folder.parent.name
    cell = folder.name
    if read_run(folder) is None:
        return Refusal(
            "claim.other-record",
            f"name={name}: {cell}/{RESULT} was altered, or written by another version of multicard;"
            " use that version, choose another `name=NAME`, or remove the folder to measure again",
            key="name",
            cell=cell,
        )
    return Refusal(
        "claim.no-steps",
        f"name={name}: {cell}/{STEPS} is truncated or missing, although {RESULT} counts its steps;"
        " put it back, choose another `name=NAME`, or remove the folder to measure again",
        key="name",
        cell=cell,
    )


def disclaim(folder: Path) -> None:
    """Undo a `claim` before anything was measured, and put back what was set aside."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(FileNotFoundError):
        _set_aside_path(folder).rename(folder)
    _end_own_claims(folder)


def owner(folder: Path, job: str | None = None) -> str | None:
    """Return the process or job that measures into `folder` now; None if there is none, or if it is
    this process or SLURM's `job`.
    """
    paths = claims(folder)
    own_paths = [path for path in paths if path in _own_claims]
    # Ages are measured on the file server's clock, by which this process's claim was touched.
    now_s = own_paths[0].stat().st_mtime if own_paths else None
    for path in paths:
        if path not in _own_claims:
            holder = _holder(path, job, now_s)
            if holder is not None:
                return holder
    return None


def is_held_by(folder: Path, job: str) -> bool:
    """True if SLURM's `job` claims `folder`, or died before it could release it."""
    return any(_read_claim(path).job == job for path in claims(folder))


def is_lost(folder: Path) -> bool:
    """True if this process's claim is gone because another process thought that it was dead."""
    return not any(path in _own_claims for path in claims(folder))


def release(folder: Path, job: str | None = None) -> None:
    """End the claims of this process, of `job`, and of processes that no longer exist."""
    if (not is_lost(folder) or owner(folder, job) is None) and finished(folder) is not None:
        shutil.rmtree(_set_aside_path(folder), ignore_errors=True)
    _end_own_claims(folder)
    _remove_stale_claims(folder, job)


def claims(folder: Path) -> list[Path]:
    """Return the files of all claims of a folder."""
    folder = folder.absolute()
    files = folder.parent.glob(f".{escape(folder.name)}.*{RUNNING}")
    return sorted(path for path in files if _claimed_by(path) == folder)


def _claimed_by(path: Path) -> Path:
    """Return the folder that a claim reserves."""
    return path.with_name(path.name[1:].rsplit(".", 2)[0])


def _make_claim(folder: Path, job: str | None) -> None:
    """Make a claim for this process. It is valid at once."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}{RUNNING}")
    _own_claims[path] = descriptor = private.no_link(
        path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644
    )
    locked = _lock(descriptor, fcntl.F_OFD_SETLK) is not None
    os.write(
        descriptor,
        msgspec.json.encode(msgspec.structs.replace(_this_process(), job=job, locked=locked)),
    )
    Thread(target=_keep_fresh, args=(path,), daemon=True).start()


def _keep_fresh(path: Path) -> None:
    with suppress(OSError):  # The claim has been released.
        while True:
            pause(BEAT_S)
            os.utime(path, follow_symlinks=False)


def _end_own_claims(folder: Path) -> None:
    """End the claims of this process, and no others."""
    for path in [path for path in _own_claims if _claimed_by(path) == folder.absolute()]:
        path.unlink(missing_ok=True)
        os.close(_own_claims.pop(path))


def _remove_stale_claims(folder: Path, job: str | None) -> None:
    """Remove claims that are no longer valid."""
    for path in claims(folder):
        if path not in _own_claims and _holder(path, job) is None:
            path.unlink(missing_ok=True)


def _this_process() -> OwnershipClaim:
    """Return the content of a claim by this process."""
    boot = ""
    namespace = 0
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    return OwnershipClaim(
        host(), os.getpid(), boot=boot, namespace=namespace, started=start_ticks()
    )


def _read_claim(path: Path) -> OwnershipClaim:
    """Read a claim. An empty one stands for a file that is being written, or is not a claim."""
    with suppress(OSError, ValueError), os.fdopen(private.no_link(path, os.O_RDONLY), "rb") as file:
        return msgspec.json.decode(file.read(1 << 12), type=OwnershipClaim)
    return OwnershipClaim()


def _holder(path: Path, job: str | None, now_s: float | None = None) -> str | None:
    """Return the live holder of another process's claim, unless it is SLURM's `job`."""
    content = _read_claim(path)
    this_process = _this_process()
    if content.job is not None and content.job == job:
        # An earlier start of the job has ended, and its lock with it. If the claim is locked, its
        # holder is another task of this start.
        return f"process {content.pid}, another task of job {job}," if _is_locked(path) else None
    if content.job is not None:
        return f"job {content.job}" if slurm.is_alive(content.job) else None
    where = "" if content.host == this_process.host else f" on {content.host or 'another machine'}"
    return (
        f"process {content.pid}{where}" if _is_alive(path, content, this_process, now_s) else None
    )


def _is_alive(
    path: Path, content: OwnershipClaim, this_process: OwnershipClaim, now_s: float | None
) -> bool:
    try:
        with os.fdopen(private.no_link(path, os.O_RDONLY)) as file:
            status = os.fstat(file.fileno())
            is_free = _lock(file.fileno(), fcntl.F_OFD_GETLK)
    except OSError:  # The claim has been released, or is a link.
        return False
    if is_free is False:
        return True
    if content.boot == this_process.boot != "":
        if content.locked and is_free:
            return False
        if content.namespace == this_process.namespace:
            return psutil.pid_exists(content.pid) and start_ticks(content.pid) in (
                None,
                content.started,
            )
    return age_s(status, now_s) < LEASE_S


def _is_locked(path: Path) -> bool:
    """True if a live process holds the lock of a claim; always False without file locks."""
    with suppress(OSError), os.fdopen(private.no_link(path, os.O_RDONLY)) as file:
        return _lock(file.fileno(), fcntl.F_OFD_GETLK) is False
    return False


def _lock(descriptor: int, operation: int) -> bool | None:
    """Take the lock of a claim, or ask whether it is free; None if the file system has no locks."""
    try:
        answer = fcntl.fcntl(descriptor, operation, LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return None
    return operation != fcntl.F_OFD_GETLK or LOCK.unpack(answer)[0] == fcntl.F_UNLCK


def _set_aside_path(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def clear(folder: Path) -> None:
    """Remove the files of earlier starts of the same job, except the list of its starts."""
    for path in folder.iterdir():
        if path.name != SEGMENTS:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def record_stamps(sweep: Path) -> dict[Path, tuple[int, int]]:
    """Return the inode and change time of each record of a sweep, by its folder.

    They differ if a record is replaced. No time is compared with a clock or with the time of
    another file, because nodes and file servers have different clocks.
    """
    stamps = {}
    for path in sweep.glob(f"[!.]*/{RESULT}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            stamps[path.parent] = (status.st_ino, status.st_mtime_ns)
    return stamps


def count_concurrent_runs(
    folder: Path, hosts: set[str], before: dict[Path, tuple[int, int]]
) -> int:
    """Count the other runs of the sweep that were measured on one of these hosts between the start
    of the run in `folder` and now.

    Args:
        before: `record_stamps` of the sweep when the run began.
    """
    running = {_claimed_by(path): _read_claim(path) for path in folder.parent.glob(f".*{RUNNING}")}
    own_claim = running.pop(folder, OwnershipClaim())
    count = sum(
        owner(other, own_claim.job) is not None
        for other, claim in running.items()
        if claim.host in hosts
    )
    for other, stamp in record_stamps(folder.parent).items():
        has_new_record = before.get(other) != stamp
        if not has_new_record or other == folder or other in running:
            continue
        ended = read_run(other)
        count += ended is not None and any(
            hosts & {*(part.hosts or ())} for part in ended.record.segments
        )
    return count
