"""The printed table of `predict=true`: a row a cell, the bases of the estimates, and their sum."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from multicard.config import prices
from multicard.config.base import plain
from multicard.config.job import count
from multicard.estimate.estimates import Estimate
from multicard.estimate.observations import Basis
from multicard.records import comparable, text_table
from multicard.records.figures import BYTES, JOULES, MONEY, Scale, Unit, seconds
from multicard.records.schema_parts import Interval

WIDTH = 120  # of notes
NAMED = 3  # reasons or cells that are listed of a kind
WIDE = 0.5  # an interval that reaches further, as a share of the value, is shown by its ends
MARKS = {
    comparable.LOADED: "others kept its cores busy: the estimate rests on such runs alone",
    comparable.DISTURBED: "others used its GPUs: the estimate rests on such runs alone",
    comparable.DOUBTFUL: "cells that scaled beyond linear; carried on as linear",
}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
DURATION = Unit("s", seconds, tuple(Scale(name, size, size) for name, size in _TIMES.items()))
QUANTITIES = {  # by heading: the key of the prediction
    "peak memory": ("allocated_bytes", BYTES),
    "needed memory": ("memory_bytes", BYTES),
    "step": ("step_s", DURATION),
    "total": ("total_s", DURATION),
    "energy": ("energy_joules", JOULES),
}


@dataclass(frozen=True)
class Row:
    """A cell with its repetitions: shown values of its axes by heading, runs in the sweep, those not measured yet."""

    axes: Mapping[str, str]
    estimate: Estimate
    runs: int = 1
    left: int = 1

    @property
    def ranks(self) -> int:
        return self.estimate.config.gpus * self.estimate.config.nodes


def table(rows: Sequence[Row], width: int | None) -> list[str]:
    """The rows as lines of `width` cells (None: any); columns in which no cell has a value are left out."""
    found = [row.estimate.prediction for row in rows]
    columns = {
        **{axis: [row.axes[axis] for row in rows] for axis in rows[0].axes},
        "runs": [str(row.runs) if row.runs > 1 else "" for row in rows],
        "fits": [each.fits or "" for each in found],
        **{name: column([getattr(each, key) for each in found], unit) for name, (key, unit) in QUANTITIES.items()},
        "basis": [f"{each.basis}{each.marks}" + (f" ({each.runs})" if each.runs else "") for each in found],
    }
    shown = {heading: cells for heading, cells in columns.items() if any(cells)}
    align = "".join("r" if heading in (*QUANTITIES, "runs") else "l" for heading in shown)
    filled = [[value or "-" for value in row] for row in zip(*shown.values(), strict=True)]
    return text_table.text([*shown], filled, width, align)


def column(values: Sequence[Interval | None], unit: Unit) -> list[str]:
    """Figures in one scale, each with its interval: "12.3 s ±8%", or "10..15 s" where it is wide or lopsided."""
    known = [value.value for value in values if value is not None]
    scale = unit.scale(statistics.median(known)) if known else unit.scales[0]
    return ["" if value is None else _figure(value, scale) for value in values]


def _figure(value: Interval, scale: Scale) -> str:
    sides = sorted(abs(end - value.value) / value.value for end in (value.low, value.high)) if value.value > 0 else []
    if not sides or sides[1] > min(WIDE, max(1.5 * sides[0], sides[0] + 0.02)):
        return f"{_digits(value.low, scale)}..{_digits(value.high, scale)} {scale.name}"
    return f"{_digits(value.value, scale)} {scale.name} ±{100 * sides[1]:.{0 if sides[1] >= 0.0095 else 1}f}%"


def _digits(value: float, scale: Scale) -> str:
    value /= scale.divisor
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def notes(rows: Sequence[Row]) -> list[str]:
    """Lines on the bases of the figures, and on cells that will not fit or are unknown."""
    found = [row.estimate.prediction for row in rows]
    lines = []
    if any(each.fits for each in found):
        lines.append("fits: yes, where all of the needed memory's interval is below the GPU's; no, where all is above")
    for basis in Basis:
        abouts = listed(each.about for each in found if each.basis == basis)
        lines += [f"{basis}: {abouts}"] if abouts else []
    if any(row.estimate.target.hardware and not row.estimate.basis.is_own for row in rows):
        lines.append("to know times that are unknown or published: probe=true in place of predict=true, on such a node")
    marks = {mark for each in found for mark in each.marks}
    lines += [f"{mark}: {meaning}" for mark, meaning in MARKS.items() if mark in marks]
    memory = listed(each.memory_basis for each in found)
    lines += [f"memory: {memory}"] if memory else []
    for fits, meaning in (("no", "likely to run out of memory"), ("tight", "may run out of memory")):
        members = [row.axes for row in rows if row.estimate.prediction.fits == fits]
        names = listed(" ".join(f"{axis}={value}" for axis, value in axes.items()) for axes in members)
        lines += [f"{meaning}: {count(len(members), 'cell')}: {names}"] if members else []
    return text_table.folded(lines, WIDTH)


def listed(words: Iterable[str], most: int = NAMED) -> str:
    """The first different words that are not empty, in their order, and the number of the others."""
    return text_table.first_few(list(dict.fromkeys(filter(None, words))), most, "; ")


def sums(rows: Sequence[Row], on_gpus: bool) -> str:
    """The time of runs that are not measured yet: one after the other, of all their GPUs, and their energy.

    Runs that will not fit do not count. Ends of intervals are added up: the cause of one error may make all estimates
    wrong in the same direction. Where the time of some runs is unknown, the sum is a least value without an interval.
    """
    unfit = sum(row.left for row in rows if row.estimate.prediction.fits == "no")
    left = [row for row in rows if row.left and row.estimate.prediction.fits != "no"]
    timed = [row for row in left if row.estimate.prediction.total_s is not None]
    runs, unknown = sum(row.left for row in left), sum(row.left for row in left if row not in timed)
    measured = sum(row.runs - row.left for row in rows)
    said = f"{count(runs, 'run') if runs else 'nothing'} to measure"
    said += f", {measured} measured before" if measured else ""
    if timed:
        said += f": {'at least ' * bool(unknown)}{_sum(timed, 'total', bool(unknown))} one after the other"
        said += f", {_sum(timed, 'total', bool(unknown), each_gpu=True)} of GPUs" if on_gpus else ""
        if all(row.estimate.prediction.energy_joules is not None for row in timed):
            said += f", {_sum(timed, 'energy', bool(unknown))}"
        said += _money(timed, bool(unknown))
        said += f", and {count(unknown, 'run')} whose time is unknown" if unknown else ""
    elif runs:
        said += f"; {'its time is' if runs == 1 else 'their times are'} unknown"
    return said + (f"; without {count(unfit, 'run')} that will not fit" if unfit else "")


def _money(rows: Sequence[Row], is_part: bool) -> str:
    """The price of all runs' GPU hours: ", costs 5.2 (4.8 to 5.6)"; empty where some have no price."""
    found = [prices.gpu_hour(plain(row.estimate.config), row.estimate.target.gpu) for row in rows]
    if None in found or any(row.estimate.target.device_type == "cpu" for row in rows):
        return ""
    hours = [row.left * row.ranks * (price or 0.0) / 3600 for row, price in zip(rows, found, strict=True)]
    low, value, high = (
        MONEY.text(sum(getattr(row.estimate.prediction.total_s, end) * n for row, n in zip(rows, hours, strict=True)))
        for end in ("low", "value", "high")
    )
    return f", costs at least {low}" if is_part else f", costs {value} ({low} to {high})"


def _sum(rows: Sequence[Row], quantity: str, is_part: bool, each_gpu: bool = False) -> str:
    """A quantity of all runs: "5.2 h (4.8 to 5.6)", or the low end alone where they are a part of those asked for."""
    key, unit = QUANTITIES[quantity]
    times = [row.left * (row.ranks if each_gpu else 1) for row in rows]
    value, low, high = (
        sum(getattr(getattr(row.estimate.prediction, key), end) * n for row, n in zip(rows, times, strict=True))
        for end in ("value", "low", "high")
    )
    scale = unit.scale(value)
    if is_part:
        return f"{_digits(low, scale)} {scale.name}"
    return f"{_digits(value, scale)} {scale.name} ({_digits(low, scale)} to {_digits(high, scale)})"
