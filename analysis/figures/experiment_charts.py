"""Figures of an experiment: lines over a number, grouped bars, curves, and metrics of profiles.

Color and shape show the subject of the experiment. The other columns have charts beside each other.
If most combinations of some columns are excluded, these columns form one series ("dali, nhwc"):
each alone would repeat the other.

The papers profiled runs from their start. If a profile does too, seconds and bytes are sums over
all ranks and the whole window. For a few profiled steps, they are per step and rank. CPU ranks make
no CUDA calls, so their phases are drawn, and a note says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import altair as alt

from multicard.config.job import count
from multicard.messages import Message
from multicard.observe.profiles.metrics import Profile
from multicard.papers.printed import METRIC
from multicard.records.text_table import capital, clean

from .. import same_setting
from ..experiments import EFFICIENCY, Panel
from ..runs import details, grouping, profile_metrics
from ..runs.load import Run
from . import captions, chart_data, charts
from .chart_data import PAPER, Row
from .vega import Chart, Spec, escaped

# The width, in points, of a chart among several of one measure, and of a row of them.
FACET_WIDTH = 220
ROW_WIDTH = 880
# The thickness of a bar and the gap between groups of bars, in points.
BAR_HEIGHT = 11
GROUP_GAP = 8
MARGIN_WIDTH = 160  # The width of axes and legend, in points.
SERIES = charts.SERIES
CURVES = ("train_loss", "test_accuracy")  # Keys of a record's epochs.
EFFICIENCY_NOTE = Message(
    "figure.efficiency-formula",
    "Parallel efficiency: the time on one GPU / (GPUs x the time), a ratio of means",
)
HOLLOW_NOTE = Message("figure.hollow", "Hollow: the papers' own figures")


@dataclass(frozen=True)
class Layout:
    """How a panel is laid out: its columns with several values, along x, by color and as charts.

    colour: the columns that color shows.
    parts: the columns whose values have charts of their own.
    """

    panel: Panel
    x: str
    colour: Sequence[str]
    parts: Sequence[str]

    @staticmethod
    def of(panel: Panel, x: str | None = None) -> "Layout":
        experiment, x = panel.experiment, x or panel.experiment.view.x
        varied_columns = [
            name for name in experiment.swept if name != x and len(panel.values(name)) > 1
        ]
        color_columns = {experiment.view.subject} & {*varied_columns} or {*varied_columns[:1]}
        tied_columns = [
            entry.keys() for entry in experiment.excluded if entry.keys() <= {*varied_columns}
        ]
        for _ in tied_columns:
            color_columns = color_columns.union(
                *(columns for columns in tied_columns if columns & color_columns)
            )
        groups_first = sorted(varied_columns, key=lambda name: "." in name)
        return Layout(
            panel,
            x,
            [name for name in groups_first if name in color_columns],
            [name for name in groups_first if name not in color_columns],
        )

    @property
    def varied_columns(self) -> list[str]:
        return [self.x, *self.colour, *self.parts]

    def words(self, columns: Iterable[str], row: Row) -> str:
        """Return the values of a row in words: "dali, nhwc", "300 px, 4 GPUs"."""
        return ", ".join(captions.value(name, row[name], self.panel.runs) for name in columns)

    def order(self, columns: Sequence[str]) -> list[str]:
        ranks = {name: grouping.ordered(self.panel.values(name)) for name in columns}
        cells = sorted(
            map(dict, self.panel.cells),
            key=lambda cell: [ranks[key].index(cell[key]) for key in columns],
        )
        return list(dict.fromkeys(self.words(columns, cell) for cell in cells)) if columns else []

    def with_places(self, rows: Sequence[Row]) -> list[Row]:
        places = [*self.parts, self.x]
        return [
            row | {SERIES: self.words(self.colour, row), charts.PLACE: self.words(places, row)}
            for row in rows
        ]

    def with_parts(self, rows: Sequence[Row]) -> list[Row]:
        labeled_rows = [
            row | {SERIES: self.words(self.colour, row), charts.PART: self.words(self.parts, row)}
            for row in rows
        ]
        order = self.order(self.parts) or [""]
        return sorted(labeled_rows, key=lambda row: order.index(row[charts.PART]))

    def x_axis(self) -> alt.X:
        """Return an axis along numbers, with a tick at each if there are few, or along names."""
        values = grouping.ordered(self.panel.values(self.x))
        title = captions.column(self.x, self.panel.runs)
        if grouping.is_numeric(values):
            return charts.number_axis(escaped(self.x), values, title)
        axis = alt.Axis(labelAngle=0)
        return alt.X(escaped(self.x), type="ordinal", sort=values, title=title, axis=axis)

    def figure(
        self,
        name: str,
        chart: Spec,
        rows: list[Row],
        notes: Sequence[str],
        width: int,
        what: str = "",
    ) -> Chart:
        """Return a panel's chart with its title, what all runs share, and how to read it.

        Args:
            what: the subject of the title; by default the measures.
        """
        panel = self.panel
        experiment = self.panel.experiment
        measures = dict.fromkeys(row["measure"] for row in rows)
        subject = what or captions.listed([captions.measure(measure) for measure in measures])
        columns = [captions.column(column, panel.runs) for column in self.varied_columns]
        title = f"{subject} by {captions.listed(columns)}"
        title = title[:1].upper() + title[1:] + (f" ({panel.apart})" if panel.apart else "")
        above = [
            f"{experiment.name}: {experiment.title.rstrip('.')}",
            captions.common_settings(panel.runs, self.varied_columns),
        ]
        printed = dict.fromkeys(row["printed"] for row in rows if row["of"] == PAPER)
        printed_figures = []
        for measure in printed:
            printed_figures.extend(same_setting.comparable_figures(panel, measure).values())
        below = [*dict.fromkeys(notes)]
        is_timed = bool(what) or experiment.view.form != "curves"
        left_out = chart_data.disturbed_notes(panel, measures) if is_timed else []
        below += [*captions.missing_cells(panel.missing), *captions.marks(panel.runs)[1]]
        if printed:
            below.append(HOLLOW_NOTE)
        below += [capital(line) for line in same_setting.notes(panel, printed_figures)]
        run_limits = tuple(grouping.limits_of(panel.runs))
        return Chart(
            name,
            title,
            chart,
            rows,
            above,
            below,
            run_limits,
            width + MARGIN_WIDTH,
            left_out=left_out,
        )

    def bars(
        self,
        name: str,
        rows: list[Row],
        notes: Sequence[str],
        across: int,
        what: str = "",
        si: bool = False,
    ) -> Chart:
        order = self.order(self.colour)
        places = self.order([*self.parts, self.x])
        height = len(places) * (charts.bars_per_group(rows, order) * BAR_HEIGHT + GROUP_GAP)
        width = min(charts.WIDTH, 3 * charts.SMALL_WIDTH // across)
        chart = charts.facets(
            charts.bar_layers(rows, order, places, si), rows, across, width, height, free="x"
        )
        return self.figure(name, chart, rows, notes, across * width, what)


def by_measure(panel: Panel, name: str) -> Chart | None:
    """Draw a chart of each measure in the view's form: lines, grouped bars, or curves over epochs.

    The papers print no figures of curves. The result is None if there are no rows.
    """
    experiment = panel.experiment
    form = "bars" if experiment.view.form == "copies" else experiment.view.form
    layout = Layout.of(panel, x="epoch" if form == "curves" else None)
    rows = list[Row]()
    notes = list[str]()
    for measure in CURVES if form == "curves" else experiment.view.measures:
        measure_rows = _measure_rows(panel, measure, form)
        if rows and not any(row["status"] == "ok" and "mean" in row for row in measure_rows):
            text = f"No run has {captions.measure(measure)}"
            notes.append(Message("figure.measure-missing", text, measure=measure))
        else:
            rows += measure_rows
    if not rows:
        return None
    notes = [*chart_data.means_notes(rows), *notes, *_notes(panel, rows, form)]
    measures = len({row["measure"] for row in rows})
    if form == "bars":
        return layout.bars(
            name, charts.with_drawn_values(layout.with_places(rows), are_bars=True), notes, measures
        )
    rows = charts.with_drawn_values(layout.with_parts(rows), layout.x)
    parts = len(layout.order(layout.parts))
    across = min(charts.MAX_ACROSS, parts) or measures
    width = min(FACET_WIDTH, ROW_WIDTH // across) if parts else charts.WIDTH
    epochs = sorted({row["epoch"] for row in rows}) if form == "curves" else []
    x = charts.number_axis("epoch", epochs, "epoch") if epochs else layout.x_axis()
    layers = charts.line_layers(rows, x, layout.order(layout.colour), band=form == "curves")
    return layout.figure(
        name, charts.facets(layers, rows, across, width, charts.HEIGHT), rows, notes, across * width
    )


def _measure_rows(panel: Panel, measure: str, form: str) -> list[Row]:
    if form == "curves":
        return chart_data.averaged_rows(
            panel, measure, "epoch", lambda run: details.epoch_values(run, measure), True
        )
    if measure == EFFICIENCY:
        return chart_data.efficiency_rows(panel, panel.experiment.view.measures[0])
    return [*chart_data.mean_rows(panel, measure), *chart_data.paper_rows(panel, measure)]


def _notes(panel: Panel, rows: Sequence[Row], form: str) -> list[str]:
    if form == "curves":
        return [*loss_gaps(panel.runs), *unended_note(panel)]
    notes: list[str] = (
        [EFFICIENCY_NOTE] if any(row["measure"] == EFFICIENCY for row in rows) else []
    )
    if form == "bars" and panel.experiment.excluded:
        cells = [grouping.label(tuple(entry.items()), entry) for entry in panel.experiment.excluded]
        text = f"Not in the grid, because it is impossible: {'; '.join(cells)}"
        notes.append(Message("figure.excluded", text, cells=cells))
    statuses = list(
        dict.fromkeys(grouping.typed(row["status"]) for row in rows if row["status"] != "ok")
    )
    if statuses:
        text = f"Crosses: runs that did not end ({', '.join(statuses)}); no mean includes them"
        notes.append(Message("figure.crosses", text, statuses=statuses))
    return notes


def loss_gaps(runs: Sequence[Run]) -> list[str]:
    """Return a line if some losses were not finite, which leaves gaps in a curve."""
    epochs = []
    for run in grouping.ok_runs(runs):
        epochs.extend(run.record().epochs)
    gaps = sum(epoch.train_loss is None for epoch in epochs)
    if not gaps:
        return []
    text = f"The loss of {gaps} of {count(len(epochs), 'epoch')} was not a finite number: not shown"
    return [Message("figure.loss-gaps", text, gaps=gaps, epochs=len(epochs))]


def unended_note(panel: Panel) -> list[str]:
    """Return a line about the runs that did not end ok, for charts that show no crosses."""
    cells = []
    for cell, runs in panel.cells.items():
        setting = grouping.label(cell, [key for key, _ in cell])
        for status, n in chart_data.unended_counts(runs):
            times = f" x{n}" if n > 1 else ""
            cells.append(f"{setting} ({grouping.typed(status)}{times})")
    return (
        [
            Message(
                "figure.unended-cells",
                f"Not shown, because they did not end: {'; '.join(cells)}",
                cells=cells,
            )
        ]
        if cells
        else []
    )


# ---- Metrics of profiles, and bytes copied


# The measures of these figures.
SHARE = "share"
WINDOW = "window_s"
STEP = "step_s"
COPIED = "copied"
COPIED_IN_A_STEP = "copied_in_a_step"
TITLES = {
    SHARE: "Share of the profiled time ({})",
    WINDOW: "Time in the window, all ranks ({})",
    STEP: "Time of a step and rank ({})",
    COPIED: "In the window, all ranks together ({})",
    COPIED_IN_A_STEP: "In a step, all ranks together ({})",
}
# The field of a metric's rows that a measure adds up.
FIELD_OF_MEASURE: dict[str, Literal["total_s", "share", "bytes"]]
FIELD_OF_MEASURE = {
    SHARE: "share",
    WINDOW: "total_s",
    STEP: "total_s",
    COPIED: "bytes",
    COPIED_IN_A_STEP: "bytes",
}
OVERLAP_NOTE = Message(
    "figure.metrics-overlap",
    "Metrics overlap: host and devices work at once, and NCCL's kernels wait for other ranks",
)
NOT_NCCL_NOTE = Message(
    "figure.copies-without-nccl",
    "Copies made by the driver; what NCCL moves between GPUs is not counted",
)
NO_CALLS_NOTE = Message(
    "figure.no-cuda-calls",
    "CPU ranks make no CUDA calls: only runs on GPUs show API calls, copies, NCCL and how busy a"
    " GPU is",
)


def metrics(panel: Panel, name: str) -> Chart | None:
    """Draw the view's metrics in time and in percent, or for CPU ranks the phases of a step."""
    time = WINDOW if profile_metrics.from_start(panel.runs) else STEP
    measures = (SHARE,) if panel.experiment.view.form == "shares" else (time, SHARE)
    names = panel.experiment.view.shown_metrics
    figure = _metric_bars(panel, name, measures, names, "Metrics of profiles", [OVERLAP_NOTE])
    if figure is not None:
        return figure
    notes = [NO_CALLS_NOTE] if all(run["cpu_ranks"] for run in panel.runs) else []
    return _metric_bars(panel, name, (STEP, SHARE), None, "Phases of a step", notes)


def copies(panel: Panel, name: str) -> Chart | None:
    """Draw the bytes of each kind of copy; the result is None without a profile of GPUs."""
    measure = COPIED if profile_metrics.from_start(panel.runs) else COPIED_IN_A_STEP
    return _metric_bars(
        panel, name, (measure,), profile_metrics.COPIED, "Bytes copied", [NOT_NCCL_NOTE]
    )


def _metric_bars(
    panel: Panel,
    name: str,
    measures: Sequence[str],
    names: Sequence[str] | None,
    what: str,
    about: Sequence[str],
) -> Chart | None:
    """Draw a chart for each measure and each metric that is above 0 somewhere.

    The result is None if there is none.

    Args:
        names: the metrics; None draws the phases of a step.
        what: the subject of the title.
        about: further notes.
    """
    layout = Layout.of(panel)
    rows: list[Row] = []
    for measure in measures:
        rows += chart_data.averaged_rows(
            panel, measure, "metric", lambda run, of=measure: _amounts(run, names, of)
        )
    recorded_metrics = list(dict.fromkeys(row["metric"] for row in rows))
    shown_metrics = [
        metric
        for metric in names or recorded_metrics
        if any(row["mean"] for row in rows if row["metric"] == metric)
    ]
    if not shown_metrics:
        return None
    for metric in shown_metrics if WINDOW in measures else ():
        rows += chart_data.paper_rows(panel, WINDOW, f"{METRIC}{metric}", metric=metric)
    labeled_rows = [
        row | {charts.PART: profile_metrics.name(row["metric"])} for row in layout.with_places(rows)
    ]
    labeled_rows = sorted(
        (row for row in labeled_rows if row["metric"] in shown_metrics),
        key=lambda row: shown_metrics.index(row["metric"]),
    )
    rows = charts.with_drawn_values(labeled_rows, are_bars=True, titles=TITLES)
    # The charts of a metric's measures stand beside each other.
    rows.sort(key=lambda row: shown_metrics.index(row["metric"]))
    windows = list(profile_metrics.windows([run for run in panel.runs if run["status"] == "ok"]))
    window_note = Message(
        "figure.profiled", f"Profiled: {captions.listed(windows)}", windows=windows
    )
    absent = _absent_metrics(names or (), recorded_metrics, shown_metrics)
    notes = [*chart_data.means_notes(rows), window_note, *absent, *unended_note(panel), *about]
    return layout.bars(
        name, rows, notes, 2 if len(measures) == 2 else 3, what, measures[0].startswith(COPIED)
    )


def _absent_metrics(
    names: Sequence[str], recorded_metrics: Sequence[str], shown_metrics: Sequence[str]
) -> list[str]:
    """Return lines about the metrics without bars.

    They are 0 everywhere, or no profile here can record them.
    """
    notes = []
    zero_metrics = [
        profile_metrics.name(metric)
        for metric in names
        if metric in recorded_metrics and metric not in shown_metrics
    ]
    if zero_metrics:
        notes.append(
            Message(
                "figure.metrics-zero",
                f"In none of these profiles: {', '.join(zero_metrics)}",
                metrics=zero_metrics,
            )
        )
    unrecorded_metrics = [
        profile_metrics.name(metric) for metric in names if metric not in recorded_metrics
    ]
    if unrecorded_metrics:
        text = f"Not recorded by this profiler: {', '.join(unrecorded_metrics)}"
        notes.append(Message("figure.metrics-unrecorded", text, metrics=unrecorded_metrics))
    return notes


def _amounts(run: Run, names: Sequence[str] | None, measure: str) -> list[tuple[str, float]]:
    """Return the metrics or phases that a run's profile could see, in a measure."""
    profile = profile_metrics.profile(run)
    if profile is None:
        return []
    if names is None:
        rows = [row for row in profile.rank_rows(None) if row.group == "phase"]
        steps = profile.steps or 1
        return [
            (clean(row.metric), row.total_s / steps if measure == STEP else row.share)
            for row in rows
        ]
    amounts = [(metric, _amount(profile, metric, measure)) for metric in names]
    return [(metric, amount) for metric, amount in amounts if amount is not None]


def _amount(profile: Profile, metric: str, measure: str) -> float | None:
    amount = profile_metrics.sum_over_ranks(profile, metric, FIELD_OF_MEASURE[measure])
    if amount is None or measure not in (STEP, COPIED_IN_A_STEP):
        return amount
    # A step's bytes are of all ranks, its seconds are of one.
    ranks = len(profile.ranks) if measure == COPIED_IN_A_STEP else 1
    return amount * ranks / profile.steps if profile.steps else None
