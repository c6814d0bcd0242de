"""The events of one rank as columns, to which both readers convert a profiler's files, the metric
that each kind and name of event counts for, and what they add up to in the rank's window: how often
and how long each name occurs, and the times derived from them.

The host's window is that of its marker, else reaches from the start of the first step marker to the
end of the last, without the profiler's own work around them; without markers, over all events. The
device's reaches from the start of the first operation launched in it to the end of the last. Shares
are of the longer of the two: where the host is ahead of the device, the steps take as long as the
device does.

- Counts are of whole events that start in the host's window. Kernels, copies and memsets run behind
  the host: they count if the call that launched them started in the window, whenever the device
  came to them, so that calls and bytes are those of the steps. If that call is not in the trace
  their own start decides (but see `_counted_at`).
- Derived times are lengths of unions of the intervals that count, those on the host clipped to its
  window: a device with overlapping kernels on several streams is busy once.
      They are summed over the devices of a rank.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from multicard.measure import timing
from multicard.messages import Refusal
from multicard.records.schema_parts import ProfileDerived


class EventKind(IntEnum):
    """The kind of record. Every event has one,
    so that none counts on the host and on the device.
    """

    API = 0  # a CUDA call, on the host
    KERNEL = 1
    COPY = 2
    SET = 3
    RANGE = 4  # an annotation on the host
    DEVICE_RANGE = 5  # the same annotation, around what it launched


ON_DEVICE = (EventKind.KERNEL, EventKind.COPY, EventKind.SET)

PHASES = (*timing.PHASES, "evaluate")
GLOO = "gloo:"  # prefix of torch.distributed's ranges around gloo's work
STEP = "ProfilerStep#"  # prefix of torch.profiler's step markers
WINDOW = "ProfilerWindow"  # around all that counts, where that is more than steps
RUN = "run"  # what ended a window that lasted to the end of the training

# Calls that have a row in every profile of a GPU, with 0 calls too;
# by the driver's (cu...) Triton launches its kernels
CUDA_APIS = (
    "cudaLaunchKernel",
    "cudaLaunchKernelExC",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cudaMemcpyAsync",
)
CUDA_APIS += (
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "cudaEventDestroy",
    "cudaDeviceSynchronize",
)
# A call that launches a kernel, several, or a graph: cudaLaunchKernel, cuLaunchKernelEx,
# cudaGraphLaunch
LAUNCH = re.compile(r"(cuda|cu)(Drv)?(Graph)?Launch(?!HostFunc)\w*")
# Calls in which a host thread only waits for the device. Synchronous copies wait too,
# but move bytes meanwhile
BLOCKING = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")
BLOCKING += ("cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize")
COPIES = {
    "HtoD": "memcpy Host-to-Device",
    "DtoH": "memcpy Device-to-Host",
    "DtoD": "memcpy Device-to-Device",
    "PtoP": "memcpy Peer-to-Peer",
}
MEMSET = "memset"


class Metric(NamedTuple):
    group: str  # api, copy, collective, kernel, phase, annotation
    name: str
    detail: str = ""  # algorithm and protocol of a collective, memory of a copy


def metric(kind: EventKind, name: str) -> Metric | None:
    """The metric of an event; None for step markers."""
    if kind is EventKind.API:
        return Metric("api", api(name))
    if kind is EventKind.KERNEL:
        return collective(name) or Metric("kernel", name)
    # `Memcpy HtoD (Pinned -> Device)`: Kineto's form, which the reader of nsys writes too
    if kind is EventKind.COPY:
        way, _, memory = name.removeprefix("Memcpy ").partition(" ")
        host = [word for word in ("pageable", "pinned", "managed") if word in memory.lower()]
        return Metric("copy", COPIES.get(way, f"memcpy {way}"), " to ".join(host))
    if kind is EventKind.SET:
        return Metric("copy", MEMSET)
    if kind is EventKind.RANGE and name.startswith(GLOO):
        return Metric("collective", f"gloo {name.removeprefix(GLOO)}")
    group = "phase" if name in PHASES else "annotation"
    own = f"{name} (device)" if kind is EventKind.DEVICE_RANGE else name
    return None if name.startswith(STEP) or name == WINDOW else Metric(group, own)


def api(name: str) -> str:
    """The call's name without CUPTI's version, of four digits or more:
    `cudaStreamGetCaptureInfo_v2` of `..._v11030`
    """
    return re.sub(r"_v\d{4,}$", "", name)


# ncclDevKernel_AllReduce_Sum_f32_RING_LL(...) since NCCL 2.19,
# ncclKernel_AllReduce_RING_LL_Sum_float(...) before;
# ncclDevKernel_Generic_4(...) runs several fused operations
_NCCL = re.compile(r"nccl\w*?Kernel_(?P<name>[A-Z][A-Za-z]*)(?P<rest>[^(<]*)")
_DETAILS = {"RING", "TREE", "COLLNET", "DIRECT", "CHAIN", "NVLS", "PAT", "LL", "LL128", "SIMPLE"}


def collective(kernel: str) -> Metric | None:
    """The collective of an NCCL kernel, its algorithm and protocol as detail;
    None for any other kernel.
    """
    bare = kernel.removeprefix("void ")
    if not bare.startswith("nccl"):
        return None
    match = _NCCL.match(bare)
    if match is None:
        return Metric("collective", "nccl other")
    words = [word for word in match["rest"].split("_") if word in _DETAILS]
    return Metric("collective", f"nccl {match['name']}", " ".join(words))


# ---- events


# An event's columns. Times are integer ns on the clock of the trace;
# a float64 of microseconds since 1970 is off by 125
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
    # first start and last end of all events, including those that no metric counts
    span_ns: tuple[int, int]


@dataclass
class Collector:
    """Gathers the events of a rank, some thousands at a time."""

    codes: dict[str, int] = field(default_factory=dict)
    slabs: list[dict[str, np.ndarray]] = field(default_factory=list)
    spans_ns: list[tuple[int, int]] = field(default_factory=list)

    def add(self, names: Sequence[str | None], **columns: Any) -> None:
        """Store events, given by the other COLUMNS (N,).
        Those without a name are in the span only.
        """
        if not names:
            return
        self.spans_ns.append((int(np.min(columns["start_ns"])), int(np.max(columns["end_ns"]))))
        codes = [
            -1 if name is None else self.codes.setdefault(name, len(self.codes)) for name in names
        ]
        columns["name"] = np.array(codes)
        counts = columns["name"] >= 0
        self.slabs.append(
            {name: np.asarray(columns[name], kind)[counts] for name, kind in COLUMNS.items()}
        )

    def trace(self, where: str, rank: int | None) -> Trace:
        """The gathered events; a ValueError says that there are none."""
        if not self.spans_ns:
            raise without_events(where)
        span_ns = min(first for first, _ in self.spans_ns), max(last for _, last in self.spans_ns)
        columns = {name: np.concatenate([slab[name] for slab in self.slabs]) for name in COLUMNS}
        return Trace(where, rank, columns, list(self.codes), span_ns)


def without_events(where: str) -> Refusal:
    """The refusal of a file in which nothing was recorded."""
    return Refusal(
        "trace.no-events",
        f"{where}: has no events; was anything run while the profiler was on?",
        file=where,
    )


class RankEvents:
    """Columns (N,) of a trace's events, and its host's window in ns."""

    def __init__(self, trace: Trace) -> None:
        self.names = trace.names
        (
            self.kind,
            self.name,
            self.start,
            self.end,
            self.device,
            self.thread,
            self.bytes,
            self.correlation,
        ) = (trace.columns[name] for name in COLUMNS)
        marked = self._named(EventKind.RANGE, [name.startswith(STEP) for name in self.names])
        self.steps = len(np.unique(self.name[marked])) or None
        self.open, self.close = trace.span_ns
        whole = self._named(EventKind.RANGE, [name == WINDOW for name in self.names])
        bounds = whole if whole.any() else marked
        if bounds.any():
            self.open = int(self.start[bounds].min())
            self.close = int(self.end[bounds].max())
        counted_at = self._counted_at()
        self._counts = (counted_at >= self.open) & (counted_at < self.close)
        work = self._counts & self._is(*ON_DEVICE)
        device_ns = int(self.end[work].max() - self.start[work].min()) if work.any() else 0
        self.window_ns = max(self.close - self.open, device_ns)
        self.devices: list[int] = np.unique(self.device[self._is(*ON_DEVICE)]).tolist()
        self.apis = {
            api(self.names[code]) for code in np.unique(self.name[self.kind == EventKind.API])
        }

    @property
    def window_s(self) -> float:
        """Length of the longer window."""
        return self.window_ns / 1e9

    def counts(self) -> Iterator[tuple[EventKind, str, int, int, int | None]]:
        """Kind, name, calls, ns and bytes of all events that count.

        The ns of ranges are those within any range of that name
        on a thread or device: recursion counts once.
        """
        inside = np.flatnonzero(self._counts)
        keys, group = np.unique(
            self.kind[inside] * np.int64(len(self.names)) + self.name[inside], return_inverse=True
        )
        calls = np.bincount(group, minlength=len(keys))
        ns = sums_by_group(self.end[inside] - self.start[inside], group, len(keys))
        sized = self.bytes[inside] >= 0
        sizes = sums_by_group(self.bytes[inside][sized], group[sized], len(keys))
        have_size = set(group[sized].tolist())
        range_ns = self._range_ns()
        for index, key in enumerate(keys.tolist()):
            kind, code = divmod(key, len(self.names))
            total_ns = range_ns.get((kind, code), int(ns[index]))
            size = int(sizes[index]) if index in have_size else None
            yield EventKind(kind), self.names[code], int(calls[index]), total_ns, size

    def derived(self) -> ProfileDerived:
        """The times derived from events of several kinds."""
        blocking = self._clipped(
            self._named(EventKind.API, [api(name) in BLOCKING for name in self.names])
        )
        threads = np.unique(blocking[2], return_inverse=True)[1]
        blocked_s = int(covered_by_group(*blocking[:2], threads).sum()) / 1e9 if self.apis else None
        if not self.devices:
            gloo = self._named(EventKind.RANGE, self._are_collectives(EventKind.RANGE))
            communication_s = covered(*self._clipped(gloo)[:2]) / 1e9 if gloo.any() else None
            return ProfileDerived(None, None, communication_s, None, None, None, blocked_s)
        busy = computing = communication = exposed = gap = 0
        nccl = self._named(EventKind.KERNEL, self._are_collectives(EventKind.KERNEL))
        for device in self.devices:
            here = self._counts & (self.device == device)
            start, end = self._spans(self._is(*ON_DEVICE) & here)
            compute = covered(*self._spans(self._is(EventKind.KERNEL) & here & ~nccl))
            busy += covered(start, end)
            gap += int(end.max() - start.min()) - covered(start, end) if len(start) else 0
            computing += compute
            communication += covered(*self._spans(nccl & here))
            exposed += covered(*self._spans(self._is(EventKind.KERNEL) & here)) - compute
        return ProfileDerived(
            gpu_busy_share=busy / (self.window_ns * len(self.devices)) if self.window_ns else None,
            compute_s=computing / 1e9,
            communication_s=communication / 1e9,
            exposed_communication_s=exposed / 1e9,
            overlap_share=1 - exposed / communication if communication else None,
            launch_gap_s=gap / 1e9,
            blocked_s=blocked_s,
        )

    def _counted_at(self) -> np.ndarray:
        """The time (N,) by which each event counts: on a device the start of its launching call,
        else its own start.

        At stop torch waits for the device (`synchronize` in
        torch.autograd.profiler.profile.__exit__) before Kineto takes the end of its window
        (captureWindowEndTime_), so that the trace holds all that the last step launched.
        At the start nobody waits: outOfRange in CuptiActivityProfiler.cpp drops the calls of the
        warm-up but not their kernels and copies that are still to run. CUPTI numbers calls in
        ascending order, so that those have numbers below all calls in the trace; they do not count.
        """
        launching_call = self._launching_calls()
        launched = np.flatnonzero(launching_call >= 0)
        # without markers nothing is outside; where no launching call is recorded at all,
        # their absence means nothing
        if not self.steps or not len(launched):
            return self.start
        at = self.start.copy()
        at[launched] = self.start[launching_call[launched]]
        numbered = self.correlation >= 0
        first_call = self.correlation[(self.kind == EventKind.API) & numbered].min()
        at[self._is(*ON_DEVICE) & numbered & (self.correlation < first_call)] = self.open - 1
        return at

    def _launching_calls(self) -> np.ndarray:
        """The index (N,) of the call that launched each event; -1 on the host,
        and where it is not in the trace.
        """
        calls = np.flatnonzero((self.kind == EventKind.API) & (self.correlation >= 0))
        operations = np.flatnonzero(self._is(*ON_DEVICE) & (self.correlation >= 0))
        launching = np.full(len(self.kind), -1)
        if len(calls):
            calls = calls[np.argsort(self.correlation[calls], kind="stable")]
            numbers = self.correlation[calls]
            nearest = np.minimum(
                np.searchsorted(numbers, self.correlation[operations]), len(calls) - 1
            )
            in_trace = numbers[nearest] == self.correlation[operations]
            launching[operations[in_trace]] = calls[nearest[in_trace]]
        return launching

    def _range_ns(self) -> dict[tuple[int, int], int]:
        """ns in ranges by kind and name, as unions of each name on each thread or device."""
        chosen = np.flatnonzero(self._is(EventKind.RANGE, EventKind.DEVICE_RANGE))
        chosen = chosen[(self.start[chosen] >= self.open) & (self.start[chosen] < self.close)]
        kind = self.kind[chosen]
        name = self.name[chosen]
        lane = np.where(kind == EventKind.RANGE, self.thread[chosen], self.device[chosen])
        keys, group = np.unique(np.stack([kind, name, lane], axis=1), axis=0, return_inverse=True)
        lengths = covered_by_group(self.start[chosen], self.end[chosen], group.reshape(-1))
        totals: dict[tuple[int, int], int] = {}
        for (range_kind, code, _), length in zip(keys.tolist(), lengths.tolist(), strict=True):
            totals[range_kind, code] = totals.get((range_kind, code), 0) + length
        return totals

    def _spans(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.start[chosen], self.end[chosen]

    def _clipped(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts and ends of the chosen events clipped to the host's window, and their threads."""
        start = np.maximum(self.start[chosen], self.open)
        end = np.minimum(self.end[chosen], self.close)
        inside = start < end
        return start[inside], end[inside], self.thread[chosen][inside]

    def _is(self, *kinds: EventKind) -> np.ndarray:
        return np.isin(self.kind, kinds)

    def _named(self, kind: EventKind, by_code: list[bool]) -> np.ndarray:
        """Mask (N,) of events of this kind whose name's code is true in `by_code`."""
        return (self.kind == kind) & np.isin(self.name, np.flatnonzero(by_code))

    def _are_collectives(self, kind: EventKind) -> list[bool]:
        metrics = (metric(kind, name) for name in self.names)
        return [entry is not None and entry.group == "collective" for entry in metrics]


# ---- unions of intervals of integer nanoseconds


def covered(start: np.ndarray, end: np.ndarray) -> int:
    """Length of the union of intervals (N,)."""
    return int(covered_by_group(start, end, np.zeros(len(start), np.int64)).sum())


def covered_by_group(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Lengths (G,) of the union of each group's intervals (N,); groups are numbered from 0."""
    if not len(start):
        return np.zeros(0, np.int64)
    # each group gets a stretch of the axis of its own
    shift = group * (end.max() - start.min() + 1)
    order = np.argsort(start + shift, kind="stable")
    start, reach = (start + shift)[order], np.maximum.accumulate((end + shift)[order])
    before = np.concatenate([start[:1], reach[:-1]])
    return sums_by_group(reach - np.maximum(start, before), group[order], int(group.max()) + 1)


def sums_by_group(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Sums (count,) of integers (N,) by group, exact below 2**53."""
    return np.bincount(group, values, count).astype(np.int64)
