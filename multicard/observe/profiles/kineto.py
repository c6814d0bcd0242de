"""Reader of Kineto's Chrome traces (torch.profiler).

Tried with torch 2.11 and its Kineto, and with files of 2023 (whole microseconds since 1970) and
2024 (fractions, since baseTimeNanoseconds), whose times a float64 holds to the nanosecond. A file
is read in one go; msgspec builds only the fields named here: 200 MB take 0.6 GB.

Read are the categories in KINDS, and of `cpu_op` the operators that torch.distributed started.
`cuda_sync` is the device's view of calls that are in the trace already,
`ac2g` and `fwdbwd` are arrows, `Trace` is the profiler itself.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from multicard.messages import Refusal
from multicard.observe.profiles.events import GLOO, Collector, EventKind, Trace

KINDS = {
    "cuda_runtime": EventKind.API,
    "cuda_driver": EventKind.API,
    "kernel": EventKind.KERNEL,
    "gpu_memcpy": EventKind.COPY,
    "gpu_memset": EventKind.SET,
    "user_annotation": EventKind.RANGE,
    "gpu_user_annotation": EventKind.DEVICE_RANGE,
}
DISTRIBUTED = (GLOO, "c10d::")
# Calls that Kineto drops as frequent and not interesting: isBlocklisted in CuptiCbidRegistry.cpp at
# 54d69b2, before that isBlockListedRuntimeCbid in CuptiActivityProfiler.cpp
NOT_RECORDED = ("cudaEventDestroy", "cudaEventCreate", "cudaEventCreateWithFlags")
NOT_RECORDED += ("cudaGetDevice", "cudaSetDevice", "cudaGetLastError")

SLAB = 1 << 17  # events of a record batch
# What Python calls JSON and msgspec does not: numbers that are none,
# and control characters in names
NO_NUMBER = re.compile(rb"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=[,\]}\s])")
CUT = "truncated"  # in msgspec's message where the text ends too early
CONTROL = re.compile(rb"[\x00-\x1f]")


class Args(msgspec.Struct, gc=False):
    device: Any = None
    bytes: Any = None
    correlation: Any = None


class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: int | float = 0  # us
    dur: int | float = 0  # us
    args: Args | None = None


class Document(msgspec.Struct, rename="camel"):
    trace_events: list[Event] | None = None
    distributed_info: Any = None


NO_ARGS = Args()


def read(content: bytes, where: str) -> Trace:
    """The trace in the content of a file; a ValueError says that it is cut off, damaged,
    without events, or none.
    """
    document = _document(content, where)
    del content  # as large as the file
    events = document.trace_events
    collector = Collector()
    threads = dict[Any, int]()
    if events is None:
        raise Refusal(
            "trace.no-trace-events",
            f"{where}: is JSON, but not a Kineto trace: it has no traceEvents",
            file=where,
        )
    for first in range(0, len(events), SLAB):
        _collect(events[first : first + SLAB], collector, threads)
    info = document.distributed_info
    rank = info.get("rank") if isinstance(info, dict) else None
    return collector.trace(where, rank if isinstance(rank, int) else None)


def _document(content: bytes, where: str) -> Document:
    """Decode a trace."""
    begin = content.lstrip()[:1]
    if not begin:
        raise Refusal("trace.empty-file", f"{where}: is an empty file", file=where)
    if begin != b"{":
        raise Refusal(
            "trace.unknown-form",
            f"{where}: is neither a Kineto trace (JSON) nor an export of nsys (SQLite)",
            file=where,
        )
    try:
        try:
            return msgspec.json.decode(content, type=Document)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if isinstance(error, msgspec.ValidationError) or CUT in str(error):
                raise
            content = (
                NO_NUMBER.sub(b"null", CONTROL.sub(b" ", content)).decode(errors="replace").encode()
            )
            return msgspec.json.decode(content, type=Document)
    except (msgspec.ValidationError, RecursionError) as error:
        raise Refusal(
            "trace.not-kineto",
            f"{where}: is not a trace of Kineto: {error}",
            file=where,
            reason=str(error),
        ) from None
    except msgspec.DecodeError as error:
        if CUT in str(error):
            raise Refusal(
                "trace.cut-off",
                f"{where}: is cut off after {len(content):,} bytes; the profiler did not finish"
                " writing it",
                file=where,
                bytes=len(content),
            ) from None
        raise Refusal(
            "trace.no-json", f"{where}: is not valid JSON: {error}", file=where, reason=str(error)
        ) from None


def _collect(events: Sequence[Event], collector: Collector, threads: dict[Any, int]) -> None:
    """Add a record batch."""
    timed = [event for event in events if event.ph == "X" and event.cat != "Trace"]
    kinds = np.array([_kind(event) for event in timed], np.int8)
    start_ns = _ns([event.ts for event in timed])
    on_host = np.isin(kinds, (EventKind.API, EventKind.RANGE))
    lanes = [threads.setdefault((event.pid, event.tid), len(threads)) for event in timed]
    arguments = [event.args or NO_ARGS for event in timed]
    # the records of annotations on a device have it as `pid` only
    devices = [
        _whole(own.device, _whole(event.pid, 0))
        for event, own in zip(timed, arguments, strict=True)
    ]
    collector.add(
        [event.name if kind >= 0 else None for event, kind in zip(timed, kinds, strict=True)],
        kind=kinds,
        start_ns=start_ns,
        end_ns=start_ns + np.maximum(_ns([event.dur for event in timed]), 0),
        device=np.where(on_host, -1, devices),
        thread=np.where(on_host, lanes, 0),
        bytes=[_whole(own.bytes, -1) for own in arguments],
        # CUPTI writes 0 (CUPTI_CORRELATION_ID_UNKNOWN) where it knows none
        correlation=[_whole(own.correlation, -1) or -1 for own in arguments],
    )


def _kind(event: Event) -> int:
    """The event's `EventKind`; -1 where no metric counts it."""
    distributed = event.cat == "cpu_op" and event.name.startswith(DISTRIBUTED)
    return EventKind.RANGE if distributed else KINDS.get(event.cat, -1)


def _whole(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) else otherwise


def _ns(times_us: list[int | float]) -> np.ndarray:
    """Microseconds as integer ns. The whole part is exact in a float64,
    so that only the fraction is rounded.
    """
    times = np.array(times_us, np.float64)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
