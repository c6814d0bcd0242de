"""Metrics of a run's profile as in the papers: seconds of all ranks, and shares of profiled time.

The papers profiled whole trainings. Here a profile covers a few steps by default, so tables show
times per step.
"""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Literal

from multicard.observe.profiles.events import COPIES
from multicard.observe.profiles.metrics import Profile

from . import grouping
from .grouping import Cell
from .load import Run

NCCL = "nccl"  # All collectives of NCCL together.
# The metrics in Figs. 3, 4, 11 and 12 of 2505.22905, and the metrics stacked in its Fig. 15.
PAPERS = (
    "memcpy Host-to-Device",
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "nccl AllGather",
    NCCL,
)
STACKED = (
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "memcpy Host-to-Device",
    "nccl AllGather",
)
# The kinds of copies that Fig. 17 adds up, and their sum.
KINDS = tuple(COPIES[way] for way in ("HtoD", "DtoD", "DtoH"))
ALL_KINDS = "all three kinds"
COPIED = (*KINDS, ALL_KINDS)
GROUPS = ("derived", "api", "copy", "collective", "phase")
MAX_METRICS = 8  # The most metrics of a group in a table.
Metric = tuple[str, str]  # Its group and its name.
DISPLAY_NAMES = {NCCL: "NCCL, all collectives"}


def name(metric: str) -> str:
    return DISPLAY_NAMES.get(metric, metric.replace("nccl ", "NCCL "))


def profile(run: Run) -> Profile | None:
    """Return the profile of a run that ended ok, or None if none can be read."""
    with suppress(ValueError):
        return Profile.of(run.record().profile) if run["status"] == "ok" else None
    return None


def sum_over_ranks(
    profile: Profile, metric: str, field: Literal["total_s", "share", "bytes"]
) -> float | None:
    """Sum a metric over all ranks in the whole window.

    The result is 0 if the metric did not occur, and None if the profiler could not see it. In
    shares of the ranks' windows, work that the host and the device do at once counts twice.
    """
    rows = profile.rank_rows(None)
    if metric in profile.not_recorded or not any(row.group == "api" for row in rows):
        return None
    summed_metrics = KINDS if metric == ALL_KINDS else (metric,)
    matching_rows = [
        row
        for row in rows
        if row.metric in summed_metrics or (metric == NCCL and row.metric.startswith("nccl "))
    ]
    return sum(getattr(row, field) or 0 for row in matching_rows)


def from_start(runs: Sequence[Run]) -> bool:
    """Return True if the profiles cover trainings from their start, as in the papers."""
    return all(run["profile.window"] == "start" for run in runs)


def windows(runs: Sequence[Run]) -> Iterator[str]:
    for window in dict.fromkeys(
        (run["profile.window"], run["profile.steps"], run["profile.seconds"]) for run in runs
    ):
        start, steps, length_s = window
        limit = f"{length_s:g} s" if length_s else f"{steps} steps" if steps else None
        if start == "start":
            yield f"the run's first {limit}" if limit else "the run from its start"
        else:
            yield f"{limit or 'some steps'} after the run"


# ---- The rows of a table, with the figures of each cell


def by_cell(
    cells: Mapping[Cell, Sequence[Run]], metrics: Sequence[str] | None, whole_profile: bool = False
) -> dict[Cell, dict[Metric, float]]:
    """Return the figures of the cells with a profile, by a metric's group and name.

    Each figure is the mean over the undisturbed runs of a cell.

    Args:
        metrics: the metrics whose shares of the profiled time are wanted. If no CUDA calls were
            seen, the phases of a step are returned instead. None asks for all metrics, in seconds
            per step and rank.
        whole_profile: with all metrics, return the seconds of all ranks in the whole profile
            instead.
    """
    profiles_by_cell = dict[Cell, list[tuple[Run, Profile]]]()
    for cell, runs in cells.items():
        profiled = [run for run in runs if profile(run) is not None]
        profiles_by_cell[cell] = [
            (run, run_profile)
            for run in grouping.undisturbed(profiled)
            if (run_profile := profile(run)) is not None
        ]
    figures = {
        cell: [
            _run_figures(run, run_profile, metrics, whole_profile)
            for run, run_profile in cell_profiles
        ]
        for cell, cell_profiles in profiles_by_cell.items()
    }
    if metrics is not None and not any(map(any, figures.values())):
        figures = {
            cell: [_phase_shares(run_profile) for _, run_profile in cell_profiles]
            for cell, cell_profiles in profiles_by_cell.items()
        }
    means = {cell: _means(run_figures) for cell, run_figures in figures.items()}
    return {cell: cell_means for cell, cell_means in means.items() if cell_means}


def largest(cells: Sequence[dict[Metric, float]]) -> list[Metric]:
    """Return the metrics of each group that take longest in some cell, without single kernels."""
    metrics = dict.fromkeys(chain.from_iterable(cells))
    ordered = sorted(
        metrics, key=lambda metric: -max(figures.get(metric, 0.0) for figures in cells)
    )
    longest = list[Metric]()
    for group in GROUPS:
        longest.extend([metric for metric in ordered if metric[0] == group][:MAX_METRICS])
    return longest


def _means(by_run: Sequence[dict[Metric, float]]) -> dict[Metric, float]:
    metrics = dict.fromkeys(chain.from_iterable(by_run))
    return {
        metric: statistics.fmean(figures.get(metric, 0.0) for figures in by_run)
        for metric in metrics
    }


def _run_figures(
    run: Run, run_profile: Profile, metrics: Sequence[str] | None, whole_profile: bool
) -> dict[Metric, float]:
    if metrics is not None:
        shares = {metric: sum_over_ranks(run_profile, metric, "share") for metric in metrics}
        return {
            (_group(metric), name(metric)): share
            for metric, share in shares.items()
            if share is not None
        }
    if whole_profile:
        return {(row.group, row.metric): row.total_s for row in run_profile.rank_rows(None)}
    recorded = run.record().profile
    count = run_profile.steps or (recorded.steps if recorded and recorded.steps else 0) * len(
        run_profile.ranks
    )
    rows = run_profile.rank_rows(None if len(run_profile.ranks) > 1 else run_profile.ranks[0].rank)
    return {(row.group, row.metric): row.total_s / count for row in rows if row.group in GROUPS}


def _phase_shares(run_profile: Profile) -> dict[Metric, float]:
    """Return the shares of the phases of a step, which CPU ranks have too."""
    return {
        (row.group, row.metric): row.share
        for row in run_profile.rank_rows(None)
        if row.group == "phase"
    }


def _group(metric: str) -> str:
    if metric.startswith(NCCL):
        return "collective"
    return "copy" if metric.startswith("memcpy") else "api"
