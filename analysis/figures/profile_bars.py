"""All metrics of profiles, time a step and rank: API calls, copies, collectives and phases, in groups of bars.

CPU ranks make no CUDA calls: their collectives and phases are drawn, and a note says what they lack.
"""

from collections.abc import Sequence

import altair as alt

from analysis.experiments import Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import Row
from analysis.figures.chart_layout import Layout
from analysis.figures.curves import unended_note
from analysis.figures.panel_layout import ACROSS, PanelChart, around, in_unit
from analysis.figures.profile_rows import Values, absent_notes, means_note, metric_rows
from analysis.figures.vega import Figure, Spec, escaped, layered, only
from multicard.observe.profiles.profile_data import Profile

TITLES = {
    "api": "CUDA API calls",
    "copy": "copies",
    "collective": "collectives",
    "derived": "what follows from these",
    "phase": "phases",
}
MOST_METRICS = 8  # of a group
WIDTH, BAR = 620, 9  # points; a bar's thickness


def draw(panel: Panel, name: str) -> Figure | None:
    """The metrics of the profiles by group; the papers print no times of a step."""
    layout = Layout.of(panel)
    rows_of_all = layout.joined(metric_rows(panel, "step_s", _seconds))
    for row in rows_of_all:
        row["chart"] = layout.place(row)
    columns = layout.places(rows_of_all)
    rows, charts, notes = [], [], []
    for group, title in TITLES.items():
        of_group = [row for row in rows_of_all if row["group"] == group]
        longest = _largest(of_group, MOST_METRICS)
        count = len({row["metric"] for row in of_group})
        if count > MOST_METRICS:
            notes.append(f"Of {count} {title} the {MOST_METRICS} that took longest are shown")
        shown = [row for row in of_group if row["metric"] in longest]
        if shown:
            rows += shown
            chart = PanelChart(panel, layout, "step_s", shown)
            notes += chart_data.cut_note(shown, chart.axis_limits)
            charts.append(_group_spec(chart, group, longest, columns))
    if not rows:
        return None
    notes = [*means_note(panel, rows), *notes, *absent_notes(panel), *unended_note(panel)]
    vconcat = {"vconcat": charts, "spacing": 12}
    return around(panel, name, vconcat, rows, layout.by, notes, WIDTH, _what(rows))


def _group_spec(chart: PanelChart, group: str, longest: Sequence[str], columns: Sequence[str]) -> Spec:
    """The metrics of a group: a chart for each value of x and the rest, beside each other with one scale."""
    colour = chart.layout.colour
    unit = captions.unit("step_s", chart.axis_limits[1])
    heading = f"{TITLES[group][:1].upper()}{TITLES[group][1:]}, {unit.name} a step and rank"
    title = {"text": heading, "anchor": "start", "frame": "group", "style": "heading", "offset": 4}
    scale = alt.Scale(domain=[0, chart.axis_limits[1] / unit.divisor], nice=False)
    x = alt.X("shown:Q", title=None, scale=scale, axis=alt.Axis(tickCount=4, format=",~f"))
    base = alt.Chart().encode(x=x, y=alt.Y("metric:N", sort=list(longest), title=None))
    if colour is not None:
        domain = alt.Scale(domain=chart.order(colour))
        base = base.encode(yOffset=alt.YOffset(escaped(colour), type="nominal", scale=domain))
    interval = base.transform_filter("isValid(datum.low)").mark_rule(style="plain", strokeWidth=1, clip=True)
    layers = [
        base.mark_bar().encode(**chart.colour(), tooltip=[alt.Tooltip("metric:N"), *chart.tooltips()]),
        interval.encode(x="shown_low:Q", x2="shown_high:Q"),
    ]
    bars = len(chart.panel.values(colour)) if colour is not None else 1
    width, height = WIDTH // min(ACROSS, len(columns)), len(longest) * (bars * BAR + 6)
    spec = layered(layers, [only("group", group), *in_unit(unit)], width, height)
    facet = {"field": "chart", "type": "nominal", "sort": list(columns), "header": {"title": None}}
    return {"facet": facet, "spec": spec, "columns": ACROSS, "title": title}


def _what(rows: Sequence[Row]) -> str:
    groups = {row.get("group") for row in rows}
    titles = [title for group, title in TITLES.items() if group in groups and group != "derived"]
    return f"Profiles: {captions.listed(titles) if titles else 'calls'}"


def _seconds(profile: Profile) -> Values:
    """Mean seconds a step and rank."""
    rows = [row for row in profile.of(None) if row.group in TITLES]
    return {(row.group, row.metric): row.total_s / profile.steps for row in rows} if profile.steps else {}


def _largest(rows: Sequence[Row], count: int) -> list[str]:
    """The metrics with the highest mean anywhere, the highest first."""
    highest: dict[str, float] = {}
    for row in rows:
        highest[row["metric"]] = max(highest.get(row["metric"], 0.0), row["mean"])
    return sorted(highest, key=lambda metric: -highest[metric])[:count]
