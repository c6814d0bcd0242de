"""Figures of profiles: the papers' metrics in seconds, percent and bytes, shares as stacks, and all metrics by group.

Seconds and bytes are of all ranks and the whole window where it is the papers', the run from its start. Of a few steps
they are of a step and rank. CPU ranks make no CUDA calls: their phases are drawn, and a note says what they lack.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import altair as alt

from analysis.experiments import Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import MEASURED, PAPER, Metrics, Row
from analysis.figures.charts import CROSS, MOST_ACROSS, SMALL_WIDTH, drawn, facets, horizontal_bars, tooltips
from analysis.figures.experiment_charts import crosses_note, unended_note
from analysis.figures.layout import Layout
from analysis.figures.vega import Figure, escaped
from analysis.runs import profile_metrics
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
GROUPS = {  # of metrics
    "api": "CUDA API calls",
    "copy": "copies",
    "collective": "collectives",
    "derived": "what follows from these",
    "phase": "phases",
}
MOST_METRICS = 8  # of a group
BAR, GAP = 11, 8  # points: a bar's thickness, and between groups of bars
STACK_HEIGHT = 300  # points
ROOM = 1.2  # of the longest bar, so that its figure has room
LABELLED_FROM = 0.05  # of the axis, from which a part has its share written in it
AT, NAMED = "at", "named"  # fields of a row: its cell without what colours show, and its metric, in words
OVERLAP = "Metrics overlap: host and devices work at once, and NCCL's kernels wait for other ranks"
NOT_NCCL = "Copies that the driver makes; what NCCL moves between GPUs is no copy"
NO_CALLS = "CPU ranks make no CUDA calls: API calls, copies, NCCL and how busy a GPU is are seen on GPUs alone"


def metrics(panel: Panel, name: str) -> Figure | None:
    """The metrics of the view in time and in percent; None where the profiles have none, as those of CPU ranks."""
    time, names = WINDOW if profile_metrics.from_start(panel.runs) else STEP, panel.experiment.view.shown_metrics
    return _papers_metrics(panel, name, (time, SHARE), names, "Metrics of profiles", OVERLAP)


def copies(panel: Panel, name: str) -> Figure | None:
    """The bytes of each kind of copy; None without a profile of GPUs."""
    measure = COPIED if profile_metrics.from_start(panel.runs) else COPIED_IN_A_STEP
    return _papers_metrics(panel, name, (measure,), profile_metrics.COPIED, "Bytes copied", NOT_NCCL)


def _papers_metrics(
    panel: Panel, name: str, measures: Sequence[str], names: Sequence[str], what: str, note: str
) -> Figure | None:
    """Bars of the metrics that are somewhere above 0, in each measure."""
    rows = [row for measure in measures for row in chart_data.by_metric(panel, measure, _amounts(names, measure))]
    seen = {row["metric"] for row in rows}
    shown = [metric for metric in names if any(row["mean"] for row in rows if row["metric"] == metric)]
    if WINDOW in measures:
        printed = [chart_data.paper(panel, WINDOW, f"{METRIC}{metric}", metric=metric) for metric in shown]
        rows += [row for of_metric in printed for row in of_metric]
    absent = {
        "In none of these profiles": [metric for metric in names if metric in seen and metric not in shown],
        "Not recorded by this profiler": [metric for metric in names if metric not in seen],
    }
    notes = [f"{line}: {', '.join(map(profile_metrics.name, metrics))}" for line, metrics in absent.items() if metrics]
    return _bars(panel, name, rows, shown, len(measures), what, [*notes, *unended_note(panel), note])


def all_metrics(panel: Panel, name: str) -> Figure | None:
    """The longest metrics of each group, time a step and rank; the papers print none."""
    rows = chart_data.by_metric(panel, STEP, _seconds)
    shown, notes = list[str](), list[str]()
    for group, title in GROUPS.items():
        by_size = _by_size([row for row in rows if row["group"] == group])
        shown += by_size[:MOST_METRICS]
        if len(by_size) > MOST_METRICS:
            notes.append(f"Of {len(by_size)} {title} the {MOST_METRICS} that took longest are shown")
    groups = {row["group"] for row in rows} - {"derived"}
    what = f"Profiles: {captions.listed([title for group, title in GROUPS.items() if group in groups]) or 'calls'}"
    return _bars(panel, name, rows, shown, 3, what, [*notes, *absent_notes(panel), *unended_note(panel)])


def _bars(
    panel: Panel, name: str, rows: Sequence[Row], names: Sequence[str], columns: int, what: str, notes: Sequence[str]
) -> Figure | None:
    """A chart for each metric and measure, with written figures; None without a row of these metrics."""
    layout = Layout.of(panel)
    joined = layout.joined([row for row in rows if row["metric"] in names])
    if not joined:
        return None
    for row in joined:
        row.update({AT: layout.place(row), NAMED: profile_metrics.name(row["metric"])})
    shown = _with_room(drawn(joined, "", titles=TITLES, part=lambda row: row[NAMED]))
    shown.sort(key=lambda row: names.index(row["metric"]))
    places, series = layout.places(shown), layout.series(alt.YOffset)
    is_bytes = shown[0]["measure"] in (COPIED, COPIED_IN_A_STEP)
    axis = alt.Axis(tickCount=4, format=captions.SI if is_bytes else captions.PLAIN)
    layers = horizontal_bars(
        shown,
        alt.X("shown:Q", title=None, axis=axis, scale=alt.Scale(nice=False)),
        alt.Y(f"{AT}:N", sort=places, title=None),
        replace(series, tooltips=[alt.Tooltip(f"{NAMED}:N", title="metric"), *series.tooltips]),
        ".3~s" if is_bytes else ",.3~r",
    )
    bars = len(layout.values(layout.colour)) if layout.colour is not None else 1
    chart = facets(layers, shown, columns, SMALL_WIDTH, len(places) * (bars * BAR + GAP), free="x")
    return layout.figure(name, chart, shown, [*means_note(panel, shown), *notes], 3 * SMALL_WIDTH, what)


def _with_room(rows: list[Row]) -> list[Row]:
    """The rows with room for figures beside the bars. Shares are on one scale; times on one each, for they differ by
    orders."""
    ends: dict[str, float] = {}
    for row in rows:
        scale = SHARE if row["measure"] == SHARE else row["chart"]
        ends[scale] = max(ends.get(scale, 0.0), row["shown_high"] or row["shown"])
    return [row | {"most": ROOM * ends[SHARE if row["measure"] == SHARE else row["chart"]]} for row in rows]


def _amounts(names: Sequence[str], measure: str) -> Callable[[Profile], Metrics]:
    """The metrics of a profile, in a measure, as far as it could see them."""

    def amounts(profile: Profile) -> Metrics:
        known = {metric: AMOUNTS[measure](profile, metric) for metric in names}
        return {("", metric): amount for metric, amount in known.items() if amount is not None}

    return amounts


def _per_step_s(profile: Profile, metric: str) -> float | None:
    total_s = profile_metrics.seconds(profile, metric)
    return total_s / profile.steps if total_s is not None and profile.steps else None


def _bytes_per_step(profile: Profile, metric: str) -> float | None:
    """Bytes of all ranks."""
    size = profile_metrics.copied_bytes(profile, metric)
    return size * len(profile.ranks) / profile.steps if size is not None and profile.steps else None


AMOUNTS: dict[str, Callable[[Profile, str], float | None]] = {
    SHARE: profile_metrics.share,
    WINDOW: profile_metrics.seconds,
    STEP: _per_step_s,
    COPIED: profile_metrics.copied_bytes,
    COPIED_IN_A_STEP: _bytes_per_step,
}


def _seconds(profile: Profile) -> Metrics:
    """Mean seconds a step and rank."""
    rows = [row for row in profile.of(None) if row.group in GROUPS]
    return {(row.group, row.metric): row.total_s / profile.steps for row in rows} if profile.steps else {}


def _by_size(rows: Sequence[Row]) -> list[str]:
    """The metrics, that with the highest mean anywhere first."""
    highest: dict[str, float] = {}
    for row in rows:
        highest[row["metric"]] = max(highest.get(row["metric"], 0.0), row["mean"])
    return sorted(highest, key=lambda metric: -highest[metric])


def shares(panel: Panel, name: str) -> Figure | None:
    """Stacks of shares of the profiled time, of CPU ranks of the phases of a step; the papers print none."""
    names, layout = panel.experiment.view.shown_metrics, Layout.of(panel)
    rows = chart_data.by_metric(panel, SHARE, lambda profile: profile_metrics.shares(profile, names))
    what, notes = "Metrics of profiles", [OVERLAP]
    if not rows:
        rows = chart_data.by_metric(panel, SHARE, profile_metrics.phase_shares)
        what, notes = "Phases of a step", absent_notes(panel)
    if not rows:
        return None
    parts = list(dict.fromkeys(profile_metrics.name(metric) for metric in names))
    parts = [part for part in parts if any(part == row["metric"] for row in rows)] or _by_size(rows)
    unended = [row for row in chart_data.measured(panel, SHARE) if row["status"] != "ok"]
    # colours are for the parts, so the column has a chart for each of its values
    layout = Layout(panel, layout.x, None, layout.colour, faceted=layout.colour is not None)
    rows = layout.joined([*rows, *unended])
    stacks: dict[tuple[str, ...], float] = {}
    for row in rows:
        cell = tuple(row[column] for column in panel.experiment.swept)
        stacks[cell] = stacks.get(cell, 0.0) + (row.get("mean") or 0.0)
    top = 104 * (max(stacks.values()) or 1.0)
    rows = drawn(rows, "", layout.x, layout.part, at_foot=True, titles={SHARE: ""})
    for row in rows:
        label = f"{row['shown']:.0f}" if row["shown"] >= LABELLED_FROM * top else ""
        order = {"order": parts.index(row["metric"]), "label": label} if row["status"] == "ok" else {"shown": 3}
        row.update(order)
    width, columns = SMALL_WIDTH, min(MOST_ACROSS, layout.parts)
    chart = facets(_stack_layers(layout, rows, parts, top), rows, columns, width, STACK_HEIGHT, free="")
    notes = [*means_note(panel, rows), *crosses_note(rows), *notes]
    return layout.figure(name, chart, rows, notes, width * columns, what)


def _stack_layers(layout: Layout, rows: Sequence[Row], parts: Sequence[str], top: float) -> list[Any]:
    title, scale = "share of the profiled time (%)", alt.Scale(domain=[0, top], nice=False)
    order = captions.ordered(layout.panel.values(layout.x))
    axis = alt.Axis(labelAngle=0)
    x = alt.X(escaped(layout.x), type="ordinal", sort=order, title=layout.title(layout.x), axis=axis)
    y = alt.Y("shown:Q", stack="zero", title=title, scale=scale)
    ok = alt.Chart().transform_filter("datum.status == 'ok'")  # a row without a mean would void its whole stack
    base = ok.encode(x=x, y=y, order=alt.Order("order:Q"))
    legend = alt.Legend(title=None, symbolType="square")
    colour = alt.Color("metric:N", scale=alt.Scale(domain=list(parts)), sort=list(parts), legend=legend)
    layers: list[Any] = [base.mark_bar(style="part").encode(color=colour, tooltip=tooltips([alt.Tooltip("metric:N")]))]
    middle = alt.Y("shown:Q", stack="zero", bandPosition=0.5, title=title)
    for style, on_dark in (("on_dark", ">= 0"), ("on_light", "< 0")):  # the first and the fourth colour are dark
        # every layer is stacked, so a part without a label has an empty one
        text = base.transform_calculate(text=f"indexof([0, 3], datum.order) {on_dark} ? datum.label : ''")
        layers.append(text.mark_text(style=style, fontSize=10).encode(y=middle, text="text:N", detail="metric:N"))
    if any(row["status"] != "ok" for row in rows):
        unended = alt.Chart().transform_filter("datum.status != 'ok'").encode(x=x, y="shown:Q")
        layers.append(unended.mark_point(**CROSS, style="plain"))
        layers.append(unended.mark_text(dy=-12, fontSize=10).encode(text="label:N"))
    return layers


def means_note(panel: Panel, rows: Sequence[Row]) -> list[str]:
    """Lines on the number of runs behind a bar, and on what was profiled."""
    counts = sorted({row["n"] for row in rows if row["of"] == MEASURED and row["status"] == "ok"})
    ended = [run for run in panel.runs if run["status"] == "ok"]
    profiled = f"Profiled: {captions.listed(list(profile_metrics.windows(ended)))}"
    if not counts:
        return []
    if counts == [1]:
        return [f"Single runs. {profiled}"]
    own = [row for row in rows if row["of"] != PAPER]
    spread = f" with their {chart_data.T_INTERVAL}" * any(row.get("low") is not None for row in own)
    return [f"Means of {chart_data.count_range(counts)} runs{spread}. {profiled}"]


def absent_notes(panel: Panel) -> list[str]:
    """What the profiles of these ranks cannot have, and what their profiler leaves out."""
    notes = [NO_CALLS] if all(run["cpu_ranks"] for run in panel.runs) else []
    profiles = [profile for run in panel.runs if (profile := profile_metrics.profile(run)) is not None]
    dropped = sorted({name for profile in profiles for name in profile.not_recorded})
    if dropped:
        sources = captions.listed(sorted({profile.source for profile in profiles}))
        notes.append(f"Not recorded by {sources}: {', '.join(dropped)}")
    return notes
