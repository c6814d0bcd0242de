"""A streaming parser of Chrome traces: neither the text nor its events are ever in memory as a whole.

Slabs of some thousand events go through msgspec, which builds only the fields named here (five times as fast as
`json` and ijson on these files). What only `json` accepts, as NaN, falls back to it.
"""

import json
import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any, BinaryIO

import msgspec

CHUNK_BYTES = 4 << 20
TAIL_BYTES = 1 << 16  # of a chunk; its last event usually begins there
EXACT_BELOW_US = 2**43  # below, a float64 is within half a ns of the written number
BETWEEN_EVENTS = re.compile(rb"\}\s*,\s*\{")
DECODER = json.JSONDecoder(strict=False)  # names may hold control characters
SPACE = re.compile(rb"\s*")
SPACE_OR_COMMA = re.compile(r"[\s,]*")


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


def document(file: BinaryIO, where: str) -> Iterator[tuple[str, Any]]:
    """The keys and values of a trace's outermost object; `traceEvents` many times, with a slab of events each.

    Args:
        where: the file's name in messages.

    Raises:
        ValueError: if it is cut off, damaged or no such trace.
    """
    try:
        yield from _document(file, where)
    except RecursionError:
        raise ValueError(f"{where}: not a trace of Kineto: lists or objects are nested too deeply") from None


def _document(file: BinaryIO, where: str) -> Iterator[tuple[str, Any]]:
    stream = _Stream(file, where)
    first = stream.peek()
    if first == b"[":  # Chrome's format may be the bare list
        for events in _events(stream):
            yield "traceEvents", events
        return
    if first != b"{":
        what = "neither a Kineto trace (JSON) nor an export of nsys (SQLite)" if first else "an empty file"
        raise ValueError(f"{where}: {what}")
    stream.at += 1
    has_events = False
    while stream.peek() != b"}":
        key = stream.value()
        stream.take(b":")
        if key == "traceEvents" and stream.peek() == b"[":
            has_events = True
            for events in _events(stream):
                yield key, events
        else:
            yield str(key), stream.value()
        if stream.peek() != b"}":
            stream.take(b",")
    if not has_events:
        raise ValueError(f"{where}: JSON, but no Kineto trace: it has no traceEvents")


class _Stream:
    """The file's text that was read and not yet parsed: `buffer` from `at`."""

    def __init__(self, file: BinaryIO, where: str) -> None:
        self.file, self.where = file, where
        self.buffer, self.at, self.before = b"", 0, 0  # before: bytes of the file ahead of the buffer
        self.ended = False

    def more(self) -> bool:
        """Read another chunk; False at the end of the file."""
        chunk = b"" if self.ended else self.file.read(CHUNK_BYTES)
        self.ended = not chunk
        self.before += self.at
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0
        return bool(chunk)

    def peek(self) -> bytes:
        """The next byte that is no space; empty at the end."""
        while True:
            match = SPACE.match(self.buffer, self.at)
            assert match is not None
            self.at = match.end()
            if self.at < len(self.buffer) or not self.more():
                return self.buffer[self.at : self.at + 1]

    def take(self, expected: bytes) -> None:
        byte = self.peek()
        if byte != expected:
            raise self.broken(cut=not byte)
        self.at += 1

    def value(self) -> Any:
        """The JSON value that begins here; any but the events, as it must fit in memory."""
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
            if end < len(text) or not self.more():  # a number at the end of a chunk may continue
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


def _events(stream: _Stream) -> Iterator[Sequence[Event]]:
    """The events of the list that begins here, slab by slab.

    A slab ends at the last `},{` of a chunk. If that is inside an event, the slab is no JSON, and the ends of its
    events are sought one by one; so are those of the last slab.
    """
    decoder = _Decoder(stream.where)
    stream.take(b"[")
    while stream.more() or stream.at < len(stream.buffer):
        tail = max(stream.at, len(stream.buffer) - TAIL_BYTES)
        ends = [] if stream.ended else list(BETWEEN_EVENTS.finditer(stream.buffer, tail))
        if ends:
            events = decoder.try_msgspec(stream.buffer[stream.at : ends[-1].start() + 1])
            if events is not None:
                stream.at = ends[-1].end() - 1
                yield events
                continue
        text = stream.buffer.decode("latin-1")
        start, (end, closed, error) = stream.at, _complete_values(text, stream.at)
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


def _complete_values(text: str, at: int) -> tuple[int, bool, json.JSONDecodeError | None]:
    """The end of the complete values from `at`, whether their list ends there, and why the next is incomplete."""
    while True:
        match = SPACE_OR_COMMA.match(text, at)
        assert match is not None
        if text[match.end() : match.end() + 1] in ("]", ""):
            return at, match.end() < len(text), None
        try:
            _, at = DECODER.raw_decode(text, match.end())
        except json.JSONDecodeError as error:
            return at, False, error


class _Decoder:
    """Decodes slabs of JSON to events; `ts` as decimals once a float64 would not hold it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.kind: type[Event] = Event
        self.msgspec = msgspec.json.Decoder(list[Event])

    def try_msgspec(self, slab: bytes) -> Sequence[Event] | None:
        """The events; None if this is no JSON."""
        text = b"[" + slab.lstrip(b", \t\r\n") + b"]"
        try:
            events = self.msgspec.decode(text)
            if self.kind is Event and any(
                event.ts >= EXACT_BELOW_US and event.ts.__class__ is float for event in events
            ):
                self.kind, self.msgspec = ExactEvent, msgspec.json.Decoder(list[ExactEvent])
                events = self.msgspec.decode(text)
        except msgspec.ValidationError as error:
            raise ValueError(f"{self.where}: not a trace of Kineto: {error}") from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        return events

    def decode(self, slab: bytes) -> Sequence[Event]:
        """The events, with what only `json` accepts: NaN, and bytes that are no UTF-8."""
        events = self.try_msgspec(slab)
        if events is not None:
            return events
        text = slab.decode("utf-8", "replace").lstrip(", \t\r\n")
        parse_float = Decimal if self.kind is ExactEvent else float
        try:
            return msgspec.convert(json.loads(f"[{text}]", parse_float=parse_float, strict=False), list[self.kind])
        except (json.JSONDecodeError, msgspec.ValidationError) as error:
            raise ValueError(f"{self.where}: not a trace of Kineto: {error}") from None
