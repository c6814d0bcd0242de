"""The rows of local files: JSON, JSON lines, CSV, Parquet and Arrow, compressed or not; one file, several, or a folder.

Nothing is dropped in silence: what lies in a folder, or stands beside the rows in a file, is read or counted.
"""

import bz2
import csv
import glob
import gzip
import io
import json
import lzma
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from multicard.config.llm import StoredTextConfig
from multicard.llm.data.columns import READ, is_filled, quoted
from multicard.messages import Refusal

KEY = "dataset.data_files"
OPENERS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}
GLOB = re.compile(r"[*?\[]")
# Splits by the first word of a file's or a folder's name, or the last: "test-00000-of-00001", "my_data_val"
TRAINING, OTHER_SPLITS = ("train", "training"), ("test", "testing", "val", "valid", "validation", "dev", "eval")
ARROW_STATE = "state.json"  # names the files of a data set that `save_to_disk` wrote
DELIMITERS = ",;\t|"


class StoredRows(NamedTuple):
    """Rows as they are stored.

    rows: of all files, one after the other. ignored: what is no row, with its count: files of other kinds or splits
    as "*.md" or by their names, and keys that stand beside the rows.
    """

    rows: list[Any]
    ignored: dict[str, int]


def value_of(data: StoredTextConfig) -> str:
    """`dataset.data_files` as it is typed."""
    files = data.data_files
    return f"[{','.join(map(str, files))}]" if isinstance(files, list | tuple) else str(files)


def paths(data: StoredTextConfig) -> list[Path]:
    """The files that `dataset.data_files` names, in their order; refused (ValueError) where there is none."""
    return list(_found(_typed(data)).files)


def read_file(data_files: str | Sequence[str]) -> StoredRows:
    """The rows of a file, of several, of those that a pattern matches, or of a folder's training split."""
    found = _found((data_files,) if isinstance(data_files, str) else tuple(map(str, data_files)))
    rows, ignored = _read_all(tuple((file, _stamp(file)) for file in found.files))
    return StoredRows(rows, dict(Counter(found.ignored) + Counter(ignored)))


def _stamp(file: Path) -> tuple[int, int]:
    """What changes as a file is written again."""
    try:
        status = file.stat()
    except OSError:
        return 0, 0  # reading it says why
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=1)  # the cells of a sweep mostly read the same files
def _read_all(files: tuple[tuple[Path, tuple[int, int]], ...]) -> StoredRows:
    rows, ignored = list[Any](), Counter[str]()
    for file, _ in files:
        own, beside = _read(file)
        rows += own
        ignored.update(beside)
    return StoredRows(rows, dict(ignored))


def _typed(data: StoredTextConfig) -> tuple[str, ...]:
    files = data.data_files
    return tuple(map(str, files)) if isinstance(files, list | tuple) else (str(files),)


# ---- which files


class FoundFiles(NamedTuple):
    files: tuple[Path, ...]
    ignored: dict[str, int]


def _found(typed: Sequence[str]) -> FoundFiles:
    """The files of each value that was typed, each file once."""
    files, ignored = dict[Path, None](), Counter[str]()
    for value in typed:
        place = Path(value).expanduser()
        if place.is_dir():
            own, beside = _of_folder(value, place)
            ignored.update(beside)
        elif place.exists():
            own = [place]
        else:
            matching = sorted(glob.glob(str(place), recursive=True))  # noqa: PTH207 (of absolute patterns too)
            own = [Path(name) for name in matching if Path(name).is_file()]
        if not own:
            pattern = ", and no file matches it" if GLOB.search(value) else ""
            raise Refusal(
                "llm.data-file-absent",
                f"{KEY}={value}: no such file{pattern}; give {_kinds()}, or a folder of them",
                key=KEY,
                value=value,
            )
        for file in own:
            if _kind(file) is None:
                raise Refusal(
                    "llm.data-file-suffix",
                    f"{KEY}={file}: must be {_kinds()}",
                    key=KEY,
                    value=str(file),
                )
        files |= dict.fromkeys(own)
    return FoundFiles(tuple(files), dict(ignored))


def _of_folder(value: str, folder: Path) -> tuple[list[Path], Counter[str]]:
    """The files of a folder's training split, or all where no name says which split a file is of."""
    every = sorted(path for path in folder.rglob("*") if path.is_file() and not _hidden(path, folder))
    listed = _of_arrow(folder, every)
    files = [path for path in every if _kind(path) is not None and path.name not in ("dataset_info.json", ARROW_STATE)]
    files = [path for path in files if path.name != "dataset_dict.json" and (listed is None or path in listed)]
    if not files:
        raise Refusal(
            "llm.data-folder-empty",
            f"{KEY}={value}: is a folder without {_kinds()}; give one of these files, or a folder of them",
            key=KEY,
            value=value,
        )
    splits = {path: _split(path.relative_to(folder)) for path in files}
    read = [path for path in files if splits[path] in TRAINING]
    others = [path for path in files if splits[path] in OTHER_SPLITS]
    if others and not read and len(others) == len(files):
        remedy = f"{KEY}={quoted(str(others[0]))}"
        raise Refusal(
            "llm.data-folder-splits",
            f"{KEY}={value}: holds no training split but {', '.join(sorted({str(splits[path]) for path in others}))}; "
            f"name the files to tune on, as `{remedy}`",
            key=KEY,
            value=value,
            splits=sorted({str(splits[path]) for path in others}),
            remedy=remedy,
        )
    read = read or [path for path in files if path not in others]
    ignored = Counter[str]()
    for path in every:
        if path not in read:
            name = str(path.relative_to(folder))
            ignored[name if path in files else f"*{path.suffix}"] += 1
    return read, ignored


def _hidden(path: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(folder).parts)


def _of_arrow(folder: Path, every: Sequence[Path]) -> set[Path] | None:
    """The Arrow files that a `state.json` of `save_to_disk` lists; beside them may lie the library's caches. None
    where nothing was written by it."""
    states = [path for path in every if path.name == ARROW_STATE]
    if not states:
        return None
    listed = set[Path]()
    for state in states:
        try:
            listed |= {state.parent / each["filename"] for each in json.loads(state.read_text("utf-8"))["_data_files"]}
        except (ValueError, LookupError, TypeError) as error:
            raise Refusal(
                "llm.data-folder-state",
                f"{KEY}={folder}: {state.name} cannot be read ({error}); give the data files themselves",
                key=KEY,
                value=str(folder),
                reason=str(error),
            ) from None
    return listed


def _split(path: Path) -> str | None:
    """The split that a path's name tells, of its folders from the file up; None where it tells none."""
    names = [path.name.partition(".")[0], *reversed(path.parent.parts)]
    for name in names:
        words = re.split(r"[-_. ]+", name.lower())
        for word in (words[0], words[-1]):
            if word in (*TRAINING, *OTHER_SPLITS):
                return word
    return None


# ---- one file


def _kind(file: Path) -> str | None:
    """The key in READERS; None of a file that cannot be read."""
    suffix = file.suffix.lower()
    if suffix in OPENERS:
        suffix = Path(file.stem).suffix.lower()
    return suffix if suffix in READERS else None


def _kinds() -> str:
    return f"a file of {', '.join(READERS)}, also as {', '.join(OPENERS)}"


def _read(file: Path) -> tuple[list[Any], dict[str, int]]:
    try:
        content = file.read_bytes()
        opener = OPENERS.get(file.suffix.lower())
        return READERS[str(_kind(file))](content if opener is None else opener(content))
    except (OSError, EOFError, ValueError, NotImplementedError, RecursionError, lzma.LZMAError) as error:
        cause = str(error).partition("\n")[0]  # Arrow's errors are of these types
        if isinstance(error, Refusal):
            cause = error.message
        elif isinstance(error, RecursionError):
            cause = "nested too deep"
        raise Refusal(
            "llm.data-file-unread",
            f"{KEY}={file}: cannot be read ({cause}); "
            "correct it (a .jsonl file has one object a line), or give another file",
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
    text = content.decode("utf-8-sig")
    if not text.strip():
        return [], {}
    lines = text.split("\n")
    first = next(line for line in lines if line.strip())
    if not first.lstrip().startswith("["):
        is_whole = _is_json(first)
        follows = any(line.strip() for line in lines[lines.index(first) + 1 :])
        if (is_whole and (follows or is_lines)) or not (is_whole or _is_json(text)):
            return _json_lines(lines), {}  # which names the line that is not JSON
    try:
        return _rows_of(json.loads(text))
    except (json.JSONDecodeError, RecursionError) as error:
        if _is_json(first):  # lines that are lists
            return _json_lines(lines), {}
        line = error.lineno if isinstance(error, json.JSONDecodeError) else 1
        raise _bad_line(line) from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _json_lines(lines: Sequence[str]) -> list[Any]:
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                raise _bad_line(number) from None
    return rows


def _bad_line(number: int) -> Refusal:
    return Refusal("llm.bad-line", f"line {number} is not JSON, or nested too deep", line=number)


def _rows_of(value: Any) -> tuple[list[Any], dict[str, int]]:
    """The rows of a JSON value: a list, an object with a list of objects under one key, or an object that is a row."""
    if isinstance(value, list):
        return value, {}
    if isinstance(value, dict):
        if any(name in READ and not _is_table(inner) for name, inner in value.items()):
            return [value], {}  # a row alone
        tables = [name for name, rows in value.items() if _is_table(rows)]
        if len(tables) == 1:
            beside = {name: 1 for name in value if name != tables[0] and is_filled(value[name])}
            return value[tables[0]], beside
        if len(tables) > 1:
            raise Refusal(
                "llm.several-lists",
                f"it holds several lists of rows ({', '.join(tables)}); give a file with one",
                lists=tables,
            )
        if value and not any(isinstance(inner, dict) for inner in value.values()):
            return [value], {}
    raise Refusal("llm.no-list", "it holds no list of rows, as [{...}, ...]")


def _is_table(value: Any) -> bool:
    """True of a list of rows; the messages of a single row are objects with a role, or with what was said."""
    if not (isinstance(value, list) and value and all(isinstance(row, dict) for row in value)):
        return False
    return not all({"role", "from"} & row.keys() for row in value)


def _separated(content: bytes, delimiter: str | None = None) -> tuple[list[Any], dict[str, int]]:
    text = content.decode("utf-8-sig")
    header = text.lstrip().partition("\n")[0]
    found = delimiter or max(DELIMITERS, key=header.count)
    csv.field_size_limit(sys.maxsize)  # of 128 KiB: a conversation may be longer
    rows = []
    for number, row in enumerate(csv.DictReader(io.StringIO(text, newline=""), delimiter=found), start=1):
        if None in row:
            raise Refusal(
                "llm.csv-cells",
                f"row {number} has more cells than the header has columns; quote cells that hold {found!r}",
                row=number,
            )
        rows.append(row)
    return rows, {}


def _read_csv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    return _separated(content)


def _read_tsv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    return _separated(content, "\t")


def _read_parquet(content: bytes) -> tuple[list[Any], dict[str, int]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    return without_nulls(pq.read_table(pa.BufferReader(content)).to_pylist()), {}


def _read_arrow(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """An Arrow file in either of its forms: of streams, as `save_to_disk` writes, or with a footer."""
    import pyarrow as pa

    buffer = pa.BufferReader(content)
    is_file = content.startswith(b"ARROW1")
    reader: Any = pa.ipc.open_file(buffer) if is_file else pa.ipc.open_stream(buffer)
    return without_nulls(reader.read_all().to_pylist()), {}


def without_nulls(value: Any) -> Any:
    """What Arrow stores, without keys that hold nothing, at every depth: its structs have the keys of all rows."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value


READERS: dict[str, Callable[[bytes], tuple[list[Any], dict[str, int]]]] = {
    ".json": _read_json,
    ".jsonl": _read_json_lines,
    ".ndjson": _read_json_lines,
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}


def identified(data: StoredTextConfig) -> list[tuple[str, Path]]:
    """The files with the names by which their content is identified: a single one is "rows", wherever it lies."""
    files = paths(data)
    if len(files) == 1:
        return [("rows", files[0])]
    common = Path(os.path.commonpath([file.parent for file in map(Path.absolute, files)]))
    return [(f"rows/{file.absolute().relative_to(common)}", file) for file in files]
