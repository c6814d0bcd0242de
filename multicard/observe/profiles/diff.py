"""Comparison of two profiles, metric by metric."""

from dataclasses import dataclass

from multicard.observe.profiles.profile_data import Profile, Row


@dataclass(frozen=True)
class Pair:
    """A metric of either profile, summed over ranks."""

    group: str
    metric: str
    first: Row | None
    second: Row | None
    ratio: float | None  # seconds of the first / seconds of the second; None where one has none
    ratio_per_step: float | None  # the same per step and rank; None where steps are not marked

    def as_dict(self) -> dict[str, object]:
        """The pair for JSON."""
        return {
            "group": self.group,
            "metric": self.metric,
            "total_s": self.first and self.first.total_s,
            "against_total_s": self.second and self.second.total_s,
            "ratio": self.ratio,
            "ratio_per_step": self.ratio_per_step,
        }


def compare(first: Profile, second: Profile) -> list[Pair]:
    """All metrics of either profile, in the order of the first; those of the second alone come last."""
    rows, other_rows = ({(row.group, row.metric): row for row in profile.of(None)} for profile in (first, second))
    steps_ratio = second.steps / first.steps if first.steps and second.steps else None
    pairs = []
    for key in dict.fromkeys([*rows, *other_rows]):
        row, other = rows.get(key), other_rows.get(key)
        ratio = row.total_s / other.total_s if row is not None and other is not None and other.total_s else None
        per_step = None if ratio is None or steps_ratio is None else ratio * steps_ratio
        pairs.append(Pair(*key, row, other, ratio, per_step))
    return pairs
