"""Bars in groups along x: a bar for each value of what the experiment is about, a chart for each of the rest."""

from collections.abc import Sequence
from typing import Any

import altair as alt

from analysis.experiments import Panel
from analysis.figures import points, words
from analysis.figures.drawing import SALTIRE, Figure
from analysis.figures.panel import (
    ACROSS,
    ENDED,
    Plot,
    around,
    error_bars,
    explained,
    field,
    hollow,
    layout,
    only,
    ordered,
)

BAR, HEIGHT = 24, 240  # points


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure:
    """A chart for each measure of the view."""
    told = layout(panel)
    rows, notes, charts = [], [], []
    for measure in panel.experiment.view.measures:
        found = points.measured(panel, measure)
        if not any(row["status"] == "ok" for row in found) and charts:
            notes.append(f"No run has {words.measure(measure, panel.experiment.kind)}")
            continue
        found += points.paper(panel, measure, paper)
        plot = Plot(panel, told, measure, found, told.other is not None)
        rows += found
        notes += points.bars(found, plot.reach)
        charts.append(_chart(plot))
    whole = alt.vconcat(*charts) if told.other is not None else alt.hconcat(*charts)
    many = min(ACROSS, len(panel.values(told.other))) if told.other is not None else len(charts)
    return around(panel, name, whole, rows, told.by, [*notes, *explained(panel, rows, paper)], many * _width(panel))


def _width(panel: Panel) -> int:
    told = layout(panel)
    inside = len(panel.values(told.colour)) if told.colour is not None else 1
    return max(180, int(len(panel.values(told.x)) * (inside + 1) * BAR))


def _chart(plot: Plot) -> Any:
    told = plot.layout
    x = alt.X(field(told.x), type="ordinal", sort=ordered(plot.panel.values(told.x)), title=plot.title(told.x))
    top = (plot.reach[1]) / plot.unit.divisor
    base = plot.base().encode(x=x.axis(labelAngle=0), y=plot.y(top))
    if told.colour is not None:
        scale = alt.Scale(domain=plot.order(told.colour))
        base = base.encode(xOffset=alt.XOffset(field(told.colour), type="nominal", scale=scale))
    ok = only(base, of=points.MEASURED, status="ok")
    layers = [ok.mark_bar().encode(**plot.colour(), tooltip=plot.tooltips()), *error_bars(ok, {}, 9, style="plain")]
    if any(row.get("mean") == 0 for row in plot.rows):
        nothing = ok.transform_filter("datum.mean === 0")  # else as one that is missing
        layers.append(nothing.mark_text(dy=-7, text="0"))
    if any(row["of"] == points.PAPER for row in plot.rows):
        layers.append(hollow(base, plot.colour()))
    if any(row.get("signs") for row in plot.rows):
        layers.append(ok.mark_text(dy=-8).encode(text="signs:N"))
    if plot.crosses:
        layers += _crosses(plot, base, top)
    return plot.facets(alt.layer(*layers).properties(width=_width(plot.panel), height=HEIGHT))


def _crosses(plot: Plot, base: Any, top: float) -> list[Any]:
    """At the foot, where the bar would stand, with how the run ended."""
    crossed = only(base, of=points.MEASURED).transform_filter("datum.status != 'ok'")
    at = crossed.transform_calculate(at=f"{0.03 * top}", label=ENDED).encode(y="at:Q")
    cross = at.mark_point(shape=SALTIRE, size=40, strokeWidth=2, opacity=1).encode(**plot.colour())
    return [cross, at.mark_text(angle=270, align="left", dx=8, fontSize=10).encode(text="label:N")]
