"""The SQLite export of Nsight Systems (schema 3.x), read a table at a time; `.nsys-rep` through `nsys export`.

A file may hold several processes. Each that used a GPU is a rank, in order of its first device, then of its process
id: under CUDA_VISIBLE_DEVICES all of them call theirs 0. Processes that only made CUDA calls (a launcher that asked
for the number of devices) are ranks where no process did more.
"""

import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from multicard.profiling.events import PHASES, STEP, Collector, Kind, Trace

ROWS = 1 << 17  # a record batch
PROCESS = ~0xFFFFFF  # a globalTid without its lowest 24 bits, the thread, is the globalPid
# CUpti_ActivityMemcpyKind and CUpti_ActivityMemoryKind, which the columns copyKind, srcKind and dstKind hold
WAYS = {1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP"}
WAYS |= {11: "unified-HtoD", 12: "unified-DtoH", 13: "unified-DtoD"}
MEMORY = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static"}
RANGES = (59, 60)  # eventType of NVTX ranges, pushed and popped or started and ended

CUPTI = "CUPTI_ACTIVITY_KIND_"
# Columns: start, end, device, the process or thread, bytes, correlation, and what the name is made from
CORRELATION = "ifnull(nullif(correlationId, 0), -1)"  # 0: CUPTI knows none
QUERIES = {
    Kind.API: f"""SELECT start, "end", -1, globalTid, -1, {CORRELATION}, s.value FROM {CUPTI}RUNTIME
        JOIN StringIds s ON s.id = nameId""",
    Kind.KERNEL: f"""SELECT start, "end", deviceId, globalPid, -1, {CORRELATION}, s.value FROM {CUPTI}KERNEL
        JOIN StringIds s ON s.id = demangledName""",
    Kind.COPY: f"""SELECT start, "end", deviceId, globalPid, bytes, {CORRELATION},
        copyKind || ' ' || ifnull(srcKind, '') || ' ' || ifnull(dstKind, '') FROM {CUPTI}MEMCPY""",
    Kind.SET: f"""SELECT start, "end", deviceId, globalPid, bytes, {CORRELATION}, 'Memset' FROM {CUPTI}MEMSET""",
    Kind.RANGE: f"""SELECT start, "end", -1, globalTid, -1, -1, coalesce(text, s.value) AS name FROM NVTX_EVENTS
        LEFT JOIN StringIds s ON s.id = textId
        WHERE eventType IN {RANGES} AND "end" IS NOT NULL AND name IS NOT NULL""",
}
TABLES = {
    Kind.API: f"{CUPTI}RUNTIME",
    Kind.KERNEL: f"{CUPTI}KERNEL",
    Kind.COPY: f"{CUPTI}MEMCPY",
    Kind.SET: f"{CUPTI}MEMSET",
    Kind.RANGE: "NVTX_EVENTS",
}


def read(path: Path) -> list[Trace]:
    """The traces of all ranks in an export, without their numbers.

    Raises:
        ValueError: if it is damaged, no export of nsys, or without CUDA.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            return _read(database, str(path))
    except sqlite3.Error as error:
        raise ValueError(f"{path}: SQLite cannot read it: {error}") from None


def export(report: Path, folder: Path) -> Path:
    """Have nsys write an `.nsys-rep` as SQLite into a folder.

    Raises:
        ValueError: if nsys is not there, or cannot.
    """
    program = shutil.which("nsys")
    if program is None:
        remedy = f"export it where Nsight Systems is: nsys export --type sqlite {report.name}"
        raise ValueError(f"{report}: reading it takes the program nsys, which is not on PATH; {remedy}")
    target = Path(tempfile.mkdtemp(dir=folder)) / f"{report.stem}.sqlite"
    line = [program, "export", "--type", "sqlite", "--force-overwrite", "true", "-o", str(target), str(report)]
    ended = subprocess.run(line, capture_output=True, text=True, check=False)
    if ended.returncode or not target.exists():
        said = (ended.stderr or ended.stdout).strip().splitlines()
        raise ValueError(f"{report}: nsys export failed: {said[-1] if said else f'exit code {ended.returncode}'}")
    return target


def _read(database: sqlite3.Connection, where: str) -> list[Trace]:
    there = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if "StringIds" not in there or not any(table in there for table in TABLES.values() if table.startswith(CUPTI)):
        raise ValueError(f"{where}: no CUPTI tables: no export of nsys, or profiled without --trace=cuda")
    collectors: dict[int, Collector] = {}
    devices: dict[int, int] = {}
    for kind, table in TABLES.items():
        if table in there:
            for batch in _batches(database, kind):
                _collect(batch, kind, collectors, devices)
    if not collectors:
        raise ValueError(f"{where}: no events in it; was anything run while the profiler was on?")
    used = [process for process in collectors if process in devices] or list(collectors)
    order = sorted(used, key=lambda process: (devices.get(process, 0), process))
    return [collectors[process].trace(_which(where, process, order), None) for process in order]


def _which(where: str, process: int, order: list[int]) -> str:
    return where if len(order) == 1 else f"{where} (process {process >> 24 & 0xFFFFFF})"


def _batches(database: sqlite3.Connection, kind: Kind) -> Iterator[list[tuple[int, int, int, int, int, int, str]]]:
    cursor = database.execute(QUERIES[kind])
    while rows := cursor.fetchmany(ROWS):
        yield rows


def _collect(
    rows: list[tuple[int, int, int, int, int, int, str]],
    kind: Kind,
    collectors: dict[int, Collector],
    devices: dict[int, int],
) -> None:
    """Give each row to the collector of its process; `devices` gets the lowest device of each."""
    start, end, device, owner, size, launch, text = zip(*rows, strict=True)
    start_ns, end_ns = np.array(start, np.int64), np.array(end, np.int64)
    owners, on = np.array(owner, np.int64), np.array(device, np.int32)
    names = [_name(kind, one) for one in text]
    sizes, launches = np.array(size, np.int64), np.array(launch, np.int64)
    for process in np.unique(owners & PROCESS).tolist():
        mine = np.flatnonzero(owners & PROCESS == process)
        collector = collectors.setdefault(process, Collector())
        collector.seen(start_ns[mine], end_ns[mine])
        if on[mine[0]] >= 0:
            devices[process] = min(int(on[mine].min()), devices.get(process, 1 << 16))
        mine = np.array([index for index in mine if names[index] is not None], np.int64)
        collector.add(
            kind=np.full(len(mine), kind, np.int8),
            name=np.array([collector.code(names[index] or "") for index in mine], np.int32),
            start_ns=start_ns[mine],
            end_ns=end_ns[mine],
            device=on[mine],
            thread=np.where(on[mine] < 0, owners[mine], 0),
            bytes=sizes[mine],
            correlation=launches[mine],
        )


def _name(kind: Kind, text: str) -> str | None:
    """The name as Kineto has it; None for what no metric counts."""
    if kind is Kind.COPY:
        way, *memory = text.split(" ")
        of = [MEMORY.get(int(one), "Unknown") if one else "Unknown" for one in memory]
        return f"Memcpy {WAYS.get(int(way), f'kind-{way}')} ({' -> '.join(of)})"
    if kind is Kind.RANGE:
        return _range(text)
    return text


def _range(text: str) -> str | None:
    """Under torch's emit_nvtx every operator is a range, `aten::mul, op_id = 3` (getNvtxStr in torch/csrc/profiler):
    of those only the phases and the steps are kept.
    """
    name = text.partition(", seq = ")[0].partition(", op_id = ")[0]
    kept = name == text or name in PHASES or name.startswith(STEP)
    return name if kept else None
