"""What both readers give: the events of one rank as an Arrow table, and the metric that each name counts for."""

import re
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from multicard.measure import timing

PHASES = (*timing.PHASES, "evaluate")
GLOO = "gloo:"  # what torch.distributed calls the ranges in which gloo works
STEP = "ProfilerStep#"  # torch.profiler's own marker of a step

# What the table tells of every run on a GPU, 0 calls included
APIS = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cudaMemcpyAsync",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaEventDestroy",
    "cudaDeviceSynchronize",
)
LAUNCHES = ("cudaLaunchKernel", "cudaLaunchKernelExC")
# The calls in which a host thread waits for the device and does nothing else. Synchronous copies wait too, but move
# bytes meanwhile: they are not among these.
BLOCKING = (
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaDeviceSynchronize",
    "cuStreamSynchronize",
    "cuEventSynchronize",
    "cuCtxSynchronize",
)
COPIES = {
    "HtoD": "memcpy Host-to-Device",
    "DtoH": "memcpy Device-to-Host",
    "DtoD": "memcpy Device-to-Device",
    "PtoP": "memcpy Peer-to-Peer",
}
MEMSET = "memset"


class Kind(IntEnum):
    """Which record an event was. Every event has one kind, so that none is counted on the host and on the device."""

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
        ("thread", pa.int64()),  # any number that tells host threads apart; 0 on the device
        ("bytes", pa.int64()),  # -1 where the record has none
        ("correlation", pa.int64()),  # what a call and the operations it launched share; -1 for none
    ]
)


@dataclass(frozen=True)
class Trace:
    """The events of one rank."""

    where: str  # the file, for messages
    rank: int | None  # None: the file does not say
    events: pa.Table  # SCHEMA
    names: list[str]
    span_ns: tuple[int, int]  # first start, last end: of all events, those that no metric counts included

    def columns(self) -> list[np.ndarray]:
        """Each column of SCHEMA (N,); DLPack because `to_numpy` imports pandas too."""
        return [np.from_dlpack(self.events[name].combine_chunks()) for name in SCHEMA.names]


@dataclass
class Collector:
    """Gathers events, a record batch at a time."""

    codes: dict[str, int] = field(default_factory=dict)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    first_ns: int | None = None
    last_ns: int | None = None

    def code(self, name: str) -> int:
        return self.codes.setdefault(name, len(self.codes))

    def seen(self, start_ns: np.ndarray, end_ns: np.ndarray) -> None:
        """Let the span reach over these events."""
        if len(start_ns):
            first, last = int(start_ns.min()), int(end_ns.max())
            self.first_ns = first if self.first_ns is None else min(first, self.first_ns)
            self.last_ns = last if self.last_ns is None else max(last, self.last_ns)

    def add(self, **columns: np.ndarray) -> None:
        """Keep events, given by the columns of SCHEMA."""
        self.batches.append(
            pa.RecordBatch.from_arrays([_arrow(columns[one.name], one) for one in SCHEMA], schema=SCHEMA)
        )

    def trace(self, where: str, rank: int | None) -> Trace:
        """All that was gathered.

        Raises:
            ValueError: if it was nothing.
        """
        if self.first_ns is None or self.last_ns is None:
            raise ValueError(f"{where}: no events in it; was anything run while the profiler was on?")
        table = pa.Table.from_batches(self.batches, SCHEMA)
        return Trace(where, rank, table, list(self.codes), (self.first_ns, self.last_ns))


def _arrow(column: np.ndarray, entry: pa.Field) -> pa.Array:
    """From its memory: `pa.array` would import pandas first, which takes longer than reading most traces."""
    values = np.ascontiguousarray(column, entry.type.to_pandas_dtype())
    return pa.Array.from_buffers(entry.type, len(values), [None, pa.py_buffer(values)])


class Metric(NamedTuple):
    group: str  # api, copy, collective, kernel, phase, annotation
    name: str
    detail: str = ""  # what the name had beside: algorithm and protocol of a collective, memory of a copy


def metric(kind: Kind, name: str) -> Metric | None:
    """What an event of this kind and name counts for; None for the markers of steps."""
    if kind is Kind.API:
        return Metric("api", api(name))
    if kind is Kind.KERNEL:
        found = collective(name)
        return found or Metric("kernel", name)
    if kind is Kind.COPY:
        return _copy(name)
    if kind is Kind.SET:
        return Metric("copy", MEMSET)
    return _range(name, on_device=kind is Kind.DEVICE_RANGE)


def api(name: str) -> str:
    """The call's name without CUPTI's version, `_v7000`: four digits or more, so that the 2 of
    `cudaStreamGetCaptureInfo_v2_v11030`, which is the function's own, stays in both profilers.
    """
    return re.sub(r"_v\d{4,}$", "", name)


# ncclDevKernel_AllReduce_Sum_f32_RING_LL(...) since NCCL 2.19, ncclKernel_AllReduce_RING_LL_Sum_float(...) before,
# ncclAllReduceRingLLKernel_sum_f32(...) before 2.8; ncclDevKernel_Generic_4(...) runs several fused operations
_NCCL = re.compile(r"nccl\w*?Kernel_(?P<name>[A-Z][A-Za-z]*)(?P<rest>[^(<]*)")
_OLD_NCCL = re.compile(r"nccl(?P<name>[A-Z][A-Za-z]*?)(?P<algorithm>Ring|Tree|CollNet)?(?P<protocol>LL128|LL)?Kernel")
_ALGORITHMS = {"RING", "TREE", "COLLNET", "DIRECT", "CHAIN", "NVLS", "PAT"}
_PROTOCOLS = {"LL", "LL128", "SIMPLE"}


def collective(kernel: str) -> Metric | None:
    """What a kernel of NCCL does, with its algorithm and protocol apart; None for any other kernel."""
    bare = kernel.removeprefix("void ")
    if not bare.startswith("nccl"):
        return None
    if found := _NCCL.match(bare):
        words = [word for word in found["rest"].split("_") if word in _ALGORITHMS | _PROTOCOLS]
        return Metric("collective", f"nccl {found['name']}", " ".join(words))
    if found := _OLD_NCCL.match(bare):
        words = [word.upper() for word in (found["algorithm"], found["protocol"]) if word]
        return Metric("collective", f"nccl {found['name']}", " ".join(words))
    return Metric("collective", "nccl other")


def _copy(name: str) -> Metric:
    """`Memcpy HtoD (Pinned -> Device)`: Kineto's form, which the reader of nsys writes too."""
    way, _, memory = name.removeprefix("Memcpy ").partition(" ")
    host = [word for word in ("pageable", "pinned", "managed") if word in memory.lower()]
    return Metric("copy", COPIES.get(way, f"memcpy {way}"), " to ".join(host))


def _range(name: str, on_device: bool) -> Metric | None:
    if name.startswith(STEP):
        return None
    if not on_device and name.startswith(GLOO):
        return Metric("collective", f"gloo {name.removeprefix(GLOO)}")
    group = "phase" if name in PHASES else "annotation"
    return Metric(group, f"{name} (device)" if on_device else name)
