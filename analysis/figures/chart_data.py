"""Build the tidy table of an experiment's figure.

It has a row for each mean with its interval, each status other than ok, each epoch, each metric of
a profile, and each printed figure of the papers. The runs of a cell that ended ok are averaged with
equal weight, except that the highest peak memory counts. The other runs are rows without a mean.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from multicard.measure import formulas
from multicard.messages import Message
from multicard.papers.printed import HARDWARE
from multicard.records import figures as registry

from .. import same_setting
from ..experiments import EFFICIENCY, Panel
from ..runs import grouping
from ..runs.grouping import ACCURACY, MEMORY, Cell
from ..runs.load import Run
from ..stats import intervals
from ..stats.intervals import Interval
from . import captions

Row = dict[str, Any]
MEASURED = "measured"
IDEAL = "ideal"
PAPER = "paper"
SHARED = "shared"
T_INTERVAL = "95 % t interval"
STEP_STD = "for single runs the standard deviation of their steps"
MAX_REACH = 2.0  # An interval extends an axis to at most this multiple of the largest mean.
MIN_ROOM = 0.005  # The least room above and below accuracies.
MIN_SPAN = 0.02  # The shortest axis of accuracies.
# The shortest axis in half widths of the 95 % interval of an accuracy over its answers.
SPAN_IN_HALF_WIDTHS = 6.0


def mean_rows(panel: Panel, measure: str) -> list[Row]:
    """Return a row for each cell that has the measure, and for each other status of its runs."""
    common_signs, _ = captions.marks(panel.runs)
    rows = []
    for cell, runs in panel.cells.items():
        cell_fields = {
            "measure": measure,
            **axis_values(cell, panel.experiment.view.x),
            "of": MEASURED,
        }
        counting_runs = grouping.counting(grouping.ok_runs(runs), measure)
        interval = panel.repeated.figure(counting_runs, measure)
        if interval is not None:
            step_std = (
                counting_runs[0]["step_std_s"]
                if measure == "step_s" and len(counting_runs) == 1
                else None
            )
            marks = chain.from_iterable(run["marks"] for run in counting_runs)
            signs = "".join(dict.fromkeys(sign for sign in marks if sign not in common_signs))
            run_fields = {"status": "ok", "signs": signs} | answer_counts(counting_runs, measure)
            rows.append(
                cell_fields | _interval_fields(interval, len(counting_runs), step_std) | run_fields
            )
        rows += [cell_fields | {"status": status, "n": n} for status, n in unended_counts(runs)]
    return rows


def averaged_rows(
    panel: Panel,
    measure: str,
    x: str,
    values_of: Callable[[Run], Iterable[tuple[Any, float]]],
    of_seeds: bool = False,
) -> list[Row]:
    """Return a row for each x of each cell, with the mean over its undisturbed runs that ended ok.

    Args:
        x: the field of the rows along which a run has several values: "metric" or "epoch".
        values_of: returns the pairs of x and value of a run.
        of_seeds: average one run of each seed, as for curves. A cell then needs two values of x.
    """
    rows = []
    for cell, runs in panel.cells.items():
        cell_fields = {"measure": measure, **axis_values(cell, panel.experiment.view.x)}
        ok_cell_runs = grouping.ok_runs(runs)
        groups = grouping.by_seed(
            ok_cell_runs if of_seeds else grouping.undisturbed(ok_cell_runs), of_seeds
        )
        values = list(chain.from_iterable(values_of(group[0]) for group in groups))
        least = 2 if of_seeds else 1
        rows += [cell_fields | row for row in means_by(x, values, least)]
    return rows


def means_by(x: str, values: Iterable[tuple[Any, float]], least: int = 1) -> list[Row]:
    """Return a row for each x with the mean of its values, its bounds and their number.

    The list is empty if there are fewer than `least` values of x.
    """
    by_x = {
        x_value: [value for _, value in pairs]
        for x_value, pairs in grouping.grouped(values, itemgetter(0)).items()
    }
    order = grouping.ordered(list(by_x))
    rows = [
        {
            x: x_value,
            **_interval_fields(intervals.mean(by_x[x_value]), len(by_x[x_value])),
            "status": "ok",
            "of": MEASURED,
        }
        for x_value in order
    ]
    return rows if len(rows) >= least else []


def axis_values(cell: Cell, x: str) -> Row:
    """Return a cell's values as a chart takes them: numbers along x, else texts."""
    return {
        key: value if key == x and grouping.is_numeric([value]) else grouping.typed(value)
        for key, value in cell
    }


def _interval_fields(interval: Interval, count: int, spread: float | None = None) -> Row:
    """Return an interval as a row. If it has no bounds, `spread` on both sides gives them."""
    row: Row = {"mean": interval.estimate, "low": interval.low, "high": interval.high, "n": count}
    if interval.low is not None:
        return row | {"bar": T_INTERVAL}
    if spread is not None:
        return row | {
            "low": interval.estimate - spread,
            "high": interval.estimate + spread,
            "bar": STEP_STD,
        }
    return row | {"bar": None}


def unended_counts(runs: Sequence[Run]) -> list[tuple[str, int]]:
    return list(Counter(run["status"] for run in runs if run["status"] != "ok").items())


def efficiency_rows(panel: Panel, measure: str) -> list[Row]:
    """Return each cell's parallel efficiency: one GPU's time / (GPUs x its time), of means."""
    other_columns = [column for column in panel.experiment.swept if column != "gpus"]
    ok_rows = [row for row in mean_rows(panel, measure) if row["status"] == "ok"]
    base_times = {
        tuple(row[column] for column in other_columns): row["mean"]
        for row in ok_rows
        if str(row["gpus"]) == "1"
    }
    rows = []
    for row in ok_rows:
        base_time = base_times.get(tuple(row[column] for column in other_columns))
        if base_time is not None:
            share = formulas.parallel_efficiency(base_time, row["mean"], int(row["gpus"]))
            rows.append(
                row | {"measure": EFFICIENCY, "mean": share, "low": None, "high": None, "bar": None}
            )
    return rows


def paper_rows(panel: Panel, measure: str, printed: str | None = None, **labels: str) -> list[Row]:
    """Return the papers' own figures of a measure, for cells measured in the same setting.

    Args:
        printed: the name of the measure in the papers' tables, if it differs.
        labels: further fields of each row.
    """
    return [
        {
            "measure": measure,
            **axis_values(cell, panel.experiment.view.x),
            "mean": figure.value,
            "low": figure.low,
        }
        | {"high": figure.high, "of": PAPER, "status": "ok", "printed": figure.measure}
        | {"paper": f"paper ({HARDWARE})", **labels}
        for cell, figure in same_setting.comparable_figures(panel, printed or measure).items()
    ]


def axis_limits(rows: Sequence[Row], measure: str) -> tuple[float, float]:
    """Return the limits of an axis: all means, and intervals unless they dwarf the means.

    An axis starts at 0. Only an axis of accuracies does not. It is so long that a difference that
    chance explains, given the number of tested answers, looks small on it.
    """
    highest_shown = MAX_REACH * max(
        (row["mean"] for row in rows if row.get("mean") is not None), default=0.5
    )
    bounds = []
    for row in rows:
        bounds.extend(row[end] for end in ("mean", "low", "high") if row.get(end) is not None)
    shown_ends = [min(bound, highest_shown) for bound in bounds] or [0.0, 1.0]
    if measure != ACCURACY:
        return 0.0, 1.05 * max(shown_ends) or 1.0
    room = max(0.1 * (max(shown_ends) - min(shown_ends)), MIN_ROOM)
    span = max(
        max(shown_ends) - min(shown_ends) + 2 * room,
        MIN_SPAN,
        SPAN_IN_HALF_WIDTHS * _half_width_by_chance(rows),
    )
    low = max(0.0, (min(shown_ends) + max(shown_ends) - span) / 2)
    high = min(1.0, low + span)
    return max(0.0, high - span), high


def _half_width_by_chance(rows: Sequence[Row]) -> float:
    """Return half of the widest 95 % interval of an accuracy over its answers.

    The result is 0 if the number of answers is unknown.
    """
    halves = [0.0]
    for row in rows:
        if row.get("mean") is not None and row.get("test_samples"):
            answers = intervals.of_answers([row["mean"]], [row["test_samples"]])
            if answers.low is not None and answers.high is not None:
                halves.append((answers.high - answers.low) / 2)
    return max(halves)


def answer_counts(runs: Sequence[Run], measure: str) -> Row:
    """Return the number of answers behind an accuracy, as a part of its row.

    It is empty for other measures.
    """
    counts = [run["test_samples"] for run in runs if run["test_samples"]]
    return {"test_samples": max(counts)} if measure == ACCURACY and counts else {}


def disturbed_notes(panel: Panel, measures: Iterable[str]) -> list[Message]:
    """Return lines about the runs that count for no time, if a panel's chart shows a time."""
    if not any(registry.of_column(measure).can_be_disturbed for measure in measures):
        return []
    return grouping.disturbed_notes(grouping.ok_runs(runs) for runs in panel.cells.values())


def means_notes(rows: Sequence[Row]) -> list[str]:
    points = [row for row in rows if row["of"] == MEASURED and row.get("status", "ok") == "ok"]
    if not points:
        return []
    parts = [_averaging_note(points)]
    bar_meanings = list(dict.fromkeys(row["bar"] for row in points if row.get("bar")))
    if bar_meanings:
        parts.append(
            Message("figure.bars", f"bars: {captions.listed(bar_meanings)}", bars=bar_meanings)
        )
    return ["; ".join(parts), *cut_note(rows)]


def _averaging_note(points: Sequence[Row]) -> Message:
    counts = {row["n"] for row in points}
    if counts == {1}:
        return Message("figure.single-runs", "Single runs")
    runs = sorted({min(counts), max(counts)})
    means = f"Means of {' to '.join(map(str, runs))} runs"
    if any(row["measure"] == MEMORY for row in points):
        return Message(
            "figure.means-and-highest", f"{means}, for peak memory the highest", runs=runs
        )
    return Message("figure.means", means, runs=runs)


def cut_note(rows: Sequence[Row]) -> list[str]:
    by_measure = grouping.grouped(rows, lambda row: row["measure"])
    is_cut = any(
        max(row.get("high") or 0.0 for row in measure_rows) > axis_limits(measure_rows, measure)[1]
        for measure, measure_rows in by_measure.items()
    )
    return (
        [Message("figure.intervals-cut", "Intervals are cut where they reach beyond the axis")]
        if is_cut
        else []
    )
