"""Figures of an experiment's measures: lines over a number, bars in groups, curves over epochs,
metrics of profiles.

Colour and shape show the subject of the experiment, charts beside each other the other columns.
Columns whose combinations are mostly excluded are one series ("dali, nhwc"),
as each alone would repeat the other.

Of profiles, seconds and bytes are of all ranks and the whole window where it is the papers', the
run from its start; of a few steps they are of a step and rank. CPU ranks make no CUDA calls: their
phases are drawn, and a note says so.
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

# points, of a chart among several of one measure, and of a row of them
FACET_WIDTH = 220
ALL_WIDTH = 880
# points: a bar's thickness, and between groups of bars
BAR = 11
GAP = 8
MARGIN = 160  # points, of axes and legend
SERIES = charts.SERIES
CURVES = ("train_loss", "test_accuracy")  # keys of a record's epochs
EFFICIENCY_NOTE = Message(
    "figure.efficiency-formula",
    "Parallel efficiency: the time on one GPU / (GPUs x the time), a ratio of means",
)
HOLLOW = Message("figure.hollow", "Hollow: the papers' own figures")


@dataclass(frozen=True)
class Layout:
    """The swept columns of a panel that have several values: along x, by colour,
    and in charts of their own.
    """

    panel: Panel
    x: str
    colour: Sequence[str]
    parts: Sequence[str]

    @staticmethod
    def of(panel: Panel, x: str | None = None) -> "Layout":
        experiment, x = panel.experiment, x or panel.experiment.view.x
        several = [name for name in experiment.swept if name != x and len(panel.values(name)) > 1]
        colour = {experiment.view.subject} & {*several} or {*several[:1]}
        tied = [entry.keys() for entry in experiment.excluded if entry.keys() <= {*several}]
        for _ in tied:
            colour = colour.union(*(columns for columns in tied if columns & colour))
        groups_first = sorted(several, key=lambda name: "." in name)
        return Layout(
            panel,
            x,
            [name for name in groups_first if name in colour],
            [name for name in groups_first if name not in colour],
        )

    @property
    def by(self) -> list[str]:
        return [self.x, *self.colour, *self.parts]

    def words(self, columns: Iterable[str], row: Row) -> str:
        """Values of a row in words: "dali, nhwc", "300 px, 4 GPUs"."""
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
            row | {SERIES: self.words(self.colour, row), charts.AT: self.words(places, row)}
            for row in rows
        ]

    def told(self, rows: Sequence[Row]) -> list[Row]:
        whole = [
            row | {SERIES: self.words(self.colour, row), charts.PART: self.words(self.parts, row)}
            for row in rows
        ]
        order = self.order(self.parts) or [""]
        return sorted(whole, key=lambda row: order.index(row[charts.PART]))

    def x_axis(self) -> alt.X:
        """Along numbers with a tick at each where there are few, else along names."""
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
        """A panel's chart with its title (`what` is shown, by default the measures), what all runs
        have in common, and how to read it.
        """
        panel = self.panel
        experiment = self.panel.experiment
        measures = dict.fromkeys(row["measure"] for row in rows)
        shown = what or captions.listed([captions.measure(measure) for measure in measures])
        title = (
            f"{shown} by"
            f" {captions.listed([captions.column(column, panel.runs) for column in self.by])}"
        )
        title = title[:1].upper() + title[1:] + (f" ({panel.apart})" if panel.apart else "")
        above = [
            f"{experiment.name}: {experiment.title.rstrip('.')}",
            captions.common_settings(panel.runs, self.by),
        ]
        printed = dict.fromkeys(row["printed"] for row in rows if row["of"] == PAPER)
        beside = []
        for measure in printed:
            beside.extend(same_setting.beside(panel, measure).values())
        below = [*dict.fromkeys(notes)]
        is_timed = bool(what) or experiment.view.form != "curves"
        left_out = chart_data.disturbed_notes(panel, measures) if is_timed else []
        below += [*captions.missing_cells(panel.missing), *captions.marks(panel.runs)[1]]
        if printed:
            below.append(HOLLOW)
        below += [capital(line) for line in same_setting.notes(panel, beside)]
        found = tuple(grouping.limits_of(panel.runs))
        return Chart(
            name, title, chart, rows, above, below, found, width + MARGIN, left_out=left_out
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
        height = len(places) * (charts.abreast(rows, order) * BAR + GAP)
        width = min(charts.WIDTH, 3 * charts.SMALL_WIDTH // across)
        chart = charts.facets(
            charts.bar_layers(rows, order, places, si), rows, across, width, height, free="x"
        )
        return self.figure(name, chart, rows, notes, across * width, what)


def by_measure(panel: Panel, name: str) -> Chart | None:
    """Charts of each measure of an experiment in the view's form: lines, groups of bars, or curves
    over epochs, of which the papers print none. None without any row.
    """
    experiment = panel.experiment
    form = "bars" if experiment.view.form == "copies" else experiment.view.form
    layout = Layout.of(panel, x="epoch" if form == "curves" else None)
    rows = list[Row]()
    notes = list[str]()
    for measure in CURVES if form == "curves" else experiment.view.measures:
        own = _rows(panel, measure, form)
        if rows and not any(row["status"] == "ok" and "mean" in row for row in own):
            missing = f"No run has {captions.measure(measure)}"
            notes.append(Message("figure.measure-missing", missing, measure=measure))
        else:
            rows += own
    if not rows:
        return None
    notes = [*chart_data.means_notes(rows), *notes, *_notes(panel, rows, form)]
    measures = len({row["measure"] for row in rows})
    if form == "bars":
        return layout.bars(
            name, charts.drawn(layout.with_places(rows), are_bars=True), notes, measures
        )
    rows = charts.drawn(layout.told(rows), layout.x)
    parts = len(layout.order(layout.parts))
    across = min(charts.MOST_ACROSS, parts) or measures
    width = min(FACET_WIDTH, ALL_WIDTH // across) if parts else charts.WIDTH
    epochs = sorted({row["epoch"] for row in rows}) if form == "curves" else []
    x = charts.number_axis("epoch", epochs, "epoch") if epochs else layout.x_axis()
    layers = charts.line_layers(rows, x, layout.order(layout.colour), band=form == "curves")
    return layout.figure(
        name, charts.facets(layers, rows, across, width, charts.HEIGHT), rows, notes, across * width
    )


def _rows(panel: Panel, measure: str, form: str) -> list[Row]:
    if form == "curves":
        return chart_data.averaged(
            panel, measure, "epoch", lambda run: details.epoch_values(run, measure), True
        )
    if measure == EFFICIENCY:
        return chart_data.efficiency(panel, panel.experiment.view.measures[0])
    return [*chart_data.measured(panel, measure), *chart_data.paper(panel, measure)]


def _notes(panel: Panel, rows: Sequence[Row], form: str) -> list[str]:
    if form == "curves":
        return [*loss_gaps(panel.runs), *unended_note(panel)]
    notes: list[str] = (
        [EFFICIENCY_NOTE] if any(row["measure"] == EFFICIENCY for row in rows) else []
    )
    if form == "bars" and panel.experiment.excluded:
        cells = [grouping.label(tuple(entry.items()), entry) for entry in panel.experiment.excluded]
        excluded = f"Not in the grid, as it cannot be: {'; '.join(cells)}"
        notes.append(Message("figure.excluded", excluded, cells=cells))
    statuses = list(
        dict.fromkeys(grouping.typed(row["status"]) for row in rows if row["status"] != "ok")
    )
    if statuses:
        crosses = f"Crosses: runs that did not end ({', '.join(statuses)}); no mean includes them"
        notes.append(Message("figure.crosses", crosses, statuses=statuses))
    return notes


def loss_gaps(runs: Sequence[Run]) -> list[str]:
    """A line where a loss was not finite, which leaves a gap in a curve."""
    epochs = []
    for run in grouping.ok_runs(runs):
        epochs.extend(run.record().epochs)
    gaps = sum(epoch.train_loss is None for epoch in epochs)
    if not gaps:
        return []
    sentence = (
        f"The loss of {gaps} of {count(len(epochs), 'epoch')} was no finite number: not shown"
    )
    return [Message("figure.loss-gaps", sentence, gaps=gaps, epochs=len(epochs))]


def unended_note(panel: Panel) -> list[str]:
    """A line about the runs that did not end ok, where they have no cross."""
    cells = []
    for cell, runs in panel.cells.items():
        setting = grouping.label(cell, [key for key, _ in cell])
        for status, n in chart_data.unended(runs):
            times = f" x{n}" if n > 1 else ""
            cells.append(f"{setting} ({grouping.typed(status)}{times})")
    return (
        [
            Message(
                "figure.unended-cells",
                f"Not shown, as they did not end: {'; '.join(cells)}",
                cells=cells,
            )
        ]
        if cells
        else []
    )


# ---- Metrics of profiles, and bytes copied


# measures
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
# What of a metric's rows a measure sums
SUMMED: dict[str, Literal["total_s", "share", "bytes"]]
SUMMED = {
    SHARE: "share",
    WINDOW: "total_s",
    STEP: "total_s",
    COPIED: "bytes",
    COPIED_IN_A_STEP: "bytes",
}
OVERLAP = Message(
    "figure.metrics-overlap",
    "Metrics overlap: host and devices work at once, and NCCL's kernels wait for other ranks",
)
NOT_NCCL = Message(
    "figure.copies-without-nccl",
    "Copies made by the driver; what NCCL moves between GPUs is not counted",
)
NO_CALLS = Message(
    "figure.no-cuda-calls",
    "CPU ranks make no CUDA calls: API calls, copies, NCCL and how busy a GPU is are seen on GPUs"
    " alone",
)


def metrics(panel: Panel, name: str) -> Chart | None:
    """The metrics of the view in time and in percent, of CPU ranks the phases of a step."""
    time = WINDOW if profile_metrics.from_start(panel.runs) else STEP
    measures = (SHARE,) if panel.experiment.view.form == "shares" else (time, SHARE)
    names = panel.experiment.view.shown_metrics
    figure = _bars(panel, name, measures, names, "Metrics of profiles", [OVERLAP])
    if figure is not None:
        return figure
    about = [NO_CALLS] if all(run["cpu_ranks"] for run in panel.runs) else []
    return _bars(panel, name, (STEP, SHARE), None, "Phases of a step", about)


def copies(panel: Panel, name: str) -> Chart | None:
    """The bytes of each kind of copy; None without a profile of GPUs."""
    measure = COPIED if profile_metrics.from_start(panel.runs) else COPIED_IN_A_STEP
    return _bars(panel, name, (measure,), profile_metrics.COPIED, "Bytes copied", [NOT_NCCL])


def _bars(
    panel: Panel,
    name: str,
    measures: Sequence[str],
    names: Sequence[str] | None,
    what: str,
    about: Sequence[str],
) -> Chart | None:
    """A chart for each measure and each metric (`names`; None: phases) that is somewhere above 0;
    None without any.
    """
    layout = Layout.of(panel)
    rows: list[Row] = []
    for measure in measures:
        rows += chart_data.averaged(
            panel, measure, "metric", lambda run, of=measure: _amounts(run, names, of)
        )
    seen = list(dict.fromkeys(row["metric"] for row in rows))
    shown = [
        metric
        for metric in names or seen
        if any(row["mean"] for row in rows if row["metric"] == metric)
    ]
    if not shown:
        return None
    for metric in shown if WINDOW in measures else ():
        rows += chart_data.paper(panel, WINDOW, f"{METRIC}{metric}", metric=metric)
    told = [
        row | {charts.PART: profile_metrics.name(row["metric"])} for row in layout.with_places(rows)
    ]
    told = sorted(
        (row for row in told if row["metric"] in shown), key=lambda row: shown.index(row["metric"])
    )
    rows = charts.drawn(told, are_bars=True, titles=TITLES)
    # the measures of a metric beside each other
    rows.sort(key=lambda row: shown.index(row["metric"]))
    windows = list(profile_metrics.windows([run for run in panel.runs if run["status"] == "ok"]))
    profiled = Message("figure.profiled", f"Profiled: {captions.listed(windows)}", windows=windows)
    absent = _absent_metrics(names or (), seen, shown)
    notes = [*chart_data.means_notes(rows), profiled, *absent, *unended_note(panel), *about]
    return layout.bars(
        name, rows, notes, 2 if len(measures) == 2 else 3, what, measures[0].startswith(COPIED)
    )


def _absent_metrics(names: Sequence[str], seen: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Lines about the metrics that have no bars: those that are 0 everywhere,
    and those that no profile can have.
    """
    notes = []
    never = [
        profile_metrics.name(metric) for metric in names if metric in seen and metric not in shown
    ]
    if never:
        notes.append(
            Message(
                "figure.metrics-zero",
                f"In none of these profiles: {', '.join(never)}",
                metrics=never,
            )
        )
    unseen = [profile_metrics.name(metric) for metric in names if metric not in seen]
    if unseen:
        sentence = f"Not recorded by this profiler: {', '.join(unseen)}"
        notes.append(Message("figure.metrics-unrecorded", sentence, metrics=unseen))
    return notes


def _amounts(run: Run, names: Sequence[str] | None, measure: str) -> list[tuple[str, float]]:
    """The metrics or phases of a run's profile, in a measure, as far as it could see them."""
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
    known = [(metric, _amount(profile, metric, measure)) for metric in names]
    return [(metric, amount) for metric, amount in known if amount is not None]


def _amount(profile: Profile, metric: str, measure: str) -> float | None:
    amount = profile_metrics.sum_over_ranks(profile, metric, SUMMED[measure])
    if amount is None or measure not in (STEP, COPIED_IN_A_STEP):
        return amount
    # bytes are of all ranks, seconds of one
    ranks = len(profile.ranks) if measure == COPIED_IN_A_STEP else 1
    return amount * ranks / profile.steps if profile.steps else None
