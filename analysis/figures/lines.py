"""Means over a swept number, a line for each other setting.

Colour and shape are for what the experiment is about, dashes or a chart of its own for the rest.
"""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.figures import captions, drawn_rows
from analysis.figures.drawn_rows import Row
from analysis.figures.panel_layout import (
    ACROSS,
    ENDED,
    Layout,
    Plot,
    around,
    error_bars,
    explained,
    field,
    hollow,
    kept,
    layout,
)
from analysis.figures.vega import SALTIRE, Figure, Spec
from analysis.papers.experiments import Panel

WIDTH, HEIGHT = 340, 240
FACETED = 220  # the width of a chart among several
BESIDE = 0.012  # of the range of x, from one series to the next
DASHED = 2  # values that dashes can show; more are charts beside each other


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure | None:
    """A chart for each measure of the view, with the ideal beside times and rates."""
    told = layout(panel)
    others = len(panel.values(told.other)) if told.other is not None else 0
    faceted = others > DASHED
    rows, notes, charts, shown = [], [], [], {}
    for measure in panel.experiment.view.measures:
        found = drawn_rows.measured(panel, measure)
        if not any(row["status"] == "ok" for row in found) and charts:
            notes.append(f"No run has {captions.measure(measure, panel.experiment.kind)}")
            continue
        found += drawn_rows.ideal(panel, measure, found) + drawn_rows.paper(panel, measure, paper)
        plot = Plot(panel, told, measure, found, faceted)
        rows += found
        shown[measure] = found, plot.reach
        charts.append(chart(plot))
    if not rows:
        return None
    whole = {"vconcat" if faceted else "hconcat": charts}
    width = FACETED * min(ACROSS, others) if faceted else WIDTH * len(charts)
    notes = [
        *drawn_rows.bars(shown, panel.experiment.kind),
        *notes,
        *_ideal(panel, rows),
        *explained(panel, rows, paper),
    ]
    return around(panel, name, whole, rows, told.by, notes, width)


def _ideal(panel: Panel, rows: Sequence[Row]) -> list[str]:
    measures = {row["measure"] for row in rows if row["of"] == drawn_rows.IDEAL}
    ranks = captions.column("gpus", panel.runs)
    told = []
    if measures - {"step_s"}:
        rows_of = " in rows" if panel.experiment.kind == "llm" else ""
        told.append(f"Thin grey: the ideal, n {ranks} n times as fast as one{rows_of}")
    if "step_s" in measures:
        told.append(f"Thin grey: the ideal, an iteration of n {ranks} (with n times the rows) as long as that of one")
    return told


def chart(plot: Plot) -> Spec:
    """A measure over x."""
    base = alt.Chart().encode(x=axis(plot.panel, plot.layout), y=plot.y())
    width = FACETED if plot.faceted else WIDTH
    return plot.facets(plot.layered(_layers(plot, base), width, HEIGHT, along=_along(plot)))


def _along(plot: Plot) -> str:
    """The place of a row along x: where there are intervals, series stand a little beside each other."""
    told, values = plot.layout, plot.panel.values(plot.layout.x)
    place = f"datum[{told.x!r}]"
    if told.colour is None or not numbers(values) or all(row.get("low") is None for row in plot.rows):
        return place
    colours = plot.order(told.colour)
    others = plot.order(told.other) if told.other is not None and not plot.faceted else [""]
    index = f"{len(others)} * indexof({json.dumps(colours)}, datum[{told.colour!r}])"
    if len(others) > 1:
        index += f" + indexof({json.dumps(others)}, datum[{told.other!r}])"
    middle, apart = (len(colours) * len(others) - 1) / 2, BESIDE * (max(values) - min(values))
    beside = f"datum.of == '{drawn_rows.MEASURED}' && datum.status == 'ok'"
    return f"{place} + ({beside} ? ({index} - {middle}) * {apart} : 0)"


def numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def axis(panel: Panel, told: Layout) -> alt.X:
    """The x axis: numbers where they are, with a tick at each."""
    values = panel.values(told.x)
    title = captions.column(told.x, panel.runs) + captions.axis_unit(told.x)
    if not numbers(values):
        order = [captions.value(value) for value in values]
        return alt.X("along", type="nominal", sort=order, title=title, axis=alt.Axis(labelAngle=0))
    room = 0.08 * (max(values) - min(values)) or 1
    scale = alt.Scale(domain=[min(values) - room, max(values) + room], nice=False, zero=False)
    ticks = alt.Axis(values=values, format="d", grid=False)
    return alt.X("along", type="quantitative", title=title, scale=scale, axis=ticks)


def _layers(plot: Plot, base: Any) -> list[Any]:
    series, detail = plot.colour(), plot.detail()
    ok = kept(base, of=drawn_rows.MEASURED, status="ok")
    layers = []
    if any(row["of"] == drawn_rows.IDEAL for row in plot.rows):
        ideal = kept(base, of=drawn_rows.IDEAL).mark_line(style="ideal", interpolate="monotone", clip=True)
        layers.append(ideal.encode(**detail))
    layers.append(ok.mark_line(strokeWidth=1.6).encode(**series, **plot.dash(), **detail))
    layers += error_bars(ok, series | detail)
    dots = ok.mark_point(filled=True, size=55, opacity=1)
    layers.append(dots.encode(**series, **plot.shape(), **detail, tooltip=plot.tooltips()))
    if any(row.get("signs") for row in plot.rows):
        layers.append(ok.mark_text(dx=6, dy=-8, align="left", fontSize=13).encode(text="signs:N", **detail))
    if any(row["of"] == drawn_rows.PAPER for row in plot.rows):
        layers.append(hollow(base, series | plot.shape() | detail))
    if plot.crosses:
        layers += _crosses(plot, base)
    return layers


def _crosses(plot: Plot, base: Any) -> list[Any]:
    """In a strip above all figures, below each other where several did not end at one x, each with its name."""
    told = plot.layout
    names = [name for name in (told.colour, None if plot.faceted else told.other) if name is not None]
    label = " + ' ' + ".join([*(_named(plot, name) for name in names), ENDED])
    values = plot.panel.values(told.x)
    last = f"datum[{told.x!r}] == {max(values)}" if numbers(values) else "false"
    groups = [field(name) for name in (told.x, told.other if plot.faceted else None) if name is not None]
    crossed = (
        kept(base, of=drawn_rows.MEASURED)
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


def _named(plot: Plot, name: str) -> str:
    """An expression of a row's value, with its column where the value alone says little: "fp32", "GPUs 2"."""
    telling = all(isinstance(value, str) for value in plot.panel.values(name))
    return (
        f"datum[{name!r}]"
        if telling
        else f"{json.dumps(captions.column(name, plot.panel.runs) + ' ')} + datum[{name!r}]"
    )
