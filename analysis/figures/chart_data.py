"""The rows that a chart shows: the mean of each cell with its interval, runs that did not end ok, the ideal scaling,
and the papers' own figures.

Runs of a cell that ended ok are averaged with equal weight (of peak memory, the highest counts); the others are rows
without a mean.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from analysis import same_setting
from analysis.experiments import EFFICIENCY, Experiment, Panel
from analysis.figures import captions
from analysis.runs import grouping
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.runs.setting_figure import MEMORY
from analysis.stats import intervals
from analysis.stats.intervals import Interval
from multicard.measure import formulas
from papers.printed import PrintedFigure

Row = dict[str, Any]
MEASURED, IDEAL, PAPER, EXCLUDED = "measured", "ideal", "paper", "excluded"
T_INTERVAL, OF_STEPS = "95 % t interval", "standard deviation of their steps"
CUT = 1.4  # an interval may extend the axis to so many times the largest mean


def measured(panel: Panel, measure: str) -> list[Row]:
    """A row for each cell that has the measure, and one for each other status of its runs."""
    common, _ = captions.marks(panel.runs)
    rows = []
    for cell, runs in panel.cells.items():
        place = {"measure": measure, **axis_values(cell, panel.experiment), "of": MEASURED}
        ok = [run for run in runs if run["status"] == "ok"]
        interval = panel.repeated.figure(ok, measure)
        if interval is not None:
            spread = ok[0]["step_std_s"] if measure == "step_s" and len(ok) == 1 else None
            signs = "".join(dict.fromkeys(sign for run in ok for sign in run["marks"] if sign not in common))
            rows.append(place | _bar(interval, len(ok), spread) | {"status": "ok", "signs": signs})
        rows += [place | {"status": status, "n": n} for status, n in unended(runs)]
    return rows


def excluded(panel: Panel, measure: str) -> list[Row]:
    """A row for each cell that the experiment excludes, among the measured values of its columns."""
    experiment = panel.experiment
    columns = [[(name, value) for value in panel.values(name)] for name in experiment.swept]
    cells = [cell for cell in product(*columns) if not experiment.has(cell) and cell not in panel.cells]
    return [{"measure": measure, **axis_values(cell, experiment), "of": EXCLUDED, "status": "ok"} for cell in cells]


def axis_values(cell: Cell, experiment: Experiment) -> Row:
    """A cell's values as the chart has them: numbers along x, else texts."""
    return {
        key: value if key == experiment.view.x and captions.is_numeric([value]) else grouping.typed(value)
        for key, value in cell
    }


def mean(values: Sequence[float]) -> Row:
    """Mean, bounds and number of values, which alone show how they differ."""
    return _bar(intervals.mean(values), len(values))


def _bar(interval: Interval, count: int, spread: float | None = None) -> Row:
    """An interval as a row; without bounds, those of `spread` to either side, if any."""
    row: Row = {"mean": interval.estimate, "low": interval.low, "high": interval.high, "n": count}
    if interval.low is not None:
        return row | {"bar": T_INTERVAL}
    if spread is not None:
        return row | {"low": interval.estimate - spread, "high": interval.estimate + spread, "bar": OF_STEPS}
    return row | {"bar": None}


def unended(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """Each status but ok, and how many runs have it."""
    statuses = [run["status"] for run in runs if run["status"] != "ok"]
    return [(status, statuses.count(status)) for status in dict.fromkeys(statuses)]


def ideal(panel: Panel, measure: str, rows: Sequence[Row]) -> list[Row]:
    """What n GPUs would reach if they were n times as fast as one, for each series with a run on one GPU.

    Nothing for measures without such an ideal, or along another x. Tuning on more GPUs takes more rows an iteration,
    and with `max_steps` more rows in all: its time is compared per row.
    """
    of_one = _ideal_of_one(measure, panel.experiment.kind)
    if panel.experiment.view.x != "gpus" or of_one is None:
        return []
    series = panel.experiment.series
    ok = [row for row in rows if row["status"] == "ok"]
    ideal_rows = []
    for base in (row for row in ok if row["gpus"] == 1):
        alike = [row for row in ok if all(row[column] == base[column] for column in series)]
        shares = _sample_shares(panel, base) if panel.experiment.kind == "llm" else {}
        for row in alike if len(alike) > 1 else []:
            place = {"measure": measure, **{column: row[column] for column in (*series, "gpus")}}
            expected = of_one(base["mean"], row["gpus"], shares.get(row["gpus"], 1.0))
            ideal_rows.append(place | {"mean": expected, "of": IDEAL, "status": "ok"})
    return ideal_rows


def efficiency(panel: Panel, measure: str) -> list[Row]:
    """The parallel efficiency of each cell, one GPU's time / (GPUs x its time), as a ratio of means."""
    ok = [row for row in measured(panel, measure) if row["status"] == "ok"]
    others = [column for column in panel.experiment.swept if column != "gpus"]
    times_of_one = {tuple(row[column] for column in others): row["mean"] for row in ok if str(row["gpus"]) == "1"}
    rows = []
    for row in ok:
        time_of_one = times_of_one.get(tuple(row[column] for column in others))
        if time_of_one is not None:
            share = formulas.parallel_efficiency(time_of_one, row["mean"], int(row["gpus"]))
            rows.append(row | {"measure": EFFICIENCY, "mean": share, "low": None, "high": None, "bar": None})
    return rows


def _ideal_of_one(measure: str, kind: str) -> Callable[[float, int, float], float] | None:
    """The ideal as a function of one GPU's mean, the number of GPUs, and their samples as a share of one GPU's."""
    if measure == "total_s":
        return lambda mean, gpus, share: mean * share / gpus
    if measure.endswith("_per_s"):
        return lambda mean, gpus, share: mean * gpus
    if measure == "step_s" and kind == "llm":
        return lambda mean, gpus, share: mean
    return None


def _sample_shares(panel: Panel, base: Row) -> dict[int, float]:
    """By GPUs: samples trained in the series of `base`, as a share of those on one GPU."""
    samples: dict[int, int] = {}
    for cell, runs in panel.cells.items():
        place = axis_values(cell, panel.experiment)
        trained = [run["samples_trained"] for run in runs if run["status"] == "ok" and run["samples_trained"]]
        if trained and all(place[column] == base[column] for column in panel.experiment.series):
            samples[place["gpus"]] = trained[0]
    return {gpus: count / samples[1] for gpus, count in samples.items()} if 1 in samples else {}


def paper(panel: Panel, measure: str) -> list[Row]:
    """The papers' own figures of a measure, for the cells of which the panel has the same setting."""
    return [
        {"measure": measure, **axis_values(cell, panel.experiment), "mean": figure.value, "status": "ok"}
        | {"of": PAPER, "paper": paper_label(figure)}
        for cell, figure in same_setting.beside(panel, measure).items()
    ]


def paper_label(figure: PrintedFigure) -> str:
    """The series of a figure in the legend."""
    return f"paper ({figure.hardware})"


def axis_limits(rows: Sequence[Row]) -> tuple[float, float]:
    """Least and greatest value to show: all means, and intervals as far as they do not dwarf them."""
    means = [row["mean"] for row in rows if row.get("mean") is not None]
    if not means:
        return 0.0, 1.0
    least, most = min(means), max(means)
    room = (CUT - 1) * max(most, most - least)
    bounds = [(row["low"], row["high"]) for row in rows if row.get("low") is not None]
    low, high = min([least, *(low for low, _ in bounds)]), max([most, *(high for _, high in bounds)])
    return max(low, least - room), min(high, most + room)


def bar_notes(charts: dict[str, tuple[list[Row], tuple[float, float]]], kind: str) -> list[str]:
    """Lines on what points and bars are, and on intervals that are cut.

    Args:
        charts: by measure, its rows and the limits of its axis.
        kind: of the runs.
    """
    by_line: dict[str, list[str]] = {}
    for measure, (rows, _) in charts.items():
        if measure == EFFICIENCY:
            continue
        by_line.setdefault(_means_line(rows), []).append(captions.measure(measure, kind))
    by_line.pop("", None)
    lines = [f"{captions.listed(names)}: {line}" if len(by_line) > 1 else line for line, names in by_line.items()]
    cut = [line for rows, limits in charts.values() for line in cut_note(rows, limits)]
    return [*(line[:1].upper() + line[1:] for line in lines), *dict.fromkeys(cut)]


def _means_line(rows: Sequence[Row]) -> str:
    points = [row for row in rows if row["of"] == MEASURED and row["status"] == "ok"]
    several = sorted({row["n"] for row in points if row["bar"] == T_INTERVAL})
    parts = []
    if several:
        parts.append(f"means of {count_range(several)} runs with their {T_INTERVAL}")
    repeated = sorted({row["n"] for row in points if row["n"] > 1 and row["bar"] != T_INTERVAL})
    if repeated:
        figure = "the highest" if points[0]["measure"] == MEMORY else "means"
        parts.append(f"{figure} of {count_range(repeated)} runs")
    if any(row["n"] == 1 and row["bar"] != T_INTERVAL for row in points):
        spread = any(row["bar"] == OF_STEPS for row in points)
        parts.append(f"single runs {f'with the {OF_STEPS}' if spread else 'without a bar'}")
    return captions.listed(parts)


def count_range(counts: Sequence[int]) -> str:
    return f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"


def cut_note(rows: Sequence[Row], limits: tuple[float, float]) -> list[str]:
    """A line where an interval reaches beyond the limits of the axis."""
    bounds = [(row["low"], row["high"]) for row in rows if row.get("low") is not None]
    cut = any(low < limits[0] or high > limits[1] for low, high in bounds)
    return ["Intervals are cut where they reach beyond the axis"] * cut
