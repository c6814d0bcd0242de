"""The rows of local files: JSON, JSON lines, CSV, Parquet and Arrow, compressed or not; one file,
several, or a folder.

Nothing is dropped in silence: what lies in a folder, or stands beside the rows in a file,
is read or counted.
"""

import bz2
import gzip
import json
import lzma
import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.llm_texts import StoredTextConfig
from multicard.llm.data import separated_rows
from multicard.llm.data.json_tables import rows_of, table_of, without_header
from multicard.llm.data.row_folders import KEY, TEST_KEY, FoundFiles, found_files, kind_of
from multicard.messages import Refusal
from multicard.records.separated_text import decoded

JSON = (".json", ".jsonl", ".ndjson")


def _zstd_decompressed(content: bytes) -> bytes:
    """The content of frames of zstd. Python has a reader of its own from 3.14 on."""
    import pyarrow as pa

    return pa.CompressedInputStream(pa.BufferReader(content), "zstd").read()


OPENERS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.decompress,
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
    ".zst": _zstd_decompressed,
}


class RowPlace(NamedTuple):
    """The file of a row, None of the hub's, and its number there, from 1."""

    file: Path | None
    number: int


class StoredRows(NamedTuple):
    """Rows as they are stored.

    rows: of all files, one after the other. ignored: what is no row, with its count: files of other
    kinds or splits as "*.md" or by their names, and keys that stand beside the rows.
    files: with the rows of each; none of the hub.
    """

    rows: list[Any]
    ignored: dict[str, int]
    files: Sequence[tuple[Path, int]] = ()

    def place(self, number: int) -> RowPlace:
        """Where a row stands, by its place in `rows`."""
        left = number
        for file, count in self.files:
            if left < count:
                return RowPlace(file, left + 1)
            left -= count
        return RowPlace(None, number + 1)


def value_of(files: str | Sequence[str]) -> str:
    """`dataset.data_files`, or `dataset.test_files`, as it is typed."""
    return f"[{','.join(map(str, files))}]" if isinstance(files, list | tuple) else str(files)


def paths(data_files: str | Sequence[str], to_test: bool = False) -> list[Path]:
    """The files that a key names, in their order; refused (ValueError) where there is none."""
    return list(_found(data_files, to_test).files)


def read_file(data_files: str | Sequence[str], to_test: bool = False) -> StoredRows:
    """The rows of a file, of several, of those that a pattern matches, or of a folder's training
    split; with `to_test` of its split to test on.
    """
    found = _found(data_files, to_test)
    try:
        rows, ignored, counts = _read_all(tuple((file, _stamp(file)) for file in found.files))
    except Refusal as error:
        raise _of_key(error, to_test) from None
    return StoredRows(rows, dict(Counter(found.ignored) + Counter(ignored)), counts)


def _found(data_files: str | Sequence[str], to_test: bool) -> FoundFiles:
    typed = (data_files,) if isinstance(data_files, str) else tuple(map(str, data_files))
    try:
        return found_files(typed, to_test)
    except Refusal as error:
        raise _of_key(error, to_test) from None


def _of_key(error: Refusal, to_test: bool) -> Refusal:
    """A refusal of files as one of the key that names them, in its remedies too."""
    return (
        error.reworded(error.message.sentence.replace(KEY, TEST_KEY), TEST_KEY)
        if to_test
        else error
    )


def _stamp(file: Path) -> tuple[int, int]:
    """What changes as a file is written again."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0  # reading it says why
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=2)  # the cells of a sweep mostly read the same files, those to test on too
def _read_all(files: tuple[tuple[Path, tuple[int, int]], ...]) -> StoredRows:
    rows = list[Any]()
    ignored = Counter[str]()
    counts = list[tuple[Path, int]]()
    for file, _ in files:
        own, beside = _read(file)
        rows += own
        ignored.update(beside)
        counts.append((file, len(own)))
    return StoredRows(rows, dict(ignored), counts)


# ---- one file


def _read(file: Path) -> tuple[list[Any], dict[str, int]]:
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
        cause = str(error).partition("\n")[0]  # Arrow's errors are of these types
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
    """Rows of JSON or of JSON lines: each is found under the other's name.

    Args:
        is_lines: by the file's name, so that a single object is a row.
    """
    text = decoded(content)
    if not text.strip():
        return [], {}
    lines = text.split("\n")
    first = next(line for line in lines if line.strip())
    if not first.lstrip().startswith("["):
        is_whole = _is_json(first)
        follows = any(line.strip() for line in lines[lines.index(first) + 1 :])
        if (is_whole and (follows or is_lines)) or not (is_whole or _is_json(text)):
            return _rows_of_lines(_json_lines(lines))  # which names the line that is not JSON
    try:
        return rows_of(_loaded(text))
    except (json.JSONDecodeError, RecursionError) as error:
        if _is_json(first):  # lines that are lists
            return _rows_of_lines(_json_lines(lines))
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise _bad_line(line) from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _loaded(text: str, line: int | None = None) -> Any:
    """The value of JSON. Refuses (ValueError) an object with a key twice,
    of which one value would be lost.

    Args:
        line: of the file, if the text is one.
    """

    def without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        start = "" if line is None else f"line {line}: "
        raise Refusal(
            "llm.json-key-twice",
            f"{start}an object has the key {twice!r} twice; keep one of them",
            line=line,
            twice=twice,
        )

    return json.loads(text, object_pairs_hook=without_twice)


def _json_lines(lines: Sequence[str]) -> list[Any]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(_loaded(line, number))
            except Refusal:
                raise
            except (ValueError, RecursionError):
                raise _bad_line(number) from None
    return rows


def _rows_of_lines(lines: list[Any]) -> tuple[list[Any], dict[str, int]]:
    """The rows of lines, of which the first may name the columns, or the only one be a table."""
    table = table_of(lines[0]) if len(lines) == 1 and isinstance(lines[0], dict) else None
    return (without_header(lines), {}) if table is None else table


def _bad_line(number: int) -> Refusal:
    return Refusal("llm.bad-line", f"line {number} is not JSON, or nested too deep", line=number)


def _read_parquet(content: bytes) -> tuple[list[Any], dict[str, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return without_nulls(pq.read_table(pa.BufferReader(content)).to_pylist()), {}


def _read_arrow(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """An Arrow file in either of its forms: of streams, as `save_to_disk` writes,
    or with a footer.
    """
    import pyarrow as pa

    buffer = pa.BufferReader(content)
    is_file = content.startswith(b"ARROW1")
    reader: Any = pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)
    return without_nulls(reader.read_all().to_pylist()), {}


def without_nulls(value: Any) -> Any:
    """What Arrow stores, without keys that hold nothing,
    at every depth: its structs have the keys of all rows.
    """
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


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
    """The files with the names by which their content is identified: a single one is "rows",
    wherever it lies.
    """
    found = list[tuple[str, Path]]()
    if data.data_files is not None:
        found += _named("rows", paths(data.data_files))
    if data.test_files is not None:
        found += _named("test_rows", paths(data.test_files, to_test=True))
    return found


def _named(name: str, files: Sequence[Path]) -> list[tuple[str, Path]]:
    if len(files) == 1:
        return [(name, files[0])]
    common = Path(os.path.commonpath([file.parent for file in map(Path.absolute, files)]))
    return [(f"{name}/{file.absolute().relative_to(common)}", file) for file in files]
