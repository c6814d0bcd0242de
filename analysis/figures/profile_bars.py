"""Metrics of profiles: time a step and rank by API call, copy, collective and phase, in groups of bars.

Where the experiment's subject lies along x: the calls' shares of the time that the host spent in calls, stacked.

CPU ranks make no CUDA calls: what is there of them (collectives, phases) is drawn, and what is not is said.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from analysis.figures import captions, drawn_rows
from analysis.figures.curves import unended
from analysis.figures.drawn_rows import MEASURED, Row
from analysis.figures.panel_layout import ACROSS, SHOWN, Layout, Plot, around, explained, field, layout
from analysis.figures.vega import SALTIRE, Figure, Spec, calculated, layered, only
from analysis.papers.experiments import Panel
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
LONGEST = 8  # metrics of a group that are shown
STACKED = 7  # calls of a stack; the rest are one
REST = "other calls"
CHART, BAR, STACK = 620, 9, 220  # points: charts beside each other, a bar's thickness, a stack's chart
DARK = [0, 3]  # of the series' colours, those on which writing has to be light
NAMED = 0.06  # of a stack, from which a part has its share written in it
Values = dict[tuple[str, str], float]  # group and metric to what is drawn of it


def draw(panel: Panel, name: str, paper: Sequence[Any]) -> Figure | None:
    """The metrics of the profiles; `paper` printed none."""
    del paper
    stacked = panel.experiment.view.subject == panel.experiment.view.x
    return _shares(panel, name) if stacked else _times(panel, name)


def _times(panel: Panel, name: str) -> Figure | None:
    told = layout(panel)
    found = _rows(panel, _seconds)
    apart = [column for column in (told.x, told.other) if column is not None]
    for row in found:
        row["chart"] = ", ".join(captions.counted(column, row[column], panel.runs) for column in apart)
    order = list(dict.fromkeys(row["chart"] for row in found))
    rows, charts, notes = [], [], []
    for group, title in TITLES.items():
        mine = [row for row in found if row["group"] == group]
        longest = _longest(mine, LONGEST)
        count = len({row["metric"] for row in mine})
        if count > LONGEST:
            notes.append(f"Of {count} {title} the {LONGEST} that took longest are shown")
        kept = [row for row in mine if row["metric"] in longest]
        if kept:
            rows += kept
            plot = Plot(panel, told, "step_s", kept, faceted=False)
            notes += drawn_rows.cut(kept, plot.reach)
            charts.append(_group(plot, group, longest, order))
    if not rows:
        return None
    whole = {"vconcat": charts, "spacing": 12}
    notes = [
        *_means(rows, f", with their {drawn_rows.T_INTERVAL} where there is a line"),
        *notes,
        *_absent(panel, rows),
        *unended(panel.cells),
    ]
    return _titled(panel, name, whole, rows, told.by, notes, CHART)


def _group(plot: Plot, group: str, longest: Sequence[str], order: Sequence[str]) -> Spec:
    """The metrics of a group: a chart for each value of x and the rest, beside each other with one scale."""
    told = plot.layout
    bars = len(plot.panel.values(told.colour)) if told.colour is not None else 1
    unit = captions.unit("step_s", plot.reach[1])
    shown = {name: f"datum.{of} / {unit.divisor}" for name, of in SHOWN.items()}
    told_title = f"{TITLES[group][:1].upper()}{TITLES[group][1:]}, {unit.name} a step and rank"
    title = {"text": told_title, "anchor": "start", "frame": "group", "style": "heading", "offset": 4}
    scale = alt.Scale(domain=[0, plot.reach[1] / unit.divisor], nice=False)
    x = alt.X("shown:Q", title=None, scale=scale, axis=alt.Axis(tickCount=4, format=",~f"))
    base = alt.Chart().encode(x=x, y=alt.Y("metric:N", sort=list(longest), title=None))
    if told.colour is not None:
        offset = alt.YOffset(field(told.colour), type="nominal", scale=alt.Scale(domain=plot.order(told.colour)))
        base = base.encode(yOffset=offset)
    bounded = base.transform_filter("isValid(datum.low)").mark_rule(style="plain", strokeWidth=1, clip=True)
    tips = [alt.Tooltip("metric:N"), *plot.tooltips()]
    layers = [base.mark_bar().encode(**plot.colour(), tooltip=tips), bounded.encode(x="shown_low:Q", x2="shown_high:Q")]
    size = CHART // len(order), len(longest) * (bars * BAR + 6)
    spec = layered(layers, [only("group", group), *calculated(**shown)], *size)
    column = {"field": "chart", "type": "nominal", "sort": list(order), "title": None}
    return {"facet": {"column": column}, "spec": spec, "title": title}


def _shares(panel: Panel, name: str) -> Figure | None:
    """Stacks of shares, those of all calls on a GPU, of the phases where there are no calls."""
    told = layout(panel)
    calls = _rows(panel, _api_shares)
    found = calls or _rows(panel, _phase_shares)
    if not found:
        return None
    longest = _longest(found, STACKED)
    rows = _with_rest(found, longest, panel)
    order = [*longest, *([REST] if any(row["metric"] == REST for row in rows) else [])]
    rank = {metric: index for index, metric in enumerate(order)}
    for row in rows:
        row["order"] = rank[row["metric"]]
    rows += [row | {"measure": "share"} for row in drawn_rows.measured(panel, "share") if row["status"] != "ok"]
    plot = Plot(panel, told, "share", rows, faceted=False)
    what = "CUDA API calls" if calls else "phases"
    title = "share of the host's time in CUDA API calls (%)" if calls else "share of a step (%)"
    base = alt.Chart().encode(
        x=alt.X(field(told.x), type="ordinal", sort=plot.order(told.x), title=plot.title(told.x)).axis(labelAngle=0),
        y=alt.Y("shown:Q", stack="zero", title=title, scale=alt.Scale(domain=[0, 100], nice=False)),
        order=alt.Order("order:Q"),
    )
    scale = alt.Scale(domain=order)
    legend = alt.Legend(title=what, orient="right", symbolType="square")
    colour = alt.Color("metric:N", scale=scale, sort=order, legend=legend)
    drawn = base.mark_bar(style="part").encode(color=colour, tooltip=[alt.Tooltip("metric:N"), alt.Tooltip("shown:Q")])
    layers = [drawn, *_written(base, title), *_crosses(plot, base)]
    chart = layered(layers, calculated(shown="datum.mean / 0.01"), STACK, 300)
    if told.colour is not None:  # stacks have colours of their own
        chart = replace(plot, layout=Layout(told.x, None, told.colour), faceted=True).facets(chart)
    charts = len(plot.order(told.colour)) if told.colour is not None else 1
    notes = [*_means(rows), *_absent(panel, rows), *explained(panel, rows, ())]
    return _titled(panel, name, chart, rows, told.by, notes, STACK * min(charts, ACROSS))


def _written(base: Any, title: str) -> list[Any]:
    """The shares in the larger parts; all layers are stacked, and those that a part does not have are empty."""
    within = alt.Y("shown:Q", stack="zero", bandPosition=0.5, title=title)
    layers = []
    for style, on in (
        ("on_dark", "indexof([0, 3], datum.order) >= 0"),
        ("on_light", "indexof([0, 3], datum.order) < 0"),
    ):
        text = base.transform_calculate(text=f"datum.mean >= {NAMED} && {on} ? format(datum.shown, '.0f') : ''")
        layers.append(text.mark_text(style=style, fontSize=10).encode(y=within, text="text:N", detail="metric:N"))
    return layers


def _crosses(plot: Plot, base: Any) -> list[Any]:
    if not plot.crosses:
        return []
    told = plot.layout
    x = alt.X(field(told.x), type="ordinal", sort=plot.order(told.x), title=plot.title(told.x))
    ended = alt.Chart().transform_filter("datum.status != 'ok'")
    at = ended.transform_calculate(at="3", label="datum.status + (datum.n > 1 ? ' x' + datum.n : '')").encode(
        x=x, y="at:Q"
    )
    cross = at.mark_point(shape=SALTIRE, size=40, strokeWidth=2, opacity=1, style="plain")
    return [cross, at.mark_text(dy=-12, fontSize=10).encode(text="label:N")]


def _titled(
    panel: Panel, name: str, chart: Any, rows: list[Row], by: Sequence[str], notes: Sequence[str], width: int
) -> Figure:
    groups = {row.get("group") for row in rows}
    shown = [title for group, title in TITLES.items() if group in groups and group != "derived"]
    told = captions.listed(shown) if shown else "calls"
    return around(panel, name, chart, rows, by, notes, width, f"Profiles: {told}")


def _rows(panel: Panel, value: Callable[[Run], Values]) -> list[Row]:
    """A row for each cell and metric, the mean over the cell's runs that ended ok with a profile."""
    rows = []
    for cell, runs in panel.cells.items():
        where = {key: captions.value(found) for key, found in cell}
        found: dict[tuple[str, str], list[float]] = {}
        for run in runs:
            for key, one in (value(run) if run["status"] == "ok" else {}).items():
                found.setdefault(key, []).append(one)
        for (group, metric), known in found.items():
            at = {"measure": "share" if value is not _seconds else "step_s", **where, "group": group}
            rows.append({**at, "metric": clean(metric), **drawn_rows.mean(known), "status": "ok", "of": MEASURED})
    return rows


def profile(run: Run) -> Profile | None:
    """The run's profile; None where there is none, or the profiler left nothing that could be read."""
    found = run.record().get("profile")
    return Profile.from_dict(found) if found is not None and "rows" in found else None


def _seconds(run: Run) -> Values:
    """Seconds a step and rank, means over them."""
    found = profile(run)
    if found is None or not found.steps:
        return {}
    return {(row.group, row.metric): row.total_s / found.steps for row in found.of(None) if row.group in TITLES}


def _api_shares(run: Run) -> Values:
    """Shares of the time of all API calls."""
    found = profile(run)
    calls = [row for row in found.of(None) if row.group == "api"] if found is not None else []
    total_s = sum(row.total_s for row in calls)
    return {(row.group, row.metric): row.total_s / total_s for row in calls} if total_s else {}


def _phase_shares(run: Run) -> Values:
    """Shares of the window, over all ranks."""
    found = profile(run)
    return (
        {} if found is None else {(row.group, row.metric): row.share for row in found.of(None) if row.group == "phase"}
    )


def _longest(rows: Sequence[Row], count: int) -> list[str]:
    """The metrics with the highest mean anywhere, the highest first."""
    most: dict[str, float] = {}
    for row in rows:
        most[row["metric"]] = max(most.get(row["metric"], 0.0), row["mean"])
    return sorted(most, key=lambda metric: -most[metric])[:count]


def _with_rest(rows: Sequence[Row], longest: Sequence[str], panel: Panel) -> list[Row]:
    """The rows of the longest metrics, and one for the others of each cell."""
    columns = list(panel.experiment.swept)
    kept = [row for row in rows if row["metric"] in longest]
    rest: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        if row["metric"] not in longest:
            at = tuple(row[column] for column in columns)
            before = rest.get(at, {**row, "metric": REST, "mean": 0.0, "low": None, "high": None, "bar": None})
            rest[at] = before | {"mean": before["mean"] + row["mean"]}
    return [*kept, *rest.values()]


def _means(rows: Sequence[Row], spread: str = "") -> list[str]:
    counts = sorted({row["n"] for row in rows if row["status"] == "ok"})
    if not counts:
        return []
    if counts == [1]:
        return ["Single runs; means over the profiled steps and ranks"]
    runs = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else f"{counts[0]}"
    return [f"Means of {runs} runs, over the profiled steps and ranks{spread}"]


def _absent(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """What the profiles of these ranks cannot have, and what their profiler leaves out."""
    told = []
    if all(run["cpu_ranks"] for run in panel.runs):
        told.append(
            "CPU ranks make no CUDA calls: API calls, copies, NCCL and how busy a GPU is are seen on GPUs alone"
        )
    profiles = [found for run in panel.runs if run["status"] == "ok" and (found := profile(run)) is not None]
    dropped = sorted({name for found in profiles for name in found.not_recorded})
    if dropped:
        told.append(
            f"Not recorded by {captions.listed(sorted({found.source for found in profiles}))}: {', '.join(dropped)}"
        )
    return told
