"""Asks NVML once a second for energy and state of the GPUs that a node's ranks work on. A thread of the controller.

Each start of a run leaves a part for each of its nodes, as the clocks of two nodes differ; `merge` makes the record of
them. What fails here ends no run: the record says why a figure is not there.

| file | what |
|---|---|
| gpu/sSS_nNN.parquet | start SS, node NN: a row a sample and GPU; merged to gpu.parquet at the end |
| gpu/sSS_nNN.json | when it trained on the same clock, other processes that were seen, what went wrong |
"""

from array import array
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import numpy as np

from multicard.config.base import Placement, RunConfig
from multicard.energy import integrals
from multicard.energy.integrals import COLUMNS, Span
from multicard.energy.neighbours import Neighbours
from multicard.machine import environment, nvml
from multicard.measure.timing import clock_s, pause
from multicard.records import run_folder

INTERVAL_S = 1.0
ANSWER_S = 10.0  # a driver that hangs must not hang the run
FILE = "gpu.parquet"


class Sampler:
    """While it is open, samples the GPUs: once when it opens, before the ranks start, and once when it closes.

    Args:
        uuids: of the GPUs, each once; none on CPU ranks, where no method does anything.
        ranks: the numbers of this node's ranks.
        start: of the run, from 0.
    """

    def __init__(self, folder: Path, uuids: list[str], ranks: range, start: int = 0, node: int = 0) -> None:
        self._folder, self._uuids, self._ranks, self._start, self._node = folder, uuids, ranks, start, node
        self._rows = {uuid: array("d") for uuid in uuids}
        self._indices: dict[str, int | None] = dict.fromkeys(uuids)
        self._neighbours: Neighbours | None = None
        self._problem: str | None = None
        self._opened_s = self._closed_s = 0.0
        self._looked, self._done = Event(), Event()
        self._thread = Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Self:
        self._opened_s = clock_s()
        if self._uuids:
            self._thread.start()
            self._looked.wait(ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._uuids:
            self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            self._problem = f"NVML did not answer within {ANSWER_S:.0f} s"
        self._closed_s = clock_s()

    def _sample(self) -> None:
        try:
            with nvml.opened() as library:
                if library is None:
                    raise RuntimeError("NVML is not there")
                handles = {uuid: nvml.ask(library, library.nvmlDeviceGetHandleByUUID, uuid) for uuid in self._uuids}
                found = {uuid: handle for uuid, handle in handles.items() if handle is not None}
                if len(found) < len(handles):
                    self._problem = f"NVML does not know {', '.join(sorted(handles.keys() - found.keys()))}"
                self._indices |= {uuid: nvml.ask(library, library.nvmlDeviceGetIndex, found[uuid]) for uuid in found}
                self._neighbours = Neighbours(len(self._ranks), partial(_process_name, library))
                self._look(library, found, before=True)
                self._looked.set()
                while not self._done.wait(INTERVAL_S):
                    self._look(library, found)
                self._look(library, found)
        except Exception as error:  # no reason to end a run: the record has it
            self._problem = f"{type(error).__name__}: {error}"
        finally:
            self._looked.set()

    def _look(self, library: Any, handles: dict[str, Any], before: bool = False) -> None:
        assert self._neighbours is not None
        for uuid, handle in handles.items():
            time_s = clock_s() - self._opened_s
            self._rows[uuid].extend([time_s, *read(library, handle)])
            for pid, memory_bytes in processes(library, handle).items():
                self._neighbours.note(time_s, uuid, pid, memory_bytes, before)

    def write(self) -> None:
        """Leave this node's part, once the ranks have ended."""
        if not self._uuids:
            return
        own = [rank for rank in run_folder.read_ranks(self._folder) if rank["rank"] in self._ranks]
        spans = trained(own, len(self._ranks), (self._opened_s, self._closed_s))
        width = len(COLUMNS)
        rows = {uuid: np.array(found[: len(found) // width * width]) for uuid, found in self._rows.items()}
        part = {
            "start": self._start,
            "node": self._node,
            "host": environment.host(),
            "trained_s": [[moment - self._opened_s for moment in span] for span in spans],
            "devices": [{"uuid": uuid, "index": index} for uuid, index in self._indices.items()],
            "processes": [] if self._neighbours is None else self._neighbours.others(),
            "problem": self._problem,
        }
        path = part_file(self._folder, self._start, self._node)
        try:
            write_rows(path.with_suffix(".parquet"), self._start, self._node, rows)
            run_folder.write_json(path, part)
        except OSError:  # a full disk, say: the record finds no part, and says that
            return


def of(config: RunConfig, placement: Placement, folder: Path, start: int, node: int = 0) -> Sampler:
    """For the GPUs of a run on this node: several ranks may share one, and one process may use several."""
    uuids = environment.visible_gpus()[: config.gpus] if placement.device == "cuda" else []
    first = node * placement.processes
    return Sampler(folder, uuids, range(first, first + placement.processes), start, node)


def read(library: Any, handle: Any) -> list[float]:
    """One sample of a GPU, as `COLUMNS` after the first; NaN for what it does not give.

    Power is NVML's: on most GPUs the mean of the last second. Utilisation is the share of NVML's own last period (a
    second at most) in which any kernel ran.
    """
    ask = partial(nvml.ask, library)
    millijoules = ask(library.nvmlDeviceGetTotalEnergyConsumption, handle)  # first: it belongs to the time just read
    milliwatts = ask(library.nvmlDeviceGetPowerUsage, handle)
    temperature_c = ask(library.nvmlDeviceGetTemperatureV, handle, library.NVML_TEMPERATURE_GPU)
    if temperature_c is None:  # an older driver
        temperature_c = ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)
    rates = ask(library.nvmlDeviceGetUtilizationRates, handle)
    reasons = ask(library.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # older drivers call it so
        reasons = ask(library.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    figures = (
        None if millijoules is None else millijoules / 1e3,
        None if milliwatts is None else milliwatts / 1e3,
        ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
        ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
        temperature_c,
        None if rates is None else rates.gpu / 100,
        reasons,
    )
    return [float("nan") if figure is None else float(figure) for figure in figures]


def processes(library: Any, handle: Any) -> dict[int, int | None]:
    """The memory that each process holds on a GPU, computing or drawing, by its PID; None where that is not told."""
    found: dict[int, int | None] = {}
    for function in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
        for process in nvml.ask(library, function, handle) or []:
            found[process.pid] = process.usedGpuMemory
    return found


def _process_name(library: Any, pid: int) -> str | None:
    name = nvml.ask(library, library.nvmlSystemGetProcessName, pid)
    return None if name is None else Path(name).name


def trained(ranks: list[dict[str, Any]], expected: int, opened: Span) -> list[Span]:
    """From when to when any of the ranks trained, on `clock_s`: what `total_s` covers. None is known without a file.

    Args:
        ranks: the files of all ranks that share this machine's clock; `expected` of them.
        opened: when the GPUs were watched: files of an earlier start name other times.
    """
    spans: list[Span] = []
    if len(ranks) < expected:
        return spans
    for pieces in zip(*(rank.get("spans_s", ()) for rank in ranks), strict=False):  # those that all have ended
        start_s, end_s = min(piece[0] for piece in pieces), max(piece[1] for piece in pieces)
        spans.append((max(start_s, spans[-1][1]) if spans else start_s, end_s))
    return spans if spans and opened[0] <= spans[0][0] and spans[-1][1] <= opened[1] else []


def part_file(folder: Path, start: int, node: int) -> Path:
    return folder / "gpu" / f"s{start:02d}_n{node:02d}.json"


def write_rows(path: Path, start: int, node: int, rows: dict[str, np.ndarray]) -> None:
    """Write the samples of each GPU (n x columns, flat), of one at least."""
    import pyarrow as pa

    tables = [found.reshape(-1, len(COLUMNS)) for found in rows.values()]
    count, table = [len(found) for found in tables], np.concatenate(tables)
    columns = {
        "start": np.full(len(table), start, np.int32),
        "node": np.full(len(table), node, np.int32),
        "gpu": pa.array(np.repeat(list(rows), count).tolist(), pa.string()),
        **{name: pa.array(table[:, i], from_pandas=True) for i, name in enumerate(COLUMNS)},  # NaN is null
    }
    run_folder.write_steps(path, columns)


def merge(folder: Path, expected: list[tuple[int, int]], wait: bool) -> dict[str, Any]:
    """The record of the GPUs, of all parts; their samples go to one file.

    Args:
        expected: start and node of the parts that there must be.
        wait: for parts that another node wrote, which may take their time to be seen here.
    """
    deadline_s = clock_s() + (run_folder.SEEN_S if wait else 0.0)
    while not all(part_file(folder, *which).exists() for which in expected) and clock_s() < deadline_s:
        pause(0.1)
    found = {which: run_folder.read_json(part_file(folder, *which)) for which in expected}
    parts = [part for part in found.values() if part is not None]
    missing = [f"no samples of start {start} on node {node}" for (start, node), part in found.items() if part is None]
    rows = _merge_rows(folder)
    run_folder.remove_files(folder / "gpu", "s*_n*.*")
    return summarise(parts, rows, missing)


def _merge_rows(folder: Path) -> dict[tuple[int, int, str], dict[str, np.ndarray]]:
    """Write gpu.parquet, and return its columns by start, node and GPU."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = [pq.ParquetFile(path).read() for path in sorted(folder.glob("gpu/s*_n*.parquet"))]
    rows = {}
    for table in tables:
        uuids = np.array(table["gpu"].to_pylist())
        columns = {name: table[name].to_numpy().astype(float) for name in COLUMNS}
        for uuid in dict.fromkeys(uuids.tolist()):
            key = table["start"][0].as_py(), table["node"][0].as_py(), uuid
            rows[key] = {name: column[uuids == uuid] for name, column in columns.items()}
    if rows:
        merged = pa.concat_tables(tables)
        run_folder.write_steps(folder / FILE, {name: merged[name] for name in merged.column_names})
    return rows


def summarise(
    parts: list[dict[str, Any]], rows: dict[tuple[int, int, str], dict[str, np.ndarray]], missing: list[str]
) -> dict[str, Any]:
    """The record's `gpu`.

    `covers` says what the figures are of: `training`, or `sampled`, all the time for which the ranks ran, where a
    node could not tell when it trained. Times are those of gpu.parquet (`time_s`), where each part has its own zero.

    Args:
        rows: samples by start, node and GPU.
        missing: what is not there; no energy of all GPUs is given then.
    """
    spans = [_spans(part, rows) for part in parts]
    devices: dict[tuple[str, str], dict[str, Any]] = {}
    worked: dict[tuple[str, str], list[Any]] = {}
    for part, own in zip(parts, spans, strict=True):
        for told in part["devices"]:
            key = part["host"], told["uuid"]
            devices[key] = {"host": part["host"], **told}
            found = rows.get((part["start"], part["node"], told["uuid"]), integrals.NO_ROWS)
            worked.setdefault(key, []).extend((found, span) for span in own)
    figures = [devices[key] | integrals.device(worked[key]) for key in devices]
    joules = [device["energy_joules"] for device in figures]
    problems = [*missing, *(f"node {p['node']}, start {p['start']}: {p['problem']}" for p in parts if p["problem"])]
    return {
        "energy_joules": None if missing or not joules or None in joules else sum(joules),
        "covers": "training" if parts and all(part["trained_s"] for part in parts) else "sampled",
        "sampling_s": INTERVAL_S,
        "parts": [
            {
                **{key: part[key] for key in ("start", "node", "host")},
                "covers": "training" if part["trained_s"] else "sampled",
                "spans_s": own,
            }
            for part, own in zip(parts, spans, strict=True)
        ],
        "devices": figures,
        "disturbed_by": _disturbers(parts, spans),
        "problem": "; ".join(problems) or None,
    }


def _spans(part: dict[str, Any], rows: dict[tuple[int, int, str], dict[str, np.ndarray]]) -> list[Span]:
    """What the figures of a part are of, one span at least."""
    if part["trained_s"]:
        return [(start_s, end_s) for start_s, end_s in part["trained_s"]]
    which = (part["start"], part["node"])
    times = [found["time_s"] for (*other, _), found in rows.items() if tuple(other) == which]
    first_s, last_s = (max(found[0] for found in times), min(found[-1] for found in times)) if times else (0.0, 0.0)
    return [(first_s, max(first_s, last_s))]


def _disturbers(parts: list[dict[str, Any]], spans: list[list[Span]]) -> list[dict[str, Any]]:
    """The processes of others that were there in the spans, once for each GPU."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for part, own in zip(parts, spans, strict=True):
        for process in part["processes"]:
            first_s, last_s = process["seen_s"]
            if any(first_s <= end_s and last_s >= start_s for start_s, end_s in own):
                told = {key: value for key, value in process.items() if key != "seen_s"}
                found[part["host"], process["gpu"], process["pid"]] = {"host": part["host"], **told}
    return list(found.values())


def joules(gpu: dict[str, Any] | None) -> float | None:
    """The energy of the training alone; None where it is not known, or something else is in it."""
    return gpu["energy_joules"] if gpu is not None and gpu["covers"] == "training" else None
