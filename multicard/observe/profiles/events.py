"""The events of one rank as an Arrow table: the form to which both readers convert a profiler's files."""

from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa


class Kind(IntEnum):
    """The kind of record. Every event has one, so that none counts on the host and on the device."""

    API = 0  # a CUDA call, on the host
    KERNEL = 1
    COPY = 2
    SET = 3
    RANGE = 4  # an annotation on the host
    DEVICE_RANGE = 5  # the same annotation, around what it launched


ON_DEVICE = (Kind.KERNEL, Kind.COPY, Kind.SET)

# One event. Times are integer ns on the clock of the trace; a float64 of microseconds since 1970 is off by 125 ns.
SCHEMA = pa.schema(
    [
        ("kind", pa.int8()),
        ("name", pa.int32()),  # index into Trace.names
        ("start_ns", pa.int64()),
        ("end_ns", pa.int64()),
        ("device", pa.int32()),  # -1 on the host
        ("thread", pa.int64()),  # a number for each host thread; 0 on the device
        ("bytes", pa.int64()),  # -1 where the record has none
        ("correlation", pa.int64()),  # shared by a call and the operations that it launched; -1 for none
    ]
)


@dataclass(frozen=True)
class Trace:
    """The events of one rank."""

    where: str  # the file, for messages
    rank: int | None  # None if the file does not say
    events: pa.Table  # SCHEMA
    names: list[str]
    span_ns: tuple[int, int]  # first start and last end of all events, including those that no metric counts

    def columns(self) -> list[np.ndarray]:
        """Each column of SCHEMA (N,), through DLPack because `to_numpy` imports pandas too."""
        return [np.from_dlpack(self.events[name].combine_chunks()) for name in SCHEMA.names]


@dataclass
class Collector:
    """Gathers the events of a rank, a record batch at a time."""

    codes: dict[str, int] = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int | None = None

    def code(self, name: str) -> int:
        return self.codes.setdefault(name, len(self.codes))

    def extend_span(self, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
        """Extend the trace's span over these events (N,)."""
        if len(start_ns):
            first, last = int(start_ns.min()), int(end_ns.max())
            self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
            self.last_ns = last if self.last_ns is None else max(last, self.last_ns)

    def add(self, **columns: np.ndarray) -> None:
        """Store events, given by the columns of SCHEMA (N,)."""
        arrays = [_arrow(columns[entry.name], entry) for entry in SCHEMA]
        self.batches.append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))

    def trace(self, where: str, rank: int | None) -> Trace:
        """The gathered events.

        Raises:
            ValueError: if there are none.
        """
        if self.first_ns is None or self.last_ns is None:
            raise ValueError(f"{where}: no events in it; was anything run while the profiler was on?")
        table = pa.Table.from_batches(self.batches, SCHEMA)
        return Trace(where, rank, table, list(self.codes), (self.first_ns, self.last_ns))


def _arrow(column: np.ndarray, entry: pa.Field) -> pa.Array:
    """An array on the column's memory: `pa.array` would import pandas, which takes longer than most traces."""
    values = np.ascontiguousarray(column, entry.type.to_pandas_dtype())
    return pa.Array.from_buffers(entry.type, len(values), [None, pa.py_buffer(values)])
