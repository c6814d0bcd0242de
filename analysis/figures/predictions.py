"""Predictions against measurements: hollow marks with intervals, beside filled ones."""

import math
from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.commands.predictions import NAMES
from analysis.figures import captions
from analysis.figures.chart_data import Row
from analysis.figures.vega import SHAPES, Figure, Spec, calculated, cycled, figure, layered, only
from analysis.runs import grouping
from analysis.runs.load import Run
from analysis.runs.predicted import BASES, PREDICTED, Comparison, compare
from multicard.config.job import count
from multicard.records.text_table import clean

TITLE = "Predicted against measured"
MOST_RUNS = 200  # in a chart, the last ones
FEW_RUNS = 10  # up to which each has its number
WIDTH, HEIGHT = 225, 190  # points: on a phone a chart is not shrunk
LEGEND_WIDTH = 120
TICKS = ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8))  # first digits, the fewest that are enough
ROOM = 1.15  # factor beyond the outermost points
MOST_TIMES = 2.0  # beyond the outermost ratio, where intervals are cut


def predicted(runs: Sequence[Run]) -> list[Figure]:
    """Two charts for each predicted figure, on log axes: predictions over measurements, with the line of equality, and
    their ratio, run by run in the order of their starts. Empty where nothing was predicted."""
    figures = compare(runs).figures
    if not figures:
        return []
    bases = [basis for basis in BASES if any(each.basis == basis for each in figures)]
    bases += sorted({each.basis for each in figures} - {*bases})
    rows: list[Row] = []
    charts: list[Spec] = []
    notes: list[str] = []
    for column in PREDICTED:
        compared = sorted((each for each in figures if each.column == column), key=_start)
        shown = compared[-MOST_RUNS:]
        if len(shown) < len(compared):
            notes.append(f"{NAMES[column]}: the last {len(shown)} of {len(compared):,} runs")
        if shown:
            own = [
                {"measure": column, "run": number, "folder": str(each.run.folder)}
                | {name: getattr(each, name) for name in ("basis", "predicted", "low", "high", "measured")}
                for number, each in enumerate(shown, 1)
            ]
            rows += own
            charts.append({"hconcat": [_equality(column, own, bases), _ratios(column, own, bases)]})
    of_runs = list({each.run.folder: each.run for each in figures}.values())
    marks, legend = captions.marks(of_runs)
    below = [
        "Hollow: predictions with their 90 % interval; filled: what was measured; grey: both are equal",
        *([f"Basis of all: {bases[0]}"] if len(bases) == 1 else []),
        *notes,
        *legend,
    ]
    width = 2 * WIDTH + LEGEND_WIDTH
    return [figure("predicted", {"vconcat": charts}, rows, TITLE, [_above(of_runs)], below, marks, width)]


def _start(comparison: Comparison) -> tuple[str, str]:
    return str(comparison.run["started_at"] or ""), str(comparison.run.folder)


def _above(runs: Sequence[Run]) -> str:
    machines = captions.listed(sorted({clean(str(run["hardware"])) for run in runs}))
    commits = sorted({grouping.commit(run) for run in runs})
    of_commits = f"{len(commits)} commits" if len(commits) > 1 else f"commit {commits[0]}"
    return f"{count(len(runs), 'run')}, {machines}, {of_commits}"


def _equality(column: str, rows: Sequence[Row], bases: Sequence[str]) -> Spec:
    """Predictions over measured figures, and the line on which both are equal."""
    points = [row[name] for row in rows for name in ("predicted", "measured")]
    unit = captions.unit(column, max(points))
    least, most = min(points) / ROOM / unit.divisor, max(points) * ROOM / unit.divisor
    scale, axis = _scale(least, most)
    x = alt.X("at:Q", title=f"measured {NAMES[column]} ({unit.name})", scale=scale, axis=axis)
    y = alt.Y("shown:Q", title=f"predicted ({unit.name})", scale=scale, axis=axis)
    ends = {"x": alt.XDatum(least), "x2": alt.X2Datum(most), "y": alt.YDatum(least), "y2": alt.Y2Datum(most)}
    layers = _layers(x, y, alt.Y("at:Q", scale=scale), bases, ends)
    transform = [only("measure", column), *_shown(str(unit.divisor), least, most)]
    return layered(layers, [*transform, *calculated(at=f"datum.measured / {unit.divisor}")], WIDTH, HEIGHT)


def _ratios(column: str, rows: Sequence[Row], bases: Sequence[str]) -> Spec:
    """Predicted figures as multiples of the measured ones, by the number of the run."""
    points = [1.0, *(row["predicted"] / row["measured"] for row in rows)]
    bounds = [row[name] / row["measured"] for row in rows for name in ("low", "high")]
    least = max(min(points + bounds), min(points) / MOST_TIMES) / ROOM
    most = min(max(points + bounds), max(points) * MOST_TIMES) * ROOM
    each = [*range(1, len(rows) + 1)] if len(rows) <= FEW_RUNS else alt.Undefined
    runs = alt.Axis(values=each, tickMinStep=1, format="d", grid=False)
    x = alt.X("run:Q", title="run, in the order of their starts", axis=runs)
    x = x.scale(domain=[0.5, len(rows) + 0.5], nice=False, zero=False)
    scale, axis = _scale(least, most)
    y = alt.Y("shown:Q", title=f"{NAMES[column]}: predicted / measured", scale=scale, axis=axis)
    one = alt.Y("one:Q", scale=scale)
    layers = _layers(x, y, one, bases, {"y": alt.YDatum(1)})
    transform = [only("measure", column), *_shown("datum.measured", least, most), *calculated(one="1")]
    return layered(layers, transform, WIDTH, HEIGHT)


def _scale(least: float, most: float) -> tuple[alt.Scale, alt.Axis]:
    """A log scale with at least three ticks; linear within a factor of three, where a log scale has hardly any."""
    if most < 3 * least:
        return alt.Scale(domain=[least, most], nice=False, zero=False), alt.Axis(format=",~f", tickCount=5)
    powers = range(math.floor(math.log10(least)), math.ceil(math.log10(most)))
    candidates = ([digit * 10.0**power for power in powers for digit in digits] for digits in TICKS)
    within = [[tick for tick in ticks if least <= tick <= most] for ticks in candidates]
    ticks = next((ticks for ticks in within if len(ticks) > 2), within[-1])
    return alt.Scale(type="log", domain=[least, most], nice=False), alt.Axis(values=ticks, format=",~f")


def _shown(divisor: str, least: float, most: float) -> list[Spec]:
    """Transforms that add a prediction and its bounds, these as far as the chart goes."""
    bounds = {f"shown_{name}": f"clamp(datum.{name} / {divisor}, {least}, {most})" for name in ("low", "high")}
    return calculated(shown=f"datum.predicted / {divisor}", **bounds)


def _layers(x: alt.X, y: alt.Y, measured: alt.Y, bases: Sequence[str], equal: dict[str, Any]) -> list[Any]:
    """The line of equality, intervals, hollow predictions, filled measurements."""
    legend = alt.Legend(title="basis", symbolOpacity=1, symbolFillColor="transparent", symbolStrokeWidth=1.6)
    legend = legend if len(bases) > 1 else None
    colour = alt.Color("basis:N", scale=alt.Scale(domain=list(bases)), legend=legend)
    shape = alt.Shape("basis:N", scale=cycled(bases, SHAPES), legend=legend)
    base = alt.Chart().encode(x=x)
    texts = [alt.Tooltip(f"{name}:N") for name in ("folder", "basis")]
    figures = [alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("predicted", "low", "high", "measured")]
    return [
        alt.Chart().transform_aggregate(n="count()").mark_rule(style="ideal").encode(**equal),
        base.mark_rule(strokeWidth=1.2, opacity=0.7, clip=True).encode(
            y="shown_low:Q", y2="shown_high:Q", color=colour
        ),
        base.mark_point(filled=True, size=9, opacity=1, style="plain").encode(y=measured),
        base.mark_point(filled=False, size=42, opacity=1, strokeWidth=1.5).encode(
            y=y, color=colour, shape=shape, tooltip=[*texts, *figures]
        ),
    ]
