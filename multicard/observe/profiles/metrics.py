"""One table of metrics from the events of all ranks, the same for both profilers.

The files are read by their kind and rank, and the metrics are computed. The record's `profile` also
has the cost of profiling, and compares profiled copies with counted ones.
"""

import gzip
import math
import re
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from multicard.config.base import ProfileWindow
from multicard.messages import Refusal
from multicard.observe.profiles import kineto, nsys
from multicard.observe.profiles.events import (
    COPIES,
    CUDA_APIS,
    LAUNCH,
    MEMSET,
    RUN,
    RankEvents,
    Trace,
    metric,
)
from multicard.observe.profiles.trace_files import FOLDER, trace_files
from multicard.records.schema import AnyRecord
from multicard.records.schema_parts import (
    ProfileCopies,
    ProfileCost,
    ProfileDerived,
    ProfileRank,
    ProfileRow,
    ProfileTable,
)

GROUPS = ("derived", "phase", "api", "copy", "collective", "kernel", "annotation")
OTHER = "other work"  # The row of time on the host that no phase and no annotation names.
LONG_GROUPS = ("kernel", "annotation")  # Groups with a row for each name that occurred.
SQLITE_MAGIC = b"SQLite format 3\0"
GZIP_MAGIC = b"\x1f\x8b"
# Matches rank3, worker3_step_12 and trace_r03.
RANK = re.compile(r"(?:rank|worker|(?<![a-z])r)[-_]?(\d+)", re.IGNORECASE)
READ_ERRORS = (EOFError, OSError, zlib.error)


@dataclass(frozen=True)
class Profile:
    """The profile of a run."""

    source: str  # kineto or nsys.
    ranks: list[ProfileRank]
    rows: list[ProfileRow]  # Each rank's, then their sum's; by group, then by time.
    not_recorded: tuple[str, ...]  # API calls that the profiler omits by design.

    @property
    def steps(self) -> int | None:
        """Steps summed over ranks, or None if a rank has no markers."""
        counts = [rank.steps for rank in self.ranks if rank.steps is not None]
        return sum(counts) if len(counts) == len(self.ranks) else None

    def rank_rows(self, rank: int | None, top: int | None = None) -> list[ProfileRow]:
        """Return the rows of a rank, or of the sum over ranks if `rank` is None.

        Groups in LONG_GROUPS are cut to their first `top` rows.
        """
        by_group = groupby((row for row in self.rows if row.rank == rank), lambda row: row.group)
        shown_rows = []
        for group, rows in by_group:
            shown_rows.extend(islice(rows, top if group in LONG_GROUPS else None))
        return shown_rows

    def as_dict(self, top: int | None = 20) -> dict[str, Any]:
        """Return the profile for JSON, with the `top` kernels and annotations of each rank."""
        rows = []
        for rank in (*(rank.rank for rank in self.ranks), None):
            rows.extend(self.rank_rows(rank, top))
        return msgspec.to_builtins(replace(self, rows=rows))

    @classmethod
    def of(cls, table: ProfileTable | None) -> "Profile":
        """Return the profile in a record.

        Raises a Refusal if it has none, or if the profiler left nothing readable.
        """
        if table is None:
            raise Refusal("profile.none", "its record has no profile")
        if table.error is not UNSET:
            raise Refusal(
                "profile.unread",
                f"its profile could not be read ({table.error})",
                reason=table.error,
            )
        if table.source is UNSET or table.ranks is UNSET or table.rows is UNSET:
            raise Refusal("profile.broken", "its profile is broken")
        return cls(table.source, table.ranks, table.rows, tuple(table.not_recorded or ()))


def read_profile(paths: Sequence[Path]) -> Profile:
    """Return the profile of one run, from the files of some or all of its ranks, or their folders.

    A file's rank is given in it (distributedInfo), or else in its name, or else by its position.
    For nsys, see the module `nsys`.

    Raises:
        ValueError: in one line with the file, if it is missing, damaged, cut off, empty, without
            events, of neither kind, or of the same rank as another. Files of both profilers are
            refused too.
    """
    by_source: dict[str, list[Trace]] = {}
    with tempfile.TemporaryDirectory(prefix="multicard-profiling-") as scratch:
        for path in trace_files(paths):
            for source, trace in _traces(path, Path(scratch)):
                by_source.setdefault(source, []).append(trace)
    if len(by_source) > 1:
        first, second = (traces[0].where for traces in by_source.values())
        source = next(iter(by_source))
        raise Refusal(
            "trace.of-both-profilers",
            f"{first} is from {source}, {second} is not: read them one by one",
            file=first,
            other=second,
            source=source,
        )
    ((source, traces),) = by_source.items()
    return profile_of_traces(
        source, _with_ranks(traces), kineto.NOT_RECORDED if source == "kineto" else ()
    )


def _traces(path: Path, scratch: Path) -> Iterator[tuple[str, Trace]]:
    """Yield the traces in a file, each with its profiler's name."""
    try:
        with path.open("rb") as file:
            is_sqlite = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
        if is_sqlite or path.suffix == ".nsys-rep":
            traces = nsys.read_export(path if is_sqlite else nsys.export(path, scratch))
            if len(traces) == 1:  # A report of one process belongs to the rank in its name.
                traces = [replace(traces[0], where=str(path), rank=_rank_in(path.name))]
            yield from (("nsys", trace) for trace in traces)
        else:
            content = path.read_bytes()
            trace = kineto.read_trace(
                gzip.decompress(content) if content.startswith(GZIP_MAGIC) else content, str(path)
            )
            yield (
                "kineto",
                (trace if trace.rank is not None else replace(trace, rank=_rank_in(path.name))),
            )
    except READ_ERRORS as error:
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> Refusal:
    strerror = getattr(error, "strerror", None)
    if strerror:
        return Refusal(
            "trace.unread", f"{path}: cannot be read: {strerror}", file=str(path), reason=strerror
        )
    reason = str(error).partition("\n")[0].rstrip(":")
    return Refusal(
        "trace.damaged",
        f"{path}: cannot be read: it is damaged or cut off ({reason})",
        file=str(path),
        reason=reason,
    )


def _rank_in(name: str) -> int | None:
    match = RANK.search(name)
    return int(match[1]) if match else None


def _with_ranks(traces: Sequence[Trace]) -> list[Trace]:
    """Return the traces by rank. Traces of unknown rank get the free ranks in order."""
    files: dict[int, str] = {}
    for trace in traces:
        if trace.rank is not None:
            if trace.rank in files:
                raise Refusal(
                    "trace.same-rank",
                    f"{trace.where}: belongs to rank {trace.rank}, like {files[trace.rank]}",
                    file=trace.where,
                    other=files[trace.rank],
                    rank=trace.rank,
                )
            files[trace.rank] = trace.where
    free_ranks = iter(sorted(set(range(len(traces))) - set(files)))
    ranked = [
        trace if trace.rank is not None else replace(trace, rank=next(free_ranks))
        for trace in traces
    ]
    return sorted(ranked, key=lambda trace: trace.rank or 0)


def profile_of_traces(source: str, traces: Sequence[Trace], omitted: Sequence[str]) -> Profile:
    """Return the profile of traces whose ranks are known.

    Args:
        omitted: API calls that the profiler omits by design.
    """
    ranks = []
    rows = []
    apis = set()
    for trace in traces:
        assert trace.rank is not None
        events = RankEvents(trace)
        derived = events.derived()
        ranks.append(
            ProfileRank(
                trace.rank, trace.where, events.window_s, events.steps, events.devices, derived
            )
        )
        rows += _rank_rows(trace.rank, events, derived, omitted)
        apis |= events.apis
    rows += _sum_by_metric(None, rows, sum(rank.window_s for rank in ranks))
    not_recorded = tuple(name for name in omitted if apis and name not in apis)
    return Profile(source, ranks, rows, not_recorded)


def _rank_rows(
    rank: int, events: RankEvents, derived: ProfileDerived, omitted: Sequence[str]
) -> list[ProfileRow]:
    """Return all metrics of a rank.

    If a GPU was used, some calls and all COPIES have a row even with 0 calls.
    """
    zero_rows = [("api", name) for name in CUDA_APIS if events.apis and name not in omitted]
    zero_rows += [("copy", name) for name in (*COPIES.values(), MEMSET)] if events.devices else []
    rows = [ProfileRow(rank, group, name, 0, 0.0, 0.0) for group, name in zero_rows]
    for kind, name, calls, ns, size in events.counts():
        if (event_metric := metric(kind, name)) is not None:
            rows.append(
                ProfileRow(
                    rank,
                    event_metric.group,
                    event_metric.name,
                    calls,
                    ns / 1e9,
                    0.0,
                    size,
                    event_metric.detail,
                )
            )
    if (unnamed_s := events.unnamed_s()) is not None:
        rows.append(ProfileRow(rank, "phase", OTHER, None, unnamed_s, 0.0))
    rows = _sum_by_metric(rank, rows, events.window_s)
    return _sum_by_metric(
        rank, [*_derived_rows(rank, events, derived, rows), *rows], events.window_s
    )


def _derived_rows(
    rank: int, events: RankEvents, derived: ProfileDerived, rows: list[ProfileRow]
) -> list[ProfileRow]:
    busy = derived.gpu_busy_share
    times_s = {
        "GPU busy": None if busy is None else busy * events.window_s * len(events.devices),
        "GPU computing": derived.compute_s,
        "communication": derived.communication_s,
        "communication, exposed": derived.exposed_communication_s,
        "launch gaps": derived.launch_gap_s,
        "blocked in synchronisation": derived.blocked_s,
    }
    known_times_s = {name: time_s for name, time_s in times_s.items() if time_s is not None}
    derived_rows = [
        ProfileRow(rank, "derived", name, None, time_s, 0.0)
        for name, time_s in known_times_s.items()
    ]
    if events.apis:
        launches = [
            row for row in rows if row.group == "api" and row.calls and LAUNCH.fullmatch(row.metric)
        ]
        calls = sum(row.calls or 0 for row in launches)
        total_s = sum(row.total_s for row in launches)
        names = _joined({row.metric for row in launches})
        derived_rows.insert(
            0, ProfileRow(rank, "derived", "launches", calls, total_s, 0.0, detail=names)
        )
    return derived_rows


def _sum_by_metric(
    rank: int | None, rows: Sequence[ProfileRow], window_s: float
) -> list[ProfileRow]:
    """Sum the rows of each metric, in the order in which they are shown.

    Shares are relative to `window_s`.
    """
    by_metric: dict[tuple[str, str], list[ProfileRow]] = {}
    for row in rows:
        by_metric.setdefault((row.group, row.metric), []).append(row)
    sums = []
    for (group, name), members in by_metric.items():
        calls = [row.calls for row in members if row.calls is not None]
        sizes = [row.bytes for row in members if row.bytes is not None]
        # fsum does not depend on the order, so that both profilers give equal figures.
        total_s = math.fsum(row.total_s for row in members)
        share = total_s / window_s if window_s else 0.0
        detail = _joined({*chain.from_iterable(row.detail.split(", ") for row in members)})
        count = sum(calls) if calls else None
        size = sum(sizes) if sizes else None
        sums.append(ProfileRow(rank, group, name, count, total_s, share, size, detail))
    return sorted(sums, key=_order)


def _joined(details: set[str]) -> str:
    return ", ".join(sorted(details - {""}))


def _order(row: ProfileRow) -> tuple[int, float, str]:
    """Return a sort key: by group, the longest first. Derived rows stay in their order."""
    group = GROUPS.index(row.group)
    return (group, 0.0, "") if row.group == "derived" else (group, -row.total_s, row.metric)


# ---- the record's profile


def profile_of_run(folder: Path, ranks: list[dict[str, Any]], record: AnyRecord) -> ProfileTable:
    """Return the record's `profile`. If the profiler left nothing readable, it is only an `error`.

    Args:
        ranks: the window of each rank (`capture`).
        record: the record with its steps.
    """
    if "error" in ranks[0]:
        return ProfileTable(error=ranks[0]["error"])
    files = sorted(
        path
        for path in (folder / FOLDER).iterdir()
        if path.name.endswith((".json.gz", ".nsys-rep"))
    )
    steps = [rank["steps"] for rank in ranks]
    try:
        run_profile = read_profile(files)
        recorded_steps = [rank.steps for rank in run_profile.ranks]
        if recorded_steps != steps:
            raise Refusal(
                "profile.steps",
                f"{folder / 'profile'}: holds {recorded_steps} steps by rank instead of {steps}",
                recorded=recorded_steps,
                expected=steps,
            )
    except ValueError as error:
        return ProfileTable(error=str(str(error)))  # Plain text, which a file can hold.
    table = msgspec.convert(run_profile.as_dict(), ProfileTable)
    table.files = [str(path.relative_to(folder)) for path in files]
    table.first_step = ranks[0]["first_step"]
    table.steps = steps[0]
    source = "the profiler's window"
    if ranks[0].get("window") == ProfileWindow.start:
        table.window = str(ProfileWindow.start)
        table.ended = ", ".join(sorted({rank["ended"] for rank in ranks}))
    else:
        inside_s = max(rank["window_s"] for rank in ranks) / steps[0]
        outside_s = record.steps and record.steps.mean
        # The cost of profiling is a step in the window over an unprofiled step of the run.
        table.step_s = ProfileCost(inside_s, outside_s, outside_s and inside_s / outside_s)
        source += ", scaled by steps"
    counted_bytes = (
        None if record.transfer_bytes is None else sum(rank["counted_h2d_bytes"] for rank in ranks)
    )
    table.h2d = _h2d_bytes(run_profile, counted_bytes, _whole_run_factor(table, record), source)
    return table


def add_copies(record: AnyRecord) -> None:
    """Add the profiled bytes of copies from and within devices to the record's `transfer_bytes`.

    They are summed over ranks. Nothing is added if the profiler saw no device, or if its window
    does not represent the whole run.
    """
    table = record.profile
    moved = record.transfer_bytes
    if table is None or moved is None:  # The copies of a script are not counted.
        return
    sizes = {row.metric: row.bytes or 0 for row in table.rows or () if row.rank is None}
    scale = _whole_run_factor(table, record) if COPIES["DtoH"] in sizes else None
    if scale is not None and table.h2d:
        moved.d2h = round(sizes[COPIES["DtoH"]] * scale)
        moved.d2d = round(sizes[COPIES["DtoD"]] * scale)
        moved.source = f"{moved.source}; d2h and d2d: {table.h2d.source}"


def _whole_run_factor(table: ProfileTable, record: AnyRecord) -> float | None:
    """Return the factor from the profiler's window to the whole run, or None if it has none."""
    if table.window == ProfileWindow.start:
        return 1.0 if table.ended == RUN else None
    counts = record.steps
    return (counts.taken or 0) / table.steps if counts and table.steps else None


def _h2d_bytes(
    profile: Profile, counted: int | None, scale: float | None, source: str
) -> ProfileCopies:
    """Return the bytes from host to device in the window, summed over ranks.

    Args:
        counted: the bytes that the training loop counted.
        scale: the factor to the whole run.
    """
    profiled = None
    for row in profile.rank_rows(None):
        if row.metric == COPIES["HtoD"]:
            profiled = row.bytes
            break
    return ProfileCopies(
        counted_bytes=counted,
        profiled_bytes=profiled,
        disagreement=(profiled - counted) / counted if profiled is not None and counted else None,
        whole_run_bytes=None if profiled is None or scale is None else round(profiled * scale),
        source=source,
    )
