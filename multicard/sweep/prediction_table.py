"""Print the table of `predict=true`: one row a cell, the bases of the estimates, and their sum."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from multicard.config import prices
from multicard.config.base import plain
from multicard.config.job import count
from multicard.estimate.estimates import Estimate
from multicard.estimate.observations import Basis, explain_marks
from multicard.messages import Message
from multicard.records import text_table
from multicard.records.figures import BYTES, JOULES, MONEY, Scale, Unit, seconds
from multicard.records.schema_parts import PredictedInterval, Prediction

WIDTH = 120  # Width of the notes below the table.
NAMED = 3  # At most this many reasons or cells of a kind are listed.
# An interval that reaches further than this share of the value is shown by its ends.
WIDE = 0.5
NEEDED = "needed memory"
AS_BUSY = "if others stay as busy"
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
DURATION = Unit("s", seconds, tuple(Scale(name, size, size) for name, size in _TIMES.items()))
# The heading of the needed memory of CPU ranks. Their processes take more than this.
TENSORS = "memory of tensors"
QUANTITIES = {  # The key of the prediction and its unit, by heading.
    "peak memory": ("allocated_bytes", BYTES),
    NEEDED: ("memory_bytes", BYTES),
    "step": ("step_s", DURATION),
    "total": ("total_s", DURATION),
    "energy": ("energy_joules", JOULES),
}


@dataclass(frozen=True)
class PredictionRow:
    """A cell with its repetitions.

    Attributes:
        axes: shown values of its axes, by heading.
        runs: number of its runs in the sweep.
        left: number of its runs that are not measured yet.
    """

    axes: Mapping[str, str]
    estimate: Estimate
    runs: int = 1
    left: int = 1

    @property
    def ranks(self) -> int:
        return self.estimate.config.gpus * self.estimate.config.nodes


def table_lines(rows: Sequence[PredictionRow], width: int | None) -> list[str]:
    """Return the rows as lines of at most `width` characters (None: any).

    Columns in which no cell has a value are left out.
    """
    predictions = [row.estimate.prediction for row in rows]
    figures = {
        name: column([getattr(prediction, key) for prediction in predictions], unit)
        for name, (key, unit) in QUANTITIES.items()
    }
    if all(row.estimate.target.device_type == "cpu" for row in rows):
        figures = {TENSORS if name == NEEDED else name: cells for name, cells in figures.items()}
    columns = {
        **{axis: [row.axes[axis] for row in rows] for axis in rows[0].axes},
        "runs": [str(row.runs) if row.runs > 1 else "" for row in rows],
        "fits": [prediction.fits or "" for prediction in predictions],
        **figures,
        AS_BUSY: [_as_busy(prediction) for prediction in predictions],
        "basis": [_basis(prediction) for prediction in predictions],
    }
    shown_columns = {heading: cells for heading, cells in columns.items() if any(cells)}
    align = "".join(
        "r" if heading in (*figures, AS_BUSY, "runs") else "l" for heading in shown_columns
    )
    filled_rows = [
        [value or "-" for value in row] for row in zip(*shown_columns.values(), strict=True)
    ]
    return text_table.text([*shown_columns], filled_rows, width, align)


def column(values: Sequence[PredictedInterval | None], unit: Unit) -> list[str]:
    """Return figures in one scale, each with its interval.

    The forms are "12.3 s ±8%", "10..15 s" for a lopsided interval, and "12 s (6..25)" for a wide
    one.
    """
    known = [value.value for value in values if value is not None]
    scale = unit.scale(statistics.median(known)) if known else unit.scales[0]
    return ["" if value is None else _figure(value, scale) for value in values]


def _figure(value: PredictedInterval, scale: Scale) -> str:
    ends = f"{_digits(value.low, scale)}..{_digits(value.high, scale)}"
    if value.value <= 0:
        return f"{ends} {scale.name}"
    sides = sorted(abs(end - value.value) / value.value for end in (value.low, value.high))
    if sides[1] > WIDE:
        return f"{_digits(value.value, scale)} {scale.name} ({ends})"
    if sides[1] > max(1.5 * sides[0], sides[0] + 0.02):
        return f"{ends} {scale.name}"
    decimals = 0 if sides[1] >= 0.0095 else 1
    percent = f"{100 * sides[1]:.{decimals}f}"
    return f"{_digits(value.value, scale)} {scale.name} ±{percent}%"


def _basis(prediction: Prediction) -> str:
    runs = f" ({prediction.runs})" if prediction.runs else ""
    return f"{Basis(prediction.basis).words}{prediction.marks}{runs}"


def _as_busy(prediction: Prediction) -> str:
    """Return the ends of the total if other programs stay as busy, or "" if that is not known.

    If no total is known, the step's ends are returned.
    """
    as_busy = prediction.as_busy
    if as_busy is None:
        return ""
    interval = as_busy.total_s or as_busy.step_s
    scale = DURATION.scale(interval.value)
    ends = f"{_digits(interval.low, scale)} to {_digits(interval.high, scale)} {scale.name}"
    return ends if as_busy.total_s is not None else f"{ends} a step"


def _digits(value: float, scale: Scale) -> str:
    value /= scale.divisor
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def note_lines(rows: Sequence[PredictionRow]) -> list[str]:
    """Return lines on the bases of the figures, and on cells that will not fit or are unknown."""
    predictions = [row.estimate.prediction for row in rows]
    lines = []
    if any(prediction.fits for prediction in predictions):
        sentence = (
            "fits: yes if the whole interval of the needed memory is below the GPU's memory, no if"
            " it is all above"
        )
        lines.append(Message("predict.fits", sentence))
    for basis in Basis:
        abouts = list_first(_abouts(basis, predictions))
        lines += [f"{basis}: {abouts}"] if abouts else []
    if any(row.estimate.target.hardware and not row.estimate.basis.is_own for row in rows):
        sentence = (
            "replace predict=true by `probe=true` on such a node to measure the times that are"
            " unknown or come from other machines"
        )
        lines.append(Message("predict.probe", sentence, key="probe"))
    lines += explain_marks(prediction.marks for prediction in predictions)
    if any(prediction.as_busy for prediction in predictions):
        sentence = (
            f"{AS_BUSY}: the total's 90% interval if other programs use as many cores as they did"
            " during the runs behind it"
        )
        lines.append(Message("predict.as-busy", sentence))
    memory = list_first(prediction.memory_basis for prediction in predictions)
    lines += [f"memory: {memory}"] if memory else []
    if members := [row for row in rows if row.estimate.prediction.fits == "no"]:
        sentence = f"likely to run out of memory: {count(len(members), 'cell')}: {_names(members)}"
        lines.append(Message("predict.no-fit", sentence, cells=len(members), named=_names(members)))
    if members := [row for row in rows if row.estimate.prediction.fits == "tight"]:
        sentence = f"may run out of memory: {count(len(members), 'cell')}: {_names(members)}"
        lines.append(
            Message("predict.tight-fit", sentence, cells=len(members), named=_names(members))
        )
    return text_table.folded(lines, WIDTH)


def _abouts(basis: Basis, predictions: Sequence[Prediction]) -> list[str]:
    """Return what the times on a basis rest on. Several different rooflines share one line."""
    abouts = [prediction.about for prediction in predictions if prediction.basis == basis]
    if basis is Basis.roofline and len({*abouts}) > 1:
        sentence = (
            "not measured, by the GPU's published rates: wide where the host may bound a step of"
            " few tokens"
        )
        return [Message("predict.roofline", sentence, cells=len(abouts))]
    return abouts


def _names(rows: Sequence[PredictionRow]) -> str:
    return list_first(
        " ".join(f"{axis}={value}" for axis, value in row.axes.items()) for row in rows
    )


def list_first(words: Iterable[str], most: int = NAMED) -> str:
    """List the first distinct words that are not empty, and the number of the others."""
    return text_table.first_few(list(dict.fromkeys(filter(None, words))), most, "; ")


def sums_line(rows: Sequence[PredictionRow], on_gpus: bool) -> Message:
    """Return a line on the time and energy of the runs that are not measured yet.

    The time is given one after the other, and as GPU time. Runs that will not fit do not count.
    Ends of intervals are added up, because the cause of one error may make all estimates wrong in
    the same direction. If the time of some runs is unknown, the sum is a lower bound without an
    interval.
    """
    unfit = sum(row.left for row in rows if row.estimate.prediction.fits == "no")
    remaining = [row for row in rows if row.left and row.estimate.prediction.fits != "no"]
    timed = [row for row in remaining if row.estimate.prediction.total_s is not None]
    runs = sum(row.left for row in remaining)
    unknown = sum(row.left for row in remaining if row not in timed)
    measured = sum(row.runs - row.left for row in rows)
    facts: dict[str, Any] = {"runs": runs, "measured": measured, "unknown": unknown, "unfit": unfit}
    sentence = f"{count(runs, 'run') if runs else 'nothing'} to measure"
    if measured:
        sentence += f", {measured} measured before"
    if timed:
        totals = _sums(timed, on_gpus)
        facts |= {name: _ends(total, bool(unknown)) for name, total in totals.items()}
        sentence += f": {_in_words(totals, bool(unknown))}"
        bounded = sum(row.left for row in timed if not row.estimate.basis.is_measured)
        if bounded:
            facts["not_measured"] = bounded
            sentence += f" ({bounded} of {count(runs, 'run')} by a roofline: not measured)"
        if unknown:
            sentence += f", and {count(unknown, 'run')} whose time is unknown"
        elif any(_total_as_busy(row) is not None for row in timed):
            as_busy = _sum_as_busy(timed)
            facts["seconds_as_busy"] = _ends(as_busy, is_part=False)
            sentence += (
                f". {AS_BUSY.capitalize()}: {_with_ends(as_busy, DURATION, is_part=False)} one"
                " after the other"
            )
    elif runs:
        sentence += f"; {'its time is' if runs == 1 else 'their times are'} unknown"
    if unfit:
        sentence += f"; without {count(unfit, 'run')} that will not fit"
    return Message("predict.sums", sentence, **facts)


def _sums(rows: Sequence[PredictionRow], on_gpus: bool) -> dict[str, PredictedInterval]:
    """Return sums over the runs that are left, as far as they are known.

    These are the seconds one after the other, GPU seconds, energy and price.
    """
    totals = {"seconds": _sum("total_s", [(row, row.left) for row in rows])}
    if on_gpus:
        totals["gpu_seconds"] = _sum("total_s", [(row, row.left * row.ranks) for row in rows])
    if all(row.estimate.prediction.energy_joules is not None for row in rows):
        totals["joules"] = _sum("energy_joules", [(row, row.left) for row in rows])
    hourly = [prices.gpu_hour(plain(row.estimate.config), row.estimate.target.gpu) for row in rows]
    if None not in hourly and all(row.estimate.target.device_type != "cpu" for row in rows):
        times = [
            row.left * row.ranks * (price or 0.0) / 3600
            for row, price in zip(rows, hourly, strict=True)
        ]
        totals["cost"] = _sum("total_s", zip(rows, times, strict=True))
    return totals


def _sum(key: str, times: Iterable[tuple[PredictionRow, float]]) -> PredictedInterval:
    """Sum a predicted quantity over several runs, each multiplied by its number."""
    low = value = high = 0.0
    for row, number in times:
        interval: PredictedInterval = getattr(row.estimate.prediction, key)
        low += interval.low * number
        value += interval.value * number
        high += interval.high * number
    return PredictedInterval(value, low, high)


def _total_as_busy(row: PredictionRow) -> PredictedInterval | None:
    as_busy = row.estimate.prediction.as_busy
    return None if as_busy is None else as_busy.total_s


def _sum_as_busy(rows: Sequence[PredictionRow]) -> PredictedInterval:
    """Return the seconds of all runs, one after the other, if other programs stay as busy.

    Runs without such an estimate count with their usual prediction.
    """
    low = value = high = 0.0
    for row in rows:
        interval = _total_as_busy(row) or row.estimate.prediction.total_s
        assert interval is not None, "a row without a time"
        low += interval.low * row.left
        value += interval.value * row.left
        high += interval.high * row.left
    return PredictedInterval(value, low, high)


def _ends(total: PredictedInterval, is_part: bool) -> list[float]:
    """Return the value, low and high; only the low end if the total covers only some runs."""
    return [total.low] if is_part else [total.value, total.low, total.high]


def _in_words(totals: Mapping[str, PredictedInterval], is_part: bool) -> str:
    """Return sums as text: "5.2 h (4.8 to 5.6) one after the other, 10.4 h (9.6 to 11) of GPUs"."""
    least = "at least " if is_part else ""
    words = [f"{least}{_with_ends(totals['seconds'], DURATION, is_part)} one after the other"]
    if "gpu_seconds" in totals:
        words.append(f"{_with_ends(totals['gpu_seconds'], DURATION, is_part)} of GPUs")
    if "joules" in totals:
        words.append(_with_ends(totals["joules"], JOULES, is_part))
    if "cost" in totals:
        cost = totals["cost"]
        low, value, high = (MONEY.text(end) for end in (cost.low, cost.value, cost.high))
        words.append(f"costs at least {low}" if is_part else f"costs {value} ({low} to {high})")
    return ", ".join(words)


def _with_ends(total: PredictedInterval, unit: Unit, is_part: bool) -> str:
    scale = unit.scale(total.value)
    if is_part:
        return f"{_digits(total.low, scale)} {scale.name}"
    return (
        f"{_digits(total.value, scale)} {scale.name} ({_digits(total.low, scale)} to"
        f" {_digits(total.high, scale)})"
    )
