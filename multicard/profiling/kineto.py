"""Kineto's Chrome trace, read as a stream: neither the text nor its events are ever in memory as a whole.

Slabs of some thousand events go through msgspec, which builds only the fields named here (five times as fast as
`json` and ijson on these files), and become Arrow record batches. Looked at: torch 2.11 and the Kineto in it, and
files of 2023 (whole microseconds since 1970) and 2024 (fractions, since baseTimeNanoseconds).

Counted are the categories in KINDS, and of `cpu_op` what torch.distributed started. `cuda_sync` is the device's view
of calls that are already there, `ac2g` and `fwdbwd` are arrows, `Trace` is the profiler itself.
"""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec
import numpy as np

from multicard.profiling.events import GLOO, Collector, Kind, Trace

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
# Calls that Kineto drops as frequent and not interesting: isBlocklisted in CuptiCbidRegistry.cpp at
# 54d69b2, and before it isBlockListedRuntimeCbid in CuptiActivityProfiler.cpp: the same six
NOT_RECORDED = (
    "cudaEventDestroy",
    "cudaEventCreate",
    "cudaEventCreateWithFlags",
    "cudaGetDevice",
    "cudaSetDevice",
    "cudaGetLastError",
)

CHUNK_BYTES = 4 << 20
TAIL_BYTES = 1 << 16  # of a chunk, in which its last event begins as a rule
EXACT_BELOW_US = 2**43  # a float64 below is within half a ns of what was written
BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
DECODER = json.JSONDecoder(strict=False)  # names may hold control characters
SPACE = re.compile(rb"\s*")
SPACE_OR_COMMA = re.compile(r"[\s,]*")


class Args(msgspec.Struct, gc=False):
    device: int | str | None = None
    bytes: int | float | str | None = None
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


def read(file: BinaryIO, where: str) -> Trace:
    """The trace in an open file.

    Args:
        where: what messages call it.

    Raises:
        ValueError: if it is cut off, damaged, without events, or no such trace.
    """
    collector, stream = Collector(), _Stream(file, where)
    threads: dict[Any, int] = {}
    rank = None
    for key, value in _document(stream):
        if key == "traceEvents":
            _collect(value, collector, threads)
        elif key == "distributedInfo" and isinstance(value, dict) and isinstance(value.get("rank"), int):
            rank = value["rank"]
    return collector.trace(where, rank)


def _collect(events: Sequence[Event], collector: Collector, threads: dict[Any, int]) -> None:
    """Turn events into a record batch of those that count."""
    timed = [event for event in events if event.ph == "X" and event.cat != "Trace"]
    start_ns = _ns([event.ts for event in timed])
    end_ns = start_ns + np.maximum(_ns([event.dur for event in timed]), 0)
    collector.seen(start_ns, end_ns)
    kinds = np.array([_kind(event) for event in timed], np.int8)
    kept = np.flatnonzero(kinds >= 0)
    counted = [timed[index] for index in kept]
    if not counted:
        return
    host = np.isin(kinds[kept], (Kind.API, Kind.RANGE))
    lanes = [threads.setdefault((event.pid, event.tid), len(threads)) for event in counted]
    collector.add(
        kind=kinds[kept],
        name=np.array([collector.code(event.name) for event in counted], np.int32),
        start_ns=start_ns[kept],
        end_ns=end_ns[kept],
        device=np.where(host, -1, [_device(event) for event in counted]),
        thread=np.where(host, lanes, 0),
        bytes=np.array([_bytes(event) for event in counted], np.int64),
        correlation=np.array([_correlation(event) for event in counted], np.int64),
    )


def _kind(event: Event) -> int:
    kind = KINDS.get(event.cat)
    if kind is not None:
        return kind
    return Kind.RANGE if event.cat == "cpu_op" and event.name.startswith(DISTRIBUTED) else -1


def _device(event: Event) -> int:
    """The records of annotations carry their device as `pid` only."""
    device = event.pid if event.args is None or event.args.device is None else event.args.device
    return device if isinstance(device, int) else 0


def _bytes(event: Event) -> int:
    count = None if event.args is None else event.args.bytes
    return int(count) if isinstance(count, (int, float)) else -1


def _correlation(event: Event) -> int:
    """CUPTI writes 0 (CUPTI_CORRELATION_ID_UNKNOWN) where it knows none."""
    found = None if event.args is None else event.args.correlation
    return found if isinstance(found, int) and found > 0 else -1


def _ns(times_us: list[Any]) -> np.ndarray:
    """Microseconds as integer ns. The whole part is exact in a float64, so only the fraction is rounded."""
    if times_us and isinstance(times_us[0], Decimal):
        return np.array([int(time * 1000) for time in times_us], np.int64)
    times = np.array(times_us, np.float64)
    whole = np.floor(times)
    return whole.astype(np.int64) * 1000 + np.rint((times - whole) * 1000).astype(np.int64)


class _Stream:
    """What of the file was read and not yet used: `buffer` from `at`."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.file, self.where = file, where
        self.buffer, self.at, self.before = b"", 0, 0  # before: bytes of the file ahead of the buffer
        self.ended = False

    def more(self) -> bool:
        """Read on. False at the end of the file."""
        chunk = b"" if self.ended else self.file.read(CHUNK_BYTES)
        self.ended = not chunk
        self.before += self.at
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0
        return bool(chunk)

    def peek(self) -> bytes:
        """The next byte that is no space; none at the end."""
        while True:
            found = SPACE.match(self.buffer, self.at)
            assert found is not None
            self.at = found.end()
            if self.at < len(self.buffer) or not self.more():
                return self.buffer[self.at : self.at + 1]

    def take(self, expected: bytes) -> None:
        found = self.peek()
        if found != expected:
            raise self.broken(cut=not found)
        self.at += 1

    def value(self) -> Any:
        """The JSON value that begins here, which is small: any but the events."""
        while True:
            self.peek()
            text = self.buffer[self.at :].decode("latin-1")  # a character a byte; the values used are ASCII
            try:
                value, end = DECODER.raw_decode(text)
            except json.JSONDecodeError as error:
                cut = _is_cut(error, text)
                if not cut or not self.more():
                    raise self.broken(cut, error.pos) from None
                continue
            if end < len(text) or not self.more():  # a number at the end of a chunk may go on
                self.at += end
                return value

    def broken(self, cut: bool, beyond: int = 0) -> ValueError:
        place = f"{self.before + self.at + beyond:,} bytes"
        if cut:
            return ValueError(f"{self.where}: cut off after {place}; the profiler did not finish writing it")
        return ValueError(f"{self.where}: not valid JSON after {place}")


def _is_cut(error: json.JSONDecodeError, text: str) -> bool:
    """Whether the text ended too early, rather than being wrong somewhere."""
    return error.msg.startswith("Unterminated") or error.pos >= len(text.rstrip()) - len("-Infinity")


def _document(stream: _Stream) -> Iterator[tuple[str, Any]]:
    """The keys and values of the outermost object; `traceEvents` many times, with some of the events each."""
    first = stream.peek()
    if first == b"[":  # Chrome's format may be the bare list
        for events in _events(stream):
            yield "traceEvents", events
        return
    if first != b"{":
        what = "neither a Kineto trace (JSON) nor an export of nsys (SQLite)" if first else "an empty file"
        raise ValueError(f"{stream.where}: {what}")
    stream.at += 1
    found = False
    while stream.peek() != b"}":
        key = stream.value()
        stream.take(b":")
        if key == "traceEvents" and stream.peek() == b"[":
            found = True
            for events in _events(stream):
                yield key, events
        else:
            yield str(key), stream.value()
        if stream.peek() != b"}":
            stream.take(b",")
    if not found:
        raise ValueError(f"{stream.where}: JSON, but no Kineto trace: it has no traceEvents")


def _events(stream: _Stream) -> Iterator[Sequence[Event]]:
    """The events of the list that begins here, slab by slab.

    A slab ends between the last `},{` of a chunk. Should that be inside of an event, the slab is no JSON and the ends
    of its events are sought one by one; so is what comes last.
    """
    decoder = _Decoder(stream.where)
    stream.take(b"[")
    while stream.more() or stream.at < len(stream.buffer):
        ends = [] if stream.ended else list(BETWEEN_EVENTS.finditer(stream.buffer, _tail(stream)))
        if ends:
            events = decoder.try_fast(stream.buffer[stream.at : ends[-1].start() + 1])
            if events is not None:
                stream.at = ends[-1].end() - 1
                yield events
                continue
        text = stream.buffer.decode("latin-1")
        start, (end, closed, error) = stream.at, _ends(text, stream.at)
        stream.at = end
        yield decoder.decode(stream.buffer[start:end])
        if closed:
            stream.take(b"]")
            return
        if error is not None and not _is_cut(error, text):
            raise stream.broken(False, error.pos - end)
        if stream.ended:
            break
    raise stream.broken(cut=True, beyond=len(stream.buffer) - stream.at)


def _tail(stream: _Stream) -> int:
    return max(stream.at, len(stream.buffer) - TAIL_BYTES)


def _ends(text: str, at: int) -> tuple[int, bool, json.JSONDecodeError | None]:
    """Where the complete values from `at` end, whether their list ends there, and why the next is incomplete."""
    while True:
        found = SPACE_OR_COMMA.match(text, at)
        assert found is not None
        if text[found.end() : found.end() + 1] in ("]", ""):
            return at, found.end() < len(text), None
        try:
            _, at = DECODER.raw_decode(text, found.end())
        except json.JSONDecodeError as error:
            return at, False, error


class _Decoder:
    """Slabs of JSON into events; `ts` as decimals once a float64 would not hold it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.kind: type[Event] = Event
        self.fast = msgspec.json.Decoder(list[Event])

    def try_fast(self, slab: bytes) -> Sequence[Event] | None:
        """None if this is no JSON."""
        text = b"[" + slab.lstrip(b", \t\r\n") + b"]"
        try:
            events = self.fast.decode(text)
            if self.kind is Event and any(
                event.ts >= EXACT_BELOW_US and event.ts.__class__ is float for event in events
            ):
                self.kind, self.fast = ExactEvent, msgspec.json.Decoder(list[ExactEvent])
                events = self.fast.decode(text)
        except msgspec.ValidationError as error:
            raise ValueError(f"{self.where}: not a trace of Kineto: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return events

    def decode(self, slab: bytes) -> Sequence[Event]:
        """The same with what only `json` takes: NaN, and bytes that are no UTF-8."""
        events = self.try_fast(slab)
        if events is not None:
            return events
        text = slab.decode("utf-8", "replace").lstrip(", \t\r\n")
        parse_float = Decimal if self.kind is ExactEvent else float
        try:
            return msgspec.convert(json.loads(f"[{text}]", parse_float=parse_float, strict=False), list[self.kind])
        except (json.JSONDecodeError, msgspec.ValidationError) as error:
            raise ValueError(f"{self.where}: not a trace of Kineto: {error}") from None
