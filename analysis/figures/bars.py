"""Bars in groups along x: a bar for each value of what the experiment is about, a chart for each of the rest."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.experiments import Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import EXCLUDED, MEASURED, PAPER, Row
from analysis.figures.chart_layout import Layout
from analysis.figures.panel_layout import (
    ACROSS,
    ENDED,
    PanelChart,
    crosses_note,
    draw_measures,
    error_bars,
    paper_points,
    where,
)
from analysis.figures.vega import CROSS, Figure, Spec, escaped
from analysis.runs import grouping

BAR, HEIGHT, MOST_WIDTH = 24, 240, 1000  # points
NO_CELL = "n/a"  # of a cell that cannot be


def draw(panel: Panel, name: str) -> Figure | None:
    """A chart for each measure of the view; narrower where many stand beside each other."""
    layout = Layout.of(panel)
    colours = len(layout.values(layout.colour)) if layout.colour is not None else 1
    across = min(ACROSS, len(layout.values(layout.other))) if layout.other is not None else 1
    width = max(180, min(len(panel.values(layout.x)) * (colours + 1) * BAR, MOST_WIDTH // across))

    def rows_of(measure: str) -> list[Row]:
        rows = [*chart_data.measured(panel, measure), *chart_data.paper(panel, measure)]
        return [*rows, *chart_data.excluded(panel, measure)] if rows else []

    def spec(chart: PanelChart) -> Spec:
        return chart.spec(_layers(chart), width, HEIGHT)

    def notes(rows: list[Row]) -> list[str]:
        return [*_holes(panel, rows), *crosses_note(rows)]

    return draw_measures(panel, name, layout, rows_of, spec, notes, width, faceted=layout.other is not None)


def _holes(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """A line on the cells that cannot be, where some are among these."""
    cells = [grouping.label(tuple(entry.items()), entry) for entry in panel.experiment.excluded]
    holes = any(row["of"] == EXCLUDED for row in rows)
    return [f"{NO_CELL}: cannot be, and is not in the grid: {'; '.join(cells)}"] if holes else []


def _layers(chart: PanelChart) -> list[Any]:
    layout = chart.layout
    order = captions.ordered(chart.panel.values(layout.x))
    x = alt.X(escaped(layout.x), type="ordinal", sort=order, title=chart.title(layout.x))
    top = chart.axis_limits[1] / chart.unit.divisor
    base = alt.Chart().encode(x=x.axis(labelAngle=0), y=chart.y(top))
    if layout.colour is not None:
        scale = alt.Scale(domain=chart.order(layout.colour))
        base = base.encode(xOffset=alt.XOffset(escaped(layout.colour), type="nominal", scale=scale))
    ok = where(base, MEASURED, "ok")
    layers = [ok.mark_bar().encode(**chart.colour(), tooltip=chart.tooltips()), *error_bars(ok, {}, 9, style="plain")]
    if any(row.get("mean") == 0 for row in chart.rows):  # a bar of no height would look like a missing one
        layers.append(ok.transform_filter("datum.mean === 0").mark_text(dy=-7, text="0"))
    if chart.has(PAPER):
        layers.append(paper_points(base, chart.colour()))
    if any(row.get("signs") for row in chart.rows):
        layers.append(ok.mark_text(dy=-8).encode(text="signs:N"))
    if chart.has(EXCLUDED):
        foot = where(base, EXCLUDED).transform_calculate(at=f"{0.02 * top}").encode(y="at:Q")
        layers.append(foot.mark_text(text=NO_CELL, angle=270, align="left", fontSize=10))
    if chart.crosses:  # at the foot, where the bar would stand, with how the runs ended
        unended = where(base, MEASURED).transform_filter("datum.status != 'ok'")
        unended = unended.transform_calculate(at=f"{0.03 * top}", label=ENDED).encode(y="at:Q")
        layers.append(unended.mark_point(**CROSS).encode(**chart.colour()))
        layers.append(unended.mark_text(angle=270, align="left", dx=8, fontSize=10).encode(text="label:N"))
    return layers
