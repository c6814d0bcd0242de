"""Tables of what the profiles saw: seconds a step and rank of each CUDA call, copy and collective, a cell a column.

The papers profiled whole trainings; here a window of steps was profiled, so that times are given a step.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from analysis.papers.experiments import Panel
from analysis.runs import grouping
from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from multicard.profiling.profile_data import Profile

GROUPS = ("derived", "api", "copy", "collective", "phase")  # not each kernel
TOP = 8  # of a group, by the cell where they take most
SHARE = "llm_api_share"  # the experiment that asks for shares of the host's time in CUDA calls
Metric = tuple[str, str]  # group and name


def per_step_s(run: Run) -> dict[Metric, float] | None:
    """Seconds a step and rank of each metric; None where the run has no profile that could be read."""
    recorded = run.record().get("profile")
    if not recorded or "error" in recorded:
        return None
    profile = Profile.from_dict(recorded)
    count = recorded["steps"] * len(profile.ranks)
    summed = profile.of(None if len(profile.ranks) > 1 else profile.ranks[0].rank)
    return {(row.group, row.metric): row.total_s / count for row in summed if row.group in GROUPS}


def rows(panel: Panel) -> tuple[list[str], list[dict[str, Any]]]:
    """Headings and rows, a metric each: the means over a cell's runs.

    Of SHARE the CUDA calls alone, each as its share of the host's time in them all (the paper's Fig. 15).
    """
    found = {cell: _means(runs) for cell, runs in panel.cells.items()}
    known = {cell: figures for cell, figures in found.items() if figures}
    if panel.experiment.name == SHARE:
        known = {cell: _shares(figures) for cell, figures in known.items()}
    headings = {cell: _heading(cell, panel) for cell in known}
    order = [metric for group in GROUPS for metric in _largest(group, list(known.values()))]
    told = [
        {"group": group, "metric": name}
        | {headings[cell]: figures.get((group, name)) for cell, figures in known.items()}
        for group, name in order
    ]
    return ["group", "metric", *headings.values()], told


def short(panel: Panel) -> dict[str, str]:
    """The headings of the cells as they fit a terminal, by those in full: where several keys tell them apart, the
    values alone, in the order of `panel.experiment.swept`."""
    told = {
        _heading(cell, panel): [grouping.typed(dict(cell)[key]) for key in _differing(panel)] for cell in panel.cells
    }
    return {full: ", ".join(values) if len(values) > 1 else full for full, values in told.items()}


def _differing(panel: Panel) -> list[str]:
    return [key for key in panel.experiment.swept if len(panel.values(key)) > 1]


def columns(panel: Panel) -> str | None:
    """What the values of short headings are of; None where the headings say it."""
    keys = _differing(panel)
    return ", ".join(key.rpartition(".")[2] for key in keys) if len(keys) > 1 else None


def _heading(cell: Cell, panel: Panel) -> str:
    differing = _differing(panel)
    told = [(key.rpartition(".")[2], value) for key, value in cell if key in differing]
    return grouping.label(tuple(told), [key for key, _ in told])


def _means(runs: Sequence[Run]) -> dict[Metric, float]:
    seen = [figures for run in runs if run["status"] == "ok" and (figures := per_step_s(run)) is not None]
    names = {metric for figures in seen for metric in figures}
    return {metric: statistics.fmean(figures.get(metric, 0.0) for figures in seen) for metric in names}


def _shares(figures: dict[Metric, float]) -> dict[Metric, float]:
    calls = {metric: total_s for metric, total_s in figures.items() if metric[0] == "api"}
    return {metric: total_s / sum(calls.values()) for metric, total_s in calls.items()} if any(calls.values()) else {}


def _largest(group: str, columns: Sequence[dict[Metric, float]]) -> list[Metric]:
    most: dict[Metric, float] = {}
    for figures in columns:
        for metric, value in figures.items():
            if metric[0] == group:
                most[metric] = max(value, most.get(metric, 0.0))
    return sorted(most, key=lambda metric: -most[metric])[:TOP]
