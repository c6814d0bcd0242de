"""Bars in groups along x: a bar for each value of what the experiment is about, a chart for each of the rest."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.figures import captions, drawn_rows
from analysis.figures.panel_layout import (
    ACROSS,
    ENDED,
    Plot,
    around,
    error_bars,
    explained,
    field,
    hollow,
    kept,
    layout,
    ordered,
)
from analysis.figures.vega import SALTIRE, Figure, Spec
from analysis.papers.experiments import Panel

BAR, HEIGHT, WIDEST = 24, 240, 1000  # points


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure | None:
    """A chart for each measure of the view."""
    told = layout(panel)
    rows, notes, charts, shown = [], [], [], {}
    for measure in panel.experiment.view.measures:
        found = drawn_rows.measured(panel, measure)
        if not any(row["status"] == "ok" for row in found) and charts:
            notes.append(f"No run has {captions.measure(measure, panel.experiment.kind)}")
            continue
        found += drawn_rows.paper(panel, measure, paper)
        plot = Plot(panel, told, measure, found, told.other is not None)
        rows += found
        shown[measure] = found, plot.reach
        charts.append(_chart(plot))
    if not rows:
        return None
    whole = {"vconcat" if told.other is not None else "hconcat": charts}
    many = min(ACROSS, len(panel.values(told.other))) if told.other is not None else len(charts)
    notes = [*drawn_rows.bars(shown, panel.experiment.kind), *notes, *explained(panel, rows, paper)]
    return around(panel, name, whole, rows, told.by, notes, many * _width(panel))


def _width(panel: Panel) -> int:
    """Of one chart: bars are narrower where many charts stand beside each other."""
    told = layout(panel)
    inside = len(panel.values(told.colour)) if told.colour is not None else 1
    beside = min(ACROSS, len(panel.values(told.other))) if told.other is not None else 1
    return max(180, min(len(panel.values(told.x)) * (inside + 1) * BAR, WIDEST // beside))


def _chart(plot: Plot) -> Spec:
    told = plot.layout
    x = alt.X(field(told.x), type="ordinal", sort=ordered(plot.panel.values(told.x)), title=plot.title(told.x))
    top = (plot.reach[1]) / plot.unit.divisor
    base = alt.Chart().encode(x=x.axis(labelAngle=0), y=plot.y(top))
    if told.colour is not None:
        scale = alt.Scale(domain=plot.order(told.colour))
        base = base.encode(xOffset=alt.XOffset(field(told.colour), type="nominal", scale=scale))
    ok = kept(base, of=drawn_rows.MEASURED, status="ok")
    layers = [ok.mark_bar().encode(**plot.colour(), tooltip=plot.tooltips()), *error_bars(ok, {}, 9, style="plain")]
    if any(row.get("mean") == 0 for row in plot.rows):
        nothing = ok.transform_filter("datum.mean === 0")  # else as one that is missing
        layers.append(nothing.mark_text(dy=-7, text="0"))
    if any(row["of"] == drawn_rows.PAPER for row in plot.rows):
        layers.append(hollow(base, plot.colour()))
    if any(row.get("signs") for row in plot.rows):
        layers.append(ok.mark_text(dy=-8).encode(text="signs:N"))
    if plot.crosses:
        layers += _crosses(plot, base, top)
    return plot.facets(plot.layered(layers, _width(plot.panel), HEIGHT))


def _crosses(plot: Plot, base: Any, top: float) -> list[Any]:
    """At the foot, where the bar would stand, with how the run ended."""
    crossed = kept(base, of=drawn_rows.MEASURED).transform_filter("datum.status != 'ok'")
    at = crossed.transform_calculate(at=f"{0.03 * top}", label=ENDED).encode(y="at:Q")
    cross = at.mark_point(shape=SALTIRE, size=40, strokeWidth=2, opacity=1).encode(**plot.colour())
    return [cross, at.mark_text(angle=270, align="left", dx=8, fontSize=10).encode(text="label:N")]
