"""Means over a swept number, a line for each other setting.

Colour and shape are for what the experiment is about, dashes or a chart of its own for the rest.
"""

import json
from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.experiments import EFFICIENCY, Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import IDEAL, MEASURED, PAPER, Row
from analysis.figures.chart_layout import Layout
from analysis.figures.panel_layout import (
    ENDED,
    PanelChart,
    crosses_note,
    draw_measures,
    error_bars,
    paper_points,
    where,
)
from analysis.figures.vega import CROSS, LETTER_POINTS, Figure, Spec, escaped

WIDTH, HEIGHT = 340, 240  # points
FACET_WIDTH = 220  # of a chart among several
BESIDE = 0.012  # of the range of x, from one series to the next
EFFICIENCY_NOTE = "Parallel efficiency: the time on one GPU / (GPUs x the time), a ratio of means"
MOST_DASHES = 2  # values that dashes can show; more are charts beside each other


def draw(panel: Panel, name: str) -> Figure | None:
    """A chart for each measure of the view, with the ideal beside times and rates."""
    layout, view = Layout.of(panel), panel.experiment.view
    faceted = layout.other is not None and len(layout.values(layout.other)) > MOST_DASHES
    width = FACET_WIDTH if faceted else WIDTH

    def rows_of(measure: str) -> list[Row]:
        if measure == EFFICIENCY:
            return chart_data.efficiency(panel, view.measures[0])
        rows = chart_data.measured(panel, measure)
        return [*rows, *chart_data.ideal(panel, measure, rows), *chart_data.paper(panel, measure)]

    def spec(chart: PanelChart) -> Spec:
        base = alt.Chart().encode(x=_x(chart), y=chart.y())
        return chart.spec(_layers(chart, base, width), width, HEIGHT, along=_along(chart))

    def notes(rows: list[Row]) -> list[str]:
        means = [EFFICIENCY_NOTE] if EFFICIENCY in view.measures else []
        return [*_ideal_notes(panel, rows), *means, *crosses_note(rows)]

    return draw_measures(panel, name, layout, rows_of, spec, notes, width, faceted=faceted)


def _ideal_notes(panel: Panel, rows: Sequence[Row]) -> list[str]:
    measures = {row["measure"] for row in rows if row["of"] == IDEAL}
    ranks = captions.column("gpus", panel.runs)
    notes = []
    if measures - {"step_s"}:
        in_rows = " in rows" if panel.experiment.kind == "llm" else ""
        notes.append(f"Thin grey: the ideal, n {ranks} n times as fast as one{in_rows}")
    if "step_s" in measures:
        notes.append(f"Thin grey: the ideal, an iteration of n {ranks} (with n times the rows) as long as that of one")
    return notes


def _x(chart: PanelChart) -> alt.X:
    """The x axis: quantitative for numbers, with a tick at each."""
    values, title = chart.panel.values(chart.layout.x), chart.title(chart.layout.x)
    if not captions.is_numeric(values):
        order = chart.order(chart.layout.x)
        return alt.X("along", type="nominal", sort=order, title=title, axis=alt.Axis(labelAngle=0))
    room = 0.08 * (max(values) - min(values)) or 1
    scale = alt.Scale(domain=[min(values) - room, max(values) + room], nice=False, zero=False)
    return alt.X(
        "along", type="quantitative", title=title, scale=scale, axis=alt.Axis(values=values, format="d", grid=False)
    )


def _along(chart: PanelChart) -> str:
    """The place of a row along x: series with intervals stand a little beside each other."""
    layout, values = chart.layout, chart.panel.values(chart.layout.x)
    place = f"datum[{layout.x!r}]"
    bounded = any(row.get("low") is not None for row in chart.rows)
    if layout.colour is None or not captions.is_numeric(values) or not bounded:
        return place
    colours = chart.order(layout.colour)
    others = chart.order(layout.other) if layout.other is not None and not chart.faceted else [""]
    index = f"{len(others)} * indexof({json.dumps(colours)}, datum[{layout.colour!r}])"
    if len(others) > 1:
        index += f" + indexof({json.dumps(others)}, datum[{layout.other!r}])"
    middle, apart = (len(colours) * len(others) - 1) / 2, BESIDE * (max(values) - min(values))
    ok = f"datum.of == '{MEASURED}' && datum.status == 'ok'"
    return f"{place} + ({ok} ? ({index} - {middle}) * {apart} : 0)"


def _layers(chart: PanelChart, base: Any, width: int) -> list[Any]:
    series, detail = chart.colour(), chart.detail()
    ok = where(base, MEASURED, "ok")
    layers = []
    if chart.has(IDEAL):
        line = where(base, IDEAL).mark_line(style="ideal", interpolate="monotone", clip=True)
        layers.append(line.encode(**detail))
    layers.append(ok.mark_line(strokeWidth=1.6).encode(**series, **chart.dash(), **detail))
    layers += error_bars(ok, series | detail)
    points = ok.mark_point(filled=True, size=55, opacity=1)
    layers.append(points.encode(**series, **chart.shape(), **detail, tooltip=chart.tooltips()))
    if any(row.get("signs") for row in chart.rows):
        signs = ok.mark_text(dx=6, dy=-8, align="left", fontSize=13)
        layers.append(signs.encode(text="signs:N", **detail))
    if chart.has(PAPER):
        layers.append(paper_points(base, series | chart.shape() | detail))
    return [*layers, *_crosses(chart, base, width)] if chart.crosses else layers


def _crosses(chart: PanelChart, base: Any, width: int) -> list[Any]:
    """Crosses in a strip at the top, below each other where several are at one x, each with its series' name; without
    what its colour says too where that leaves no room for the next."""
    layout = chart.layout
    other = None if chart.faceted else layout.other
    values = chart.panel.values(layout.x)
    series = [name for name in (layout.colour, other) if name is not None]
    letters = max(sum(len(f"{row[name]}{chart.title(name)}") for name in series) for row in _unended(chart))
    if len(values) > 1 and letters * LETTER_POINTS > width / (len(values) - 1):
        series = series[1:]
    names = [_named(chart, name) for name in series]
    is_last = f"datum[{layout.x!r}] == {max(values)}" if captions.is_numeric(values) else "false"
    groups = [escaped(name) for name in (layout.x, layout.other if chart.faceted else None) if name is not None]
    unended = (
        where(base, MEASURED)
        .transform_filter("datum.status != 'ok'")
        .transform_window(number="row_number()", groupby=groups)
        .transform_calculate(
            at=f"{chart.domain[1]} - (datum.number - 0.5) * {chart.strip}", label=" + ' ' + ".join([*names, ENDED])
        )
        .encode(y="at:Q")
    )
    labels = [
        unended.transform_filter(condition).mark_text(align=align, dx=dx, fontSize=10).encode(text="label:N")
        for condition, align, dx in ((f"!({is_last})", "left", 8), (is_last, "right", -8))
    ]
    return [unended.mark_point(**CROSS).encode(**chart.colour()), *labels]


def _unended(chart: PanelChart) -> list[Row]:
    return [row for row in chart.rows if row["status"] != "ok"]


def _named(chart: PanelChart, name: str) -> str:
    """An expression of a row's value, with its column where the value alone says little: "fp32", "GPUs 2"."""
    value = f"datum[{name!r}]"
    if name.endswith("image_size"):
        return f"{value} + ' px'"
    if all(isinstance(value, str) for value in chart.layout.values(name)):
        return value
    return f"{json.dumps(captions.column(name, chart.panel.runs) + ' ')} + {value}"
