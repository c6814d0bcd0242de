"""Metrics of a run's profile as the papers have them: seconds of all ranks, and shares of the profiled time.

The papers profiled whole trainings; here a few steps are profiled by default, so that tables give times a step.
"""

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from analysis.runs.grouping import Cell
from analysis.runs.load import Run
from multicard.observe.profiles.metrics import Profile
from multicard.observe.profiles.names import COPIES
from multicard.records.schema_parts import ProfileRow

NCCL = "nccl"  # all collectives of NCCL together
# Of Figs. 3, 4, 11 and 12 of 2505.22905, and of Fig. 15
PAPERS = ("memcpy Host-to-Device", "cudaLaunchKernel", "cudaStreamSynchronize", "nccl AllGather", NCCL)
STACKED = (
    "cudaLaunchKernel",
    "cudaStreamSynchronize",
    "cudaEventSynchronize",
    "memcpy Host-to-Device",
    "nccl AllGather",
)
# Of Fig. 17: the kinds of copies that it adds up, and their sum
KINDS = tuple(COPIES[way] for way in ("HtoD", "DtoD", "DtoH"))
ALL_KINDS = "all three kinds"
COPIED = (*KINDS, ALL_KINDS)
GROUPS = ("derived", "api", "copy", "collective", "phase")
TOP = 8  # metrics of a group in a table
Metric = tuple[str, str]  # group and name
NAMES = {NCCL: "NCCL, all collectives"}


def name(metric: str) -> str:
    return NAMES.get(metric, metric.replace("nccl ", "NCCL "))


def profile(run: Run) -> Profile | None:
    """The profile of a run that ended ok; None where there is none that can be read."""
    with suppress(ValueError):
        return Profile.of(run.record().profile) if run["status"] == "ok" else None
    return None


def rows(profile: Profile, metric: str) -> list[ProfileRow] | None:
    """The sums over ranks that a metric is made of; empty where it did not occur, None where it could not be seen."""
    sums = profile.rank_rows(None)
    if metric in profile.not_recorded or not any(row.group == "api" for row in sums):
        return None
    parts = KINDS if metric == ALL_KINDS else (metric,)
    return [row for row in sums if row.metric in parts or (metric == NCCL and row.metric.startswith("nccl "))]


def seconds(profile: Profile, metric: str) -> float | None:
    known = rows(profile, metric)
    return None if known is None else sum(row.total_s for row in known)


def share(profile: Profile, metric: str) -> float | None:
    """Seconds of all ranks / the windows of all ranks. What the host and the device do at once counts twice."""
    known = rows(profile, metric)
    return None if known is None else sum(row.share for row in known)


def shares(profile: Profile, metrics: Sequence[str]) -> dict[tuple[str, str], float]:
    """Shares of the profiled time by group and name of the metric, without metrics that could not be seen."""
    known = {metric: share(profile, metric) for metric in metrics}
    return {(_group(metric), name(metric)): value for metric, value in known.items() if value is not None}


def phase_shares(profile: Profile) -> dict[tuple[str, str], float]:
    """Shares of the profiled time of the phases of a step, which CPU ranks have too."""
    return {(row.group, row.metric): row.share for row in profile.rank_rows(None) if row.group == "phase"}


def _group(metric: str) -> str:
    return "collective" if metric.startswith(NCCL) else "copy" if metric.startswith("memcpy") else "api"


def copied_bytes(profile: Profile, metric: str) -> float | None:
    known = rows(profile, metric)
    return None if known is None else sum(row.bytes or 0 for row in known)


def from_start(runs: Sequence[Run]) -> bool:
    """True if the profiles are of trainings from their start, as the papers', and not of some steps."""
    return all(run["profile.window"] == "start" for run in runs)


def windows(runs: Sequence[Run]) -> Iterator[str]:
    for window in dict.fromkeys((run["profile.window"], run["profile.steps"], run["profile.seconds"]) for run in runs):
        start, steps, length_s = window
        limit = f"{length_s:g} s" if length_s else f"{steps} steps" if steps else None
        if start == "start":
            yield f"the run's first {limit}" if limit else "the run from its start"
        else:
            yield f"{limit or 'some steps'} after the run"


# Rows of a table, with the figures of each cell


def by_cell(cells: Mapping[Cell, Sequence[Run]], metrics: Sequence[str] | None) -> dict[Cell, dict[Metric, float]]:
    """Figures of the cells with a profile, by group and name of a metric, as means over the runs of a cell.

    Args:
        metrics: whose shares of the profiled time are wanted; where no CUDA calls were seen, the phases of a step
            instead. None: seconds a step and rank of all metrics.
    """
    of_run = _per_step_s
    if metrics is not None:
        profiles = [found for runs in cells.values() for run in runs if (found := profile(run)) is not None]
        seen = any(shares(found, metrics) for found in profiles)
        of_run = partial(_shares, metrics=metrics if seen else ())
    return {cell: figures for cell, runs in cells.items() if (figures := _means(runs, of_run))}


def largest(cells: Sequence[dict[Metric, float]]) -> list[Metric]:
    """The metrics of each group by the cell in which they take longest; single kernels are left out."""
    metrics = dict.fromkeys(metric for figures in cells for metric in figures)
    ordered = sorted(metrics, key=lambda metric: -max(figures.get(metric, 0.0) for figures in cells))
    return [metric for group in GROUPS for metric in [one for one in ordered if one[0] == group][:TOP]]


def _means(runs: Sequence[Run], of_run: Callable[[Run], dict[Metric, float] | None]) -> dict[Metric, float]:
    by_run = [figures for run in runs if run["status"] == "ok" and (figures := of_run(run)) is not None]
    metrics = dict.fromkeys(metric for figures in by_run for metric in figures)
    return {metric: statistics.fmean(figures.get(metric, 0.0) for figures in by_run) for metric in metrics}


def _per_step_s(run: Run) -> dict[Metric, float] | None:
    recorded, found = run.record().profile, profile(run)
    if found is None or recorded is None:
        return None
    count = found.steps or (recorded.steps or 0) * len(found.ranks)
    summed = found.rank_rows(None if len(found.ranks) > 1 else found.ranks[0].rank)
    return {(row.group, row.metric): row.total_s / count for row in summed if row.group in GROUPS}


def _shares(run: Run, metrics: Sequence[str]) -> dict[Metric, float] | None:
    found = profile(run)
    if found is None:
        return None
    return shares(found, metrics) if metrics else phase_shares(found)
