"""The papers' metrics of profiles as stacks: each metric's share of the profiled time, by method and the rest.

CPU ranks make no CUDA calls: the phases of a step are stacked instead.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from analysis.experiments import Panel
from analysis.figures import chart_data
from analysis.figures.chart_data import Row
from analysis.figures.chart_layout import Layout
from analysis.figures.metric_bars import OVERLAP
from analysis.figures.panel_layout import ACROSS, ENDED, PanelChart, around, crosses_note
from analysis.figures.profile_rows import absent_notes, means_note, metric_rows
from analysis.figures.vega import CROSS, Figure, calculated, escaped, layered
from analysis.runs import profile_metrics

WIDTH, HEIGHT = 220, 300  # points
LABELLED_FROM = 0.05  # of the axis, from which a part has its share written in it


def draw(panel: Panel, name: str) -> Figure | None:
    """Stacks of shares of the profiled time; the papers print none."""
    metrics = panel.experiment.view.shown_metrics
    layout = Layout.of(panel)
    rows, what = (
        metric_rows(panel, "share", lambda profile: profile_metrics.shares(profile, metrics)),
        "Metrics of profiles",
    )
    notes = [OVERLAP] if rows else absent_notes(panel)
    if not rows:
        rows, what = metric_rows(panel, "share", profile_metrics.phase_shares), "Phases of a step"
    if not rows:
        return None
    parts = list(dict.fromkeys(profile_metrics.name(metric) for metric in metrics))
    parts = [part for part in parts if any(part == row["metric"] for row in rows)] or _by_size(rows)
    for row in rows:
        row["order"] = parts.index(row["metric"])
    unended = [row for row in chart_data.measured(panel, "share") if row["status"] != "ok"]
    rows = layout.joined([*rows, *unended])
    chart = PanelChart(panel, layout, "share", rows)
    spec, across = layered(_layers(chart, parts), calculated(shown="datum.mean / 0.01"), WIDTH, HEIGHT), 1
    if layout.colour is not None:  # colours are for the parts, so the column has a chart for each of its values
        spec = replace(chart, layout=Layout(panel, layout.x, None, layout.colour), faceted=True).facets(spec)
        across = min(ACROSS, len(chart.order(layout.colour)))
    notes = [*means_note(panel, rows), *crosses_note(rows), *notes]
    return around(panel, name, spec, rows, layout.by, notes, WIDTH * across, what)


def _by_size(rows: Sequence[Row]) -> list[str]:
    """The metrics, that with the highest mean anywhere first."""
    highest: dict[str, float] = {}
    for row in rows:
        highest[row["metric"]] = max(highest.get(row["metric"], 0.0), row["mean"])
    return sorted(highest, key=lambda metric: -highest[metric])


def _layers(chart: PanelChart, parts: Sequence[str]) -> list[Any]:
    layout, title = chart.layout, "share of the profiled time (%)"
    stacks: dict[tuple[str, ...], float] = {}
    for row in chart.rows:
        cell = tuple(row[column] for column in chart.panel.experiment.swept)
        stacks[cell] = stacks.get(cell, 0.0) + (row.get("mean") or 0.0)
    top = 104 * (max(stacks.values()) or 1.0)
    x = alt.X(escaped(layout.x), type="ordinal", sort=chart.order(layout.x), title=chart.title(layout.x))
    y = alt.Y("shown:Q", stack="zero", title=title, scale=alt.Scale(domain=[0, top], nice=False))
    ok = alt.Chart().transform_filter("datum.status == 'ok'")  # a row without a mean would void its whole stack
    base = ok.encode(x=x.axis(labelAngle=0), y=y, order=alt.Order("order:Q"))
    legend = alt.Legend(title=None, symbolType="square")
    colour = alt.Color("metric:N", scale=alt.Scale(domain=list(parts)), sort=list(parts), legend=legend)
    tooltip = [alt.Tooltip("metric:N"), alt.Tooltip("shown:Q", format=".3~g")]
    layers = [base.mark_bar(style="part").encode(color=colour, tooltip=tooltip), *_labels(base, title, top)]
    if chart.crosses:
        unended = alt.Chart().transform_filter("datum.status != 'ok'")
        unended = unended.transform_calculate(at=f"{0.03 * top}", label=ENDED).encode(x=x, y="at:Q")
        layers.append(unended.mark_point(**CROSS, style="plain"))
        layers.append(unended.mark_text(dy=-12, fontSize=10).encode(text="label:N"))
    return layers


def _labels(base: Any, title: str, top: float) -> list[Any]:
    """The shares in the larger parts; every layer is stacked, so a part without a label has an empty one."""
    middle = alt.Y("shown:Q", stack="zero", bandPosition=0.5, title=title)
    layers = []
    for style, on_dark in (("on_dark", ">= 0"), ("on_light", "< 0")):  # the first and the fourth colour are dark
        style_fits = f"indexof([0, 3], datum.order) {on_dark}"
        label = f"datum.shown >= {LABELLED_FROM * top} && {style_fits} ? format(datum.shown, '.0f') : ''"
        text = base.transform_calculate(text=label).mark_text(style=style, fontSize=10)
        layers.append(text.encode(y=middle, text="text:N", detail="metric:N"))
    return layers
