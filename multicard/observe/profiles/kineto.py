"""Reader of Kineto's Chrome traces (torch.profiler).

It was tried with torch 2.11 and its Kineto, and with files of 2023 and 2024. In 2023, times are
whole microseconds since 1970. In 2024, they are fractions since baseTimeNanoseconds. A float64
holds both to the nanosecond. A file is read in one go. msgspec builds only the fields named here:
200 MB take 0.6 GB.

The reader keeps the categories in KINDS, and from `cpu_op` the operators that torch.distributed
started. It skips `cuda_sync`, the device's view of calls that the trace already has, the arrows
`ac2g` and `fwdbwd`, and `Trace`, the profiler itself.
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
# Calls that Kineto drops as frequent and uninteresting: isBlocklisted in CuptiCbidRegistry.cpp at
# 54d69b2, and earlier isBlockListedRuntimeCbid in CuptiActivityProfiler.cpp.
NOT_RECORDED = ("cudaEventDestroy", "cudaEventCreate", "cudaEventCreateWithFlags")
NOT_RECORDED += ("cudaGetDevice", "cudaSetDevice", "cudaGetLastError")

EVENTS_PER_BATCH = 1 << 17
# Python accepts these in JSON, and msgspec does not: NaN and infinities, and control characters in
# names.
INVALID_NUMBER = re.compile(rb"(?<=[:\[,\s])(?:NaN|-?Infinity)(?=[,\]}\s])")
CUT_OFF_WORDS = "truncated"  # msgspec's message has this word if the text ends too early.
CONTROL_CHARACTER = re.compile(rb"[\x00-\x1f]")


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


def read_trace(content: bytes, where: str) -> Trace:
    """Return the trace in the content of a file.

    Raises a Refusal if it is cut off, damaged, without events, or not a trace.

    Args:
        where: the file's name, for messages.
    """
    document = _decode(content, where)
    del content  # It is as large as the file.
    events = document.trace_events
    collector = Collector()
    threads = dict[Any, int]()
    if events is None:
        raise Refusal(
            "trace.no-trace-events",
            f"{where}: is JSON, but not a Kineto trace: it has no traceEvents",
            file=where,
        )
    for first in range(0, len(events), EVENTS_PER_BATCH):
        _collect_batch(events[first : first + EVENTS_PER_BATCH], collector, threads)
    info = document.distributed_info
    rank = info.get("rank") if isinstance(info, dict) else None
    return collector.trace(where, rank if isinstance(rank, int) else None)


def _decode(content: bytes, where: str) -> Document:
    """Decode a trace, or raise a Refusal."""
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
            if isinstance(error, msgspec.ValidationError) or CUT_OFF_WORDS in str(error):
                raise
            content = (
                INVALID_NUMBER.sub(b"null", CONTROL_CHARACTER.sub(b" ", content))
                .decode(errors="replace")
                .encode()
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
        if CUT_OFF_WORDS in str(error):
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


def _collect_batch(events: Sequence[Event], collector: Collector, threads: dict[Any, int]) -> None:
    """Add a batch of events to the collector."""
    complete_events = [event for event in events if event.ph == "X" and event.cat != "Trace"]
    kinds = np.array([_kind(event) for event in complete_events], np.int8)
    start_ns = _ns([event.ts for event in complete_events])
    on_host = np.isin(kinds, (EventKind.API, EventKind.RANGE))
    lanes = [threads.setdefault((event.pid, event.tid), len(threads)) for event in complete_events]
    arguments = [event.args or NO_ARGS for event in complete_events]
    # Annotations on a device have the device only as `pid`.
    devices = [
        _integer_or(event_arguments.device, _integer_or(event.pid, 0))
        for event, event_arguments in zip(complete_events, arguments, strict=True)
    ]
    collector.add(
        [
            event.name if kind >= 0 else None
            for event, kind in zip(complete_events, kinds, strict=True)
        ],
        kind=kinds,
        start_ns=start_ns,
        end_ns=start_ns + np.maximum(_ns([event.dur for event in complete_events]), 0),
        device=np.where(on_host, -1, devices),
        thread=np.where(on_host, lanes, 0),
        bytes=[_integer_or(event_arguments.bytes, -1) for event_arguments in arguments],
        # CUPTI writes 0 (CUPTI_CORRELATION_ID_UNKNOWN) if it knows no correlation.
        correlation=[
            _integer_or(event_arguments.correlation, -1) or -1 for event_arguments in arguments
        ],
    )


def _kind(event: Event) -> int:
    """Return the event's `EventKind`, or -1 if no metric counts it."""
    is_distributed = event.cat == "cpu_op" and event.name.startswith(DISTRIBUTED)
    return EventKind.RANGE if is_distributed else KINDS.get(event.cat, -1)


def _integer_or(value: Any, default: int) -> int:
    return value if isinstance(value, int) else default


def _ns(times_us: list[int | float]) -> np.ndarray:
    """Convert microseconds to integer ns.

    The whole part is exact in a float64, so that only the fraction is rounded.
    """
    times = np.array(times_us, np.float64)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)
