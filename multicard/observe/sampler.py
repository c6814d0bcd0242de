"""Samples the GPUs of a node once a second while its ranks work, in a thread of the controller.

A failure here does not end the run. The record says why a figure is missing.
"""

from array import array
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from threading import Event, Thread
from typing import Any, Self

import numpy as np

from multicard.config.base import RunConfig
from multicard.config.placement import Placement
from multicard.machine import devices, environment
from multicard.measure.timing import clock_s
from multicard.messages import Message
from multicard.observe import gpu_record
from multicard.observe.readings import COLUMNS, Neighbours, read_gpu, read_processes
from multicard.records import rank_files
from multicard.records.rank_files import RankReport

INTERVAL_S = gpu_record.SAMPLING_S
ANSWER_S = 10.0  # Limit for an answer: a driver that hangs must not hang the run.
Span = tuple[float, float]  # Start and end in seconds.


class MachineSampler:
    """Samples GPUs while it is open: first before the ranks start, and last when it closes.

    Args:
        uuids: UUIDs of the GPUs without repetitions. Empty on CPU ranks.
        ranks: the numbers of this node's ranks.
        attempt: the number of this start of the run, from 0.
    """

    def __init__(
        self, folder: Path, uuids: list[str], ranks: range, attempt: int = 0, node: int = 0
    ) -> None:
        self._folder = folder
        self._uuids = uuids
        self._ranks = ranks
        self._attempt = attempt
        self._node = node
        self._values = {uuid: array("d") for uuid in uuids}  # Rows of COLUMNS, one after another.
        self._indices: dict[str, int | None] = dict.fromkeys(uuids)
        self._missing: dict[str, dict[str, str]] = {uuid: {} for uuid in uuids}
        self._library: Any = None
        self._neighbours = Neighbours(len(ranks))
        self._problem: str | None = None
        self._opened_s = self._closed_s = 0.0
        self._first_sample = Event()
        self._done = Event()
        self._thread = Thread(target=self._run, daemon=True)

    @classmethod
    def of_run(
        cls, config: RunConfig, placement: Placement, folder: Path, attempt: int, node: int = 0
    ) -> Self:
        """Make the sampler of a run on this node.

        Ranks may share a GPU, and one process may use several.
        """
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
        if self._thread.is_alive():
            self._thread.join(ANSWER_S)
        if self._thread.is_alive():
            self._problem = Message(
                "gpus.nvml-silent", f"NVML did not answer within {ANSWER_S:.0f} s", seconds=ANSWER_S
            )
        self._closed_s = clock_s()

    def _run(self) -> None:
        """Sample until the sampler closes, and once more then.

        The first sample is taken before the ranks start.
        """
        try:
            with devices.nvml() as self._library:
                handles = self._handles()
                self._sample_each(handles, before_ranks=True)
                self._first_sample.set()
                closes = False
                while not closes:
                    closes = self._done.wait(INTERVAL_S)
                    self._sample_each(handles)
        except Exception as error:  # The record has it. It is no reason to end a run.
            self._problem = Message(
                "gpus.sampling-failed",
                f"{type(error).__name__}: {error}",
                type=type(error).__name__,
                reason=str(error),
            )
        finally:
            self._first_sample.set()

    def _handles(self) -> dict[str, Any]:
        """Return NVML's handles of the GPUs that it knows."""
        handles = dict[str, Any]()
        unknown = list[str]()
        library = self._library
        if library is None:
            self._problem = Message("gpus.no-nvml", "NVML is not available")
            return handles
        for uuid in self._uuids:
            handle, reason = devices.ask_why(library, library.nvmlDeviceGetHandleByUUID, uuid)
            if handle is None:
                unknown.append(f"{uuid} ({reason})")
                continue
            handles[uuid] = handle
            self._indices[uuid] = devices.ask(library, library.nvmlDeviceGetIndex, handle)
        if unknown:
            self._problem = Message(
                "gpus.unknown-to-nvml", f"NVML does not give {', '.join(unknown)}", reasons=unknown
            )
        return handles

    def _sample_each(self, handles: dict[str, Any], before_ranks: bool = False) -> None:
        for uuid, handle in handles.items():
            time_s = clock_s() - self._opened_s
            missing = self._missing[uuid]
            self._values[uuid].extend([time_s, *read_gpu(self._library, handle, missing)])
            for pid, memory_bytes in read_processes(self._library, handle, missing).items():
                self._neighbours.note(time_s, uuid, pid, memory_bytes, before_ranks)

    def write(self) -> None:
        """Write the samples after the ranks have ended, unless the folder was removed."""
        if self._uuids and self._folder.exists():
            reports = rank_files.read_reports(self._folder)
            # If the disk is full, for example, the record says that this part is missing.
            with suppress(OSError):
                self._write_gpus([report for report in reports if report.rank in self._ranks])

    def _write_gpus(self, reports: Sequence[RankReport]) -> None:
        """Write this node's part of the record's `gpu`."""
        sampled = (self._opened_s, self._closed_s)
        host = environment.host()
        counter_readings = list(chain.from_iterable(report.counters for report in reports))
        samples = {
            uuid: with_readings(
                _sample_rows(values),
                [(time_s, joules) for time_s, gpu, joules in counter_readings if gpu == uuid],
                sampled,
            )
            for uuid, values in self._values.items()
        }
        training = training_spans(reports, len(self._ranks), sampled)
        spans = [(start_s - self._opened_s, end_s - self._opened_s) for start_s, end_s in training]
        if not training:
            times = [rows[:, 0] for rows in samples.values() if len(rows)] or [np.zeros(1)]
            first_s = max(time[0] for time in times)
            last_s = min(time[-1] for time in times)
            spans = [(first_s, max(first_s, last_s))]
        node_part = {
            "start": self._attempt,
            "node": self._node,
            "host": host,
            "covers": "training" if training else "sampled",
            "spans_s": spans,
            "devices": [
                {
                    "host": host,
                    "uuid": uuid,
                    "index": self._indices.get(uuid),
                    "missing": self._missing_reasons(uuid, samples),
                }
                for uuid in (*self._uuids, *self._unsampled_gpus(reports))
            ],
            "disturbed_by": [{"host": host, **other} for other in self._neighbours.foreign(spans)],
            "problem": self._problem,
        }
        gpu_record.write_part(self._folder, node_part, samples)

    def _unsampled_gpus(self, reports: Sequence[RankReport]) -> list[str]:
        """Return GPUs that ranks used but that were not sampled.

        This happens if the user makes CUDA number GPUs differently from NVML.
        """
        used_gpus = {report.gpu: None for report in reports if report.gpu is not None}
        # For a MIG instance, CUDA may report the UUID of the GPU or of the instance.
        has_whole_gpus = not any(uuid.startswith(devices.MIG) for uuid in self._uuids)
        unsampled = [uuid for uuid in used_gpus if has_whole_gpus and uuid not in self._uuids]
        if unsampled:
            problem = Message(
                "gpus.numbered-differently",
                f"ranks used {', '.join(unsampled)}, which CUDA numbers differently from NVML: "
                f"leave {devices.ORDER} unset",
                uuids=unsampled,
                variable=devices.ORDER,
            )
            self._problem = "; ".join(filter(None, [self._problem, problem]))
        return unsampled

    def _missing_reasons(self, uuid: str, samples: dict[str, np.ndarray]) -> dict[str, str]:
        """Return NVML's reasons for figures that a GPU's samples lack and for unlisted PIDs."""
        rows = samples.get(uuid)
        reasons = self._missing.get(uuid, {})
        unreported_columns = {
            name
            for column, name in enumerate(COLUMNS)
            if rows is not None and np.isnan(rows[:, column]).all()
        }
        return {
            name: reason
            for name, reason in reasons.items()
            if name in unreported_columns or name == "processes"
        }


def _sample_rows(values: Sequence[float]) -> np.ndarray:
    """Return samples as rows (n, COLUMNS), without a row that a hanging thread left incomplete."""
    width = len(COLUMNS)
    return np.array(values[: len(values) // width * width], float).reshape(-1, width)


def training_spans(ranks: Sequence[RankReport], expected: int, sampled: Span) -> list[Span]:
    """Return the spans in which any rank trained, on `clock_s`: the time that `total_s` covers.

    Empty unless all expected ranks report spans within the time in which GPUs were sampled: files
    of an earlier start have other times. Also empty for a cell of a race, because others train in
    its pauses.
    """
    spans: list[Span] = []
    if len(ranks) < expected or any(
        rank.probe is not None and rank.probe.ended_by == "race" for rank in ranks
    ):
        return spans
    # `zip` keeps only the spans that all ranks have ended.
    for pieces in zip(*(rank.spans_s for rank in ranks), strict=False):
        start_s = min(piece[0] for piece in pieces)
        end_s = max(piece[1] for piece in pieces)
        spans.append((max(start_s, spans[-1][1]) if spans else start_s, end_s))
    return spans if spans and sampled[0] <= spans[0][0] and spans[-1][1] <= sampled[1] else []


def with_readings(
    samples: np.ndarray, readings: Sequence[tuple[float, float]], sampled: Span
) -> np.ndarray:
    """Return a GPU's samples (n, columns) with rows for the energy that ranks read themselves.

    Args:
        readings: time on `clock_s` and joules. Readings outside of `sampled` belong to an earlier
            start and are left out.
    """
    current_readings = [reading for reading in readings if sampled[0] <= reading[0] <= sampled[1]]
    rows = np.full((len(current_readings), len(COLUMNS)), np.nan)
    # The first two columns are time and energy.
    rows[:, :2] = np.array(current_readings).reshape(-1, 2) - (sampled[0], 0.0)
    merged = np.concatenate([samples, rows])
    return merged[np.argsort(merged[:, 0], kind="stable")]
