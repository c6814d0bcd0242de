"""The papers' metrics of profiles, in seconds and in percent of the profiled time: bars with their figures written out.

Seconds are of all ranks and the whole window where it is the papers', the run from its start. Of a few steps they are
of a step and rank.
"""

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from analysis import same_setting
from analysis.experiments import Panel
from analysis.figures import captions
from analysis.figures.chart_data import MEASURED, PAPER, Row, paper_label
from analysis.figures.chart_layout import Layout
from analysis.figures.curves import unended_note
from analysis.figures.panel_layout import PanelChart, around, in_unit, paper_points, where
from analysis.figures.profile_rows import Values, means_note, metric_rows
from analysis.figures.vega import Figure, Spec, escaped, layered, only
from analysis.runs import grouping, profile_metrics
from multicard.observe.profiles.profile_data import Profile
from papers.printed import METRIC

SHARE, WINDOW, STEP, COPIED, COPIED_IN_A_STEP = "share", "window_s", "step_s", "copied", "copied_in_a_step"  # measures
TITLES = {
    SHARE: "Share of the profiled time ({})",
    WINDOW: "Time in the window, all ranks together ({})",
    STEP: "Time of a step and rank ({})",
    COPIED: "In the window, all ranks together ({})",
    COPIED_IN_A_STEP: "In a step, all ranks together ({})",
}
WIDTH, BAR, GAP = 230, 11, 8  # points: of a chart, a bar's thickness, between groups of bars
AT, NAMED = "at", "named"  # fields of a row: its cell without what colours show, and its metric, in words
ROOM = 1.25  # of the longest bar, so that its figure has room
OVERLAP = "Metrics overlap: host and devices work at once, and NCCL's kernels wait for other ranks"
NOT_NCCL = "Copies that the driver makes; what NCCL moves between GPUs is no copy"


def draw(panel: Panel, name: str) -> Figure | None:
    """The metrics of the view in time and in percent; None where the profiles have none, as those of CPU ranks."""
    time = WINDOW if profile_metrics.from_start(panel.runs) else STEP
    metrics = panel.experiment.view.shown_metrics
    return _draw(panel, name, (time, SHARE), metrics, "Metrics of profiles", OVERLAP)


def draw_copies(panel: Panel, name: str) -> Figure | None:
    """The bytes of each kind of copy; None without a profile of GPUs."""
    measure = COPIED if profile_metrics.from_start(panel.runs) else COPIED_IN_A_STEP
    return _draw(panel, name, (measure,), profile_metrics.COPIED, "Bytes copied", NOT_NCCL)


def _draw(
    panel: Panel,
    name: str,
    measures: Sequence[str],
    metrics: Sequence[str],
    what: str,
    note: str,
) -> Figure | None:
    """A column of charts for each measure, a chart for each metric that is somewhere above 0."""
    layout = Layout.of(panel)
    rows = [row for measure in measures for row in metric_rows(panel, measure, _values(metrics, measure))]
    if not rows:
        return None
    zero = [metric for metric in metrics if _is_zero(rows, metric)]
    seen = {row["metric"] for row in rows}
    rows = [row for row in rows if row["metric"] not in zero]
    rows = layout.joined([*rows, *(_printed(panel, metrics) if WINDOW in measures else [])])
    for row in rows:
        row |= {AT: layout.place(row), NAMED: profile_metrics.name(row["metric"])}
    charts = [PanelChart(panel, layout, measure, _of(rows, measure)) for measure in measures]
    absent = {
        "In none of these profiles": [metric for metric in zero if metric in seen],
        "Not recorded by this profiler": [metric for metric in metrics if metric not in seen],
    }
    notes = [f"{line}: {', '.join(map(profile_metrics.name, metrics))}" for line, metrics in absent.items() if metrics]
    notes = [*means_note(panel, rows), *notes, *unended_note(panel), note]
    hconcat = {"hconcat": [_spec(chart, metrics) for chart in charts]}
    return around(panel, name, hconcat, rows, layout.by, notes, 3 * WIDTH, what)


def _printed(panel: Panel, metrics: Sequence[str]) -> list[Row]:
    """The papers' seconds, of windows and settings like these."""
    rows = []
    for metric in metrics:
        for cell, figure in same_setting.beside(panel, f"{METRIC}{metric}").items():
            place = {key: grouping.typed(value) for key, value in cell}
            value = {"mean": figure.value, "low": figure.low, "high": figure.high, "status": "ok", "of": PAPER}
            row = {"measure": WINDOW, "metric": metric, "printed": figure.measure, "paper": paper_label(figure)}
            rows.append(row | place | value)
    return rows


def _of(rows: Sequence[Row], measure: str) -> list[Row]:
    return [row for row in rows if row["measure"] == measure]


def _values(metrics: Sequence[str], measure: str) -> Callable[[Profile], Values]:
    """The metrics of a profile, in a measure, as far as it could see them."""

    def values(profile: Profile) -> Values:
        known = {metric: AMOUNTS[measure](profile, metric) for metric in metrics}
        return {("", metric): amount for metric, amount in known.items() if amount is not None}

    return values


def _per_step_s(profile: Profile, metric: str) -> float | None:
    total_s = profile_metrics.seconds(profile, metric)
    return total_s / profile.steps if total_s is not None and profile.steps else None


def _bytes_per_step(profile: Profile, metric: str) -> float | None:
    """Of all ranks."""
    size = profile_metrics.copied_bytes(profile, metric)
    return size * len(profile.ranks) / profile.steps if size is not None and profile.steps else None


AMOUNTS: dict[str, Callable[[Profile, str], float | None]] = {
    SHARE: profile_metrics.share,
    WINDOW: profile_metrics.seconds,
    STEP: _per_step_s,
    COPIED: profile_metrics.copied_bytes,
    COPIED_IN_A_STEP: _bytes_per_step,
}


def _is_zero(rows: Sequence[Row], metric: str) -> bool:
    return not any(row["mean"] for row in rows if row["metric"] == metric)


def _spec(chart: PanelChart, metrics: Sequence[str]) -> Spec:
    """A chart for each metric, below each other: shares on one scale, times on one each, for they differ by orders."""
    layout, colour, is_share = chart.layout, chart.layout.colour, chart.measure == SHARE
    places = layout.places(chart.rows)
    x = alt.X("shown:Q", title=None, axis=alt.Axis(tickCount=4, format=chart.unit.format))
    base = alt.Chart().encode(x=x.scale(zero=True, nice=False), y=alt.Y(f"{AT}:N", sort=places, title=None))
    if colour is not None:
        domain = alt.Scale(domain=chart.order(colour))
        base = base.encode(yOffset=alt.YOffset(escaped(colour), type="nominal", scale=domain))
    bars = len(layout.values(colour)) if colour is not None else 1
    spec = layered(_layers(chart, base), in_unit(chart.unit), WIDTH, len(places) * (bars * BAR + GAP))
    names = [profile_metrics.name(metric) for metric in metrics]
    header = {"title": None, "labelAnchor": "start", "labelFontWeight": "bold", "labelPadding": 4}
    facet = {"field": NAMED, "type": "nominal", "sort": names, "header": header}
    resolve = {"axis": {"x": "independent"}} if is_share else {"scale": {"x": "independent"}}
    title = {"text": TITLES[chart.measure].format(chart.unit.name), "anchor": "start", "style": "heading"}
    rows = {"transform": [only("measure", chart.measure)], "facet": facet, "columns": 1, "spacing": 10}
    return rows | {"spec": spec, "resolve": resolve, "title": title}


def _layers(chart: PanelChart, base: Any) -> list[Any]:
    ok = where(base, MEASURED)
    end = ok.transform_calculate(end="isValid(datum.low) ? datum.shown_high : datum.shown")
    tooltip = [alt.Tooltip(f"{NAMED}:N", title="metric"), *chart.tooltips()]
    interval = ok.transform_filter("isValid(datum.low)").mark_rule(style="plain", strokeWidth=1, clip=True)
    text = alt.Text("shown:Q", format=".3~s" if chart.unit.format == captions.SI else ",.3~r")
    layers = [
        ok.mark_bar().encode(**chart.colour(), tooltip=tooltip),
        interval.encode(x="shown_low:Q", x2="shown_high:Q"),
        end.mark_text(align="left", dx=4, fontSize=10).encode(x="end:Q", text=text),
        end.transform_calculate(room=f"{ROOM} * datum.end").mark_point(opacity=0).encode(x="room:Q"),
    ]
    if not chart.has(PAPER):
        return layers
    printed_range = where(base, PAPER).mark_rule(strokeWidth=1.2).encode(x="shown_low:Q", x2="shown_high:Q")
    return [*layers, printed_range.encode(**chart.colour()), paper_points(base, chart.colour())]
