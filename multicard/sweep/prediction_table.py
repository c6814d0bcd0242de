"""What `predict=true` prints of predictions: a row a cell, what the figures rest on, and their sum."""

import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from multicard.config.job import count
from multicard.records import text_table
from multicard.records.schema_parts import Interval, Prediction
from multicard.sweep.fewest_probes import products

WIDTH = 120  # of notes
NAMED = 3  # so many reasons or cells at most are listed of a kind
WIDE = 0.5  # an interval that reaches further, as a share of the value, is shown by its ends
BASES = {  # with what they mean, where a prediction says no more
    "measured": "runs of the same cell",
    "probed": "probes of the same cell (probe=true)",
    "scaled": "other cells of this machine",
    "published": "published figures alone",
    "unknown": "nothing alike is known",
}
Units = tuple[tuple[str, float], ...]  # smallest first
STEP: Units = (("us", 1e-6), ("ms", 1e-3), ("s", 1.0))
TOTAL: Units = (("s", 1.0), ("min", 60.0), ("h", 3600.0))
ENERGY: Units = (("J", 1.0), ("kJ", 1e3), ("MJ", 1e6))
MEMORY: Units = (("MB", 1e6), ("GB", 1e9))


@dataclass(frozen=True)
class PredictedCell:
    """Runs that differ in their repetition alone.

    axes: what the row shows of them, by heading. ranks: of each, on all nodes.
    runs: in the sweep, of which so many `left` are not measured yet.
    """

    axes: Mapping[str, str]
    ranks: int
    prediction: Prediction
    runs: int = 1
    left: int = 1


def rows(cells: Sequence[PredictedCell], width: int | None) -> list[str]:
    """The table. Columns of which nobody has a value are left out.

    Args:
        width: in cells; None: any.
    """
    predictions = [cell.prediction for cell in cells]
    required = [p.memory_bytes for p in predictions]
    columns = {
        **{axis: [cell.axes[axis] for cell in cells] for axis in cells[0].axes},
        "runs": [str(cell.runs) if cell.runs > 1 else "" for cell in cells],
        "fits": [p.fits or "" for p in predictions],
        "peak memory": column(required if any(required) else [p.allocated_bytes for p in predictions], MEMORY),
        "step": column([p.step_s for p in predictions], STEP),
        "total": column([p.total_s for p in predictions], TOTAL),
        "energy": column([p.energy_joules for p in predictions], ENERGY),
        "basis": [p.basis + (f" ({p.runs})" if p.runs else "") for p in predictions],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    align = "".join("r" if heading in ("peak memory", "step", "total", "energy", "runs") else "l" for heading in shown)
    filled = [[value or "-" for value in row] for row in zip(*shown.values(), strict=True)]
    return text_table.text([*shown], filled, width, align)


def column(values: Sequence[Interval | None], units: Units) -> list[str]:
    """Figures in one unit, each with its interval: "12.3 s ±8%", or "10..15 s" where it is wide or lopsided."""
    known = [value.value for value in values if value is not None]
    if not known:
        return [""] * len(values)
    middle = statistics.median(known)
    unit, size = next((unit for unit in reversed(units) if middle >= unit[1]), units[0])
    reaches = [_reach(value) for value in values]
    longest = max((len(reach) for reach in reaches), default=0)
    figures = []
    for value, reach in zip(values, reaches, strict=True):
        if value is None:
            figures.append("")
        elif reach:
            figures.append(f"{_digits(value.value / size)} {unit} {reach.rjust(longest)}")
        else:
            figures.append(f"{_digits(value.low / size)}..{_digits(value.high / size)} {unit}")
    return figures


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


def notes(cells: Sequence[PredictedCell]) -> list[str]:
    """What the figures rest on, which cells will not fit and which are unknown."""
    lines = []
    if any(cell.prediction.fits for cell in cells):
        lines.append("fits: yes, where all of the interval is below the GPU's memory; no, where all of it is above")
    for basis, meaning in BASES.items():
        members = [cell.prediction for cell in cells if cell.prediction.basis == basis]
        abouts = _listed(member.about for member in members)
        lines += [f"{basis}: {abouts or meaning}"] if members else []
    memory = _listed(cell.prediction.memory_basis for cell in cells)
    lines += [f"memory: {memory}"] if memory else []
    for fits, meaning in (("no", "likely to run out of memory"), ("tight", "may run out of memory")):
        members = [cell.axes for cell in cells if cell.prediction.fits == fits]
        names = _listed(" ".join(words) for words in products(members))
        lines += [f"{meaning}: {count(len(members), 'cell')}: {names}"] if members else []
    return [line for note in lines for line in textwrap.wrap(note, WIDTH, subsequent_indent="  ")]


def _listed(words: Iterable[str]) -> str:
    """Different words that are not empty, in their order, as far as they are few."""
    different = list(dict.fromkeys(word for word in words if word))
    more = [f"and {len(different) - NAMED} more"] * (len(different) > NAMED)
    return "; ".join([*different[:NAMED], *more])


def sums(cells: Sequence[PredictedCell], on_gpus: bool) -> str:
    """What the runs take that are not measured yet: one after the other, of GPUs, and of energy; those that will not
    fit take no such time. Ends of intervals are added up as they are: whatever makes one prediction wrong may make all
    wrong in the same direction."""
    unfit = sum(cell.left for cell in cells if cell.prediction.fits == "no")
    left = [cell for cell in cells if cell.left and cell.prediction.fits != "no"]
    known = [(cell, cell.prediction.total_s) for cell in left if cell.prediction.total_s is not None]
    runs, known_runs = sum(cell.left for cell in left), sum(cell.left for cell, _ in known)
    without = f"; without {count(unfit, 'run')} that will not fit" if unfit else ""
    measured = sum(cell.runs - cell.left for cell in cells)
    begin = f"{count(runs, 'run') if runs else 'nothing'} to measure"
    begin += f", {measured} measured before" if measured else ""
    if not known:
        return begin + ("; their times are unknown" if runs else "") + without
    times = summed((total_s, cell.left) for cell, total_s in known)
    parts = [f"{in_words(times, TOTAL)} one after the other"]
    if on_gpus:
        parts.append(f"{in_hours(summed((total_s, cell.left * cell.ranks) for cell, total_s in known))} of GPUs")
    joules = [(cell.prediction.energy_joules, cell.left) for cell, _ in known]
    energies = [(energy, runs) for energy, runs in joules if energy is not None]
    if len(energies) == len(known):
        parts.append(in_words(summed(energies), ENERGY))
    unknown = f"; without {count(runs - known_runs, 'run')} whose time is unknown" if known_runs < runs else ""
    return f"{begin}: {', '.join(parts)}{unknown}{without}"


def summed(intervals: Iterable[tuple[Interval, int]]) -> Interval:
    """The sum of intervals, each taken so many times."""
    taken = list(intervals)
    ends = (sum(getattr(interval, end) * times for interval, times in taken) for end in ("value", "low", "high"))
    return Interval(*ends)


def in_words(interval: Interval, units: Units) -> str:
    """ "5.2 h (4.8 to 5.6)"."""
    unit, size = next((unit for unit in reversed(units) if interval.value >= unit[1]), units[0])
    low, high = (_digits(end / size) for end in (interval.low, interval.high))
    return f"{_digits(interval.value / size)} {unit} ({low} to {high})"


def in_hours(interval: Interval) -> str:
    return in_words(interval, TOTAL[2:])
