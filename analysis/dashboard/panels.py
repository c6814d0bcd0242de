"""Panels of W&B over keys that runs log."""

import hashlib
from collections.abc import Sequence
from typing import Any

from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2.interface import PanelTypes as Panel

from analysis.dashboard import lookup
from multicard.tracking import keys
from multicard.tracking.keys import BOTH

MOST_RUNS = 100
WIDTH, HEIGHT, ACROSS = 12, 8, 2  # of a panel in a report, which is 24 wide; panels beside each other


def over_steps(title: str, names: Sequence[str], smooth: bool = False) -> wr.LinePlot:
    smoothing: dict[str, Any] = {"smoothing_type": "exponential", "smoothing_factor": 0.6} if smooth else {}
    return _lines(title, keys.STEP, lookup.by_step(*names), title_x="step", **smoothing)


def over_epochs(title: str, names: Sequence[str]) -> wr.LinePlot:
    return _lines(title, keys.EPOCH, lookup.by_epoch(*names), title_x="epoch")


def over_time(title: str, metrics: Sequence[str]) -> wr.LinePlot:
    """System metrics by the seconds since the run began."""
    return _lines(title, "RelativeTime(Wall)", metrics, title_x="time")


def _lines(title: str, x: str, y: Sequence[str], **options: Any) -> wr.LinePlot:
    return wr.LinePlot(title=title, x=x, y=list(y), max_runs_to_show=MOST_RUNS, **options)


def bars(title: str, metrics: Sequence[str], by: str | None = None) -> wr.BarPlot:
    """A bar for each run; with `by`, a key of the configuration, the mean of the runs of each value and their range."""
    grouped = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"} if by else {}
    shown = {"max_runs_to_show": MOST_RUNS, "max_bars_to_show": MOST_RUNS}
    return wr.BarPlot(title=title, metrics=list(metrics), **shown, **grouped)


def measure(column: str, kinds: Sequence[str] = BOTH, by: str | None = None) -> wr.BarPlot:
    """Bars of a column of the project's tables."""
    words = lookup.title(column, kinds[0])
    titled = f"{words} by {lookup.setting(by)}" if by else words
    return bars(titled, lookup.summary_keys(column, kinds), by)


def points(title: str, x: wr.Config | wr.SummaryMetric, y: str, log: bool = False) -> wr.ScatterPlot:
    """A point for each run.

    Args:
        y: a key of the summary.
    """
    return wr.ScatterPlot(title=title, x=x, y=wr.SummaryMetric(y), log_x=log or None, log_y=log or None)


def over_gpus(column: str, kind: str) -> wr.ScatterPlot:
    """A column against the number of GPUs, on two logarithmic axes."""
    (key,) = lookup.summary_keys(column, [kind])
    return points(f"{lookup.title(column, kind)} against GPUs", wr.Config("gpus"), key, log=True)


def against(y: str, x: str, kind: str) -> wr.ScatterPlot:
    """One column of the project's tables against another, of a kind of run."""
    (x_key,), (y_key,) = lookup.summary_keys(x, [kind]), lookup.summary_keys(y, [kind])
    words = lookup.title(x, kind)
    titled = f"{lookup.title(y, kind)} against {words[:1].lower()}{words[1:]}"
    return points(titled, wr.SummaryMetric(x_key), y_key)


def parallel(title: str, settings: Sequence[str], figures: Sequence[str]) -> wr.ParallelCoordinatesPlot:
    """A line for each run through its settings, ending at its figures."""
    columns = [wr.ParallelCoordinatesPlotColumn(wr.Config(key), display_name=lookup.setting(key)) for key in settings]
    columns += [wr.ParallelCoordinatesPlotColumn(wr.SummaryMetric(key), display_name=key) for key in figures]
    return wr.ParallelCoordinatesPlot(title=title, columns=columns)


def table(name: str) -> wr.WeavePanelSummaryTable:
    """A table that runs log."""
    return wr.WeavePanelSummaryTable(table_name=name, layout=wr.Layout(w=24, h=12))


def identified(place: str, panels: Sequence[Panel]) -> list[Panel]:
    """The panels with ids that are the same each time, so that the same dashboard has the same specification.

    Args:
        place: what tells them from the panels elsewhere.
    """
    for number, panel in enumerate(panels):
        panel._id = identifier(f"{place}/{number}")  # pyright: ignore[reportAttributeAccessIssue] - no UnknownPanel
    return list(panels)


def arranged(panels: Sequence[Panel]) -> list[Panel]:
    """The panels of a report's grid, two beside each other; tables below, over the whole width."""
    tables = [panel for panel in panels if isinstance(panel, wr.WeavePanelSummaryTable)]
    charts = [panel for panel in panels if panel not in tables]
    for index, chart in enumerate(charts):
        row, column = divmod(index, ACROSS)
        chart.layout = wr.Layout(x=WIDTH * column, y=HEIGHT * row, w=WIDTH, h=HEIGHT)  # pyright: ignore[reportAttributeAccessIssue] - the same
    below = HEIGHT * -(-len(charts) // ACROSS)
    for index, each in enumerate(tables):
        each.layout = wr.Layout(x=0, y=below + each.layout.h * index, w=each.layout.w, h=each.layout.h)
    return [*charts, *tables]


def identifier(name: str) -> str:
    """11 digits that W&B takes as an id, the same for the same name."""
    return hashlib.sha256(name.encode()).hexdigest()[:11]
