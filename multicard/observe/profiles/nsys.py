"""Nsight Systems: the reader of its SQLite export (schema 3.x), and the command to run ranks under.

`nsys export` turns an `.nsys-rep` into SQLite. A file may hold several processes. Each process that
used a GPU is a rank. They are ordered by their first device, then by process id: under
CUDA_VISIBLE_DEVICES, all of them call theirs 0. A launcher may call CUDA only to ask for the number
of devices. Such processes are ranks only if no process did more.
"""

import shlex
import shutil
import sqlite3
import subprocess
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from multicard.config.base import ProfileName, RunConfig
from multicard.messages import Refusal
from multicard.observe.profiles.events import (
    PHASES,
    STEP,
    WINDOW,
    Collector,
    EventKind,
    Trace,
    without_events,
)
from multicard.observe.profiles.trace_files import FOLDER

ROWS_PER_BATCH = 1 << 17
# A globalTid without its lowest 24 bits, which are the thread, is the globalPid.
PROCESS_MASK = ~0xFFFFFF
# The column copyKind holds CUpti_ActivityMemcpyKind. The columns srcKind and dstKind hold
# CUpti_ActivityMemoryKind.
COPY_DIRECTIONS = {
    1: "HtoD",
    2: "DtoH",
    3: "HtoA",
    4: "AtoH",
    5: "AtoA",
    6: "AtoD",
    7: "DtoA",
    8: "DtoD",
    9: "HtoH",
    10: "PtoP",
}
COPY_DIRECTIONS |= {11: "unified-HtoD", 12: "unified-DtoH", 13: "unified-DtoD"}
MEMORY_KINDS = {
    0: "Pageable",
    1: "Pinned",
    2: "Device",
    3: "Array",
    4: "Managed",
    5: "Device Static",
    6: "Managed Static",
}
# eventType of NVTX ranges: pushed and popped, or started and ended.
RANGE_EVENT_TYPES = (59, 60)

CUPTI = "CUPTI_ACTIVITY_KIND_"
TABLES = {
    EventKind.API: f"{CUPTI}RUNTIME",
    EventKind.KERNEL: f"{CUPTI}KERNEL",
    EventKind.COPY: f"{CUPTI}MEMCPY",
    EventKind.SET: f"{CUPTI}MEMSET",
    EventKind.RANGE: "NVTX_EVENTS",
}
# The queries' columns are start, end, device, process or thread, bytes, correlation (0 if CUPTI
# knows none), and text of the name.
CORRELATION = "ifnull(nullif(correlationId, 0), -1)"
QUERIES = {
    EventKind.API: (
        f"""SELECT start, "end", -1, globalTid, -1, {CORRELATION}, s.value
        FROM {TABLES[EventKind.API]}
        JOIN StringIds s ON s.id = nameId"""
    ),
    EventKind.KERNEL: (
        f"""SELECT start, "end", deviceId, globalPid, -1, {CORRELATION}, s.value
        FROM {TABLES[EventKind.KERNEL]}
        JOIN StringIds s ON s.id = demangledName"""
    ),
    EventKind.COPY: (
        f"""SELECT start, "end", deviceId, globalPid, bytes, {CORRELATION},
        copyKind || ' ' || ifnull(srcKind, '') || ' ' || ifnull(dstKind, '')
        FROM {TABLES[EventKind.COPY]}"""
    ),
    EventKind.SET: (
        f"""SELECT start, "end", deviceId, globalPid, bytes, {CORRELATION}, 'Memset'
        FROM {TABLES[EventKind.SET]}"""
    ),
    EventKind.RANGE: (
        f"""SELECT start, "end", -1, globalTid, -1, -1, coalesce(text, s.value) AS name
        FROM {TABLES[EventKind.RANGE]} LEFT JOIN StringIds s ON s.id = textId
        WHERE eventType IN {RANGE_EVENT_TYPES} AND "end" IS NOT NULL AND name IS NOT NULL"""
    ),
}
DbRow = tuple[int, int, int, int, int, int, str]


def read_export(path: Path) -> list[Trace]:
    """Return the traces of all ranks in an export, without their numbers.

    Raises a Refusal if the file is damaged, not an export of nsys, or without CUDA.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _read_database(database, str(path))
    except sqlite3.OperationalError as error:
        if not str(error).startswith("no such column"):
            raise _unreadable(path, error) from None
        raise Refusal(
            "nsys.unknown-schema",
            f"{path}: is an export of nsys in an unknown form ({error}); "
            "profile again with Nsight Systems 2021.4 or later, or use `profile=kineto`",
            file=str(path),
            reason=str(error),
        ) from None
    except sqlite3.Error as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: sqlite3.Error) -> Refusal:
    return Refusal(
        "nsys.sqlite", f"{path}: SQLite cannot read it: {error}", file=str(path), reason=str(error)
    )


def export(report: Path, folder: Path) -> Path:
    """Export an `.nsys-rep` as SQLite into a folder with the program nsys.

    Raises a Refusal if nsys is not on PATH, or if it fails.
    """
    program = shutil.which("nsys")
    if program is None:
        raise Refusal(
            "nsys.not-on-path",
            f"{report}: reading it takes the program nsys, which is not on PATH; export it where"
            f" Nsight Systems is installed: `nsys export --type sqlite {shlex.quote(report.name)}`",
            file=str(report),
        )
    target = Path(tempfile.mkdtemp(dir=folder)) / f"{report.stem}.sqlite"
    line = [
        program,
        "export",
        "--type",
        "sqlite",
        "--force-overwrite",
        "true",
        "-o",
        str(target),
        str(report),
    ]
    process = subprocess.run(line, capture_output=True, text=True, check=False)
    if process.returncode or not target.exists():
        output = (process.stderr or process.stdout).strip().splitlines()
        reason = output[-1] if output else f"exit code {process.returncode}"
        raise Refusal(
            "nsys.export-failed",
            f"{report}: nsys export failed: {reason}",
            file=str(report),
            reason=reason,
        )
    return target


def _read_database(database: sqlite3.Connection, where: str) -> list[Trace]:
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if "StringIds" not in tables or not any(
        table in tables for table in TABLES.values() if table.startswith(CUPTI)
    ):
        raise Refusal(
            "nsys.no-cupti",
            f"{where}: has no CUPTI tables: it is not an export of nsys, or was profiled without"
            " --trace=cuda",
            file=where,
        )
    collectors: dict[int, Collector] = {}
    for kind, table in TABLES.items():
        if table in tables:
            cursor = database.execute(QUERIES[kind])
            while rows := cursor.fetchmany(ROWS_PER_BATCH):
                _collect_batch(rows, kind, collectors)
    if not collectors:
        raise without_events(where)
    traces = [
        collector.trace(f"{where} (process {process >> 24 & 0xFFFFFF})", None)
        for process, collector in sorted(collectors.items())
    ]
    first_devices = [
        min(trace.columns["device"][trace.columns["device"] >= 0], default=-1) for trace in traces
    ]
    on_device = [(device, i) for i, device in enumerate(first_devices) if device >= 0]
    return [traces[i] for _, i in sorted(on_device)] or traces


def _collect_batch(rows: list[DbRow], kind: EventKind, collectors: dict[int, Collector]) -> None:
    """Add each row to the collector of its process."""
    names = [_event_name(kind, row[-1]) for row in rows]
    start, end, device, owner, size, launch = np.array([row[:-1] for row in rows], np.int64).T
    for process in np.unique(owner & PROCESS_MASK).tolist():
        rows_of_process = np.flatnonzero(owner & PROCESS_MASK == process)
        collectors.setdefault(process, Collector()).add(
            [names[i] for i in rows_of_process],
            kind=np.full(len(rows_of_process), kind),
            start_ns=start[rows_of_process],
            end_ns=end[rows_of_process],
            device=device[rows_of_process],
            thread=np.where(device[rows_of_process] < 0, owner[rows_of_process], 0),
            bytes=size[rows_of_process],
            correlation=launch[rows_of_process],
        )


def _event_name(kind: EventKind, text: str) -> str | None:
    """Return the name in Kineto's form, or None for ranges that no metric counts.

    Under torch's emit_nvtx, every operator is a range, such as `aten::mul, op_id = 3` (getNvtxStr
    in torch/csrc/profiler). Only the ranges of phases and steps count.
    """
    if kind is EventKind.COPY:
        direction, *kinds = text.split(" ")
        memory = [
            MEMORY_KINDS.get(int(number), "Unknown") if number else "Unknown" for number in kinds
        ]
        direction_name = COPY_DIRECTIONS.get(int(direction), f"kind-{direction}")
        return f"Memcpy {direction_name} ({' -> '.join(memory)})"
    if kind is not EventKind.RANGE:
        return text
    name = text.partition(", seq = ")[0].partition(", op_id = ")[0]
    return name if name == text or name in (*PHASES, WINDOW) or name.startswith(STEP) else None


# ---- ranks under Nsight Systems (`profile=nsys`)


def refuse_unavailable(device: str) -> None:
    """Refuse ranks that do not use CUDA, and machines without nsys."""
    if device != "cuda":
        raise Refusal(
            "nsys.on-cpu",
            "profile=nsys: profiles CUDA devices, but the ranks are on CPU; use `profile=kineto`",
            key="profile",
        )
    if not installed():
        raise Refusal(
            "nsys.not-installed",
            "profile=nsys: Nsight Systems is not installed (no nsys on the PATH); install it, or"
            " use `profile=kineto`",
            key="profile",
        )


def resolve_auto(config: RunConfig, device: str) -> RunConfig:
    """Replace `profile=auto` by the profiler for these devices."""
    if config.profile.name is not ProfileName.auto:
        return config
    name = ProfileName.nsys if device == "cuda" and installed() else ProfileName.kineto
    return replace(config, profile=replace(config.profile, name=name))


def installed() -> bool:
    return shutil.which("nsys") is not None


def command(folder: Path) -> tuple[str, ...]:
    """Return the command line to run a rank under. It records the steps that `capture` brackets.

    The rank's number replaces RANK.
    """
    output = f"--output={folder / FOLDER / 'rRANK'}", "--force-overwrite=true"
    records = "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none"
    return (
        "nsys",
        "profile",
        *output,
        *records,
        "--capture-range=cudaProfilerApi",
        "--capture-range-end=stop",
    )
