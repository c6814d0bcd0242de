"""Rows of local files: JSON, JSON lines and Parquet."""

import json
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from multicard.config.keys import require


@lru_cache(maxsize=1)  # the cells of a sweep mostly read the same file
def read(data_files: str) -> list[Any]:
    """The rows of a file.

    Raises:
        ValueError: where it is absent or cannot be read, with the key and the remedy.
    """
    file, key = Path(data_files).expanduser(), f"dataset.data_files={data_files}"
    require(file.exists(), f"{key}: no such file; give a .json, .jsonl or .parquet file")
    require(file.is_file(), f"{key}: is a folder; give a .json, .jsonl or .parquet file")
    require(file.suffix in READERS, f"{key}: must end in one of {', '.join(READERS)}")
    return READERS[file.suffix](file, key)


def _read_jsonl(file: Path, key: str) -> list[Any]:
    rows = []
    for number, line in enumerate(_read_text(file, key).split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                raise ValueError(f"{key}: line {number} is not JSON, or nested too deep; mend or remove it") from None
    return rows


def _read_json(file: Path, key: str) -> list[Any]:
    try:
        rows = json.loads(_read_text(file, key) or "[]")
    except (ValueError, RecursionError):
        raise ValueError(f"{key}: is not JSON, or nested too deep; for one object a line, name it .jsonl") from None
    require(isinstance(rows, list), f"{key}: must hold a list of rows, as [{{...}}, ...]")
    return rows


def _read_text(file: Path, key: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{key}: cannot be read as UTF-8 text ({error}); give another file") from None


def _read_parquet(file: Path, key: str) -> list[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.read_table(file).to_pylist()
    except (OSError, pa.ArrowException) as error:
        cause = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{key}: is not a whole Parquet file ({cause}); write it again") from None


READERS: dict[str, Callable[[Path, str], list[Any]]] = {
    ".json": _read_json,
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
}
