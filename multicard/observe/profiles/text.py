"""A profile, and the comparison of two, as text tables."""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TypeVar

from multicard.observe.profiles.metrics import GROUPS, LONG, Pair, Profile
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
WIDTH = 140  # of output that is no terminal
SPREAD_WIDTH = 120  # from which on the columns least and most fit in
NAME_WIDTH = 24  # to which names are cut at most
Entry = TypeVar("Entry", ProfileRow, Pair)


def profile_lines(profile: Profile, top: int, rank: int | None = None, width: int | None = None) -> list[str]:
    """Lines of a table of the ranks, then of the metrics of one of them or summed over all.

    Args:
        top: number of kernels and of annotations.
        width: of a line; by default the terminal's.

    Raises:
        ValueError: if there is no such rank.
    """
    width = width or text_table.terminal_width() or WIDTH
    ranks = [entry for entry in profile.ranks if rank is None or entry.rank == rank]
    if not ranks:
        raise ValueError(f"--rank {rank}: the profile has ranks {', '.join(str(r.rank) for r in profile.ranks)}")
    summed = len(ranks) > 1
    spread = summed and width >= SPREAD_WIDTH
    totals_s = [{(row.group, row.metric): row.total_s for row in profile.rank_rows(entry.rank)} for entry in ranks]
    body = []
    for group, heading, rows in _groups(profile.rank_rows(None if summed else ranks[0].rank), top):
        body += [[], [heading]]
        for row in rows:
            figures = [_calls(row), in_seconds(row.total_s), in_seconds(row.mean_s), f"{row.share:.2%}"]
            times_s = [times.get((group, row.metric), 0.0) for times in totals_s]  # a rank without it spent no time
            body.append([_label(row), *figures, in_bytes(row.bytes), *(_extremes(times_s, ranks) if spread else ())])
        if group == "api":
            omitted = [name for name in profile.not_recorded if name in CUDA_APIS]
            body += [[f"  {name}: not recorded by {profile.source}"] for name in omitted]
    notes = []
    if summed:
        more = "; least and most of any rank, with its number" if spread else ""
        notes.append(f"Summed over ranks, shares of their summed windows{more}")
    if profile.not_recorded:
        notes.append(f"not recorded by {profile.source}: {', '.join(profile.not_recorded)}")
    headings = ["metric", "calls", "total", "mean", "share", "bytes", *(["least", "most"] if spread else [])]
    wrapped = [line for note in notes for line in wrap(note, width)]
    return [*_rank_lines(ranks, width), "", *_table(headings, body[1:], width), *wrapped]


def comparison_lines(
    pairs: Sequence[Pair], first: Profile, second: Profile, top: int, width: int | None = None
) -> list[str]:
    """Lines of a table of two profiles side by side, each summed over its ranks; see `profile_lines`."""
    per_step = any(pair.ratio_per_step != pair.ratio for pair in pairs if pair.ratio_per_step is not None)
    body = []
    for _, heading, group_pairs in _groups(pairs, top):
        body += [[], [heading]]
        for pair in group_pairs:
            row = pair.first or pair.second
            assert row is not None, "a pair has one side at least"
            totals = [_total(pair.first, row, first), _total(pair.second, row, second)]
            ratios = [pair.ratio, *([pair.ratio_per_step] if per_step else [])]
            cells = ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
            body.append([_label(row), _calls(pair.first), _calls(pair.second), *totals, *cells])
    headings = ["metric", "calls", "against", "total", "against", "ratio", *(["per step"] if per_step else [])]
    note = f"{_described(first)} against {_described(second)}, summed over ranks; ratio of the totals"
    return [*_table(headings, body[1:], width or text_table.terminal_width() or WIDTH), note]


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


def _groups(entries: Sequence[Entry], top: int) -> Iterator[tuple[str, str, Sequence[Entry]]]:
    """Each group that has entries, its heading, and the entries to print."""
    for group, title in TITLES.items():
        members = [entry for entry in entries if entry.group == group]
        limit = top if group in LONG else len(members)
        if members:
            yield group, f"{title}, {limit} of {len(members)}" if limit < len(members) else title, members[:limit]


def _table(headings: Sequence[str], body: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of rows, which may be shorter than the headings. Figures get the width they need, names the rest."""
    rows = [[*row, *[""] * (len(headings) - len(row))] for row in body]
    return text_table.text(headings, rows, width, "l" + "r" * (len(headings) - 1), least_width=NAME_WIDTH)


def _label(row: ProfileRow) -> str:
    """The indented name of a metric, of a kernel without its result type and its arguments, and its detail."""
    name = row.metric.removeprefix("void ") if row.group == "kernel" else row.metric
    if row.group == "kernel" and name.endswith(")"):
        depth = 0
        for index in range(len(name) - 1, 0, -1):  # to the bracket that opens the last parentheses
            depth += {")": 1, "(": -1}.get(name[index], 0)
            if depth == 0:
                name = name[:index]
                break
    return f"  {name}  {row.detail}".rstrip()


def _calls(row: ProfileRow | None) -> str:
    return "-" if row is None or row.calls is None else f"{row.calls:,}"


def _extremes(times_s: Sequence[float], ranks: Sequence[ProfileRank]) -> tuple[str, str]:
    """The least and the most, each with its rank."""
    cells = [(time_s, f"{in_seconds(time_s)} r{rank.rank}") for time_s, rank in zip(times_s, ranks, strict=True)]
    return (min(cells)[1], max(cells)[1]) if max(times_s) else ("-", "-")


def _total(side: ProfileRow | None, row: ProfileRow, profile: Profile) -> str:
    if side is not None:
        return in_seconds(side.total_s)
    return "not recorded" if row.metric in profile.not_recorded else "-"


def _described(profile: Profile) -> str:
    steps = "steps not marked" if profile.steps is None else f"{profile.steps} steps"
    return f"{len(profile.ranks)} rank{'s' * (len(profile.ranks) > 1)}, {steps} ({profile.source})"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
