"""Two profiles, metric by metric."""

from dataclasses import dataclass

from multicard.profiling.profile_data import Profile, Row


@dataclass(frozen=True)
class Pair:
    """A metric in both profiles, or in one of them; each summed over its ranks."""

    group: str
    metric: str
    first: Row | None
    second: Row | None
    ratio: float | None  # seconds of the first / seconds of the second; None where one has none
    ratio_per_step: float | None  # the same for each step of each rank; None where steps were not marked


def pairs(first: Profile, second: Profile) -> list[Pair]:
    """All metrics of either, in the order of the first; those of the second alone come last."""
    mine, theirs = ({(row.group, row.metric): row for row in one.of(None)} for one in (first, second))
    steps = second.steps / first.steps if first.steps and second.steps else None
    found = []
    for group, name in dict.fromkeys([*mine, *theirs]):
        here, there = mine.get((group, name)), theirs.get((group, name))
        ratio = here.total_s / there.total_s if here is not None and there is not None and there.total_s else None
        per_step = None if ratio is None or steps is None else ratio * steps
        found.append(Pair(group, name, here, there, ratio, per_step))
    return found


def as_dict(found: list[Pair]) -> list[dict[str, object]]:
    """Ready for JSON."""
    return [
        {
            "group": pair.group,
            "metric": pair.metric,
            "total_s": pair.first and pair.first.total_s,
            "against_total_s": pair.second and pair.second.total_s,
            "ratio": pair.ratio,
            "ratio_per_step": pair.ratio_per_step,
        }
        for pair in found
    ]
