"""Predictions against measurements: hollow marks with intervals, beside filled ones."""

from collections.abc import Sequence

import altair as alt

from analysis.commands.predictions import BASES, NAMES, PREDICTED, Comparison, compare
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import MEASURED, Row
from analysis.figures.charts import WIDTH, by_series, drawn, facets, intervals, number_axis, y_axis
from analysis.figures.vega import Figure
from analysis.runs import grouping
from analysis.runs.load import Run
from multicard.config.job import count
from multicard.records.text_table import clean

MOST_RUNS = 200  # in a chart, the last ones
HOLLOW = "Hollow: predictions as multiples of what was measured (filled), with 90 % intervals"


def predicted(runs: Sequence[Run]) -> list[Figure]:
    """A chart for each predicted figure: its ratio to the measured one, run by run in the order of their starts. Empty
    where nothing was predicted."""
    compared = compare(runs)
    if not compared.figures:
        return []
    found = {each.basis for each in compared.figures}
    bases = [*(basis for basis in BASES if basis in found), *sorted(found - {*BASES})]
    rows, notes = list[Row](), list[str]()
    for column in PREDICTED:
        known = sorted(compared.of_column(column), key=_start)
        rows += _rows(column, known[-MOST_RUNS:])
        if len(known) > MOST_RUNS:
            notes.append(f"{NAMES[column]}: the last {MOST_RUNS} of {len(known):,} runs")
    compared_runs = list({each.run.folder: each.run for each in compared.figures}.values())
    marks, legend = captions.marks(compared_runs)
    below = [
        HOLLOW,
        *([f"Basis of all: {bases[0]}"] if len(bases) == 1 else []),
        *notes,
        *chart_data.cut_note(rows),
        *legend,
    ]
    x = number_axis("run", [*range(1, max(row["run"] for row in rows) + 1)], "run, in the order of their starts")
    rows = drawn(rows)
    chart = facets(_layers(x, rows, bases), rows, 2)
    title = "Predicted against measured"
    return [Figure("predicted", title, chart, rows, [_above(compared_runs)], below, marks, 2 * WIDTH)]


def _start(comparison: Comparison) -> tuple[str, str]:
    return str(comparison.run["started_at"] or ""), str(comparison.run.folder)


def _above(runs: Sequence[Run]) -> str:
    machines = captions.listed(sorted({clean(str(run["hardware"])) for run in runs}))
    commits = sorted({grouping.commit(run) for run in runs})
    return f"{count(len(runs), 'run')}, {machines}, " + (
        f"{len(commits)} commits" if len(commits) > 1 else f"commit {commits[0]}"
    )


def _rows(column: str, known: Sequence[Comparison]) -> list[Row]:
    """A row for each run, with ratios to the measured figure."""
    return [
        {"measure": f"{NAMES[column]}: predicted / measured", "of": MEASURED, "run": number}
        | {"folder": str(each.run.folder), "basis": each.basis}
        | {"predicted": each.predicted, "measured": each.measured, "mean": each.predicted / each.measured}
        | {"low": each.low / each.measured, "high": each.high / each.measured}
        for number, each in enumerate(known, 1)
    ]


def _layers(x: alt.X, rows: Sequence[Row], bases: Sequence[str]) -> list[alt.Chart]:
    """The line of equality, intervals, filled measurements, hollow predictions."""
    base, told = alt.Chart().encode(x=x, y=y_axis()), by_series(bases, "color", "shape", field="basis")
    one = alt.Y(datum=1)
    tooltip = [alt.Tooltip(f"{name}:N") for name in ("folder", "basis")]
    tooltip += [alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("predicted", "measured", "low", "high")]
    points = base.mark_point(filled=False, size=42, opacity=1, strokeWidth=1.5)
    return [
        alt.Chart().transform_aggregate(n="count()").mark_rule(style="ideal").encode(y=one),
        *intervals(base, rows, {"color": told["color"]}),
        base.mark_point(filled=True, size=9, opacity=1, style="plain").encode(y=one),
        points.encode(**told, tooltip=tooltip),
    ]
