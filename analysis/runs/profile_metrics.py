"""Metrics of a run's profile as the papers have them: seconds of all ranks,
and shares of the profiled time.

The papers profiled whole trainings; here a few steps are profiled by default,
so that tables give times a step.
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

NCCL = "nccl"  # all collectives of NCCL together
# Of Figs. 3, 4, 11 and 12 of 2505.22905, and of Fig. 15
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


def summed(
    profile: Profile, metric: str, field: Literal["total_s", "share", "bytes"]
) -> float | None:
    """A metric over all ranks in the whole window; 0 where it did not occur,
    None where it could not be seen.

    Of shares of the ranks' windows, what the host and the device do at once counts twice.
    """
    rows = profile.rank_rows(None)
    if metric in profile.not_recorded or not any(row.group == "api" for row in rows):
        return None
    parts = KINDS if metric == ALL_KINDS else (metric,)
    own = [
        row
        for row in rows
        if row.metric in parts or (metric == NCCL and row.metric.startswith("nccl "))
    ]
    return sum(getattr(row, field) or 0 for row in own)


def from_start(runs: Sequence[Run]) -> bool:
    """True if the profiles are of trainings from their start, as the papers',
    and not of some steps.
    """
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


# Rows of a table, with the figures of each cell


def by_cell(
    cells: Mapping[Cell, Sequence[Run]], metrics: Sequence[str] | None, whole: bool = False
) -> dict[Cell, dict[Metric, float]]:
    """Figures of the cells with a profile, by group and name of a metric,
    as means over the undisturbed runs of a cell.

    Args:
        metrics: whose shares of the profiled time are wanted; where no CUDA calls were seen, the
            phases of a step
            instead. None: seconds a step and rank of all metrics.
        whole: of all metrics the seconds of all ranks in the whole profile,
            in place of those a step and rank.
    """
    known = dict[Cell, list[tuple[Run, Profile]]]()
    for cell, runs in cells.items():
        profiled = [run for run in runs if profile(run) is not None]
        known[cell] = [
            (run, own)
            for run in grouping.undisturbed(profiled)
            if (own := profile(run)) is not None
        ]
    figures = {
        cell: [_of_run(run, own, metrics, whole) for run, own in found]
        for cell, found in known.items()
    }
    if metrics is not None and not any(map(any, figures.values())):
        figures = {cell: [_phase_shares(own) for _, own in found] for cell, found in known.items()}
    means = {cell: _means(found) for cell, found in figures.items()}
    return {cell: found for cell, found in means.items() if found}


def largest(cells: Sequence[dict[Metric, float]]) -> list[Metric]:
    """The metrics of each group by the cell in which they take longest;
    single kernels are left out.
    """
    metrics = dict.fromkeys(chain.from_iterable(cells))
    ordered = sorted(
        metrics, key=lambda metric: -max(figures.get(metric, 0.0) for figures in cells)
    )
    longest = list[Metric]()
    for group in GROUPS:
        longest.extend([metric for metric in ordered if metric[0] == group][:TOP])
    return longest


def _means(by_run: Sequence[dict[Metric, float]]) -> dict[Metric, float]:
    metrics = dict.fromkeys(chain.from_iterable(by_run))
    return {
        metric: statistics.fmean(figures.get(metric, 0.0) for figures in by_run)
        for metric in metrics
    }


def _of_run(
    run: Run, found: Profile, metrics: Sequence[str] | None, whole: bool
) -> dict[Metric, float]:
    if metrics is not None:
        shares = {metric: summed(found, metric, "share") for metric in metrics}
        return {
            (_group(metric), name(metric)): share
            for metric, share in shares.items()
            if share is not None
        }
    if whole:
        return {(row.group, row.metric): row.total_s for row in found.rank_rows(None)}
    recorded = run.record().profile
    count = found.steps or (recorded.steps if recorded and recorded.steps else 0) * len(found.ranks)
    rows = found.rank_rows(None if len(found.ranks) > 1 else found.ranks[0].rank)
    return {(row.group, row.metric): row.total_s / count for row in rows if row.group in GROUPS}


def _phase_shares(found: Profile) -> dict[Metric, float]:
    """Of the phases of a step, which CPU ranks have too."""
    return {
        (row.group, row.metric): row.share for row in found.rank_rows(None) if row.group == "phase"
    }


def _group(metric: str) -> str:
    return (
        "collective"
        if metric.startswith(NCCL)
        else "copy"
        if metric.startswith("memcpy")
        else "api"
    )
