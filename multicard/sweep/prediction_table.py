"""The printed table of `predict=true`: a row a cell, the bases of the estimates, and their sum."""

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from multicard.config.job import count
from multicard.estimate.estimates import Basis, Estimate
from multicard.records import comparable, text_table
from multicard.records.schema_parts import Interval
from multicard.sweep.fewest_probes import products

WIDTH = 120  # of notes
NAMED = 3  # reasons or cells that are listed of a kind
WIDE = 0.5  # an interval that reaches further, as a share of the value, is shown by its ends
MEANINGS = {  # of bases, where an estimate says no more
    Basis.measured: "runs of the same cell",
    Basis.probed: "probes of the same cell (probe=true)",
    Basis.scaled: "other cells of this machine",
    Basis.published: "published figures alone",
    Basis.unknown: "nothing alike is known",
}
MARKS = {
    comparable.LOADED: "others kept its cores busy: the estimate rests on such runs alone",
    comparable.DISTURBED: "others used its GPUs: the estimate rests on such runs alone",
    comparable.DOUBTFUL: "cells that scaled beyond linear; carried on as linear",
}
Units = tuple[tuple[str, float], ...]  # smallest first
STEP: Units = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
TOTAL: Units = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
ENERGY: Units = (("J", 1.0), ("kJ", 1e3), ("MJ", 1e6))
MEMORY: Units = (("MB", 1e6), ("GB", 1e9))


@dataclass(frozen=True)
class Row:
    """A cell with its repetitions, which take the same.

    axes: shown values, by heading. runs: in the sweep; left: those not measured yet.
    """

    axes: Mapping[str, str]
    estimate: Estimate
    runs: int = 1
    left: int = 1

    @property
    def ranks(self) -> int:
        return self.estimate.config.gpus * self.estimate.config.nodes


def table(rows: Sequence[Row], width: int | None) -> list[str]:
    """The rows as lines; columns in which no cell has a value are left out.

    Args:
        width: in cells; None: any.
    """
    estimates = [row.estimate for row in rows]
    quantities = {
        "peak memory": column([each.peak_memory_bytes for each in estimates], MEMORY),
        "needed memory": column([each.needed_memory_bytes for each in estimates], MEMORY),
        "step": column([each.step_s for each in estimates], STEP),
        "total": column([each.total_s for each in estimates], TOTAL),
        "energy": column([each.energy_joules for each in estimates], ENERGY),
    }
    columns = {
        **{axis: [row.axes[axis] for row in rows] for axis in rows[0].axes},
        "runs": [str(row.runs) if row.runs > 1 else "" for row in rows],
        "fits": [each.fits or "" for each in estimates],
        **quantities,
        "basis": [
            f"{each.basis}{each.prediction.marks}" + (f" ({each.prediction.runs})" if each.prediction.runs else "")
            for each in estimates
        ],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    align = "".join("r" if heading in (*quantities, "runs") else "l" for heading in shown)
    filled = [[value or "-" for value in row] for row in zip(*shown.values(), strict=True)]
    return text_table.text([*shown], filled, width, align)


def column(values: Sequence[Interval | None], units: Units) -> list[str]:
    """Figures in one unit, each with its interval: "12.3 s ±8%", or "10..15 s" where it is wide or lopsided."""
    known = [value.value for value in values if value is not None]
    if not known:
        return [""] * len(values)
    unit, size = _unit(statistics.median(known), units)
    reaches = [_reach(value) for value in values]
    longest = max(map(len, reaches))
    figures = []
    for value, reach in zip(values, reaches, strict=True):
        if value is None:
            figures.append("")
        elif reach:
            figures.append(f"{_digits(value.value / size)} {unit} {reach.rjust(longest)}")
        else:
            figures.append(f"{_digits(value.low / size)}..{_digits(value.high / size)} {unit}")
    return figures


def _unit(value: float, units: Units) -> tuple[str, float]:
    return next((unit for unit in reversed(units) if value >= unit[1]), units[0])


def _reach(value: Interval | None) -> str:
    """Half the width of an interval that is about as far to both sides, relative to its value; empty of another."""
    if value is None or value.value <= 0:
        return ""
    sides = sorted(abs(end - value.value) / value.value for end in (value.low, value.high))
    if sides[1] > WIDE or sides[1] > max(1.5 * sides[0], sides[0] + 0.02):
        return ""
    return f"±{100 * sides[1]:.{0 if sides[1] >= 0.0095 else 1}f}%"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Lines on the bases of the figures, and on cells that will not fit or are unknown."""
    lines = []
    if any(row.estimate.fits for row in rows):
        lines.append("fits: yes, where all of the needed memory's interval is below the GPU's; no, where all is above")
    for basis, meaning in MEANINGS.items():
        abouts = [row.estimate.prediction.about for row in rows if row.estimate.basis is basis]
        lines += [f"{basis}: {_listed(abouts) or meaning}"] if abouts else []
    marks = {mark for row in rows for mark in row.estimate.prediction.marks}
    lines += [f"{mark}: {meaning}" for mark, meaning in MARKS.items() if mark in marks]
    memory = _listed(row.estimate.prediction.memory_basis for row in rows)
    lines += [f"memory: {memory}"] if memory else []
    for fits, meaning in (("no", "likely to run out of memory"), ("tight", "may run out of memory")):
        members = [row.axes for row in rows if row.estimate.fits == fits]
        names = _listed(" ".join(words) for words in products(members))
        lines += [f"{meaning}: {count(len(members), 'cell')}: {names}"] if members else []
    return [line for note in lines for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")]


def _listed(words: Iterable[str]) -> str:
    """The first NAMED different words that are not empty, in their order."""
    different = list(dict.fromkeys(word for word in words if word))
    more = [f"and {len(different) - NAMED} more"] * (len(different) > NAMED)
    return "; ".join([*different[:NAMED], *more])


def sums(rows: Sequence[Row], on_gpus: bool) -> str:
    """The time of runs that are not measured yet: one after the other, in hours of GPUs, and their energy.

    Runs that will not fit do not count. Ends of intervals are added up: the cause of one error may make all estimates
    wrong in the same direction. Where the time of some runs is unknown, the sum is a least value without an interval.
    """
    unfit = sum(row.left for row in rows if row.estimate.fits == "no")
    left = [row for row in rows if row.left and row.estimate.fits != "no"]
    times = [(row, total_s) for row in left if (total_s := row.estimate.total_s) is not None]
    runs, known_runs = sum(row.left for row in left), sum(row.left for row, _ in times)
    without = f"; without {count(unfit, 'run')} that will not fit" if unfit else ""
    measured = sum(row.runs - row.left for row in rows)
    begin = f"{count(runs, 'run') if runs else 'nothing'} to measure"
    begin += f", {measured} measured before" if measured else ""
    if not times:
        return begin + ("; their times are unknown" if runs else "") + without
    is_whole = known_runs == runs
    parts = [f"{_sum(((total_s, row.left) for row, total_s in times), TOTAL, is_whole)} one after the other"]
    if on_gpus:
        gpu_s = ((total_s, row.left * row.ranks) for row, total_s in times)
        parts.append(f"{_sum(gpu_s, TOTAL[2:], is_whole)} of GPUs")
    energies = [(energy, row.left) for row, _ in times if (energy := row.estimate.energy_joules) is not None]
    if len(energies) == len(times):
        parts.append(_sum(energies, ENERGY, is_whole))
    least = "" if is_whole else "at least "
    unknown = "" if is_whole else f", and {count(runs - known_runs, 'run')} whose time is unknown"
    return f"{begin}: {least}{', '.join(parts)}{unknown}{without}"


def _sum(intervals: Iterable[tuple[Interval, int]], units: Units, is_whole: bool) -> str:
    """The sum of intervals, each taken a number of times: "5.2 h (4.8 to 5.6)", or its low end of a part alone."""
    taken = list(intervals)
    value, low, high = (sum(getattr(each, end) * times for each, times in taken) for end in ("value", "low", "high"))
    unit, size = _unit(value, units)
    if not is_whole:
        return f"{_digits(low / size)} {unit}"
    return f"{_digits(value / size)} {unit} ({_digits(low / size)} to {_digits(high / size)})"
