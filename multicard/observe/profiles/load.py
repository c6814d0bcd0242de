"""Loads profiler files of one run: recognises each file's kind and rank, reads it, and computes the profile."""

import gzip
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from multicard.observe.profiles import kineto, metrics, nsys
from multicard.observe.profiles.events import Trace
from multicard.observe.profiles.metrics import Profile

SUFFIXES = (".json", ".json.gz", ".sqlite", ".nsys-rep")
SQLITE_MAGIC, GZIP_MAGIC = b"SQLite format 3\0", b"\x1f\x8b"
RANK = re.compile(r"(?:rank|worker|(?<![a-z])r)[-_]?(\d+)", re.IGNORECASE)  # rank3, worker3_step_12, trace_r03
BROKEN = (EOFError, OSError, zlib.error)


def read(paths: Sequence[Path]) -> Profile:
    """The profile of one run from the files of all its ranks, or of some, or folders of them.

    A file's rank is the one in it (distributedInfo), else in its name, else its place; of nsys see `nsys`.

    Raises:
        ValueError: in one line with the file, if one is missing, damaged, cut off, empty, without events, of neither
            kind, or of the same rank as another, or if the files are of both profilers.
    """
    by_source: dict[str, list[Trace]] = {}
    with tempfile.TemporaryDirectory(prefix="multicard-profiling-") as scratch:
        for path in _files(paths):
            for source, trace in _traces(path, Path(scratch)):
                by_source.setdefault(source, []).append(trace)
    if len(by_source) > 1:
        first, second = (traces[0].where for traces in by_source.values())
        raise ValueError(f"{first} is of {next(iter(by_source))}, {second} is not: read them one by one")
    ((source, traces),) = by_source.items()
    return metrics.profile(source, _ranked(traces), kineto.NOT_RECORDED if source == "kineto" else ())


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise ValueError(f"{path}: no such file")
        if not path.is_dir():
            yield path
            continue
        files = [file for file in path.iterdir() if file.name.endswith(SUFFIXES) and file.is_file()]
        # nsys leaves the export beside the report
        files = [file for file in files if file.suffix != ".nsys-rep" or file.with_suffix(".sqlite") not in files]
        if not files:
            raise ValueError(f"{path}: no trace in this folder (*{', *'.join(SUFFIXES)})")
        yield from sorted(files)


def _traces(path: Path, scratch: Path) -> Iterator[tuple[str, Trace]]:
    """The traces in a file, each with its profiler's name."""
    try:
        with path.open("rb") as file:
            sqlite = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
        if sqlite or path.suffix == ".nsys-rep":
            traces = nsys.read(path if sqlite else nsys.export(path, scratch))
            if len(traces) == 1:  # a report of one process is of the rank in its name
                traces = [replace(traces[0], where=str(path), rank=_rank_in(path.name))]
            yield from (("nsys", trace) for trace in traces)
        else:
            content = path.read_bytes()
            trace = kineto.read(gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content, str(path))
            yield "kineto", trace if trace.rank is not None else replace(trace, rank=_rank_in(path.name))
    except BROKEN as error:
        why = getattr(error, "strerror", None) or f"damaged or cut off ({str(error).partition(chr(10))[0].rstrip(':')})"
        raise ValueError(f"{path}: cannot be read: {why}") from None


def _rank_in(name: str) -> int | None:
    match = RANK.search(name)
    return int(match[1]) if match else None


def _ranked(traces: Sequence[Trace]) -> list[Trace]:
    """The traces by rank; those of unknown rank get the free ranks in their order."""
    files: dict[int, str] = {}
    for trace in traces:
        if trace.rank is not None:
            if trace.rank in files:
                raise ValueError(f"{trace.where}: of rank {trace.rank}, as {files[trace.rank]} is")
            files[trace.rank] = trace.where
    free = iter(sorted(set(range(len(traces))) - set(files)))
    ranked = [trace if trace.rank is not None else replace(trace, rank=next(free)) for trace in traces]
    return sorted(ranked, key=lambda trace: trace.rank or 0)
