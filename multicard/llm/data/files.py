"""Read the rows of local files: JSON, JSON lines, CSV, Parquet and Arrow, compressed or not.

The rows come from one file, several, or a folder. Nothing is dropped in silence: everything in a
folder, or beside the rows in a file, is read or counted.
"""

import bz2
import gzip
import json
import lzma
import math
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.llm_texts import StoredTextConfig
from multicard.llm.data import json_texts, separated_rows
from multicard.llm.data.json_tables import rows_of, table_of, without_header
from multicard.llm.data.row_folders import KEY, TEST_KEY, FoundFiles, found_files, kind_of
from multicard.messages import Refusal
from multicard.records.separated_text import decoded

JSON = (".json", ".jsonl", ".ndjson")


def _zstd_decompressed(content: bytes) -> bytes:
    """The content of frames of zstd. Python has a reader of its own from 3.14 on."""
    import pyarrow as pa

    return pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()


def _streams_read_by(new_reader: Callable[[], Any]) -> Callable[[bytes], bytes]:
    """Return a function that decompresses all streams of a content, with zeros between them.

    Python's own functions pass over everything after the first stream that is damaged.
    """

    def decompress(content: bytes) -> bytes:
        parts = list[bytes]()
        while content:
            reader = new_reader()
            parts.append(reader.decompress(content))
            if not reader.eof:
                raise EOFError("it is cut off")
            content = reader.unused_data.lstrip(b"\0")
        return b"".join(parts)

    return decompress


OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": _streams_read_by(bz2.BZ2Decompressor),
    ".xz": _streams_read_by(lzma.LZMADecompressor),
    ".zst": _zstd_decompressed,
}


class RowPlace(NamedTuple):
    """The file of a row, None for the hub's, and the row's number in it, from 1."""

    file: Path | None
    number: int


class StoredRows(NamedTuple):
    """Rows in their stored form.

    Fields:
        rows: the rows of all files, one file after the other.
        ignored: counts of everything that is not a row: files of other kinds ("*.md") or splits
            (by name), and keys beside the rows.
        files: each file and its number of rows; empty for data sets of the hub.
    """

    rows: list[Any]
    ignored: dict[str, int]
    files: Sequence[tuple[Path, int]] = ()

    def place(self, number: int) -> RowPlace:
        """Return the file and line of a row, by its place in `rows`."""
        remaining = number
        for file, count in self.files:
            if remaining < count:
                return RowPlace(file, remaining + 1)
            remaining -= count
        return RowPlace(None, number + 1)


def value_of(files: str | Sequence[str]) -> str:
    """Return the value of `dataset.data_files`, or `dataset.test_files`, as a command writes it."""
    return f"[{','.join(map(str, files))}]" if isinstance(files, list | tuple) else str(files)


def paths(data_files: str | Sequence[str], to_test: bool = False) -> list[Path]:
    """Return the files that a key names, in their order, or refuse if there are none."""
    return list(_files_of_value(data_files, to_test).files)


def read_file(data_files: str | Sequence[str], to_test: bool = False) -> StoredRows:
    """Read the rows of a file, several files, a pattern, or a folder's training split.

    With `to_test`, a folder's split to test on is read instead.
    """
    matching_files = _files_of_value(data_files, to_test)
    try:
        rows, ignored, counts = _read_all_files(
            tuple((file, _time_and_size(file)) for file in matching_files.files)
        )
    except Refusal as error:
        raise _for_key(error, to_test) from None
    return StoredRows(rows, dict(Counter(matching_files.ignored) + Counter(ignored)), counts)


def _files_of_value(data_files: str | Sequence[str], to_test: bool) -> FoundFiles:
    typed = (data_files,) if isinstance(data_files, str) else tuple(map(str, data_files))
    try:
        return found_files(typed, to_test)
    except Refusal as error:
        raise _for_key(error, to_test) from None


def _for_key(error: Refusal, to_test: bool) -> Refusal:
    """Return a refusal of files as one of the key that names them, in its remedies too."""
    return (
        error.reworded(error.message.sentence.replace(KEY, TEST_KEY), TEST_KEY)
        if to_test
        else error
    )


def _time_and_size(file: Path) -> tuple[int, int]:
    """Return a value that changes when the file is written again."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0  # Reading the file will give the reason.
    return status.st_mtime_ns, status.st_size


# The cells of a sweep mostly read the same files, to train on and to test on.
@lru_cache(maxsize=2)
def _read_all_files(files: tuple[tuple[Path, tuple[int, int]], ...]) -> StoredRows:
    rows = list[Any]()
    ignored = Counter[str]()
    counts = list[tuple[Path, int]]()
    for file, _ in files:
        file_rows, file_ignored = _read_rows(file)
        rows += file_rows
        ignored.update(file_ignored)
        if not file_rows:
            ignored[f"{file.name} (no rows)"] += 1
        counts.append((file, len(file_rows)))
    return StoredRows(rows, dict(ignored), counts)


# ---- one file


def _read_rows(file: Path) -> tuple[list[Any], dict[str, int]]:
    try:
        content = file.read_bytes()
        opener = OPENERS.get(file.suffix.lower())
        return READERS[str(kind_of(file))](content if opener is None else opener(content))
    except (
        OSError,
        EOFError,
        ValueError,
        NotImplementedError,
        RecursionError,
        lzma.LZMAError,
    ) as error:
        cause = str(error).partition("\n")[0]  # Arrow raises errors of these types too.
        if isinstance(error, Refusal):
            cause = error.message
        elif isinstance(error, RecursionError):
            cause = "nested too deep"
        form = " (a .jsonl file has one object a line)" if str(kind_of(file)) in JSON else ""
        raise Refusal(
            "llm.data-file-unread",
            f"{KEY}={file}: cannot be read ({cause}); correct it{form}, or give another file",
            key=KEY,
            value=str(file),
            reason=cause,
        ) from None


def _read_json_lines(content: bytes) -> tuple[list[Any], dict[str, int]]:
    return _read_json(content, is_lines=True)


def _read_json(content: bytes, is_lines: bool = False) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of JSON or of JSON lines. Files of one form often have the other's name.

    Args:
        is_lines: the file's name says JSON lines, so a single object is a row.
    """
    text = decoded(content).replace("\n\ufeff", "\n")  # `cat` of files with byte order marks
    if not text.strip():
        return [], {}
    lines = text.split("\n")
    first = next(line for line in lines if line.strip())
    if not first.lstrip().startswith("["):
        is_whole = _is_json(first)
        follows = any(line.strip() for line in lines[lines.index(first) + 1 :])
        if (is_whole and (follows or is_lines)) or not (is_whole or _is_json(text)):
            return _rows_of_lines(_json_lines(lines))  # Names the line that is not JSON.
    try:
        return rows_of(_parse_json(text))
    except (json.JSONDecodeError, RecursionError) as error:
        if _is_json(first):  # The lines are lists.
            return _rows_of_lines(_json_lines(lines))
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise _bad_line(line) from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse_json(text: str, line: int | None = None) -> Any:
    """Parse JSON, and refuse an object that has a key twice: one value would be lost.

    Args:
        line: the line of the file, if the text is one.
    """

    def without_repeated_key(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        parsed = dict(pairs)
        if len(parsed) == len(pairs):
            return parsed
        counts = Counter(key for key, _ in pairs)
        repeated_key = next(key for key, count in counts.items() if count > 1)
        start = "" if line is None else f"line {line}: "
        raise Refusal(
            "llm.json-key-twice",
            f"{start}an object has the key {repeated_key!r} twice; keep one of them",
            line=line,
            twice=repeated_key,
        )

    return json.loads(
        text, object_pairs_hook=without_repeated_key, parse_constant=json_texts.constant
    )


def _json_lines(lines: Sequence[str]) -> list[Any]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(_parse_json(line, number))
            except Refusal:
                raise
            except (ValueError, RecursionError):
                raise _bad_line(number) from None
    return rows


def _rows_of_lines(lines: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of lines. The first may name the columns; a single line may be a table."""
    table = table_of(lines[0]) if len(lines) == 1 and isinstance(lines[0], dict) else None
    return (without_header(lines), {}) if table is None else table


def _bad_line(number: int) -> Refusal:
    return Refusal("llm.bad-line", f"line {number} is not JSON, or nested too deep", line=number)


def _read_parquet(content: bytes) -> tuple[list[Any], dict[str, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return without_nulls(pq.read_table(pa.BufferReader(content)).to_pylist()), {}


def _read_arrow(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """Read an Arrow file: a stream, as `save_to_disk` writes it, or a file with a footer."""
    import pyarrow as pa

    buffer = pa.BufferReader(content)
    is_file = content.startswith(b"ARROW1")
    reader: Any = pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)
    return without_nulls(reader.read_all().to_pylist()), {}


def without_nulls(value: Any) -> Any:
    """Remove keys with null values at every depth. Arrow's structs have the keys of all rows.

    NaN is null too: pandas has it in empty cells.
    """
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if not _is_null(inner)}
    if isinstance(value, list):
        return [None if _is_null(inner) else without_nulls(inner) for inner in value]
    return value


def _is_null(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


READERS: dict[str, Callable[[bytes], tuple[list[Any], dict[str, int]]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": separated_rows.read_csv,
    ".tsv": separated_rows.read_tsv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def identified(data: StoredTextConfig) -> list[tuple[str, Path]]:
    """Return the files by the names under which their content is identified.

    A single file is "rows", so that its folder and name do not matter.
    """
    named_files = list[tuple[str, Path]]()
    if data.data_files is not None:
        named_files += _names_of_files("rows", paths(data.data_files))
    if data.test_files is not None:
        named_files += _names_of_files("test_rows", paths(data.test_files, to_test=True))
    return named_files


def _names_of_files(name: str, files: Sequence[Path]) -> list[tuple[str, Path]]:
    if len(files) == 1:
        return [(name, files[0])]
    common = Path(os.path.commonpath([file.parent for file in map(Path.absolute, files)]))
    return [(f"{name}/{file.absolute().relative_to(common)}", file) for file in files]
