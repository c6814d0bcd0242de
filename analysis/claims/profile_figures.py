"""Figures of profiles: calls, copies and collectives of a rank, as the papers' Table 1 names them."""

import math
from collections.abc import Callable

from analysis.claims.readings import Figure, Readings
from analysis.runs.load import Run
from multicard.observe.profiles.names import COPIES
from multicard.observe.profiles.profile_data import Profile, RankProfile
from multicard.records.text_table import clean

OfRank = Callable[[Profile, RankProfile], float]  # raises ValueError where a profile has none


def of_ranks(of_rank: OfRank, per_step: bool = False) -> Figure:
    """A figure of a run: the mean over the ranks of its profile, of the whole window or of one step."""

    def figure(readings: Readings, run: Run) -> float:
        profile = readings.profile(run)
        if not profile.ranks:
            raise ValueError("a profile has no ranks")
        if not all(rank.steps for rank in profile.ranks):
            raise ValueError(f"{clean(str(run.folder))}: its profile does not mark steps")
        values = [of_rank(profile, rank) / (rank.steps or 1 if per_step else 1) for rank in profile.ranks]
        return sum(values) / len(values)

    return figure


def _row(group: str, metric: str) -> OfRank:
    """The seconds of a metric of a rank."""

    def seconds(profile: Profile, rank: RankProfile) -> float:
        if metric in profile.not_recorded:
            raise ValueError(f"{profile.source} records no {metric}: profile=nsys does")
        for row in profile.of(rank.rank):
            if (row.group, row.metric) == (group, metric):
                return row.total_s
        raise ValueError(f"no {metric} in the profile: CPU ranks have none")

    return seconds


def communicating_s(_: Profile, rank: RankProfile) -> float:
    if rank.derived.communication_s is None:
        raise ValueError("no communication in the profile")
    return rank.derived.communication_s


def window_s(_: Profile, rank: RankProfile) -> float:
    return rank.window_s


def waiting_share(profile: Profile, rank: RankProfile) -> float:
    """The share of launches and synchronisations in the CUDA calls."""
    calls_s = {row.metric: row.total_s for row in profile.of(rank.rank) if row.group == "api"}
    if not sum(calls_s.values()):
        raise ValueError("CPU ranks make no CUDA calls")
    waiting_s = sum(seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name)
    return waiting_s / sum(calls_s.values())


def over(part: OfRank, whole: OfRank) -> OfRank:
    """A part in a whole; infinite where the whole is 0 and the part is not."""

    def share(profile: Profile, rank: RankProfile) -> float:
        above, below = part(profile, rank), whole(profile, rank)
        return above / below if below else math.inf if above else 0.0

    return share


def _combined(combine: Callable[[list[float]], float], *parts: OfRank) -> OfRank:
    return lambda profile, rank: combine([part(profile, rank) for part in parts])


COPYING, LAUNCHING = _row("copy", COPIES["HtoD"]), _row("api", "cudaLaunchKernel")
STREAM, EVENT = _row("api", "cudaStreamSynchronize"), _row("api", "cudaEventSynchronize")
MEMCPY, DESTROY = _row("api", "cudaMemcpyAsync"), _row("api", "cudaEventDestroy")
BROADCAST, ALL_GATHER = _row("collective", "nccl Broadcast"), _row("collective", "nccl AllGather")
FOUR = _combined(sum, COPYING, LAUNCHING, STREAM, communicating_s)  # of 2503.15252, Fig. 3
MEMCPY_AND_REST = _combined(sum, MEMCPY, LAUNCHING, STREAM, communicating_s)
FIVE = _combined(sum, LAUNCHING, STREAM, COPYING, EVENT, ALL_GATHER)  # of 2505.22905, Fig. 15
FIRST_CALLS = _combined(min, EVENT, LAUNCHING)
