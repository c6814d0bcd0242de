"""Reader of Kineto's Chrome traces (torch.profiler).

Tried with torch 2.11 and its Kineto, and with files of 2023 (whole microseconds since 1970) and 2024 (fractions,
since baseTimeNanoseconds). A file is read in one go; msgspec builds only the fields named here: 200 MB take 0.6 GB.

Read are the categories in KINDS, and of `cpu_op` the operators that torch.distributed started. `cuda_sync` is the
device's view of calls that are in the trace already, `ac2g` and `fwdbwd` are arrows, `Trace` is the profiler itself.
"""

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from multicard.observe.profiles.events import Collector, Trace
from multicard.observe.profiles.names import GLOO, Kind

KINDS = {
    "cuda_runtime": Kind.API,
    "cuda_driver": Kind.API,
    "kernel": Kind.KERNEL,
    "gpu_memcpy": Kind.COPY,
    "gpu_memset": Kind.SET,
    "user_annotation": Kind.RANGE,
    "gpu_user_annotation": Kind.DEVICE_RANGE,
}
DISTRIBUTED = (GLOO, "c10d::")
# Calls that Kineto drops as frequent and not interesting: isBlocklisted in CuptiCbidRegistry.cpp at 54d69b2, before
# that isBlockListedRuntimeCbid in CuptiActivityProfiler.cpp; on ROCm in RocprofLogger.cpp, where versions add others
NOT_RECORDED = (
    "cudaEventDestroy",
    "cudaEventCreate",
    "cudaEventCreateWithFlags",
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaGetLastError",
    "hipGetDevice",
    "hipSetDevice",
    "hipGetLastError",
)


SLAB = 1 << 17  # events of a record batch
EXACT_BELOW_US = 2**43  # below, a float64 is within half a ns of the written number
# What Python calls JSON and msgspec does not: numbers that are none, and control characters in names
NO_NUMBER = re.compile(rb"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=[,\]}\s])")
CUT = "truncated"  # in msgspec's message where the text ends too early
CONTROL = re.compile(rb"[\x00-\x1f]")


class Args(msgspec.Struct, gc=False):
    device: int | str | None = None
    bytes: int | float | str | None = None
    size: Any = None
    correlation: int | float | str | None = None


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float = 0  # us
    dur: int | float = 0  # us
    args: Args | None = None


class ExactEvent(Event, gc=False):
    ts: Decimal = Decimal(0)  # pyright: ignore[reportIncompatibleVariableOverride, reportGeneralTypeIssues]


Kept = TypeVar("Kept", bound=Event)


class Document(msgspec.Struct, Generic[Kept], rename="camel"):
    trace_events: list[Kept] | None = None
    distributed_info: Any = None


def read(content: bytes, where: str) -> Trace:
    """The trace in a file's content.

    Args:
        where: the file's name in messages.

    Raises:
        ValueError: if it is cut off, damaged, without events, or no such trace.
    """
    document = _document(content, where)
    del content  # as large as the file
    events, collector, threads = document.trace_events, Collector(), dict[Any, int]()
    if events is None:
        raise ValueError(f"{where}: JSON, but no Kineto trace: it has no traceEvents")
    for first in range(0, len(events), SLAB):
        _collect(events[first : first + SLAB], collector, threads)
    info = document.distributed_info
    rank = info.get("rank") if isinstance(info, dict) else None
    return collector.trace(where, rank if isinstance(rank, int) else None)


def _document(content: bytes, where: str) -> Document[Any]:
    """Decode a trace, with `ts` as decimals where a float64 does not hold it."""
    begin = content.lstrip()[:1]
    if begin not in (b"{", b"["):
        what = "neither a Kineto trace (JSON) nor an export of nsys (SQLite)" if begin else "an empty file"
        raise ValueError(f"{where}: {what}")

    def decoded(text: bytes, kind: type[Event]) -> Document[Any]:
        if begin == b"[":  # Chrome's format may be the bare list
            return Document(msgspec.json.decode(text, type=list[kind]))
        return msgspec.json.decode(text, type=Document[kind])

    try:
        try:
            document = decoded(content, Event)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if isinstance(error, msgspec.ValidationError) or CUT in str(error):
                raise
            content = NO_NUMBER.sub(b"null", CONTROL.sub(b" ", content)).decode(errors="replace").encode()
            document = decoded(content, Event)
        if any(event.ts >= EXACT_BELOW_US and isinstance(event.ts, float) for event in document.trace_events or ()):
            document = decoded(content, ExactEvent)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(f"{where}: not a trace of Kineto: {error}") from None
    except msgspec.DecodeError as error:
        cut = f"cut off after {len(content):,} bytes; the profiler did not finish writing it"
        raise ValueError(f"{where}: {cut if CUT in str(error) else f'not valid JSON: {error}'}") from None
    return document


def _collect(events: Sequence[Event], collector: Collector, threads: dict[Any, int]) -> None:
    """Add a record batch of the events that count."""
    timed = [event for event in events if event.ph == "X" and event.cat != "Trace"]
    start_ns = _ns([event.ts for event in timed])
    end_ns = start_ns + np.maximum(_ns([event.dur for event in timed]), 0)
    collector.extend_span(start_ns, end_ns)
    kinds = np.array([_kind(event) for event in timed], np.int8)
    index = np.flatnonzero(kinds >= 0)
    counted = [timed[i] for i in index]
    if not counted:
        return
    on_host = np.isin(kinds[index], (Kind.API, Kind.RANGE))
    lanes = [threads.setdefault((event.pid, event.tid), len(threads)) for event in counted]
    collector.add(
        kind=kinds[index],
        name=np.array([collector.code(event.name) for event in counted], np.int32),
        start_ns=start_ns[index],
        end_ns=end_ns[index],
        device=np.where(on_host, -1, [_device(event) for event in counted]),
        thread=np.where(on_host, lanes, 0),
        bytes=np.array([_bytes(event) for event in counted], np.int64),
        correlation=np.array([_correlation(event) for event in counted], np.int64),
    )


def _kind(event: Event) -> int:
    kind = KINDS.get(event.cat)
    if kind is not None:
        return kind
    return Kind.RANGE if event.cat == "cpu_op" and event.name.startswith(DISTRIBUTED) else -1


def _device(event: Event) -> int:
    """The device; the records of annotations have it as `pid` only."""
    device = event.pid if event.args is None or event.args.device is None else event.args.device
    return device if isinstance(device, int) else 0


def _bytes(event: Event) -> int:
    """The bytes; -1 for none. On ROCm a copy itself has none, and the call that started it has them as text."""
    if event.args is None:
        return -1
    count = event.args.size if event.args.bytes is None else event.args.bytes
    if isinstance(count, str) and count.isdecimal():
        return int(count)
    return int(count) if isinstance(count, (int, float)) else -1


def _correlation(event: Event) -> int:
    """The correlation; CUPTI writes 0 (CUPTI_CORRELATION_ID_UNKNOWN) where it knows none."""
    correlation = None if event.args is None else event.args.correlation
    return correlation if isinstance(correlation, int) and correlation > 0 else -1


def _ns(times_us: list[Any]) -> np.ndarray:
    """Microseconds as integer ns. The whole part is exact in a float64, so that only the fraction is rounded."""
    if times_us and isinstance(times_us[0], Decimal):
        return np.array([int(time * 1000) for time in times_us], np.int64)
    times = np.array(times_us, np.float64)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
