"""The table of metrics in a terminal."""

from collections.abc import Sequence
from typing import TypeVar

from rich.console import Console
from rich.table import Table
from rich.text import Text

from multicard.profiling.diff import Pair
from multicard.profiling.names import APIS
from multicard.profiling.profile_data import GROUPS, LONG, Profile, RankProfile, Row
from multicard.records.table import in_bytes

TITLES = {
    "derived": "Derived",
    "phase": "Phases",
    "api": "CUDA API calls",
    "copy": "Copies",
    "collective": "Collectives",
    "kernel": "Kernels",
    "annotation": "Annotations",
}
assert set(TITLES) == set(GROUPS)
SPREAD_WIDTH = 120  # of a terminal that has room for the columns least and most
NAME_WIDTH = 24  # of a metric, where the terminal is too narrow
Found = TypeVar("Found", Row, Pair)


def table(profile: Profile, console: Console, top: int, rank: int | None = None) -> None:
    """Print the ranks of a profile, then the metrics of one of them, or summed over all.

    Args:
        top: the number of kernels, and of annotations.

    Raises:
        ValueError: if there is no such rank.
    """
    ranks = [one for one in profile.ranks if rank is None or one.rank == rank]
    if not ranks:
        raise ValueError(f"--rank {rank}: there are the ranks {', '.join(str(one.rank) for one in profile.ranks)}")
    console.print(_ranks(ranks))
    console.print()
    summed = len(ranks) > 1
    spread = summed and console.width >= SPREAD_WIDTH
    content = _Content(["calls", "total", "mean", "share", "bytes", *(["least", "most"] if spread else [])])
    of_ranks = [{(row.group, row.metric): row.total_s for row in profile.of(one.rank)} for one in ranks]
    rows = profile.of(None if summed else ranks[0].rank)
    for group in TITLES:
        for row in content.open(group, [row for row in rows if row.group == group], top):
            times = [found.get((row.group, row.metric), 0.0) for found in of_ranks]  # a rank without it spent no time
            content.add(row, *_figures(row), *(_extremes(times, ranks) if spread else ()))
        for name in profile.not_recorded if group == "api" else ():
            if name in APIS:
                content.lines.append((Text(f"  {name}: not recorded by {profile.source}", "dim"), ()))
    content.show(console)
    if summed:
        more = "; least and most of any rank, with its number" if spread else ""
        _note(console, f"Summed over ranks, shares of their summed windows{more}")
    if profile.not_recorded:
        _note(console, f"not recorded by {profile.source}: {', '.join(profile.not_recorded)}")


def compared(found: Sequence[Pair], first: Profile, second: Profile, console: Console, top: int) -> None:
    """Print two profiles side by side, each summed over its ranks."""
    normed = any(pair.ratio_per_step != pair.ratio for pair in found if pair.ratio_per_step is not None)
    content = _Content(["calls", "against", "total", "against", "ratio", *(["per step"] if normed else [])])
    for group in TITLES:
        for pair in content.open(group, [pair for pair in found if pair.group == group], top):
            sides = (pair.first, pair.second)
            row = next(one for one in sides if one is not None)
            totals = [_total(one, row, of) for one, of in zip(sides, (first, second), strict=True)]
            ratios = [pair.ratio, *([pair.ratio_per_step] if normed else [])]
            shown = ["-" if one is None else f"{one:.3f}" for one in ratios]
            content.add(row, *(_calls(one) for one in sides), *totals, *shown)
    console.print()
    content.show(console)
    _note(console, f"{_what(first)} against {_what(second)}, summed over ranks; ratio of the totals")


def _what(profile: Profile) -> str:
    steps = "steps not marked" if profile.steps is None else f"{profile.steps} steps"
    return f"{len(profile.ranks)} rank{'s' * (len(profile.ranks) > 1)}, {steps} ({profile.source})"


def _total(side: Row | None, row: Row, profile: Profile) -> str:
    if side is not None:
        return in_seconds(side.total_s)
    return "not recorded" if row.metric in profile.not_recorded else "-"


def in_seconds(time_s: float) -> str:
    """A time for a person to read."""
    for factor, unit in ((1, "s"), (1e3, "ms")):
        if time_s * factor >= 1:
            return f"{time_s * factor:,.4g} {unit}"
    return f"{time_s * 1e6:.4g} us" if time_s else "0"


def _ranks(ranks: Sequence[RankProfile]) -> Table:
    """What was derived of each rank; columns that none of them has are left out."""
    columns = {
        "steps": [None if one.steps is None else str(one.steps) for one in ranks],
        "window": [in_seconds(one.window_s) for one in ranks],
        "devices": [", ".join(map(str, one.devices)) or None for one in ranks],
        "GPU busy": [_percent(one.derived.gpu_busy_share) for one in ranks],
        "computing": [_seconds(one.derived.compute_s) for one in ranks],
        "communication": [_seconds(one.derived.communication_s) for one in ranks],
        "exposed": [_seconds(one.derived.exposed_communication_s) for one in ranks],
        "overlap": [_percent(one.derived.overlap_share) for one in ranks],
        "launch gaps": [_seconds(one.derived.launch_gap_s) for one in ranks],
        "blocked": [_seconds(one.derived.blocked_s) for one in ranks],
    }
    content = Table(box=None, pad_edge=False, header_style="bold")
    content.add_column("rank")
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    for heading in shown:
        content.add_column(heading, justify="right")
    for one, *cells in zip(ranks, *shown.values(), strict=True):
        content.add_row(str(one.rank), *(cell or "-" for cell in cells))
    return content


class _Content:
    """Lines in groups. Figures get the width they need, names what is left."""

    def __init__(self, headings: Sequence[str]) -> None:
        self.headings = headings
        self.lines: list[tuple[Text, Sequence[str]]] = []

    def open(self, group: str, found: Sequence[Found], top: int) -> Sequence[Found]:
        """Begin a group, unless nothing is in it; those of `found` to show."""
        if not found:
            return found
        limit = top if group in LONG else len(found)
        of = f", {limit} of {len(found)}" if limit < len(found) else ""
        self.lines += [(Text(), ())] if self.lines else []
        self.lines.append((Text(f"{TITLES[group]}{of}", "bold"), ()))
        return found[:limit]

    def add(self, row: Row, *cells: str) -> None:
        name = Text(f"  {_bare(row.metric) if row.group == 'kernel' else row.metric}")
        self.lines.append((name.append(f"  {row.detail}", "dim") if row.detail else name, cells))

    def show(self, console: Console) -> None:
        widths = [len(heading) for heading in self.headings]
        for _, cells in self.lines:
            widths = [max(width, len(cell)) for width, cell in zip(widths, cells, strict=True)] if cells else widths
        room = console.width - sum(widths) - 2 * len(widths)
        content = Table(box=None, pad_edge=False, header_style="bold")
        content.add_column("metric", no_wrap=True, overflow="ellipsis", max_width=max(room, NAME_WIDTH))
        for heading, width in zip(self.headings, widths, strict=True):
            content.add_column(heading, justify="right", no_wrap=True, min_width=width)
        for name, cells in self.lines:
            content.add_row(name, *(Text(cell) for cell in cells))
        console.print(content)


def _bare(kernel: str) -> str:
    """A kernel's name without its result and its arguments: what is in its last parentheses."""
    bare, depth = kernel.removeprefix("void "), 0
    if not bare.endswith(")"):
        return bare
    for index in range(len(bare) - 1, 0, -1):
        depth += {")": 1, "(": -1}.get(bare[index], 0)
        if depth == 0:
            return bare[:index]
    return bare


def _note(console: Console, text: str) -> None:
    console.print(text, style="dim", highlight=False, markup=False)


def _figures(row: Row) -> tuple[str, ...]:
    return _calls(row), in_seconds(row.total_s), _seconds(row.mean_s) or "-", f"{row.share:.2%}", in_bytes(row.bytes)


def _calls(row: Row | None) -> str:
    return "-" if row is None or row.calls is None else f"{row.calls:,}"


def _extremes(times_s: Sequence[float], ranks: Sequence[RankProfile]) -> tuple[str, str]:
    """The least and the most, each with its rank."""
    each = [(time_s, f"{in_seconds(time_s)} r{one.rank}") for time_s, one in zip(times_s, ranks, strict=True)]
    return (min(each)[1], max(each)[1]) if max(times_s) else ("-", "-")


def _percent(share: float | None) -> str | None:
    return None if share is None else f"{share:.1%}"


def _seconds(time_s: float | None) -> str | None:
    return None if time_s is None else in_seconds(time_s)
