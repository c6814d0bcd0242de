"""From the events of the ranks to one table of metrics, the same whichever profiler wrote them.

The window of a rank reaches from the start of its first step marker to the end of its last, so that what the profiler
itself does before and after them is left out; without markers, over all of its events.

- A row counts events whole, those that start in the window. Kernels, copies and memsets run behind the host: they count
  if the call that launched them started in the window, so that calls and bytes are those of the steps, whenever the
  device came to them. One whose call is not in the trace counts by its own start; but not if it was launched before
  the first call in the trace, as what the device had left to do from the warm-up was (see `_Window._launched`).
- Times of `derived` are lengths of unions of intervals, clipped to the window: kernels that overlap on several streams
  make a device busy once. They are summed over the devices of a rank.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from multicard.profiling.events import (
    APIS,
    BLOCKING,
    COPIES,
    LAUNCHES,
    MEMSET,
    ON_DEVICE,
    STEP,
    Kind,
    Metric,
    Trace,
    api,
    metric,
)

GROUPS = ("derived", "phase", "api", "copy", "collective", "kernel", "annotation")
LONG = ("kernel", "annotation")  # groups with as many rows as the program has names


@dataclass(frozen=True)
class Row:
    """One metric of one rank, or of all of them."""

    rank: int | None  # None: the sum over ranks
    group: str  # of GROUPS
    metric: str
    calls: int | None  # None for what is no count of events
    total_s: float
    share: float  # of the rank's window; of all ranks' windows in the sum. Above 1 where threads or devices add up
    bytes: int | None = None
    detail: str = ""  # algorithms and protocols of a collective, kinds of memory of a copy

    @property
    def mean_s(self) -> float | None:
        return self.total_s / self.calls if self.calls else None


@dataclass(frozen=True)
class Derived:
    """What follows from the events of a rank; None where they cannot tell.

    The device's operations are its kernels, copies and memsets. NCCL's kernels wait for the other ranks and are busy
    while they do. On CPU `communication_s` is the time during which gloo was at work on any thread.
    """

    gpu_busy_share: float | None  # of window x devices
    compute_s: float | None  # with a kernel at work that is none of NCCL's: busy with copies alone is not computing
    communication_s: float | None
    exposed_communication_s: float | None  # while no other kernel ran on the device; copies hide nothing
    overlap_share: float | None  # of the communication, what compute kernels hid
    launch_gap_s: float | None  # idle between a device's first operation in the window and its last
    blocked_s: float | None  # host threads within the calls of BLOCKING, summed over threads


@dataclass(frozen=True)
class Rank:
    rank: int
    where: str  # the file
    window_s: float
    steps: int | None  # None without step markers
    devices: list[int]
    derived: Derived


@dataclass(frozen=True)
class Profile:
    source: str  # kineto or nsys
    ranks: list[Rank]
    rows: list[Row]  # of each rank, then of their sum; by group, then by time
    not_recorded: tuple[str, ...]  # calls that the profiler leaves out by design

    @property
    def steps(self) -> int | None:
        """Steps over all ranks."""
        counts = [rank.steps for rank in self.ranks if rank.steps is not None]
        return sum(counts) if len(counts) == len(self.ranks) else None

    def of(self, rank: int | None, top: int | None = None) -> list[Row]:
        """The rows of a rank (None: the sum over ranks), of each group in LONG the first `top` alone."""
        mine = [row for row in self.rows if row.rank == rank]
        if top is None:
            return mine
        long = {group: [row for row in mine if row.group == group][:top] for group in LONG}
        return [row for row in mine if row.group not in LONG or row in long[row.group]]

    def as_dict(self, top: int | None = 20) -> dict[str, object]:
        """Ready for JSON, with the `top` kernels and annotations of every rank and of the sum."""
        rows = [row for rank in (*(one.rank for one in self.ranks), None) for row in self.of(rank, top)]
        return {
            "source": self.source,
            "ranks": [asdict(rank) for rank in self.ranks],
            "rows": [asdict(row) | {"mean_s": row.mean_s} for row in rows],
            "not_recorded": list(self.not_recorded),
        }


def from_dict(content: Mapping[str, Any]) -> Profile:
    """What `as_dict` gave, as it is in a run's record."""
    ranks = [Rank(**{**rank, "derived": Derived(**rank["derived"])}) for rank in content["ranks"]]
    rows = [Row(**{key: value for key, value in row.items() if key != "mean_s"}) for row in content["rows"]]
    return Profile(content["source"], ranks, rows, tuple(content["not_recorded"]))


def profile(source: str, traces: Sequence[Trace], dropped: Sequence[str]) -> Profile:
    """The table of traces that all have their rank.

    Args:
        dropped: API calls that this profiler leaves out of what it records.
    """
    ranks, rows, seen = [], [], set()
    for trace in traces:
        window = _Window(trace)
        assert trace.rank is not None
        ranks.append(Rank(trace.rank, trace.where, window.length_s, window.steps, window.devices, window.derived))
        rows += window.rows(trace.rank, dropped)
        seen |= window.apis
    rows += _sum(rows, sum(rank.window_s for rank in ranks))
    return Profile(source, ranks, rows, tuple(name for name in dropped if seen and name not in seen))


def union(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Intervals (N,) in any order as the disjoint ones, ascending, that cover the same."""
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    opens = np.concatenate([[True], start[1:] > reach[:-1]])
    return start[opens], reach[np.concatenate([opens[1:], [True]])]


def covered(start: np.ndarray, end: np.ndarray) -> int:
    """The length of the union of intervals (N,)."""
    first, last = union(start, end)
    return int((last - first).sum())


def covered_by(start: np.ndarray, end: np.ndarray, group: np.ndarray) -> np.ndarray:
    """The same for each group alone.

    Args:
        group: (N,) integers from 0.

    Returns:
        Lengths (G,), G the largest group + 1.
    """
    if not len(start):
        return np.zeros(0, np.int64)
    first, stretch = start.min(), end.max() - start.min() + 1  # a stretch of the axis for each group
    shift = group * stretch - first
    opens, closes = union(start + shift, end + shift)
    return _sums(closes - opens, opens // stretch, int(group.max()) + 1)


def _sums(values: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Exact sums (count,) of integers by group; bincount would sum them as floats."""
    sums = np.zeros(count, np.int64)
    np.add.at(sums, group, values)
    return sums


class _Window:
    """The events of one rank with its window."""

    def __init__(self, trace: Trace) -> None:
        self.names = trace.names
        self.kind, self.name, self.start, self.end, self.device, self.thread, self.bytes, self.correlation = (
            trace.columns()
        )
        markers = [code for code, name in enumerate(self.names) if name.startswith(STEP)]
        marked = np.isin(self.name, markers) & (self.kind == Kind.RANGE)
        self.steps = len(np.unique(self.name[marked])) or None
        self.open, self.close = trace.span_ns
        if self.steps:
            self.open, self.close = int(self.start[marked].min()), int(self.end[marked].max())
        on_device = np.isin(self.kind, ON_DEVICE)
        self.devices = np.unique(self.device[on_device]).tolist()
        self.apis = {api(self.names[code]) for code in np.unique(self.name[self.kind == Kind.API])}

    @property
    def length_s(self) -> float:
        return (self.close - self.open) / 1e9

    def rows(self, rank: int, dropped: Sequence[str]) -> list[Row]:
        """All metrics of this rank, those of APIS and COPIES with 0 calls where nothing of them occurred."""
        found: dict[tuple[str, str], _Sum] = {key: _Sum() for key in self._always(dropped)}
        for kind, name, calls, ns, size in self._counted():
            counted = metric(Kind(kind), self.names[name])
            if counted is not None:
                found.setdefault(counted[:2], _Sum()).add(counted, calls, ns, size)
        rows = [
            Row(rank, group, name, one.calls, one.ns / 1e9, self._share(one.ns), one.bytes, _joined(one.details))
            for (group, name), one in found.items()
        ]
        return sorted(self._derived_rows(rank, rows) + rows, key=_order)

    def _counted(self) -> Iterator[tuple[int, int, int, int, int | None]]:
        """Kind, name, calls, ns and bytes of all events that count.

        The ns of ranges are those within any of that name, on a thread or device: a recursive one counts once.
        """
        at = self._launched()
        inside = np.flatnonzero((at >= self.open) & (at < self.close))
        keys, group = np.unique(self.kind[inside] * np.int64(len(self.names)) + self.name[inside], return_inverse=True)
        size = self.bytes[inside]
        sized = size >= 0
        calls = _sums(np.ones_like(size), group, len(keys))
        ns = _sums(self.end[inside] - self.start[inside], group, len(keys))
        sizes, with_size = _sums(size[sized], group[sized], len(keys)), set(group[sized].tolist())
        nested = self._nested()
        for index, key in enumerate(keys.tolist()):
            kind, name = divmod(key, len(self.names))
            total = nested.get((kind, name), int(ns[index]))
            yield kind, name, int(calls[index]), total, int(sizes[index]) if index in with_size else None

    def _launched(self) -> np.ndarray:
        """The time (N,) by which each event counts: on a device the start of its launching call, else its own.

        At stop torch waits for the device (`synchronize` in torch.autograd.profiler.profile.__exit__) before Kineto
        takes the end of what it keeps (captureWindowEndTime_), so what the last step launched is in the trace however
        late it ran. At the start nobody waits: outOfRange in CuptiActivityProfiler.cpp drops the calls of the warm-up
        but keeps the kernels and copies of it that are still to run. CUPTI numbers calls in ascending order, so these
        have numbers below all calls in the trace.
        """
        calls = np.flatnonzero((self.kind == Kind.API) & (self.correlation >= 0))
        operations = np.flatnonzero(self._is(*ON_DEVICE) & (self.correlation >= 0))
        if not self.steps or not len(calls):  # without markers nothing is outside
            return self.start
        calls = calls[np.argsort(self.correlation[calls], kind="stable")]
        numbers, sought = self.correlation[calls], self.correlation[operations]
        call = np.minimum(np.searchsorted(numbers, sought), len(calls) - 1)
        found = numbers[call] == sought
        at = self.start.copy()
        at[operations[found]] = self.start[calls[call[found]]]
        if found.any():  # else launching calls are not recorded at all, and nothing follows from their absence
            at[operations[sought < numbers[0]]] = self.open - 1
        return at

    @cached_property
    def derived(self) -> Derived:
        busy = computing = communication = exposed = gap = 0
        talking = np.isin(self.name, self._collectives(Kind.KERNEL))
        for device in self.devices:
            here = self.device == device
            start, end, _ = self._clipped(self._is(*ON_DEVICE) & here)
            compute = self._clipped(self._is(Kind.KERNEL) & here & ~talking)[:2]
            talk = self._clipped(self._is(Kind.KERNEL) & here & talking)[:2]
            either = (np.concatenate(pair) for pair in zip(compute, talk, strict=True))
            busy += covered(start, end)
            gap += int(end.max() - start.min()) - covered(start, end) if len(start) else 0
            computing += covered(*compute)
            communication += covered(*talk)
            exposed += covered(*either) - covered(*compute)
        if not self.devices:
            return self._derived_on_host()
        return Derived(
            gpu_busy_share=busy / ((self.close - self.open) * len(self.devices)) if self.close > self.open else None,
            compute_s=computing / 1e9,
            communication_s=communication / 1e9,
            exposed_communication_s=exposed / 1e9,
            overlap_share=1 - exposed / communication if communication else None,
            launch_gap_s=gap / 1e9,
            blocked_s=self._blocked_ns() / 1e9 if self.apis else None,
        )

    def _derived_on_host(self) -> Derived:
        gloo = self._is(Kind.RANGE) & np.isin(self.name, self._collectives(Kind.RANGE))
        communication_s = covered(*self._clipped(gloo)[:2]) / 1e9 if gloo.any() else None
        blocked_s = self._blocked_ns() / 1e9 if self.apis else None
        return Derived(None, None, communication_s, None, None, None, blocked_s)

    def _derived_rows(self, rank: int, rows: list[Row]) -> list[Row]:
        found, told = [], self.derived
        if self.apis:
            launches = [row for row in rows if row.group == "api" and row.metric in LAUNCHES]
            calls, total_s = sum(row.calls or 0 for row in launches), sum(row.total_s for row in launches)
            found.append((" + ".join(LAUNCHES), calls, total_s))
        busy_s = None if told.gpu_busy_share is None else told.gpu_busy_share * self.length_s * len(self.devices)
        times = {
            "GPU busy": busy_s,
            "GPU computing": told.compute_s,
            "communication": told.communication_s,
            "communication, exposed": told.exposed_communication_s,
            "launch gaps": told.launch_gap_s,
            "blocked in synchronisation": told.blocked_s,
        }
        found += [(name, None, time_s) for name, time_s in times.items() if time_s is not None]
        return [Row(rank, "derived", name, calls, time_s, self._share(time_s * 1e9)) for name, calls, time_s in found]

    def _always(self, dropped: Sequence[str]) -> list[tuple[str, str]]:
        """What is told also when it did not occur; nothing of CUDA where CUDA was not used."""
        calls = [("api", name) for name in APIS if name not in dropped] if self.apis else []
        return calls + ([("copy", name) for name in (*COPIES.values(), MEMSET)] if self.devices else [])

    def _blocked_ns(self) -> int:
        codes = [code for code, name in enumerate(self.names) if api(name) in BLOCKING]
        chosen = self._is(Kind.API) & np.isin(self.name, codes)
        start, end, thread = self._clipped(chosen)
        return int(covered_by(start, end, np.unique(thread, return_inverse=True)[1]).sum())

    def _nested(self) -> dict[tuple[int, int], int]:
        """By kind and name: ns within ranges, those of one name on one thread or device united."""
        chosen = np.flatnonzero(self._is(Kind.RANGE, Kind.DEVICE_RANGE))
        chosen = chosen[(self.start[chosen] >= self.open) & (self.start[chosen] < self.close)]
        kind, name = self.kind[chosen], self.name[chosen]
        lane = np.where(kind == Kind.RANGE, self.thread[chosen], self.device[chosen])
        keys, group = np.unique(np.stack([kind, name, lane], axis=1), axis=0, return_inverse=True)
        found: dict[tuple[int, int], int] = {}
        lengths = covered_by(self.start[chosen], self.end[chosen], group.reshape(-1))
        for (one, code, _), length in zip(keys.tolist(), lengths.tolist(), strict=True):
            found[one, code] = found.get((one, code), 0) + length
        return found

    def _clipped(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Starts and ends of these events, as far as they are within the window, and their threads."""
        start, end = np.maximum(self.start[chosen], self.open), np.minimum(self.end[chosen], self.close)
        inside = start < end
        return start[inside], end[inside], self.thread[chosen][inside]

    def _is(self, *kinds: Kind) -> np.ndarray:
        return np.isin(self.kind, kinds)

    def _collectives(self, kind: Kind) -> list[int]:
        found = ((code, metric(kind, name)) for code, name in enumerate(self.names))
        return [code for code, one in found if one is not None and one.group == "collective"]

    def _share(self, ns: float) -> float:
        return ns / (self.close - self.open) if self.close > self.open else 0.0


class _Sum:
    """Events of one metric, whatever their names."""

    def __init__(self) -> None:
        self.calls = self.ns = 0
        self.bytes: int | None = None
        self.details: set[str] = set()

    def add(self, counted: Metric, calls: int, ns: int, size: int | None) -> None:
        self.calls, self.ns = self.calls + calls, self.ns + ns
        if size is not None:
            self.bytes = (self.bytes or 0) + size
        self.details.add(counted.detail)


def _sum(rows: Sequence[Row], windows_s: float) -> list[Row]:
    """The rows of all ranks summed, metric by metric."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        found.setdefault((row.group, row.metric), []).append(row)
    summed = []
    for (group, name), mine in found.items():
        calls = [row.calls for row in mine if row.calls is not None]
        sizes = [row.bytes for row in mine if row.bytes is not None]
        total_s = sum(row.total_s for row in mine)
        share = total_s / windows_s if windows_s else 0.0
        details = {detail for row in mine for detail in row.detail.split(", ")}
        size = sum(sizes) if sizes else None
        count = sum(calls) if calls else None
        summed.append(Row(None, group, name, count, total_s, share, size, _joined(details)))
    return sorted(summed, key=_order)


def _joined(details: set[str]) -> str:
    return ", ".join(sorted(details - {""}))


def _order(row: Row) -> tuple[int, float, str]:
    """By group, then the longest first; what is derived in the order in which it was."""
    return (
        GROUPS.index(row.group),
        0.0 if row.group == "derived" else -row.total_s,
        "" if row.group == "derived" else row.metric,
    )
