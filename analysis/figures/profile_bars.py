"""Metrics of profiles: time a step and rank by API call, copy, collective and phase, in groups of bars.

Where the experiment's subject lies along x: each call's share of the host's time in calls, stacked. CPU ranks make no
CUDA calls: their collectives and phases are drawn, and a note says what they lack.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from analysis.figures import captions, chart_data
from analysis.figures.chart_data import MEASURED, Row
from analysis.figures.chart_layout import Layout
from analysis.figures.curves import unended_note
from analysis.figures.panel_layout import (
    ACROSS,
    ENDED,
    PanelChart,
    around,
    cross_and_paper_notes,
    in_unit,
)
from analysis.figures.vega import CROSS, Figure, Spec, calculated, escaped, layered, only
from analysis.papers.experiments import Panel
from analysis.runs import grouping
from analysis.runs.load import Run
from multicard.profiling.profile_data import Profile
from multicard.records.text_table import clean

TITLES = {
    "api": "CUDA API calls",
    "copy": "copies",
    "collective": "collectives",
    "derived": "what follows from these",
    "phase": "phases",
}
MOST_METRICS = 8  # of a group
MOST_PARTS = 7  # calls of a stack; the rest are one
REST = "other calls"
WIDTH, BAR, STACK_WIDTH, STACK_HEIGHT = 620, 9, 220, 300  # points; a bar's thickness
LABELLED_FROM = 0.06  # of a stack, from which a part has its share written in it
Values = dict[tuple[str, str], float]  # by group and metric


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure | None:
    """The metrics of the profiles; the papers print none of them."""
    del paper
    stacked = panel.experiment.view.subject == panel.experiment.view.x
    return _draw_shares(panel, name) if stacked else _draw_times(panel, name)


def _draw_times(panel: Panel, name: str) -> Figure | None:
    layout = Layout.of(panel)
    metric_rows = _rows(panel, "step_s", _seconds)
    apart = [column for column in (layout.x, layout.other) if column is not None]
    for row in metric_rows:
        row["chart"] = ", ".join(captions.counted(column, row[column], panel.runs) for column in apart)
    columns = list(dict.fromkeys(row["chart"] for row in metric_rows))
    rows, charts, notes = [], [], []
    for group, title in TITLES.items():
        of_group = [row for row in metric_rows if row["group"] == group]
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
    spread = f", with their {chart_data.T_INTERVAL} where there is a line"
    notes = [*_means_note(rows, spread), *notes, *_absent_notes(panel), *unended_note(panel)]
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
    width, height = WIDTH // len(columns), len(longest) * (bars * BAR + 6)
    spec = layered(layers, [only("group", group), *in_unit(unit)], width, height)
    column = {"field": "chart", "type": "nominal", "sort": list(columns), "title": None}
    return {"facet": {"column": column}, "spec": spec, "title": title}


def _draw_shares(panel: Panel, name: str) -> Figure | None:
    """Stacks of shares: of all calls on GPUs, of the phases where there are no calls."""
    layout = Layout.of(panel)
    calls = _rows(panel, "share", _api_shares)
    metric_rows = calls or _rows(panel, "share", _phase_shares)
    if not metric_rows:
        return None
    what, title = "CUDA API calls", "share of the host's time in CUDA API calls (%)"
    if not calls:
        what, title = "phases", "share of a step (%)"
    rows, parts = _parts(metric_rows, panel)
    rows += [row | {"measure": "share"} for row in chart_data.measured(panel, "share") if row["status"] != "ok"]
    chart = PanelChart(panel, layout, "share", rows)
    x = alt.X(escaped(layout.x), type="ordinal", sort=chart.order(layout.x), title=chart.title(layout.x))
    y = alt.Y("shown:Q", stack="zero", title=title, scale=alt.Scale(domain=[0, 100], nice=False))
    ok = alt.Chart().transform_filter("datum.status == 'ok'")  # a row without a mean would void its whole stack
    base = ok.encode(x=x.axis(labelAngle=0), y=y, order=alt.Order("order:Q"))
    legend = alt.Legend(title=what, orient="right", symbolType="square")
    colour = alt.Color("metric:N", scale=alt.Scale(domain=parts), sort=parts, legend=legend)
    bars = base.mark_bar(style="part")
    layers = [bars.encode(color=colour, tooltip=[alt.Tooltip("metric:N"), alt.Tooltip("shown:Q")])]
    layers += _share_labels(base, title)
    if chart.crosses:
        unended = alt.Chart().transform_filter("datum.status != 'ok'").transform_calculate(at="3", label=ENDED)
        unended = unended.encode(x=x, y="at:Q")
        layers.append(unended.mark_point(**CROSS, style="plain"))
        layers.append(unended.mark_text(dy=-12, fontSize=10).encode(text="label:N"))
    spec, across = layered(layers, calculated(shown="datum.mean / 0.01"), STACK_WIDTH, STACK_HEIGHT), 1
    if layout.colour is not None:  # colours are for the parts, so the column has a chart for each of its values
        spec = replace(chart, layout=Layout(panel, layout.x, None, layout.colour), faceted=True).facets(spec)
        across = min(ACROSS, len(chart.order(layout.colour)))
    notes = [*_means_note(rows), *_absent_notes(panel), *cross_and_paper_notes(panel, rows, ())]
    return around(panel, name, spec, rows, layout.by, notes, STACK_WIDTH * across, _what(rows))


def _parts(rows: Sequence[Row], panel: Panel) -> tuple[list[Row], list[str]]:
    """The rows of the largest metrics, and one for the others of each cell; and the parts of the stacks in order."""
    largest = _largest(rows, MOST_PARTS)
    parts = [row for row in rows if row["metric"] in largest]
    rest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["metric"] not in largest:
            cell = tuple(row[column] for column in panel.experiment.swept)
            none = {**row, "metric": REST, "mean": 0.0, "low": None, "high": None, "bar": None}
            part = rest.setdefault(cell, none)
            part["mean"] += row["mean"]
    order = [*largest, *([REST] if rest else [])]
    rows = [*parts, *rest.values()]
    for row in rows:
        row["order"] = order.index(row["metric"])
    return rows, order


def _share_labels(base: Any, title: str) -> list[Any]:
    """The shares in the larger parts; every layer is stacked, so a part without a label has an empty one."""
    middle = alt.Y("shown:Q", stack="zero", bandPosition=0.5, title=title)
    layers = []
    for style, on_dark in (("on_dark", ">= 0"), ("on_light", "< 0")):  # the first and the fourth colour are dark
        style_fits = f"indexof([0, 3], datum.order) {on_dark}"
        label = f"datum.mean >= {LABELLED_FROM} && {style_fits} ? format(datum.shown, '.0f') : ''"
        text = base.transform_calculate(text=label).mark_text(style=style, fontSize=10)
        layers.append(text.encode(y=middle, text="text:N", detail="metric:N"))
    return layers


def _what(rows: Sequence[Row]) -> str:
    groups = {row.get("group") for row in rows}
    titles = [title for group, title in TITLES.items() if group in groups and group != "derived"]
    return f"Profiles: {captions.listed(titles) if titles else 'calls'}"


def _rows(panel: Panel, measure: str, values_of: Callable[[Profile], Values]) -> list[Row]:
    """A row for each cell and metric, the mean over the cell's runs that ended ok with a profile."""
    rows = []
    for cell, runs in panel.cells.items():
        place = {"measure": measure, **{key: grouping.typed(value) for key, value in cell}}
        values: dict[tuple[str, str], list[float]] = {}
        for run in runs:
            profile = _profile(run) if run["status"] == "ok" else None
            for metric, value in values_of(profile).items() if profile is not None else ():
                values.setdefault(metric, []).append(value)
        for (group, metric), of_runs in values.items():
            labels = {"group": group, "metric": clean(metric), "status": "ok", "of": MEASURED}
            rows.append(place | labels | chart_data.mean(of_runs))
    return rows


def _profile(run: Run) -> Profile | None:
    """The run's profile; None without one, or where the profiler left nothing that could be read."""
    profile = run.record().get("profile")
    return Profile.from_dict(profile) if profile is not None and "rows" in profile else None


def _seconds(profile: Profile) -> Values:
    """Mean seconds a step and rank."""
    rows = [row for row in profile.of(None) if row.group in TITLES]
    return {(row.group, row.metric): row.total_s / profile.steps for row in rows} if profile.steps else {}


def _api_shares(profile: Profile) -> Values:
    """Shares of the time of all API calls."""
    calls = [row for row in profile.of(None) if row.group == "api"]
    total_s = sum(row.total_s for row in calls)
    return {(row.group, row.metric): row.total_s / total_s for row in calls} if total_s else {}


def _phase_shares(profile: Profile) -> Values:
    """Shares of the profiled time of all ranks."""
    return {(row.group, row.metric): row.share for row in profile.of(None) if row.group == "phase"}


def _largest(rows: Sequence[Row], count: int) -> list[str]:
    """The metrics with the highest mean anywhere, the highest first."""
    highest: dict[str, float] = {}
    for row in rows:
        highest[row["metric"]] = max(highest.get(row["metric"], 0.0), row["mean"])
    return sorted(highest, key=lambda metric: -highest[metric])[:count]


def _means_note(rows: Sequence[Row], spread: str = "") -> list[str]:
    counts = sorted({row["n"] for row in rows if row["status"] == "ok"})
    if counts == [1]:
        return ["Single runs; means over the profiled steps and ranks"]
    if not counts:
        return []
    return [f"Means of {chart_data.count_range(counts)} runs, over the profiled steps and ranks{spread}"]


def _absent_notes(panel: Panel) -> list[str]:
    """What the profiles of these ranks cannot have, and what their profiler leaves out."""
    notes = []
    if all(run["cpu_ranks"] for run in panel.runs):
        notes.append(
            "CPU ranks make no CUDA calls: API calls, copies, NCCL and how busy a GPU is are seen on GPUs alone"
        )
    profiles = [profile for run in panel.runs if run["status"] == "ok" and (profile := _profile(run)) is not None]
    dropped = sorted({name for profile in profiles for name in profile.not_recorded})
    if dropped:
        sources = captions.listed(sorted({profile.source for profile in profiles}))
        notes.append(f"Not recorded by {sources}: {', '.join(dropped)}")
    return notes
