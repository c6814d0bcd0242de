"""Panels of W&B over keys that runs log."""

import hashlib
from collections.abc import Sequence
from typing import Any

from wandb_workspaces.reports.v2 import interface as wr
from wandb_workspaces.reports.v2.interface import PanelTypes as Panel

from multicard.records import figures
from multicard.records.figures import BOTH, FIGURES
from multicard.tracking import keys

MOST_RUNS, MOST_GPUS = 100, 8  # in a panel; of a node
SYSTEM = "system/"  # before a system metric in a panel


def summary_keys(column: str, kinds: Sequence[str] = BOTH) -> list[str]:
    """The keys of a figure in a run's summary; several where kinds of run differ.

    Raises:
        ValueError: no such figure, or runs of these kinds log nothing of it.
    """
    figure = FIGURES.get(column)
    found = [] if figure is None else [key for kind in kinds for key in figure.keys_of(kind)]
    if not found:
        runs = " or ".join(kinds)
        raise ValueError(f"{column}: W&B has no such figure of {runs} runs (multicard/records/figures.py)")
    return list(dict.fromkeys(found))


def title(column: str, kind: str) -> str:
    """A figure in words with the unit in which W&B shows it: "Peak memory (bytes)"."""
    words, unit = FIGURES[column].title_of(kind), figures.unit(column).name
    return words[:1].upper() + words[1:] + (f" ({unit})" if unit else "")


def bars(title: str, metrics: Sequence[str], by: str | None = None) -> wr.BarPlot:
    """A bar for each run; with `by`, a key of the configuration, the mean of the runs of each value and their range."""
    grouped = {"groupby": wr.Config(by), "groupby_aggfunc": "mean", "groupby_rangefunc": "minmax"} if by else {}
    return wr.BarPlot(
        title=title, metrics=list(metrics), max_runs_to_show=MOST_RUNS, max_bars_to_show=MOST_RUNS, **grouped
    )


def measure(column: str, by: str | None = None) -> wr.BarPlot:
    """Bars of a figure, of the kinds of run that have it."""
    kinds = FIGURES[column].kinds or BOTH
    return bars(title(column, kinds[0]) + (f" by {by}" if by else ""), summary_keys(column), by)


def points(y: str, x: str, kind: str) -> wr.ScatterPlot:
    """A figure of a kind of run against another one, or against the number of GPUs.

    Against GPUs both axes are logarithmic: ideal scaling is a straight line.
    """
    (y_key,), scales = summary_keys(y, [kind]), x == "gpus" or None
    words = "GPUs" if scales else title(x, kind)[:1].lower() + title(x, kind)[1:]
    x_axis = wr.Config(x) if scales else wr.SummaryMetric(*summary_keys(x, [kind]))
    both = f"{title(y, kind)} against {words}"
    return wr.ScatterPlot(title=both, x=x_axis, y=wr.SummaryMetric(y_key), log_x=scales, log_y=scales)


def over_steps(title: str, *names: str, smooth: bool = False) -> wr.LinePlot:
    smoothing: dict[str, Any] = {"smoothing_type": "exponential", "smoothing_factor": 0.6} if smooth else {}
    return _lines(title, keys.STEP, [f"train/{name}" for name in names], "step", **smoothing)


def over_epochs(title: str, *names: str) -> wr.LinePlot:
    return _lines(title, keys.EPOCH, [f"epoch/{name}" for name in names], "epoch")


def of_gpus(title: str, column: str) -> wr.LinePlot:
    """A column of gpu.parquet by the seconds since the run began, a line a GPU."""
    metric, _ = keys.GPU_SAMPLES[column]
    return _over_time(title, [f"gpu.{index}.{metric}" for index in range(MOST_GPUS)])


def of_machine(title: str, column: str) -> wr.LinePlot:
    """A column of machine.parquet, likewise."""
    return _over_time(title, [keys.MACHINE_SAMPLES[column]])


def _over_time(title: str, metrics: Sequence[str]) -> wr.LinePlot:
    return _lines(title, "RelativeTime(Wall)", [SYSTEM + metric for metric in metrics], "time")


def _lines(title: str, x: str, y: Sequence[str], title_x: str, **options: Any) -> wr.LinePlot:
    return wr.LinePlot(title=title, x=x, y=list(y), title_x=title_x, max_runs_to_show=MOST_RUNS, **options)


def parallel(title: str, settings: Sequence[str], columns: Sequence[str], kind: str) -> wr.ParallelCoordinatesPlot:
    """A line for each run through its settings, ending at its figures."""
    metrics = [key for column in columns for key in summary_keys(column, [kind])]
    axes = [*((key, wr.Config(key)) for key in settings), *((key, wr.SummaryMetric(key)) for key in metrics)]
    shown = [wr.ParallelCoordinatesPlotColumn(metric, display_name=key) for key, metric in axes]
    return wr.ParallelCoordinatesPlot(title=title, columns=shown)


def identified(place: str, panels: Sequence[Panel]) -> list[Panel]:
    """The panels with ids that are the same each time, so that the same dashboard has the same specification.

    Args:
        place: what tells them from the panels elsewhere.
    """
    for number, panel in enumerate(panels):
        panel._id = identifier(f"{place}/{number}")  # pyright: ignore[reportAttributeAccessIssue] - no UnknownPanel
    return list(panels)


def identifier(name: str) -> str:
    """11 digits that W&B takes as an id, the same for the same name."""
    return hashlib.sha256(name.encode()).hexdigest()[:11]
