"""The events of one rank as columns, and the metrics that they add up to in the rank's window.

Both readers convert a profiler's files to these columns. Each kind and name of event counts for one
metric: how often and how long it occurs. Further times are derived from several kinds.

The host's window is its marker's. Without such a marker, it reaches from the start of the first
step marker to the end of the last, which excludes the profiler's own work. Without any markers, it
covers all events. The device's window reaches from the start of the first operation launched in the
host's window to the end of the last. Shares are relative to the longer of the two: if the host is
ahead of the device, the steps take as long as the device does.

- Counts are of whole events that start in the host's window. Kernels, copies and memsets run
  behind the host. They count if the call that launched them started in the window, whenever the
  device came to them. Calls and bytes thus belong to the steps. If that call is not in the
  trace, their own start decides (except as `_counted_at` explains).
- Derived times are lengths of unions of the intervals that count. On the host, they are clipped to
  its window. A device with overlapping kernels on several streams is busy once. The times are
  summed over the devices of a rank.
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
    """The kind of an event. Each event has one, so that none counts on both host and device."""

    API = 0  # A CUDA call, on the host.
    KERNEL = 1
    COPY = 2
    SET = 3
    RANGE = 4  # An annotation on the host.
    DEVICE_RANGE = 5  # The same annotation, around the operations that it launched.


ON_DEVICE = (EventKind.KERNEL, EventKind.COPY, EventKind.SET)

PHASES = (*timing.PHASES, "evaluate")
GLOO = "gloo:"  # Prefix of torch.distributed's ranges around gloo's work.
STEP = "ProfilerStep#"  # Prefix of torch.profiler's step markers.
WINDOW = "ProfilerWindow"  # Marker around everything that counts, if that is more than steps.
RUN = "run"  # The reason for the end of a window that lasted to the end of the training.

# Calls that have a row in every profile of a GPU, even with 0 calls. Triton launches its kernels by
# the driver's calls (cu...).
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
# Matches calls that launch one or several kernels or a graph: cudaLaunchKernel, cuLaunchKernelEx,
# cudaGraphLaunch.
LAUNCH = re.compile(r"(cuda|cu)(Drv)?(Graph)?Launch(?!HostFunc)\w*")
# Calls in which a host thread only waits for the device. Synchronous copies wait too, but move
# bytes meanwhile.
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
    group: str  # api, copy, collective, kernel, phase or annotation.
    name: str
    detail: str = ""  # Algorithm and protocol of a collective, or memory of a copy.


def metric(kind: EventKind, name: str) -> Metric | None:
    """Return the metric of an event, or None for step markers."""
    if kind is EventKind.API:
        return Metric("api", api(name))
    if kind is EventKind.KERNEL:
        return collective(name) or Metric("kernel", name)
    # `Memcpy HtoD (Pinned -> Device)` is Kineto's form, which the reader of nsys writes too.
    if kind is EventKind.COPY:
        direction, _, memory = name.removeprefix("Memcpy ").partition(" ")
        host = [word for word in ("pageable", "pinned", "managed") if word in memory.lower()]
        return Metric("copy", COPIES.get(direction, f"memcpy {direction}"), " to ".join(host))
    if kind is EventKind.SET:
        return Metric("copy", MEMSET)
    if kind is EventKind.RANGE and name.startswith(GLOO):
        return Metric("collective", f"gloo {name.removeprefix(GLOO)}")
    group = "phase" if name in PHASES else "annotation"
    full_name = f"{name} (device)" if kind is EventKind.DEVICE_RANGE else name
    return None if name.startswith(STEP) or name == WINDOW else Metric(group, full_name)


def api(name: str) -> str:
    """Return the call's name without CUPTI's version, which has four digits or more.

    For example, `cudaStreamGetCaptureInfo_v2_v11030` becomes `cudaStreamGetCaptureInfo_v2`.
    """
    return re.sub(r"_v\d{4,}$", "", name)


# Matches ncclDevKernel_AllReduce_Sum_f32_RING_LL(...) since NCCL 2.19, and before that
# ncclKernel_AllReduce_RING_LL_Sum_float(...). ncclDevKernel_Generic_4(...) runs several fused
# operations.
_NCCL_KERNEL = re.compile(r"nccl\w*?Kernel_(?P<name>[A-Z][A-Za-z]*)(?P<rest>[^(<]*)")
_NCCL_DETAILS = {
    "RING",
    "TREE",
    "COLLNET",
    "DIRECT",
    "CHAIN",
    "NVLS",
    "PAT",
    "LL",
    "LL128",
    "SIMPLE",
}


def collective(kernel: str) -> Metric | None:
    """Return the collective of an NCCL kernel, or None for any other kernel.

    Its detail is the algorithm and protocol.
    """
    short_name = kernel.removeprefix("void ")
    if not short_name.startswith("nccl"):
        return None
    match = _NCCL_KERNEL.match(short_name)
    if match is None:
        return Metric("collective", "nccl other")
    words = [word for word in match["rest"].split("_") if word in _NCCL_DETAILS]
    return Metric("collective", f"nccl {match['name']}", " ".join(words))


# ---- events


# An event's columns. Times are integer ns on the clock of the trace, because a float64 of
# microseconds since 1970 is off by 125 ns.
COLUMNS: dict[str, type[np.generic]] = {
    "kind": np.int8,
    "name": np.int32,  # Index into Trace.names.
    "start_ns": np.int64,
    "end_ns": np.int64,
    "device": np.int32,  # -1 on the host.
    "thread": np.int64,  # A number for each host thread, and 0 on the device.
    "bytes": np.int64,  # -1 if the event has none.
    "correlation": np.int64,  # Shared by a call and the operations that it launched. -1 for none.
}


@dataclass(frozen=True)
class Trace:
    """The events of one rank."""

    where: str  # The file's name, for messages.
    rank: int | None  # None if the file does not say.
    columns: dict[str, np.ndarray]  # (N,) each.
    names: list[str]
    # First start and last end of all events, including events that no metric counts.
    span_ns: tuple[int, int]


@dataclass
class Collector:
    """Gathers the events of a rank, some thousands at a time."""

    codes: dict[str, int] = field(default_factory=dict)
    batches: list[dict[str, np.ndarray]] = field(default_factory=list)
    spans_ns: list[tuple[int, int]] = field(default_factory=list)

    def add(self, names: Sequence[str | None], **columns: Any) -> None:
        """Store events, given by COLUMNS (N,) except `name`.

        Events without a name only extend the span.
        """
        if not names:
            return
        self.spans_ns.append((int(np.min(columns["start_ns"])), int(np.max(columns["end_ns"]))))
        codes = [
            -1 if name is None else self.codes.setdefault(name, len(self.codes)) for name in names
        ]
        columns["name"] = np.array(codes)
        has_name = columns["name"] >= 0
        self.batches.append(
            {name: np.asarray(columns[name], kind)[has_name] for name, kind in COLUMNS.items()}
        )

    def trace(self, where: str, rank: int | None) -> Trace:
        """Return the gathered events. Raises a Refusal if there are none."""
        if not self.spans_ns:
            raise without_events(where)
        span_ns = min(first for first, _ in self.spans_ns), max(last for _, last in self.spans_ns)
        columns = {
            name: np.concatenate([batch[name] for batch in self.batches]) for name in COLUMNS
        }
        return Trace(where, rank, columns, list(self.codes), span_ns)


def without_events(where: str) -> Refusal:
    """Return the refusal of a file in which nothing was recorded."""
    return Refusal(
        "trace.no-events",
        f"{where}: has no events; was anything run while the profiler was on?",
        file=where,
    )


class RankEvents:
    """The columns (N,) of a trace's events, and its host's window in ns."""

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
        step_markers = self._has_name(
            EventKind.RANGE, [name.startswith(STEP) for name in self.names]
        )
        self.steps = len(np.unique(self.name[step_markers])) or None
        self.open, self.close = trace.span_ns
        window_markers = self._has_name(EventKind.RANGE, [name == WINDOW for name in self.names])
        bounds = window_markers if window_markers.any() else step_markers
        if bounds.any():
            self.open = int(self.start[bounds].min())
            self.close = int(self.end[bounds].max())
        counted_at = self._counted_at()
        self._is_counted = (counted_at >= self.open) & (counted_at < self.close)
        device_work = self._is_counted & self._is_kind(*ON_DEVICE)
        device_ns = (
            int(self.end[device_work].max() - self.start[device_work].min())
            if device_work.any()
            else 0
        )
        self.window_ns = max(self.close - self.open, device_ns)
        self.devices: list[int] = np.unique(self.device[self._is_kind(*ON_DEVICE)]).tolist()
        self.apis = {
            api(self.names[code]) for code in np.unique(self.name[self.kind == EventKind.API])
        }

    @property
    def window_s(self) -> float:
        """The length of the longer window."""
        return self.window_ns / 1e9

    def counts(self) -> Iterator[tuple[EventKind, str, int, int, int | None]]:
        """Yield kind, name, calls, ns and bytes of all events that count.

        The ns of ranges are the time within any range of that name on a thread or device. Recursion
        counts once.
        """
        counted_events = np.flatnonzero(self._is_counted)
        keys, group = np.unique(
            self.kind[counted_events] * np.int64(len(self.names)) + self.name[counted_events],
            return_inverse=True,
        )
        calls = np.bincount(group, minlength=len(keys))
        ns = sums_by_group(self.end[counted_events] - self.start[counted_events], group, len(keys))
        has_size = self.bytes[counted_events] >= 0
        sizes = sums_by_group(self.bytes[counted_events][has_size], group[has_size], len(keys))
        groups_with_size = set(group[has_size].tolist())
        range_ns = self._range_ns()
        for index, key in enumerate(keys.tolist()):
            kind, code = divmod(key, len(self.names))
            total_ns = range_ns.get((kind, code), int(ns[index]))
            size = int(sizes[index]) if index in groups_with_size else None
            yield EventKind(kind), self.names[code], int(calls[index]), total_ns, size

    def derived(self) -> ProfileDerived:
        """Return the times derived from events of several kinds."""
        blocking = self._clipped(
            self._has_name(EventKind.API, [api(name) in BLOCKING for name in self.names])
        )
        threads = np.unique(blocking[2], return_inverse=True)[1]
        blocked_s = int(covered_by_group(*blocking[:2], threads).sum()) / 1e9 if self.apis else None
        if not self.devices:
            gloo = self._has_name(EventKind.RANGE, self._are_collectives(EventKind.RANGE))
            communication_s = covered(*self._clipped(gloo)[:2]) / 1e9 if gloo.any() else None
            return ProfileDerived(None, None, communication_s, None, None, None, blocked_s)
        busy = computing = communication = exposed = gap = 0
        nccl = self._has_name(EventKind.KERNEL, self._are_collectives(EventKind.KERNEL))
        for device in self.devices:
            on_this_device = self._is_counted & (self.device == device)
            start, end = self._spans(self._is_kind(*ON_DEVICE) & on_this_device)
            compute = covered(
                *self._spans(self._is_kind(EventKind.KERNEL) & on_this_device & ~nccl)
            )
            busy += covered(start, end)
            gap += int(end.max() - start.min()) - covered(start, end) if len(start) else 0
            computing += compute
            communication += covered(*self._spans(nccl & on_this_device))
            exposed += (
                covered(*self._spans(self._is_kind(EventKind.KERNEL) & on_this_device)) - compute
            )
        return ProfileDerived(
            gpu_busy_share=busy / (self.window_ns * len(self.devices)) if self.window_ns else None,
            compute_s=computing / 1e9,
            communication_s=communication / 1e9,
            exposed_communication_s=exposed / 1e9,
            overlap_share=1 - exposed / communication if communication else None,
            launch_gap_s=gap / 1e9,
            blocked_s=blocked_s,
        )

    def unnamed_s(self) -> float | None:
        """Return the time of the window in which the host was in no named range.

        This is the work of the thread that takes the steps. It is None if the trace has no steps,
        or if a GPU did the work, because the host's time then does not say where the time goes.
        """
        step_markers = self._has_name(
            EventKind.RANGE, [name.startswith(STEP) for name in self.names]
        )
        if self.devices or not step_markers.any():
            return None
        named = self._has_name(
            EventKind.RANGE, [metric(EventKind.RANGE, name) is not None for name in self.names]
        )
        on_thread = np.isin(self.thread, self.thread[step_markers])
        named_ns = covered(*self._clipped(named & on_thread)[:2])
        return (self.close - self.open - named_ns) / 1e9

    def _counted_at(self) -> np.ndarray:
        """Return the time (N,) by which each event counts.

        On a device, it is the start of its launching call, otherwise the event's own start.

        At the stop, torch waits for the device (`synchronize` in
        torch.autograd.profiler.profile.__exit__) before Kineto ends its window
        (captureWindowEndTime_). The trace thus holds everything that the last step launched.

        At the start, nothing waits. outOfRange in CuptiActivityProfiler.cpp drops the calls of the
        warm-up, but not their kernels and copies that have yet to run. These do not count. They
        have numbers below all calls in the trace, because CUPTI numbers calls in ascending order.
        """
        launching_call = self._launching_calls()
        launched = np.flatnonzero(launching_call >= 0)
        # Without markers, all events are inside. If no launching call is recorded at all, a missing
        # call means nothing.
        if not self.steps or not len(launched):
            return self.start
        counted_at = self.start.copy()
        counted_at[launched] = self.start[launching_call[launched]]
        has_correlation = self.correlation >= 0
        first_call = self.correlation[(self.kind == EventKind.API) & has_correlation].min()
        counted_at[
            self._is_kind(*ON_DEVICE) & has_correlation & (self.correlation < first_call)
        ] = self.open - 1
        return counted_at

    def _launching_calls(self) -> np.ndarray:
        """Return the index (N,) of the call that launched each event.

        It is -1 on the host, and if the call is not in the trace.
        """
        calls = np.flatnonzero((self.kind == EventKind.API) & (self.correlation >= 0))
        operations = np.flatnonzero(self._is_kind(*ON_DEVICE) & (self.correlation >= 0))
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
        """Return ns in ranges by kind and name, as unions per thread or device."""
        ranges = np.flatnonzero(self._is_kind(EventKind.RANGE, EventKind.DEVICE_RANGE))
        ranges = ranges[(self.start[ranges] >= self.open) & (self.start[ranges] < self.close)]
        kind = self.kind[ranges]
        name = self.name[ranges]
        lane = np.where(kind == EventKind.RANGE, self.thread[ranges], self.device[ranges])
        keys, group = np.unique(np.stack([kind, name, lane], axis=1), axis=0, return_inverse=True)
        lengths = covered_by_group(self.start[ranges], self.end[ranges], group.reshape(-1))
        totals: dict[tuple[int, int], int] = {}
        for (range_kind, code, _), length in zip(keys.tolist(), lengths.tolist(), strict=True):
            totals[range_kind, code] = totals.get((range_kind, code), 0) + length
        return totals

    def _spans(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.start[mask], self.end[mask]

    def _clipped(self, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return starts and ends of events, clipped to the host's window, and their threads."""
        start = np.maximum(self.start[mask], self.open)
        end = np.minimum(self.end[mask], self.close)
        is_inside = start < end
        return start[is_inside], end[is_inside], self.thread[mask][is_inside]

    def _is_kind(self, *kinds: EventKind) -> np.ndarray:
        return np.isin(self.kind, kinds)

    def _has_name(self, kind: EventKind, by_code: list[bool]) -> np.ndarray:
        """Return a mask (N,) of events of this kind whose name's code is true in `by_code`."""
        return (self.kind == kind) & np.isin(self.name, np.flatnonzero(by_code))

    def _are_collectives(self, kind: EventKind) -> list[bool]:
        metrics = (metric(kind, name) for name in self.names)
        return [entry is not None and entry.group == "collective" for entry in metrics]


# ---- unions of intervals of integer nanoseconds


def covered(start: np.ndarray, end: np.ndarray) -> int:
    """Return the length of the union of intervals (N,)."""
    return int(covered_by_group(start, end, np.zeros(len(start), np.int64)).sum())


def covered_by_group(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the lengths (G,) of the union of each group's intervals (N,), from group 0."""
    if not len(start):
        return np.zeros(0, np.int64)
    # Shift each group to a stretch of the axis of its own.
    shift = group * (end.max() - start.min() + 1)
    order = np.argsort(start + shift, kind="stable")
    start, latest_end = (start + shift)[order], np.maximum.accumulate((end + shift)[order])
    covered_until = np.concatenate([start[:1], latest_end[:-1]])
    return sums_by_group(
        latest_end - np.maximum(start, covered_until), group[order], int(group.max()) + 1
    )


def sums_by_group(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Return the sums (count,) of integers (N,) by group, exact below 2**53."""
    return np.bincount(group, values, count).astype(np.int64)
