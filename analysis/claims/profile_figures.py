"""Figures of a run's profile: the times of calls, copies and collectives, as means over its ranks.

They are named as in the papers' Table 1. `run_figures` has the figures of a run's record.
"""

import math
from collections.abc import Callable

from multicard.messages import Refusal
from multicard.observe.profiles.events import COPIES
from multicard.observe.profiles.metrics import Profile
from multicard.records.schema_parts import ProfileRank
from multicard.records.text_table import clean

from ..runs.load import Run
from . import run_figures
from .comparison import Figure, Readings

# Reads a figure of a rank from its profile, or raises ValueError if the profile lacks it.
RankFigure = Callable[[Profile, ProfileRank], float]


def mean_of_ranks(rank_figure: RankFigure, per_step: bool = False) -> Figure:
    """Average a figure over the ranks of a profile, for the whole window or per step."""

    def figure(readings: Readings, run: Run) -> float:
        profile = readings.profile(run)
        if not profile.ranks:
            raise Refusal("claim.no-ranks", "a profile has no ranks")
        if not all(rank.steps for rank in profile.ranks):
            folder = clean(str(run.folder))
            raise Refusal(
                "claim.no-marked-steps", f"{folder}: its profile does not mark steps", folder=folder
            )
        values = [
            rank_figure(profile, rank) / (rank.steps or 1 if per_step else 1)
            for rank in profile.ranks
        ]
        return sum(values) / len(values)

    return figure


def _metric(group: str, metric: str) -> RankFigure:
    """Return a function that reads the seconds of a metric of a profile."""

    def seconds(profile: Profile, rank: ProfileRank) -> float:
        if metric in profile.not_recorded:
            text = f"{profile.source} records no {metric}: `profile=nsys` does"
            raise Refusal(
                "claim.not-recorded", text, key="profile", source=profile.source, metric=metric
            )
        for row in profile.rank_rows(rank.rank):
            if (row.group, row.metric) == (group, metric):
                return row.total_s
        raise Refusal(
            "claim.no-metric", f"no {metric} in the profile: CPU ranks have none", metric=metric
        )

    return seconds


def communicating(_: Profile, rank: ProfileRank) -> float:
    """Return the seconds that a rank spent communicating."""
    missing = Refusal("claim.no-communication", "no communication in the profile")
    return run_figures.known_values([rank.derived.communication_s], missing)[0]


def window(_: Profile, rank: ProfileRank) -> float:
    """Return the seconds that were profiled on a rank."""
    return rank.window_s


def waiting_share(profile: Profile, rank: ProfileRank) -> float:
    """Return the share of launches and synchronizations in the time of all CUDA calls."""
    calls_s = {
        row.metric: row.total_s for row in profile.rank_rows(rank.rank) if row.group == "api"
    }
    if not sum(calls_s.values()):
        raise Refusal("claim.no-calls", "CPU ranks make no CUDA calls")
    waiting_s = sum(
        seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name
    )
    return waiting_s / sum(calls_s.values())


def ratio_of_parts(part: RankFigure, whole: RankFigure) -> Figure:
    """Return a figure that divides a part by a whole.

    It is infinite if the whole is 0 and the part is not. It raises ValueError if both are 0.
    """

    def share(profile: Profile, rank: ProfileRank) -> float:
        part_value = part(profile, rank)
        whole_value = whole(profile, rank)
        if not part_value and not whole_value:
            raise Refusal("claim.nothing-in-profile", "a profile has nothing of what is compared")
        return part_value / whole_value if whole_value else math.inf

    return mean_of_ranks(share)


def combined(combine: Callable[[list[float]], float], *parts: RankFigure) -> RankFigure:
    """Return a figure that combines other figures, as by `sum`."""
    return lambda profile, rank: combine([part(profile, rank) for part in parts])


COPYING = _metric("copy", COPIES["HtoD"])
LAUNCHING = _metric("api", "cudaLaunchKernel")
STREAM = _metric("api", "cudaStreamSynchronize")
EVENT = _metric("api", "cudaEventSynchronize")
MEMCPY = _metric("api", "cudaMemcpyAsync")
DESTROY = _metric("api", "cudaEventDestroy")
BROADCAST = _metric("collective", "nccl Broadcast")
ALL_GATHER = _metric("collective", "nccl AllGather")
# The calls of 2503.15252, Fig. 3.
FIG_3_CALLS = combined(sum, COPYING, LAUNCHING, STREAM, communicating)
# The calls whose times copies are compared with. Copies themselves change with the precision.
OTHER_CALLS = (LAUNCHING, STREAM, communicating, BROADCAST, DESTROY)
# The calls of 2505.22905, Fig. 15.
FIG_15_CALLS = combined(sum, LAUNCHING, STREAM, COPYING, EVENT, ALL_GATHER)
