"""Prints the metrics of profiler files as one table, whichever profiler wrote them.

    multicard profile FILE... [--rank N] [--top N] [--json FILE]
        [--csv FILE] [--markdown FILE] [--latex FILE]

FILE: Kineto's JSON (torch.profiler; plain or .gz), Nsight Systems' .sqlite export (.nsys-rep if the
program nsys is installed), a folder of them, a run's folder, or the name of a sweep with one
profiled run. Several files are the ranks of one run.
CSV has every row, including kernels beyond --top.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from multicard.messages import Message, Parser, Refusal, usage
from multicard.observe.profiles import metrics
from multicard.observe.profiles.events import CUDA_APIS
from multicard.observe.profiles.metrics import GROUPS, LONG_GROUPS, OTHER, Profile
from multicard.observe.profiles.trace_files import trace_path
from multicard.records import text_table
from multicard.records.output import Output, add_formats
from multicard.records.schema_parts import ProfileRank, ProfileRow
from multicard.records.text_table import TextTable, in_bytes

TITLES = {
    "derived": "Derived",
    "phase": "Phases",
    "api": "API calls",
    "copy": "Copies",
    "collective": "Collectives",
    "kernel": "Kernels",
    "annotation": "Annotations",
}
# always: both are constants of this package.
assert set(TITLES) == set(GROUPS)
# Parts of a GPU's time that do not overlap.
GPU_PARTS = ("GPU computing", "communication, exposed", "launch gaps")
FIGURES = ("metric", "calls", "total_s", "bytes")  # The figures of a row of CSV.
HEADINGS = ("metric", "calls", "total", "mean", "share", "bytes")
# Programs that show traces, by the traces' source.
VIEWERS = {"kineto": "https://ui.perfetto.dev", "nsys": "Nsight Systems (nsys-ui)"}
WIDTH = 140  # The width of output that does not go to a terminal.
NAME_WIDTH = 24  # Names are not cut below this width.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. If a file cannot be read or written, print one line and return 1."""
    parser = Parser(
        "multicard profile",
        description=usage(__doc__, __file__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", metavar="FILE", nargs="+", type=trace_path)
    parser.add_argument(
        "--rank", metavar="N", type=int, help="the metrics of this rank instead of the sum"
    )
    parser.add_argument(
        "--top", metavar="N", type=_positive_count, default=10, help="number of kernels (10)"
    )
    add_formats(parser)
    options = parser.parse_args(arguments)
    try:
        output(metrics.read_profile(options.files), options.top, options.rank).emit(options)
    except (ValueError, OSError) as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    return 0


def output(profile: Profile, top: int, rank: int | None = None) -> Output:
    """Return the tables, and the rows for CSV: every row of each rank, then of their sum (`all`).

    A figure that does not exist is empty. Derived times have no calls, and API calls that the
    profiler omits have no figures.
    """
    tables = profile_tables(profile, top, rank)
    rows: list[dict[str, Any]] = [
        {"rank": "all" if row.rank is None else row.rank}
        | {name: getattr(row, name) for name in FIGURES}
        for row in profile.rows
    ]
    rows += [{"rank": "all", "metric": name} for name in profile.not_recorded]
    return Output(
        partial(lines_of, tables), lambda: tables, rows, content=lambda _: profile.as_dict(top)
    )


def _positive_count(number: str) -> int:
    if not number.isdecimal() or int(number) < 1:
        raise argparse.ArgumentTypeError(
            Message("profile.bad-number", f"{number} is not a whole number above 0", value=number)
        )
    return int(number)


# ---- the table


def profile_tables(
    profile: Profile, top: int, rank: int | None = None
) -> tuple[TextTable, TextTable]:
    """Return a table of the ranks, and a table of the metrics of one rank or of their sum.

    The latter shows the `top` kernels and annotations. Raises a Refusal if there is no such rank.
    """
    ranks = [entry for entry in profile.ranks if rank is None or entry.rank == rank]
    if not ranks:
        known = [entry.rank for entry in profile.ranks]
        raise Refusal(
            "profile.no-rank",
            f"--rank {rank}: the profile has ranks {', '.join(map(str, known))}",
            key="--rank",
            value=rank,
            ranks=known,
        )
    is_summed = len(ranks) > 1
    table_rows = []
    for group, title in TITLES.items():
        rows = [
            row
            for row in profile.rank_rows(None if is_summed else ranks[0].rank)
            if row.group == group
        ]
        shown_rows = rows[:top] if group in LONG_GROUPS else rows
        if rows:
            table_rows += [
                [],
                [title if shown_rows == rows else f"{title}, {top} of {len(rows)}"],
                *map(_cells, shown_rows),
            ]
        if group == "api":
            omitted = [name for name in profile.not_recorded if name in CUDA_APIS]
            table_rows += [[f"  {name}: not recorded by {profile.source}"] for name in omitted]
    notes = _most_time(profile.rank_rows(None if is_summed else ranks[0].rank))
    if is_summed:
        notes.append(
            Message("profile.summed", "Summed over ranks, with shares of their summed windows")
        )
    if profile.not_recorded:
        names = ", ".join(profile.not_recorded)
        notes.append(
            Message(
                "profile.not-recorded",
                f"not recorded by {profile.source}: {names}",
                source=profile.source,
                names=list(profile.not_recorded),
            )
        )
    cells = [[*row, *[""] * (len(HEADINGS) - len(row))] for row in table_rows[1:]]
    return _rank_table(ranks), TextTable(HEADINGS, cells, below=notes)


def _most_time(rows: Sequence[ProfileRow]) -> list[Message]:
    """Return a sentence on the largest part of the window.

    On GPUs, the parts are what the GPU did, because the host runs ahead of it. On CPUs, they are
    phases, annotations and what neither names.
    """
    on_gpu = [row for row in rows if row.group == "derived" and row.metric in GPU_PARTS]
    parts = on_gpu or [row for row in rows if row.group in ("phase", "annotation")]
    if not parts:
        return []
    largest = max(parts, key=lambda row: row.total_s)
    meaning = ""
    if largest.metric == OTHER:
        meaning = ": what the trace does not name"
        if "forward" not in {row.metric for row in parts}:
            meaning += (
                ", such as forward and backward; in a script, torch.profiler.record_function names"
                " a part of it"
            )
    sentence = f"Most time goes to {largest.metric} ({largest.share:.0%}){meaning}"
    return [
        Message("profile.most-time", sentence, part=largest.metric, share=round(largest.share, 4))
    ]


def lines_of(tables: tuple[TextTable, TextTable], width: int | None = None) -> list[str]:
    """Return the lines of `profile_tables`, by default as wide as the terminal."""
    ranks, whole = tables
    notes = whole.below
    width = width or text_table.terminal_width() or WIDTH
    # If space is short, names are cut and figures are not.
    metrics = text_table.text(whole.headings, whole.rows, width, "lrrrrr", least_width=NAME_WIDTH)
    return [*ranks.lines(width), "", *metrics, *text_table.folded(notes, width)]


def _cells(row: ProfileRow) -> list[str]:
    name = row.metric
    if row.group == "kernel":  # Leave out its result type and its arguments.
        name = re.sub(r"\([^()]*\)$", "", name.removeprefix("void "))
    calls = "-" if row.calls is None else f"{row.calls:,}"
    times = [in_seconds(row.total_s), in_seconds(row.mean_s), f"{row.share:.2%}"]
    return [f"  {name}  {row.detail}".rstrip(), calls, *times, in_bytes(row.bytes)]


def in_seconds(time_s: float | None) -> str:
    """Return a time with its unit, or "-" for None."""
    if time_s is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if time_s * factor >= 1:
            return f"{time_s * factor:,.4g} {unit}"
    return f"{time_s * 1e6:.4g} us" if time_s else "0"


def _rank_table(ranks: Sequence[ProfileRank]) -> TextTable:
    """Return a table of the derived times of each rank, without columns that are empty for all."""
    columns = {
        "rank": [str(rank.rank) for rank in ranks],
        "steps": ["-" if rank.steps is None else str(rank.steps) for rank in ranks],
        "window": [in_seconds(rank.window_s) for rank in ranks],
        "devices": [", ".join(map(str, rank.devices)) or "-" for rank in ranks],
        "GPU busy": [_percent(rank.derived.gpu_busy_share) for rank in ranks],
        "computing": [in_seconds(rank.derived.compute_s) for rank in ranks],
        "communication": [in_seconds(rank.derived.communication_s) for rank in ranks],
        "exposed": [in_seconds(rank.derived.exposed_communication_s) for rank in ranks],
        "overlap": [_percent(rank.derived.overlap_share) for rank in ranks],
        "gaps": [in_seconds(rank.derived.launch_gap_s) for rank in ranks],
        "blocked": [in_seconds(rank.derived.blocked_s) for rank in ranks],
    }
    columns = {heading: cells for heading, cells in columns.items() if set(cells) != {"-"}}
    return TextTable(list(columns), list(zip(*columns.values(), strict=True)))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
