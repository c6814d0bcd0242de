"""Decoding and checking of records by their schema."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct

from multicard.records.schema import SCHEMA_VERSION, STEPS, AnyRecord, Environment

MOST = 1e18  # of a figure, in its unit
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
        raise ValueError(f"result.json is broken ({error})") from None
    _require_known(record.schema_version)
    _require_sane(plain(content, "result.json"))
    for name, values in (("axes", record.axes), ("config", record.config)):
        try:  # what was refused may have been any number
            msgspec.convert(values, _Counts if record.status == "refused" else _CountsOfRuns)
        except msgspec.ValidationError as error:
            raise ValueError(f"result.json is broken ({str(error).replace('$', f'$.{name}')})") from None
    return record


def plain(content: bytes, name: str) -> dict[str, Any]:
    """The object in the bytes of a JSON file, of any keys.

    Raises:
        ValueError: what is wrong with the file `name`.
    """
    try:
        value = msgspec.json.decode(content, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{name} is broken ({error})") from None
    if _is_deeper(value, MOST_LEVELS):
        raise ValueError(f"{name} is broken (lists and objects are nested over {MOST_LEVELS} levels deep)")
    return value


def _require_sane(content: dict[str, Any]) -> None:
    """Refuse figures that nothing can have: sums and powers of them are no numbers. Settings may have any."""
    for key, value in content.items():
        place = None if key in ("config", "axes") else _beyond(value, f"$.{key}")
        if place is not None:
            raise ValueError(f"result.json is broken (a number that nothing can have - at `{place}`)")


def _beyond(value: Any, place: str) -> str | None:
    """The place of the first number that is beyond MOST, or, of an accuracy, no share."""
    if isinstance(value, int | float):
        is_known = 0 <= value <= 1 if place.endswith("accuracy") else abs(value) <= MOST
        return None if is_known else place
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return next((found for key, item in inner if (found := _beyond(item, f"{place}.{key}")) is not None), None)


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
