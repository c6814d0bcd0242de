"""The tidy table of an experiment's figure: a row for each mean with its interval, each status
other than ok, epoch, metric of a profile, and printed figure of the papers.

Runs of a cell that ended ok are averaged with equal weight (of peak memory, the highest counts);
the others are rows without a mean.
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
OF_STEPS = "of single runs the standard deviation of their steps"
CUT = 2.0  # intervals extend an axis to at most this multiple of the largest mean
LEAST_ROOM = 0.005  # above and below accuracies
LEAST_SPAN = 0.02  # of an axis of accuracies
SPAN_OF_CHANCE = 6.0  # of it, in half-widths of the 95 % interval of an accuracy over its answers


def measured(panel: Panel, measure: str) -> list[Row]:
    """A row for each cell that has the measure, and one for each other status of its runs."""
    common, _ = captions.marks(panel.runs)
    rows = []
    for cell, runs in panel.cells.items():
        place = {"measure": measure, **axis_values(cell, panel.experiment.view.x), "of": MEASURED}
        ok = grouping.counting(grouping.ok_runs(runs), measure)
        interval = panel.repeated.figure(ok, measure)
        if interval is not None:
            spread = ok[0]["step_std_s"] if measure == "step_s" and len(ok) == 1 else None
            marks = chain.from_iterable(run["marks"] for run in ok)
            signs = "".join(dict.fromkeys(sign for sign in marks if sign not in common))
            about = {"status": "ok", "signs": signs} | answers_of(ok, measure)
            rows.append(place | _mean(interval, len(ok), spread) | about)
        rows += [place | {"status": status, "n": n} for status, n in unended(runs)]
    return rows


def averaged(
    panel: Panel,
    measure: str,
    x: str,
    values_of: Callable[[Run], Iterable[tuple[Any, float]]],
    of_seeds: bool = False,
) -> list[Row]:
    """A row for each x (metric; with `of_seeds` two epochs or more) of each cell: the mean over its
    undisturbed runs that ended ok, of curves (`of_seeds`) over one run of each seed.
    """
    rows = []
    for cell, runs in panel.cells.items():
        place = {"measure": measure, **axis_values(cell, panel.experiment.view.x)}
        ok = grouping.ok_runs(runs)
        groups = grouping.by_seed(ok if of_seeds else grouping.undisturbed(ok), of_seeds)
        values = list(chain.from_iterable(values_of(same[0]) for same in groups))
        rows += [place | row for row in means_by(x, values, least=1 + of_seeds)]
    return rows


def means_by(x: str, values: Iterable[tuple[Any, float]], least: int = 1) -> list[Row]:
    """A row for each x with the mean of its values, its bounds and their number;
    empty for fewer than `least` of x.
    """
    by_x = {
        at: [value for _, value in own]
        for at, own in grouping.grouped(values, itemgetter(0)).items()
    }
    order = grouping.ordered(list(by_x))
    rows = [
        {x: at, **_mean(intervals.mean(by_x[at]), len(by_x[at])), "status": "ok", "of": MEASURED}
        for at in order
    ]
    return rows if len(rows) >= least else []


def axis_values(cell: Cell, x: str) -> Row:
    """A cell's values as the chart has them: numbers along x, else texts."""
    return {
        key: value if key == x and grouping.is_numeric([value]) else grouping.typed(value)
        for key, value in cell
    }


def _mean(interval: Interval, count: int, spread: float | None = None) -> Row:
    """An interval as a row; without bounds, those of `spread` to either side, if any."""
    row: Row = {"mean": interval.estimate, "low": interval.low, "high": interval.high, "n": count}
    if interval.low is not None:
        return row | {"bar": T_INTERVAL}
    if spread is not None:
        return row | {
            "low": interval.estimate - spread,
            "high": interval.estimate + spread,
            "bar": OF_STEPS,
        }
    return row | {"bar": None}


def unended(runs: Sequence[Run]) -> list[tuple[str, int]]:
    return list(Counter(run["status"] for run in runs if run["status"] != "ok").items())


def efficiency(panel: Panel, measure: str) -> list[Row]:
    """Parallel efficiency of each cell, one GPU's time / (GPUs x its time), as a ratio of means."""
    others = [column for column in panel.experiment.swept if column != "gpus"]
    ok = [row for row in measured(panel, measure) if row["status"] == "ok"]
    bases = {
        tuple(row[column] for column in others): row["mean"]
        for row in ok
        if str(row["gpus"]) == "1"
    }
    rows = []
    for row in ok:
        base = bases.get(tuple(row[column] for column in others))
        if base is not None:
            share = formulas.parallel_efficiency(base, row["mean"], int(row["gpus"]))
            rows.append(
                row | {"measure": EFFICIENCY, "mean": share, "low": None, "high": None, "bar": None}
            )
    return rows


def paper(panel: Panel, measure: str, printed: str | None = None, **labels: str) -> list[Row]:
    """The papers' own figures of a measure (there called `printed`), for cells that were measured
    in the same setting.
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
        for cell, figure in same_setting.beside(panel, printed or measure).items()
    ]


def axis_limits(rows: Sequence[Row], measure: str) -> tuple[float, float]:
    """Limits of an axis, from 0 except for accuracies: all means,
    and intervals as far as they do not dwarf them.

    An axis of accuracies is so long that what chance explains, by the answers that were tested,
    looks small on it.
    """
    most = CUT * max((row["mean"] for row in rows if row.get("mean") is not None), default=0.5)
    bounds = []
    for row in rows:
        bounds.extend(row[end] for end in ("mean", "low", "high") if row.get(end) is not None)
    ends = [min(bound, most) for bound in bounds] or [0.0, 1.0]
    if measure != ACCURACY:
        return 0.0, 1.05 * max(ends) or 1.0
    room = max(0.1 * (max(ends) - min(ends)), LEAST_ROOM)
    span = max(max(ends) - min(ends) + 2 * room, LEAST_SPAN, SPAN_OF_CHANCE * _by_chance(rows))
    low = max(0.0, (min(ends) + max(ends) - span) / 2)
    high = min(1.0, low + span)
    return max(0.0, high - span), high


def _by_chance(rows: Sequence[Row]) -> float:
    """Half of the widest 95 % interval of an accuracy of these rows over its answers;
    0 where they are not known.
    """
    halves = [0.0]
    for row in rows:
        if row.get("mean") is not None and row.get("test_samples"):
            answers = intervals.of_answers([row["mean"]], [row["test_samples"]])
            if answers.low is not None and answers.high is not None:
                halves.append((answers.high - answers.low) / 2)
    return max(halves)


def answers_of(runs: Sequence[Run], measure: str) -> Row:
    """The answers behind an accuracy of a setting, as a part of its row;
    empty for other measures.
    """
    counts = [run["test_samples"] for run in runs if run["test_samples"]]
    return {"test_samples": max(counts)} if measure == ACCURACY and counts else {}


def disturbed_notes(panel: Panel, measures: Iterable[str]) -> list[Message]:
    """Lines about the runs that count for no time of a panel's chart, if it shows one."""
    if not any(registry.of_column(measure).can_be_disturbed for measure in measures):
        return []
    return grouping.disturbed_notes(grouping.ok_runs(runs) for runs in panel.cells.values())


def means_notes(rows: Sequence[Row]) -> list[str]:
    points = [row for row in rows if row["of"] == MEASURED and row.get("status", "ok") == "ok"]
    if not points:
        return []
    parts = [_averaging(points)]
    bars = list(dict.fromkeys(row["bar"] for row in points if row.get("bar")))
    if bars:
        parts.append(Message("figure.bars", f"bars: {captions.listed(bars)}", bars=bars))
    return ["; ".join(parts), *cut_note(rows)]


def _averaging(points: Sequence[Row]) -> Message:
    counts = {row["n"] for row in points}
    if counts == {1}:
        return Message("figure.single-runs", "Single runs")
    runs = sorted({min(counts), max(counts)})
    means = f"Means of {' to '.join(map(str, runs))} runs"
    if any(row["measure"] == MEMORY for row in points):
        return Message(
            "figure.means-and-highest", f"{means}, of peak memory the highest", runs=runs
        )
    return Message("figure.means", means, runs=runs)


def cut_note(rows: Sequence[Row]) -> list[str]:
    by_measure = grouping.grouped(rows, lambda row: row["measure"])
    is_cut = any(
        max(row.get("high") or 0.0 for row in own) > axis_limits(own, measure)[1]
        for measure, own in by_measure.items()
    )
    return (
        [Message("figure.intervals-cut", "Intervals are cut where they reach beyond the axis")]
        if is_cut
        else []
    )
