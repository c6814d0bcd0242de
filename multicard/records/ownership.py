"""Who measures into a run folder now: a process, or a job of SLURM, claims it until it has left a record.

A finished measurement is put aside meanwhile, until the new one has finished too.
"""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

from multicard.config.keys import require
from multicard.machine import slurm
from multicard.machine.environment import host
from multicard.records.run_folder import DONE, RESULT, SEGMENTS, finished, read, read_json, write_json

RUNNING = ".running.json"  # the marker in the folder: host, process and job


def claim(folder: Path, job: str | None = None, keep: bool = False) -> bool:
    """Mark `folder` as being measured by this process, or by SLURM's `job`, until `release`.

    Files of an earlier try are removed.

    Args:
        keep: keep the files of an earlier try, also where it was no start of the same job.

    Returns:
        True where files of an earlier try are still there: the same job was requeued, or `keep`.

    Raises:
        ValueError: another process, or job, is measuring into it, or it holds a measurement that cannot be read.
    """
    marker, key = folder / RUNNING, f"name={folder.parent.name}"
    mine = {"host": host(), "pid": os.getpid(), "job": job}
    before = read_json(marker)
    if job is not None and before is not None and before.get("job") == job:
        write_json(marker, mine)
        return True
    who = owner(folder)
    require(who is None, f"{key}: {who} is measuring {folder.name}; wait for it (if it is gone, remove {marker})")
    if keep:
        write_json(marker, mine)
        return True
    measured = finished(folder) is not None
    status = (read_json(folder / RESULT) or {}).get("status")
    problem = f"{key}: {folder.name}/{RESULT} is of another version of multicard, or altered"
    remedy = "use that version, choose another name=, or remove the folder"
    require(measured or status not in DONE, f"{problem}; {remedy}")
    if measured and not _aside(folder).exists():
        folder.rename(_aside(folder))
    try:
        if folder.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        with marker.open("x") as file:
            json.dump(mine, file)
    except FileExistsError:
        raise ValueError(f"{key}: another process has just begun to measure {folder.name}; wait for it") from None
    except OSError:
        disclaim(folder)
        raise
    return False


def disclaim(folder: Path) -> None:
    """Undo a `claim` before anything was measured: what was put aside is back."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(FileNotFoundError):
        _aside(folder).rename(folder)


def owner(folder: Path, job: str | None = None) -> str | None:
    """The process or job that measures into `folder` now, unless it is this process, or SLURM's `job`."""
    marked = read_json(folder / RUNNING)
    if marked is None or (job is not None and marked.get("job") == job):
        return None
    import psutil

    if marked.get("job") is not None:
        return f"job {marked['job']}" if slurm.is_alive(marked["job"]) else None
    if marked["host"] != host():
        return f"process {marked['pid']} on {marked['host']}"
    other = marked["pid"] != os.getpid() and psutil.pid_exists(marked["pid"])
    return f"process {marked['pid']}" if other else None


def is_held_by(folder: Path, job: str) -> bool:
    """True where SLURM's `job` claims `folder`, or died before it could release it."""
    return (read_json(folder / RUNNING) or {}).get("job") == job


def release(folder: Path) -> None:
    """End a `claim`."""
    (folder / RUNNING).unlink(missing_ok=True)
    if finished(folder) is not None:
        shutil.rmtree(_aside(folder), ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def clear(folder: Path) -> None:
    """Remove what an earlier start of the same job left, but for the list of its starts."""
    for path in folder.iterdir():
        if path.name not in (RUNNING, SEGMENTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def results(sweep: Path) -> dict[Path, tuple[int, int]]:
    """Inode and change time of each record of a sweep, by its folder: they tell it from one that replaces it.

    No time is compared with a clock, or with that of another file: nodes, file servers and their clocks differ.
    """
    known = {}
    for path in sweep.glob(f"[!.]*/{RESULT}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            known[path.parent] = (status.st_ino, status.st_mtime_ns)
    return known


def beside(folder: Path, hosts: set[str], before: dict[Path, tuple[int, int]]) -> int:
    """Other runs of the sweep that were measured on one of these hosts while the run in `folder` was, until now.

    Args:
        before: `results` of the sweep when the run began.
    """
    job = (read_json(folder / RUNNING) or {}).get("job")
    running = {path.parent: read_json(path) or {} for path in folder.parent.glob(f"[!.]*/{RUNNING}")}
    others = {other: marker for other, marker in running.items() if other != folder and marker.get("host") in hosts}
    count = sum(owner(other, job) is not None for other in others)
    for other in dict(results(folder.parent).items() - before.items()).keys() - {folder, *running}:
        ended = read(other)
        count += ended is not None and any(hosts & {*(part.hosts or ())} for part in ended.record.segments)
    return count
