"""Decoding and checking of records by their schema."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
from msgspec import UNSET, Struct

from multicard.records.schema import SCHEMA_VERSION, STEPS, AnyRecord, Environment


def decode(content: bytes) -> AnyRecord:
    """The record in the bytes of a result.json.

    Raises:
        ValueError: what is wrong with it; of a newer schema its version alone, as all else may then differ too.
    """
    try:
        try:
            record = msgspec.json.decode(content, type=AnyRecord)
        except msgspec.ValidationError:
            _require_known(msgspec.json.decode(content, type=_Version).schema_version)
            raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"result.json is broken ({error})") from None
    _require_known(record.schema_version)
    counts = [record.axes.get(name, 1) for name in ("gpus", "nodes")]
    if not all(isinstance(count, int) for count in counts):
        raise ValueError("result.json is broken (axes.gpus or axes.nodes is no number)")
    return record


class _Version(Struct):
    schema_version: int


def _require_known(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise ValueError(f"schema_version {version} is newer than this program's {SCHEMA_VERSION}: update multicard")


@contextmanager
def checked(path: Path) -> Iterator[None]:
    """Report a mismatch between what is written to `path` and the schema, an error of this program.

    The file is written all the same: hours of measuring are worth more than a wrong type. With MULTICARD_STRICT set, as
    in the tests, the mismatch is raised instead.

    Raises:
        TypeError: the mismatch, with MULTICARD_STRICT set.
    """
    try:
        yield
    except TypeError as error:
        if os.environ.get("MULTICARD_STRICT"):
            raise
        print(f"{path}: {error}; please report this error of multicard", file=sys.stderr)


def check_record(text: str) -> None:
    """Check the text of a result.json before it is written.

    Raises:
        TypeError: a value of another type, a key that the schema lacks, or, of a run that ended ok, one that is
            missing: an error of this program.
    """
    record = _check(text, AnyRecord)
    content = json.loads(text)
    required = {field.name for field in msgspec.structs.fields(record) if field.default is not UNSET}
    missing = sorted(required - content.keys())
    if record.status == "ok" and missing:
        raise TypeError(f"{record.kind} record lacks {', '.join(missing)}")


def check_steps(columns: Mapping[str, Any]) -> None:
    """Check the columns (NumPy arrays) of steps.parquet: all those of one kind of run, integers or floats as there."""
    kinds = {name: values.dtype.kind for name, values in columns.items()}
    letters = {int: "i", float: "f"}
    known = [{name: letters[hint] for name, hint in get_type_hints(steps).items()} for steps in STEPS.values()]
    if kinds not in known:
        raise TypeError(f"not the columns of steps.parquet: {kinds}")


def check_environment(text: str) -> None:
    """The same for an environment.json."""
    _check(text, Environment)


def _check(text: str, kind: Any) -> Any:
    try:
        value = msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"not of the record's schema: {error}") from None
    if unknown := _unknown(json.loads(text), msgspec.to_builtins(value), "$"):
        raise TypeError(f"not in the record's schema: {', '.join(unknown)}")
    return value


def _unknown(content: Any, known: Any, path: str) -> list[str]:
    """Paths of keys in `content` that decoding it left out of `known`."""
    if isinstance(content, dict):
        extra = [f"{path}.{key}" for key in content.keys() - known.keys()]
        inner = [_unknown(value, known[key], f"{path}.{key}") for key, value in content.items() if key in known]
        return sorted(extra) + [name for names in inner for name in names]
    if isinstance(content, list):
        pairs = enumerate(zip(content, known, strict=True))
        return [name for index, pair in pairs for name in _unknown(*pair, f"{path}[{index}]")]
    return []
