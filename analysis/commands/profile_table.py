"""Profiles as rows: seconds a step and rank of each CUDA call, copy, collective and phase, with a column for each cell.

The papers profiled whole trainings; here a few steps are profiled, so that times are given for a step.
"""

import statistics
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from analysis.experiments import Panel
from analysis.runs import grouping, profile_metrics
from analysis.runs.grouping import Cell
from analysis.runs.load import Run

GROUPS = ("derived", "api", "copy", "collective", "phase")  # single kernels are left out
TOP = 8  # metrics of a group, by the cell in which they take longest
Metric = tuple[str, str]  # group and name


def rows(panel: Panel) -> tuple[list[str], list[dict[str, Any]]]:
    """Headings, and a row for each metric: seconds a step and rank, as means over the runs of a cell.

    For a view of `shares`, the papers' metrics alone, each as its share of the profiled time; where no CUDA calls were
    seen, the phases of a step.
    """
    of_run = _per_step_s
    if panel.experiment.view.form == "shares":
        metrics = panel.experiment.view.shown_metrics
        profiles = [profile for run in panel.runs if (profile := profile_metrics.profile(run)) is not None]
        seen = any(profile_metrics.shares(profile, metrics) for profile in profiles)
        of_run = partial(_shares, metrics=metrics if seen else ())
    by_cell = {cell: figures for cell, runs in panel.cells.items() if (figures := _means(runs, of_run))}
    headings = {cell: _heading(cell, panel) for cell in by_cell}
    content = [
        {"group": group, "metric": name}
        | {headings[cell]: figures.get((group, name)) for cell, figures in by_cell.items()}
        for group, name in (metric for group in GROUPS for metric in _largest(group, list(by_cell.values())))
    ]
    return ["group", "metric", *headings.values()], content


def short_headings(panel: Panel) -> dict[str, str]:
    """Headings that fit a terminal, by heading: the values alone where several columns tell the cells apart."""
    columns = differing_columns(panel)
    if len(columns) < 2:
        return {}
    return {
        _heading(cell, panel): ", ".join(grouping.typed(dict(cell)[column]) for column in columns)
        for cell in panel.cells
    }


def differing_columns(panel: Panel) -> list[str]:
    return [column for column in panel.experiment.swept if len(panel.values(column)) > 1]


def _heading(cell: Cell, panel: Panel) -> str:
    columns = differing_columns(panel)
    named = [(column.rpartition(".")[2], value) for column, value in cell if column in columns]
    return grouping.label(tuple(named), [name for name, _ in named])


def _means(runs: Sequence[Run], of_run: Callable[[Run], dict[Metric, float] | None]) -> dict[Metric, float]:
    by_run = [figures for run in runs if run["status"] == "ok" and (figures := of_run(run)) is not None]
    metrics = dict.fromkeys(metric for figures in by_run for metric in figures)
    return {metric: statistics.fmean(figures.get(metric, 0.0) for figures in by_run) for metric in metrics}


def _per_step_s(run: Run) -> dict[Metric, float] | None:
    """Seconds a step and rank of each metric; None where the run has no profile that could be read."""
    recorded, profile = run.record().profile, profile_metrics.profile(run)
    if profile is None or recorded is None:
        return None
    count = profile.steps or (recorded.steps or 0) * len(profile.ranks)
    summed = profile.rank_rows(None if len(profile.ranks) > 1 else profile.ranks[0].rank)
    return {(row.group, row.metric): row.total_s / count for row in summed if row.group in GROUPS}


def _shares(run: Run, metrics: Sequence[str]) -> dict[Metric, float] | None:
    profile = profile_metrics.profile(run)
    if profile is None:
        return None
    return profile_metrics.shares(profile, metrics) if metrics else profile_metrics.phase_shares(profile)


def _largest(group: str, by_cell: Sequence[dict[Metric, float]]) -> list[Metric]:
    metrics = dict.fromkeys(metric for figures in by_cell for metric in figures if metric[0] == group)
    return sorted(metrics, key=lambda metric: -max(figures.get(metric, 0.0) for figures in by_cell))[:TOP]
