"""A profile as text tables."""

import re
from collections.abc import Sequence

from multicard.observe.profiles.metrics import GROUPS, LONG, Profile
from multicard.observe.profiles.names import CUDA_APIS
from multicard.records import text_table
from multicard.records.schema_parts import ProfileRank, ProfileRow
from multicard.records.text_table import in_bytes

TITLES = {
    "derived": "Derived",
    "phase": "Phases",
    "api": "API calls",
    "copy": "Copies",
    "collective": "Collectives",
    "kernel": "Kernels",
    "annotation": "Annotations",
}
assert set(TITLES) == set(GROUPS)
VIEWERS = {"kineto": "https://ui.perfetto.dev", "nsys": "Nsight Systems (nsys-ui)"}  # of traces, by their source
WIDTH = 140  # of output that is no terminal
NAME_WIDTH = 24  # to which names are cut at most


def profile_lines(profile: Profile, top: int, rank: int | None = None, width: int | None = None) -> list[str]:
    """Lines of a table of the ranks, then of the metrics of one of them or summed over all, with the `top` kernels and
    annotations; by default as wide as the terminal. A ValueError says that there is no such rank."""
    width = width or text_table.terminal_width() or WIDTH
    ranks = [entry for entry in profile.ranks if rank is None or entry.rank == rank]
    if not ranks:
        raise ValueError(f"--rank {rank}: the profile has ranks {', '.join(str(r.rank) for r in profile.ranks)}")
    summed = len(ranks) > 1
    body = []
    for group, title in TITLES.items():
        rows = [row for row in profile.rank_rows(None if summed else ranks[0].rank) if row.group == group]
        shown = rows[:top] if group in LONG else rows
        if rows:
            body += [[], [title if shown == rows else f"{title}, {top} of {len(rows)}"], *map(_cells, shown)]
        if group == "api":
            omitted = [name for name in profile.not_recorded if name in CUDA_APIS]
            body += [[f"  {name}: not recorded by {profile.source}"] for name in omitted]
    notes = ["Summed over ranks, shares of their summed windows"] if summed else []
    if profile.not_recorded:
        notes.append(f"not recorded by {profile.source}: {', '.join(profile.not_recorded)}")
    headings = ["metric", "calls", "total", "mean", "share", "bytes"]
    cells = [[*row, *[""] * (len(headings) - len(row))] for row in body[1:]]
    table = text_table.text(headings, cells, width, "lrrrrr", least_width=NAME_WIDTH)  # names give way to figures
    return [*_rank_lines(ranks, width), "", *table, *text_table.folded(notes, width)]


def _cells(row: ProfileRow) -> list[str]:
    calls = "-" if row.calls is None else f"{row.calls:,}"
    times = [in_seconds(row.total_s), in_seconds(row.mean_s), f"{row.share:.2%}"]
    return [_label(row), calls, *times, in_bytes(row.bytes)]


def in_seconds(time_s: float | None) -> str:
    """A time with its unit; "-" for None."""
    if time_s is None:
        return "-"
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if time_s * factor >= 1:
            return f"{time_s * factor:,.4g} {unit}"
    return f"{time_s * 1e6:.4g} us" if time_s else "0"


def _rank_lines(ranks: Sequence[ProfileRank], width: int) -> list[str]:
    """A table of the derived times of each rank, without columns that are empty for all."""
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
    rows = list(zip(*columns.values(), strict=True))
    return text_table.text(list(columns), rows, width, align="l" + "r" * (len(columns) - 1))


def _label(row: ProfileRow) -> str:
    """The indented name of a metric, of a kernel without its result type and its arguments, and its detail."""
    name = row.metric
    if row.group == "kernel":
        name = re.sub(r"\([^()]*\)$", "", name.removeprefix("void "))
    return f"  {name}  {row.detail}".rstrip()


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
