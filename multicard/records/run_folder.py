"""The run folder: what is in it, and how it is written so that a file is either whole or absent.

| file | what |
|---|---|
| config.yaml | the resolved configuration |
| environment.json | versions, devices, flags that took effect |
| logs/rRR.log | what rank RR printed |
| ranks/rRR.json | rank RR's counts so far, rewritten every epoch; gone once result.json is written |
| steps/rRR_eEEE.parquet | rank RR's epoch EEE, one row per step; merged to steps.parquet at the end |
| blocks/rRR.jsonl | a cell of a race: the blocks of steps that rank RR trained between two pauses |
| steps.parquet | the steps of all ranks and epochs |
| gpu/ | samples of the GPUs, by attempt and node; merged to gpu.parquet at the end |
| gpu.parquet | the samples of all GPUs of the run |
| machine.parquet | CPU and memory of the first node, sampled once a second |
| profile/ | traces of `profile=kineto` or `nsys` |
| inputs/ | tuning: the rows as torchtune reads them, and the embedded tokenizer |
| torchtune.yaml | tuning: the same run for `tune run` |
| tune_run/ | tuning: what `tune run` with torchtune.yaml writes |
| segments.json | one entry per attempt; gone once result.json is written, which holds it as `segments` |
| checkpoint/ | what a requeued job goes on from; gone once the run has ended |
| result.json | status, axes and summary; written last |
"""

import json
import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from multicard.config.keys import require
from multicard.machine import slurm
from multicard.machine.environment import host
from multicard.records import steps, validate
from multicard.records.schema import AnyRecord, Environment
from multicard.records.schema_parts import Attempt

RESULT, ENVIRONMENT = "result.json", "environment.json"
STATUSES = ("ok", "oom", "diverged", "failed", "timeout", "preempted", "interrupted", "refused")
DONE = ("ok", "oom", "diverged")  # out of memory and divergence are measurements: they would happen again
ALWAYS = ("schema_version", "kind", "name", "job", "status", "cause", "started_at", "axes", "repetition")
RUNNING = ".running.json"  # who is measuring into the folder now
SEGMENTS = "segments.json"
MACHINE = "machine.parquet"
STEP_PARTS = "steps/r*_e*.parquet"
PARTIAL = re.compile(r"\..+\.\d+")  # what `replacing` writes first
BAD = ("failed", "interrupted", "timeout", "refused")  # a sweep that holds one of these exits with 1


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write what `path` is to be: whoever reads `path` sees all of it or none, after a power cut too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write(text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a value, or a struct, as JSON."""
    write_text(path, json_text(value))


def json_text(value: Any) -> str:
    return json.dumps(finite(msgspec.to_builtins(value, enc_hook=_plain)), indent=1, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """A number of NumPy's as one of Python's."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"JSON has no {type(value).__name__}")


def finite(value: Any) -> Any:
    """`value` with None for every NaN and infinity, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None where it is absent or not whole."""
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@dataclass
class Run:
    """A run that has a record: its folder and what is in it.

    tracker_error: why W&B does not have it; None where it has, or was not asked to.
    """

    folder: Path
    record: AnyRecord
    tracker_error: str | None = None

    @property
    def status(self) -> str:
        return self.record.status


def content_of(record: AnyRecord) -> dict[str, Any]:
    """The content of result.json: of a run that was not measured, the keys that all records have."""
    content = json.loads(json_text(record))
    return content if record.identity is not None else {key: content[key] for key in ALWAYS}


def write_result(run: Run) -> None:
    """Write result.json, checked by the schema (see `validate.checked`)."""
    _write_checked(run.folder / RESULT, content_of(run.record), AnyRecord)


def write_environment(folder: Path, environment: Environment) -> None:
    """Write environment.json, checked in the same way."""
    _write_checked(folder / ENVIRONMENT, environment, Environment)


def _write_checked(path: Path, value: Any, kind: Any) -> None:
    text = json_text(value)
    with validate.checked(path):
        validate.check(text, kind)
    write_text(path, text)


def read_environment(folder: Path) -> Environment:
    """The environment of a run; empty where it is absent or broken."""
    try:
        return msgspec.json.decode((folder / ENVIRONMENT).read_bytes(), type=Environment)
    except (OSError, ValueError, RecursionError):
        return Environment()


def write_parquet(path: Path, columns: dict[str, Any]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as file:
        pq.write_table(pa.table(columns), file)


def write_steps(folder: Path, rank: int, epoch: int, columns: dict[str, np.ndarray]) -> None:
    """Write one rank's epoch, one row per step.

    Args:
        columns: (steps,) each, as the schema has them after epoch, rank and step.
    """
    count = len(columns["step_s"])
    index = {"epoch": np.full(count, epoch, np.int32), "rank": np.full(count, rank, np.int32)}
    columns = {**index, "step": np.arange(count, dtype=np.int32), **columns}
    path = steps_file(folder, rank, epoch)
    with validate.checked(path):
        validate.check_steps(columns)
    write_parquet(path, columns)


def steps_file(folder: Path, rank: int, epoch: int) -> Path:
    return folder / "steps" / f"r{rank:02d}_e{epoch:03d}.parquet"


def read_steps(folder: Path) -> Any:
    """All steps of a run as one Arrow table ordered by epoch, rank and step; None where there is none.

    Those merged before and those not merged yet are one table: a start that was cut off may have left both. Of an epoch
    of a rank that is in both, the part counts, which a later start trained again.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    merged = folder / steps.STEPS
    tables = [pq.ParquetFile(path).read() for path in sorted(folder.glob(STEP_PARTS))]
    if merged.exists():
        table = pq.ParquetFile(merged).read()
        newer = {key for part in tables for key in _epochs_and_ranks(part)}
        tables.append(table.filter([key not in newer for key in _epochs_and_ranks(table)]) if newer else table)
    if not tables:
        return None
    return pa.concat_tables(tables).sort_by([(key, "ascending") for key in ("epoch", "rank", "step")])


def _epochs_and_ranks(table: Any) -> Iterator[tuple[int, int]]:
    """Epoch and rank of each row."""
    return zip(table["epoch"].to_pylist(), table["rank"].to_pylist(), strict=True)


def merge_steps(folder: Path) -> Any:
    """Merge steps/ into steps.parquet, remove what was merged, and return the table."""
    import pyarrow.parquet as pq

    table = read_steps(folder)
    if any(folder.glob(STEP_PARTS)):
        with replacing(folder / steps.STEPS) as file:
            pq.write_table(table, file)
    remove_files(folder / "steps", Path(STEP_PARTS).name)
    return table


def read_machine(folder: Path) -> Any:
    """The samples of CPU and memory as an Arrow table; None where there are none."""
    import pyarrow.parquet as pq

    path = folder / MACHINE
    return pq.ParquetFile(path).read() if path.exists() else None


def remove_files(folder: Path, pattern: str) -> None:
    """Remove the files of `folder` that match, and the folder where nothing else is left in it."""
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)
    remove_empty(folder)


def remove_partial(folder: Path) -> None:
    """Remove the files that a killed process was writing (see `replacing`). Nobody may be writing now."""
    for path in (*folder.glob(".*"), *folder.glob("*/.*")):
        if PARTIAL.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_empty(folder: Path) -> None:
    """Remove `folder` if nothing is in it."""
    try:
        folder.rmdir()
    except OSError:
        return


def claim(folder: Path, job: str | None = None, keep: bool = False) -> bool:
    """Mark `folder` as being measured by this process, or by SLURM's `job`, until `release`.

    Files of an earlier try are removed; a finished measurement is put aside until the new one has finished too.

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
    measured, status = finished(folder) is not None, (read_json(folder / RESULT) or {}).get("status")
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


def results(sweep: Path) -> dict[str, tuple[int, int]]:
    """Inode and change time of each record of a sweep, by the name of its run: they tell it from one that replaces it.

    No time is compared with a clock: it may be set meanwhile, and that of a file server is another.
    """
    known = {}
    for path in sweep.glob(f"[!.]*/{RESULT}"):
        with suppress(FileNotFoundError):
            status = path.stat()
            known[path.parent.name] = (status.st_ino, status.st_mtime_ns)
    return known


def beside(folder: Path, hosts: set[str], before: dict[str, tuple[int, int]]) -> int:
    """Other runs of the sweep that were measured on one of these hosts while the run in `folder` was, until now.

    Args:
        before: `results` of the sweep when the run began.
    """
    marked, count = read_json(folder / RUNNING) or {}, 0
    now = results(folder.parent)
    running = {path.parent.name: read_json(path) for path in folder.parent.glob(f"[!.]*/{RUNNING}")}
    for name in (now | running).keys() - {folder.name}:
        other, marker = folder.parent / name, running.get(name)
        if marker is not None:
            count += marker["host"] in hosts and owner(other, marked.get("job")) is not None
        elif name in now and now[name] != before.get(name):
            ended = read(other)
            count += ended is not None and any(hosts & {*(part.hosts or ())} for part in ended.record.segments)
    return count


def clear(folder: Path) -> None:
    """Remove what an earlier start of the same job left, but for the list of its starts."""
    for path in folder.iterdir():
        if path.name not in (RUNNING, SEGMENTS):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def read_segments(folder: Path) -> list[Attempt]:
    """The starts of the run, in order; one that left no `end` was cut off."""
    return msgspec.convert((read_json(folder / SEGMENTS) or {}).get("segments", []), list[Attempt])


def write_segments(folder: Path, segments: list[Attempt]) -> None:
    write_json(folder / SEGMENTS, {"segments": msgspec.to_builtins(segments)})


def release(folder: Path) -> None:
    """End a `claim`."""
    (folder / RUNNING).unlink(missing_ok=True)
    if finished(folder) is not None:
        shutil.rmtree(_aside(folder), ignore_errors=True)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.before")


def find_cell(sweep: Path, ending: str) -> Path | None:
    """The folder under `sweep` in which the run with this identity, and repetition, was measured before."""
    return next((path for path in sorted(sweep.glob(f"*{ending}")) if path.is_dir()), None)


def finished(folder: Path) -> Run | None:
    """The run in a folder, if it is one that need not be measured again."""
    run = read(folder)
    return run if run is not None and run.status in DONE else None


def read(folder: Path) -> Run | None:
    """The run in a folder; None before it has left a record, or where that is broken."""
    try:
        record = validate.decode((folder / RESULT).read_bytes())
    except (OSError, ValueError):
        return None
    steps.redefine(folder, record)
    return Run(folder, record)
