"""Samples energy and state of the GPUs of a node's ranks once a second, in a thread of the controller.

A failure here ends no run: the record says why a figure is missing.
"""

from array import array
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import numpy as np

from multicard.config.base import RunConfig
from multicard.config.placement import Placement
from multicard.machine import devices, environment, nvml
from multicard.measure.timing import clock_s
from multicard.observe.energy import parts
from multicard.observe.energy.neighbours import Neighbours
from multicard.observe.energy.readings import COLUMNS, process_name, read_gpu, read_processes
from multicard.records import rank_files
from multicard.records.rank_files import RankReport

INTERVAL_S = 1.0
ANSWER_S = 10.0  # a driver that hangs must not hang the run


class Sampler:
    """Samples the GPUs while it is open, first before the ranks start and last when it closes.

    Args:
        uuids: of the GPUs, each once; none on CPU ranks, where no method does anything.
        ranks: the numbers of this node's ranks.
        attempt: the number of this start of the run, from 0.
    """

    def __init__(self, folder: Path, uuids: list[str], ranks: range, attempt: int = 0, node: int = 0) -> None:
        self._folder, self._uuids, self._ranks, self._attempt, self._node = folder, uuids, ranks, attempt, node
        self._values = {uuid: array("d") for uuid in uuids}  # samples one after the other, as COLUMNS
        self._indices: dict[str, int | None] = dict.fromkeys(uuids)
        self._missing: dict[str, dict[str, str]] = {uuid: {} for uuid in uuids}
        self._neighbours: Neighbours | None = None
        self._problem: str | None = None
        self._opened_s = self._closed_s = 0.0
        self._first_sample, self._done = Event(), Event()
        self._thread = Thread(target=self._run, daemon=True)

    @classmethod
    def of_run(cls, config: RunConfig, placement: Placement, folder: Path, attempt: int, node: int = 0) -> Self:
        """The sampler for a run's GPUs on this node; ranks may share a GPU, and one process may use several."""
        uuids = devices.visible_gpus()[: config.gpus] if placement.device == "cuda" else []
        first = node * placement.processes
        return cls(folder, uuids, range(first, first + placement.processes), attempt, node)

    def __enter__(self) -> Self:
        self._opened_s = clock_s()
        if self._uuids:
            self._thread.start()
            self._first_sample.wait(ANSWER_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._uuids:
            self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            self._problem = f"NVML did not answer within {ANSWER_S:.0f} s"
        self._closed_s = clock_s()

    def _run(self) -> None:
        try:
            with nvml.opened() as library:
                if library is None:
                    raise RuntimeError("NVML is not there")
                handles, unknown = dict[str, Any](), list[str]()
                for uuid in self._uuids:
                    handle, reason = nvml.ask_why(library, library.nvmlDeviceGetHandleByUUID, uuid)
                    if handle is None:
                        unknown.append(f"{uuid} ({reason})")
                        continue
                    handles[uuid] = handle
                    self._indices[uuid] = nvml.ask(library, library.nvmlDeviceGetIndex, handle)
                if unknown:
                    self._problem = f"NVML does not give {', '.join(unknown)}"
                self._neighbours = Neighbours(len(self._ranks), partial(process_name, library))
                self._sample(library, handles, self._neighbours, before_ranks=True)
                self._first_sample.set()
                while not self._done.wait(INTERVAL_S):
                    self._sample(library, handles, self._neighbours)
                self._sample(library, handles, self._neighbours)
        except Exception as error:  # recorded; no reason to end a run
            self._problem = f"{type(error).__name__}: {error}"
        finally:
            self._first_sample.set()

    def _sample(
        self, library: Any, handles: dict[str, Any], neighbours: Neighbours, before_ranks: bool = False
    ) -> None:
        for uuid, handle in handles.items():
            time_s = clock_s() - self._opened_s
            missing = self._missing[uuid]
            self._values[uuid].extend([time_s, *read_gpu(library, handle, missing)])
            for pid, memory_bytes in read_processes(library, handle, missing).items():
                neighbours.note(time_s, uuid, pid, memory_bytes, before_ranks)

    def write(self) -> None:
        """Write this node's part, after its ranks have ended."""
        if not self._uuids:
            return
        reports = [report for report in rank_files.read(self._folder) if report.rank in self._ranks]
        sampled = self._opened_s, self._closed_s
        spans = parts.training_spans(reports, len(self._ranks), sampled)
        read = [reading for report in reports for reading in report.counters]
        width = len(COLUMNS)  # a thread that hangs may have left an incomplete sample
        samples = {
            uuid: parts.with_readings(
                np.array(values[: len(values) // width * width]).reshape(-1, width),
                [[time_s, joules] for time_s, gpu, joules in read if gpu == uuid],
                sampled,
            )
            for uuid, values in self._values.items()
        }
        elsewhere = self._used_elsewhere(reports)
        part = {
            "start": self._attempt,
            "node": self._node,
            "host": environment.host(),
            "trained_s": [[moment - self._opened_s for moment in span] for span in spans],
            "devices": [
                {"uuid": uuid, "index": self._indices.get(uuid), "missing": self._reasons(uuid, samples)}
                for uuid in (*self._uuids, *elsewhere)
            ],
            "processes": [] if self._neighbours is None else self._neighbours.foreign(),
            "problem": self._problem,
        }
        with suppress(OSError):  # a full disk, say: the record says that the part is missing
            parts.write(self._folder, part, samples)

    def _used_elsewhere(self, reports: Sequence[RankReport]) -> list[str]:
        """GPUs that ranks used and nobody sampled, as where the user has CUDA number them otherwise than NVML does."""
        used = {report.gpu: None for report in reports if report.gpu is not None}
        whole = not any(uuid.startswith(devices.MIG) for uuid in self._uuids)  # of an instance CUDA may say either UUID
        unsampled = [uuid for uuid in used if whole and uuid not in self._uuids]
        if unsampled:
            problem = f"ranks used {', '.join(unsampled)}, which CUDA numbers otherwise than NVML"
            remedy = f"leave {devices.ORDER} unset"
            self._problem = "; ".join(filter(None, [self._problem, f"{problem}: {remedy}"]))
        return unsampled

    def _reasons(self, uuid: str, samples: dict[str, np.ndarray]) -> dict[str, str]:
        """NVML's reasons for what none of a GPU's samples has, and why processes were not listed."""
        rows, reasons = samples.get(uuid), self._missing.get(uuid, {})
        empty = {name for i, name in enumerate(COLUMNS) if rows is not None and np.isnan(rows[:, i]).all()}
        return {name: reason for name, reason in reasons.items() if name in empty or name == "processes"}
