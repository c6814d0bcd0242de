"""What a claim measures of profiles: calls, copies and collectives of a rank, as the papers' Table 1 names them."""

import math
from collections.abc import Callable
from functools import partial

from analysis.claims.readings import OfRank
from analysis.claims.sides import Sides
from analysis.stats.intervals import Interval
from multicard.observe.profiles.names import COPIES
from multicard.observe.profiles.profile_data import Profile, RankProfile

CPU = "CPU ranks have none"  # why a profile may lack a metric


def _row(group: str, metric: str) -> OfRank:
    """The seconds of a metric of a rank."""

    def seconds(profile: Profile, rank: RankProfile) -> float:
        if metric in profile.not_recorded:
            raise ValueError(f"{profile.source} records no {metric}: profile=nsys does")
        for row in profile.of(rank.rank):
            if (row.group, row.metric) == (group, metric):
                return row.total_s
        raise ValueError(f"no {metric} in the profile: {CPU}")

    return seconds


def _communicating_s(_: Profile, rank: RankProfile) -> float:
    if rank.derived.communication_s is None:
        raise ValueError("no communication in the profile")
    return rank.derived.communication_s


def _total(*parts: OfRank) -> OfRank:
    return lambda profile, rank: sum(part(profile, rank) for part in parts)


def _over(part: OfRank, whole: OfRank) -> OfRank:
    """A part in a whole; infinite where the whole is 0 and the part is not."""

    def share(profile: Profile, rank: RankProfile) -> float:
        above, below = part(profile, rank), whole(profile, rank)
        return above / below if below else math.inf if above else 0.0

    return share


def _waiting_share(profile: Profile, rank: RankProfile) -> float:
    calls_s = {row.metric: row.total_s for row in profile.of(rank.rank) if row.group == "api"}
    if not sum(calls_s.values()):
        raise ValueError("CPU ranks make no CUDA calls")
    waiting_s = sum(seconds for name, seconds in calls_s.items() if "Launch" in name or "Synchronize" in name)
    return waiting_s / sum(calls_s.values())


def _least(*parts: OfRank) -> OfRank:
    return lambda profile, rank: min(part(profile, rank) for part in parts)


def _window_s(_: Profile, rank: RankProfile) -> float:
    return rank.window_s


COPYING, LAUNCHING = _row("copy", COPIES["HtoD"]), _row("api", "cudaLaunchKernel")
STREAM, EVENT = _row("api", "cudaStreamSynchronize"), _row("api", "cudaEventSynchronize")
MEMCPY, DESTROY = _row("api", "cudaMemcpyAsync"), _row("api", "cudaEventDestroy")
BROADCAST, ALL_GATHER = _row("collective", "nccl Broadcast"), _row("collective", "nccl AllGather")
FOUR = _total(COPYING, LAUNCHING, STREAM, _communicating_s)  # of 2503.15252, Fig. 3
MEMCPY_AND_REST = _total(MEMCPY, LAUNCHING, STREAM, _communicating_s)
FIVE = _total(LAUNCHING, STREAM, COPYING, EVENT, ALL_GATHER)  # of 2505.22905, Fig. 15


def _times(name: str, of_rank: OfRank) -> Callable[[Sides], Interval]:
    """The ratio of the seconds of a step and rank; infinite where the bottom has none."""

    def interval(sides: Sides) -> Interval:
        figure = sides.readings.of_ranks(name, of_rank)
        top, bottom = sides.each(figure)
        if min(top) > 0 and not any(bottom):
            return Interval(math.inf, math.inf, math.inf, "none on one side")
        return sides.ratio(figure)

    return interval


def _of_window(name: str, of_rank: OfRank, form: Callable[[Sides, Callable], Interval]) -> Callable[[Sides], Interval]:
    """A figure of the whole window, a rank: as a ratio of two groups (`Sides.ratio`), or of one by itself."""
    return lambda sides: form(sides, sides.readings.of_ranks(name, of_rank, per_step=False))


_shares = partial(_of_window, form=Sides.ratio)

# By name: of a step and rank; shares of two groups; of each cell by itself.
INTERVALS: dict[str, Callable[[Sides], Interval]] = {
    "time_copying": _times("copying", COPYING),
    "time_communicating": _times("communicating", _communicating_s),
    "time_synchronising": _times("synchronising", STREAM),
    "time_in_memcpy": _times("memcpy", MEMCPY),
    "time_in_event_destroy": _times("event destroy", DESTROY),
    "time_broadcasting": _times("broadcasting", BROADCAST),
    "share_of_launches": _shares("launches of four", _over(LAUNCHING, FOUR)),
    "share_of_collectives": _shares("collectives of four", _over(_communicating_s, FOUR)),
    "share_of_copies": _shares("copies of four", _over(COPYING, FOUR)),
    "share_of_memcpy": _shares("memcpy of four", _over(MEMCPY, MEMCPY_AND_REST)),
    "share_launching": _shares("launches of window", _over(LAUNCHING, _window_s)),
    "share_synchronising": _shares("synchronising of window", _over(STREAM, _window_s)),
    "share_of_five": _shares("five of window", _over(FIVE, _window_s)),
    "share_of_calls": _of_window("waiting", _waiting_share, Sides.share),
    "share_copying": _of_window("copies of window", _over(COPYING, _window_s), Sides.share),
    "first_calls_over_all_gather": _of_window(
        "first calls over AllGather", _over(_least(EVENT, LAUNCHING), ALL_GATHER), Sides.factor
    ),
    "all_gather_over_copies": _of_window("AllGather over copies", _over(ALL_GATHER, COPYING), Sides.factor),
}
