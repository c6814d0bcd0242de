"""Decoding and checking of records by their schema."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct

from multicard.records.schema import SCHEMA_VERSION, STEPS, AnyRecord, VisionRecord

MOST_RANKS = 10**6
MOST_LEVELS = 32  # of lists and objects within one another; what is written has six


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
        raise _broken(error) from None
    _require_known(record.schema_version)
    free = [record.config, record.input if isinstance(record, VisionRecord) else None]
    if any(_is_deeper(value, MOST_LEVELS) for value in free):
        raise _broken(f"lists and objects are nested over {MOST_LEVELS} levels deep")
    for name, values in (("axes", record.axes), ("config", record.config)):
        try:  # what was refused may have been any number
            msgspec.convert(values, _Counts if record.status == "refused" else _CountsOfRuns)
        except msgspec.ValidationError as error:
            raise _broken(str(error).replace("$", f"$.{name}")) from None
    return record


def _broken(why: object) -> ValueError:
    return ValueError(f"result.json is broken ({why})")


def _is_deeper(value: Any, levels: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(item, levels - 1) for item in inner)


class _Counts(Struct):
    """The numbers among axes and configuration that are reckoned with."""

    gpus: int | None = None
    nodes: int | None = None
    seed: int | None = None
    warmup_steps: int | None = None
    skip_steps: int | None = None


class _CountsOfRuns(_Counts):
    gpus: Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None = None
    nodes: Annotated[int, Meta(ge=1, le=MOST_RANKS)] | None = None
    warmup_steps: Annotated[int, Meta(ge=0)] | None = None
    skip_steps: Annotated[int, Meta(ge=0)] | None = None


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


def check(text: str, kind: Any) -> None:
    """Check the text of a file that is to be read as `kind`: a struct cannot have a key too many, but a wrong value.

    Raises:
        TypeError: a value of another type, or beyond the limits of the schema.
    """
    try:
        msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise TypeError(f"not of the record's schema: {error}") from None


def check_steps(columns: Mapping[str, Any]) -> None:
    """Check the columns (NumPy arrays) of steps.parquet: all those of one kind of run, integers or floats as there."""
    kinds = {name: values.dtype.kind for name, values in columns.items()}
    letters = {int: "i", float: "f"}
    known = [{name: letters[hint] for name, hint in get_type_hints(steps).items()} for steps in STEPS.values()]
    if kinds not in known:
        raise TypeError(f"not the columns of steps.parquet: {kinds}")
