"""Files of either profiler to a Profile: what they are, and which rank each is of."""

import gzip
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from multicard.profiling import kineto, metrics, nsys
from multicard.profiling.events import Trace
from multicard.profiling.profile_data import Profile

JSON = (".json", ".json.gz")
FOLDER = (*JSON, ".sqlite", ".nsys-rep")
SQLITE_MAGIC, GZIP_MAGIC = b"SQLite format 3\0", b"\x1f\x8b"
RANK = re.compile(r"(?:rank|worker|(?<![a-z])r)[-_]?(\d+)", re.IGNORECASE)  # rank3, worker3_step_12, trace_r03
BROKEN = (EOFError, OSError, zlib.error, tarfile.TarError)


def read(paths: Sequence[Path]) -> Profile:
    """Read the files of one run: of all its ranks, or of some.

    Args:
        paths: Kineto's JSON (plain or .gz), a .tar or .tar.gz of such, `.sqlite` exports of nsys, `.nsys-rep` where
            the program nsys is, or folders of any of these. The rank of a file is what it says itself
            (distributedInfo), else what its name says, else its place in natural order; nsys: see `nsys`.

    Raises:
        ValueError: in one line that names the file, if one is missing, damaged, cut off, empty, without events,
            neither of both kinds, of the same rank as another, or if the files are of both profilers.
    """
    found: dict[str, list[Trace]] = {}
    with tempfile.TemporaryDirectory(prefix="multicard-profiling-") as scratch:
        for path in _files(paths):
            for source, trace in _traces(path, Path(scratch)):
                found.setdefault(source, []).append(trace)
    if len(found) > 1:
        first, second = (traces[0].where for traces in found.values())
        raise ValueError(f"{first} is of {next(iter(found))}, {second} is not: compare them with --against")
    ((source, traces),) = found.items()
    return metrics.profile(source, _ranked(traces), kineto.NOT_RECORDED if source == "kineto" else ())


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path}: no such file")
        if not path.is_dir():
            yield path
            continue
        inside = [one for one in path.iterdir() if one.name.endswith(FOLDER) and one.is_file()]
        # nsys leaves the export beside the report
        inside = [one for one in inside if one.suffix != ".nsys-rep" or one.with_suffix(".sqlite") not in inside]
        if not inside:
            raise ValueError(f"{path}: no trace in this folder (*{', *'.join(FOLDER)})")
        yield from sorted(inside, key=lambda one: _natural(one.name))


def _natural(name: str) -> list[Any]:
    """rank10 after rank9: digits at the odd places of the key, compared as numbers."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def _traces(path: Path, scratch: Path) -> Iterator[tuple[str, Trace]]:
    """The traces in a file, each with the profiler it is of."""
    if path.suffix == ".nsys-rep":
        yield from (("nsys", trace) for trace in _named(nsys.read(nsys.export(path, scratch)), path))
        return
    try:
        with path.open("rb") as file:
            start = file.read(len(SQLITE_MAGIC))
        if start == SQLITE_MAGIC:
            yield from (("nsys", trace) for trace in _named(nsys.read(path), path))
        elif _is_tar(path):
            yield from (("kineto", trace) for trace in _members(path))
        else:
            with path.open("rb") as file:
                yield "kineto", _one(file, str(path), path.name)
    except BROKEN as error:
        why = getattr(error, "strerror", None) or f"damaged or cut off ({str(error).partition(chr(10))[0].rstrip(':')})"
        raise ValueError(f"{path}: cannot be read: {why}") from None


def _is_tar(path: Path) -> bool:
    """By its content, but for a compressed file its name: telling takes unpacking the start of it."""
    return path.name.endswith((".tar", ".tgz", ".tar.gz"))


def _members(path: Path) -> Iterator[Trace]:
    with tarfile.open(path, "r:*") as archive:
        members = [member for member in archive if member.isfile() and member.name.endswith(JSON)]
        if not members:
            raise ValueError(f"{path}: no trace in this archive (*{', *'.join(JSON)})")
        for member in sorted(members, key=lambda one: _natural(one.name)):
            file = archive.extractfile(member)
            assert file is not None, f"{member.name} is a file"
            yield _one(cast(BinaryIO, file), f"{path}: {member.name}", Path(member.name).name)


def _one(file: BinaryIO, where: str, name: str) -> Trace:
    """The Kineto trace of an open file, unpacked where it is packed."""
    start = file.read(len(GZIP_MAGIC))
    file.seek(0)
    if start == GZIP_MAGIC:
        with gzip.open(file) as unpacked:
            trace = kineto.read(cast(BinaryIO, unpacked), where)
    else:
        trace = kineto.read(file, where)
    return trace if trace.rank is not None else replace(trace, rank=_rank_of(name))


def _named(traces: list[Trace], path: Path) -> list[Trace]:
    """A report of one process is of the rank in its name, if there is one."""
    return [replace(traces[0], where=str(path), rank=_rank_of(path.name))] if len(traces) == 1 else traces


def _rank_of(name: str) -> int | None:
    found = RANK.search(name)
    return int(found[1]) if found else None


def _ranked(traces: Sequence[Trace]) -> list[Trace]:
    """The traces by rank; those of unknown rank get the free ones, in their order."""
    of: dict[int, str] = {}
    for trace in traces:
        if trace.rank is not None:
            if trace.rank in of:
                raise ValueError(f"{trace.where}: of rank {trace.rank}, as {of[trace.rank]} is")
            of[trace.rank] = trace.where
    free = iter(sorted(set(range(len(traces))) - set(of)))
    known = [trace if trace.rank is not None else replace(trace, rank=next(free)) for trace in traces]
    return sorted(known, key=lambda trace: trace.rank or 0)
