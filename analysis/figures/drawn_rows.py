"""The rows that are drawn: a mean with its interval for each cell, what did not end, the ideal, and the papers' own.

Runs of a cell that ended ok are averaged, each counting the same; the others are rows of their own, without a figure.
"""

from collections.abc import Callable, Sequence
from typing import Any

from analysis.figures import captions
from analysis.papers.experiments import Experiment, Panel
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from analysis.stats import intervals

Row = dict[str, Any]
MEASURED, IDEAL, PAPER = "measured", "ideal", "paper"
T_INTERVAL, OF_STEPS = "95 % t interval", "standard deviation of their steps"
CUT = 1.4  # intervals reach so far beyond the means at most before they are cut


def measured(panel: Panel, measure: str) -> list[Row]:
    """A row for each cell that has the measure, and one for each other way in which its runs ended."""
    common, _ = captions.of_marks(panel.runs)
    rows = []
    for cell, runs in panel.cells.items():
        where = place(cell, panel.experiment)
        done = [run for run in runs if run["status"] == "ok" and run[measure] is not None]
        if done:
            spread = done[0]["step_std_s"] if measure == "step_s" and len(done) == 1 else None
            found = mean([run[measure] for run in done], spread)
            signs = "".join(dict.fromkeys(sign for run in done for sign in run["marks"] if sign not in common))
            rows.append({"measure": measure, **where, **found, "status": "ok", "signs": signs, "of": MEASURED})
        rows += [{"measure": measure, **where, "status": status, "n": n, "of": MEASURED} for status, n in ended(runs)]
    return rows


def mean(values: Sequence[float], spread: float | None = None) -> Row:
    """Mean, bounds and number of values; for a single one with a `spread`, that to either side."""
    interval = intervals.mean(values)
    row: Row = {"mean": interval.estimate, "low": interval.low, "high": interval.high, "n": len(values)}
    if interval.low is not None:
        return row | {"bar": T_INTERVAL}
    if spread is not None:
        return row | {"low": interval.estimate - spread, "high": interval.estimate + spread, "bar": OF_STEPS}
    return row | {"bar": None}


def ended(runs: Sequence[Run]) -> list[tuple[str, int]]:
    """Ways in which runs ended but for ok, and how many did."""
    statuses = [run["status"] for run in runs if run["status"] != "ok"]
    return [(status, statuses.count(status)) for status in dict.fromkeys(statuses)]


def place(cell: Cell, experiment: Experiment) -> Row:
    """A cell's values as the chart has them: numbers along x, else texts."""
    return {key: found if _along(key, found, experiment) else captions.value(found) for key, found in cell}


def _along(key: str, found: Any, experiment: Experiment) -> bool:
    return key == experiment.view.x and isinstance(found, int | float) and not isinstance(found, bool)


def ideal(panel: Panel, measure: str, rows: Sequence[Row]) -> list[Row]:
    """What n GPUs would reach if they were n times as fast as one, for each series that has one GPU; none for measures
    without such an ideal, or along another x.

    Tuning with more GPUs takes more rows an iteration, and with `max_steps` more rows altogether: time is then by row.
    """
    if panel.experiment.view.x != "gpus":
        return []
    expected = _expected(measure, panel.experiment.kind)
    if expected is None:
        return []
    series = [column for column in panel.experiment.swept if column != "gpus"]
    found = []
    points = [row for row in rows if row["status"] == "ok"]
    for one in (row for row in points if row["gpus"] == 1):
        alike = [row for row in points if all(row[column] == one[column] for column in series)]
        samples = _samples(panel, one, series)
        for row in alike if len(alike) > 1 else []:
            share = samples.get(row["gpus"], 1.0) if panel.experiment.kind == "llm" else 1.0
            at = {column: row[column] for column in (*series, "gpus")}
            found.append({"measure": measure, **at, "mean": expected(one["mean"], row["gpus"], share), "of": IDEAL})
    return [row | {"status": "ok"} for row in found]


def _expected(measure: str, kind: str) -> Callable[[float, int, float], float] | None:
    if measure == "total_s":
        return lambda one, gpus, share: one * share / gpus
    if measure.endswith("_per_s"):
        return lambda one, gpus, share: one * gpus
    if measure == "step_s" and kind == "llm":
        return lambda one, gpus, share: one
    return None


def _samples(panel: Panel, one: Row, series: Sequence[str]) -> dict[int, float]:
    """By GPUs: samples that the runs of a series took, as a share of those of one GPU."""
    counts: dict[int, int] = {}
    for cell, runs in panel.cells.items():
        where = place(cell, panel.experiment)
        known = [run["samples_trained"] for run in runs if run["status"] == "ok" and run["samples_trained"]]
        if known and all(where[column] == one[column] for column in series):
            counts[where["gpus"]] = known[0]
    return {gpus: count / counts[1] for gpus, count in counts.items()} if 1 in counts else {}


def paper(panel: Panel, measure: str, printed: Sequence[Any]) -> list[Row]:
    """The papers' own figures of a measure, where they say all that tells the panel's cells apart.

    Args:
        printed: objects with `cell` (swept column to value), `measure`, `value` and `hardware`.
    """
    if not comparable(panel):
        return []
    needed = [column for column in panel.experiment.swept if len(panel.values(column)) > 1]
    rows = []
    for one in printed:
        if one.measure != measure or not all(column in one.cell for column in needed):
            continue
        single = {column: panel.values(column)[0] for column in panel.experiment.swept if column not in needed}
        if any(one.cell.get(column, value) != value for column, value in single.items()):
            continue
        cell = tuple((single | {column: one.cell[column] for column in needed}).items())
        label = f"paper ({one.hardware})"
        at = place(cell, panel.experiment)
        rows.append({"measure": measure, **at, "mean": one.value, "status": "ok", "of": PAPER, "paper": label})
    return rows


def comparable(panel: Panel) -> bool:
    """Whether the papers' figures may stand beside these: not of what was shrunk, nor of CPU ranks."""
    return not any(run["smoke"] or run["cpu_ranks"] for run in panel.runs)


def reach(rows: Sequence[Row]) -> tuple[float, float]:
    """The least and the most to show: all means, and intervals as far as they do not dwarf them."""
    means = [row["mean"] for row in rows if row.get("mean") is not None]
    if not means:
        return 0.0, 1.0
    least, most = min(means), max(means)
    room = (CUT - 1) * max(most, most - least)
    lows = [row["low"] for row in rows if row.get("low") is not None]
    highs = [row["high"] for row in rows if row.get("high") is not None]
    return max(min([least, *lows]), least - room), min(max([most, *highs]), most + room)


def bars(shown: dict[str, tuple[list[Row], tuple[float, float]]], kind: str) -> list[str]:
    """Lines on what points and their bars are, said once where it is the same for all measures, and on what was cut.

    Args:
        shown: by measure, its rows and the least and the most of its axis.
        kind: of the runs.
    """
    told = {captions.measure(measure, kind): _bars(rows) for measure, (rows, _) in shown.items()}
    said = {line: [name for name, other in told.items() if other == line] for line in told.values() if line}
    named = [f"{captions.listed(names)}: {line}" if len(said) > 1 else line for line, names in said.items()]
    beyond = [line for rows, limits in shown.values() for line in cut(rows, limits)]
    return [*(line[:1].upper() + line[1:] for line in named), *dict.fromkeys(beyond)]


def _bars(rows: Sequence[Row]) -> str:
    points = [row for row in rows if row["of"] == MEASURED and row["status"] == "ok"]
    several = sorted({row["n"] for row in points if row["bar"] == T_INTERVAL})
    told = []
    if several:
        runs = f"{several[0]}" if len(several) == 1 else f"{several[0]} to {several[-1]}"
        told.append(f"means of {runs} runs with their {T_INTERVAL}")
    if any(row["n"] == 1 for row in points):
        spread = any(row["bar"] == OF_STEPS for row in points)
        told.append(f"single runs {f'with the {OF_STEPS}' if spread else 'without a bar'}")
    return captions.listed(told)


def cut(rows: Sequence[Row], shown: tuple[float, float]) -> list[str]:
    """A line where an interval reaches beyond what is shown, from the least to the most."""
    bounds = [(row["low"], row["high"]) for row in rows if row.get("low") is not None]
    beyond = any(low < shown[0] or high > shown[1] for low, high in bounds)
    return ["Intervals are cut where they reach beyond the axis"] * beyond
