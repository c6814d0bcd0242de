"""Means over a swept number, a line for each other setting.

Colour and shape are for what the experiment is about, dashes or a chart of its own for the rest.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.experiments import Panel
from analysis.figures import points, words
from analysis.figures.drawing import SALTIRE, Figure
from analysis.figures.panel import (
    ACROSS,
    ENDED,
    Layout,
    Plot,
    around,
    error_bars,
    explained,
    field,
    hollow,
    layout,
    only,
)
from analysis.figures.points import Row

WIDTH, HEIGHT = 340, 240
FACETED = 220  # the width of a chart among several
DASHED = 2  # values that dashes can show; more are charts beside each other


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure:
    """A chart for each measure of the view, with the ideal beside times and rates."""
    told = layout(panel)
    others = len(panel.values(told.other)) if told.other is not None else 0
    faceted = others > DASHED
    rows, notes, charts = [], [], []
    for measure in panel.experiment.view.measures:
        found = points.measured(panel, measure)
        if not any(row["status"] == "ok" for row in found) and charts:
            notes.append(f"No run has {words.measure(measure, panel.experiment.kind)}")
            continue
        found += points.ideal(panel, measure, found) + points.paper(panel, measure, paper)
        plot = Plot(panel, told, measure, found, faceted)
        rows += found
        notes += points.bars(found, plot.reach)
        charts.append(chart(plot))
    whole = alt.vconcat(*charts) if faceted else alt.hconcat(*charts)
    width = FACETED * min(ACROSS, others) if faceted else WIDTH * len(charts)
    return around(
        panel, name, whole, rows, told.by, [*notes, *_ideal(panel, rows), *explained(panel, rows, paper)], width
    )


def _ideal(panel: Panel, rows: Sequence[Row]) -> list[str]:
    measures = {row["measure"] for row in rows if row["of"] == points.IDEAL}
    ranks = words.column("gpus", panel.runs)
    told = []
    if measures - {"step_s"}:
        told.append(f"Thin grey: the ideal, n {ranks} n times as fast as one")
    if "step_s" in measures:
        told.append(f"Thin grey: the ideal, an iteration of n {ranks} (with n times the rows) as long as that of one")
    return told


def chart(plot: Plot) -> Any:
    """A measure over x."""
    base = plot.base().encode(x=axis(plot.panel, plot.layout), y=plot.y())
    layers = alt.layer(*_layers(plot, base)).properties(width=FACETED if plot.faceted else WIDTH, height=HEIGHT)
    return plot.facets(layers)


def axis(panel: Panel, told: Layout) -> alt.X:
    """The x axis: numbers where they are, with a tick at each."""
    values = panel.values(told.x)
    title = words.column(told.x, panel.runs) + words.axis_unit(told.x)
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        order = [words.value(value) for value in values]
        return alt.X(field(told.x), type="nominal", sort=order, title=title, axis=alt.Axis(labelAngle=0))
    room = 0.08 * (max(values) - min(values)) or 1
    scale = alt.Scale(domain=[min(values) - room, max(values) + room], nice=False, zero=False)
    ticks = alt.Axis(values=values, format="d", grid=False)
    return alt.X(field(told.x), type="quantitative", title=title, scale=scale, axis=ticks)


def _layers(plot: Plot, base: Any) -> list[Any]:
    series, detail = plot.colour(), plot.detail()
    ok = only(base, of=points.MEASURED, status="ok")
    layers = []
    if any(row["of"] == points.IDEAL for row in plot.rows):
        ideal = only(base, of=points.IDEAL).mark_line(style="ideal", interpolate="monotone", clip=True)
        layers.append(ideal.encode(**detail))
    layers.append(ok.mark_line(strokeWidth=1.6).encode(**series, **plot.dash(), **detail))
    layers += error_bars(ok, series | detail)
    dots = ok.mark_point(filled=True, size=55, opacity=1)
    layers.append(dots.encode(**series, **plot.shape(), **detail, tooltip=plot.tooltips()))
    if any(row.get("signs") for row in plot.rows):
        layers.append(ok.mark_text(dx=6, dy=-9, align="left").encode(text="signs:N", **detail))
    if any(row["of"] == points.PAPER for row in plot.rows):
        layers.append(hollow(base, series | plot.shape() | detail))
    if plot.crosses:
        layers += _crosses(plot, base)
    return layers


def _crosses(plot: Plot, base: Any) -> list[Any]:
    """In a strip above all figures, below each other where several did not end at one x, each with its name."""
    told = plot.layout
    names = [name for name in (told.colour, None if plot.faceted else told.other) if name is not None]
    label = " + ' ' + ".join([*(f"datum[{name!r}]" for name in names), ENDED])
    numbers = [value for value in plot.panel.values(told.x) if isinstance(value, int | float)]
    last = f"datum[{told.x!r}] == {max(numbers)}" if numbers else "false"
    groups = [field(name) for name in (told.x, told.other if plot.faceted else None) if name is not None]
    crossed = (
        only(base, of=points.MEASURED)
        .transform_filter("datum.status != 'ok'")
        .transform_window(number="row_number()", groupby=groups)
        .transform_calculate(
            at=f"{plot.domain[1]} - (datum.number - 0.5) * {plot.strip}",
            label=label,
        )
        .encode(y="at:Q")
    )
    texts = [
        crossed.transform_filter(condition).mark_text(align=align, dx=dx, fontSize=10).encode(text="label:N")
        for condition, align, dx in ((f"!({last})", "left", 8), (last, "right", -8))
    ]
    cross = crossed.mark_point(shape=SALTIRE, size=40, strokeWidth=2, opacity=1)
    return [cross.encode(**plot.colour()), *texts]
