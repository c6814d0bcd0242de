"""The events of one rank as columns: the form to which both readers convert a profiler's files."""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np


class Kind(IntEnum):
    """The kind of record. Every event has one, so that none counts on the host and on the device."""

    API = 0  # a CUDA call, on the host
    KERNEL = 1
    COPY = 2
    SET = 3
    RANGE = 4  # an annotation on the host
    DEVICE_RANGE = 5  # the same annotation, around what it launched


ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.SET)

# An event's columns. Times are integer ns on the clock of the trace; a float64 of microseconds since 1970 is off by 125
COLUMNS: dict[str, type[np.generic]] = {
    "kind": np.int8,
    "name": np.int32,  # index into Trace.names
    "start_ns": np.int64,
    "end_ns": np.int64,
    "device": np.int32,  # -1 on the host
    "thread": np.int64,  # a number for each host thread; 0 on the device
    "bytes": np.int64,  # -1 where the record has none
    "correlation": np.int64,  # shared by a call and the operations that it launched; -1 for none
}


@dataclass(frozen=True)
class Trace:
    """The events of one rank."""

    where: str  # the file, for messages
    rank: int | None  # None if the file does not say
    columns: dict[str, np.ndarray]  # (N,) each
    names: list[str]
    span_ns: tuple[int, int]  # first start and last end of all events, including those that no metric counts


@dataclass
class Collector:
    """Gathers the events of a rank, some thousands at a time."""

    codes: dict[str, int] = field(default_factory=dict)
    slabs: list[dict[str, np.ndarray]] = field(default_factory=list)
    spans_ns: list[tuple[int, int]] = field(default_factory=list)

    def code(self, name: str) -> int:
        return self.codes.setdefault(name, len(self.codes))

    def extend_span(self, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
        """Extend the trace's span over these events (N,)."""
        if len(start_ns):
            self.spans_ns.append((int(start_ns.min()), int(end_ns.max())))

    def add(self, **columns: np.ndarray) -> None:
        """Store events, given by COLUMNS (N,)."""
        self.slabs.append({name: np.asarray(columns[name], kind) for name, kind in COLUMNS.items()})

    def trace(self, where: str, rank: int | None) -> Trace:
        """The gathered events.

        Raises:
            ValueError: if there are none.
        """
        if not self.spans_ns:
            raise ValueError(f"{where}: no events in it; was anything run while the profiler was on?")
        span_ns = min(first for first, _ in self.spans_ns), max(last for _, last in self.spans_ns)
        empty = [{name: np.empty(0, kind) for name, kind in COLUMNS.items()}]
        columns = {name: np.concatenate([slab[name] for slab in empty + self.slabs]) for name in COLUMNS}
        return Trace(where, rank, columns, list(self.codes), span_ns)
