"""The metrics of a profiled run, per rank and summed, as computed, recorded, compared and printed."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import Any

import msgspec

from multicard.records.schema_parts import ProfileRank, ProfileRow

GROUPS = ("derived", "phase", "api", "copy", "collective", "kernel", "annotation")
LONG = ("kernel", "annotation")  # groups with a row for each name that occurred


@dataclass(frozen=True)
class Profile:
    """The profile of a run."""

    source: str  # kineto or nsys
    ranks: list[ProfileRank]
    rows: list[ProfileRow]  # of each rank, then of their sum; by group, then by time
    not_recorded: tuple[str, ...]  # API calls that the profiler omits by design

    @property
    def steps(self) -> int | None:
        """Steps summed over ranks; None where a rank has no markers."""
        counts = [rank.steps for rank in self.ranks if rank.steps is not None]
        return sum(counts) if len(counts) == len(self.ranks) else None

    def rank_rows(self, rank: int | None, top: int | None = None) -> list[ProfileRow]:
        """The rows of a rank (None: the sum over ranks), with the first `top` of each group in LONG only."""
        by_group = groupby((row for row in self.rows if row.rank == rank), lambda row: row.group)
        return [row for group, rows in by_group for row in islice(rows, top if group in LONG else None)]

    def as_dict(self, top: int | None = 20) -> dict[str, Any]:
        """The profile for JSON, with the `top` kernels and annotations of every rank and of the sum."""
        rows = [row for rank in (*(rank.rank for rank in self.ranks), None) for row in self.rank_rows(rank, top)]
        return msgspec.to_builtins(replace(self, rows=rows))

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Profile":
        """The profile from `as_dict`'s result, as a run's record holds it.

        Raises:
            ValueError: if it has another form.
        """
        return msgspec.convert(content, cls)


@dataclass(frozen=True)
class Pair:
    """A metric of either profile, summed over ranks."""

    group: str
    metric: str
    first: ProfileRow | None
    second: ProfileRow | None
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
    rows, other_rows = (
        {(row.group, row.metric): row for row in profile.rank_rows(None)} for profile in (first, second)
    )
    steps_ratio = second.steps / first.steps if first.steps and second.steps else None
    pairs = []
    for key in dict.fromkeys([*rows, *other_rows]):
        row, other = rows.get(key), other_rows.get(key)
        ratio = row.total_s / other.total_s if row is not None and other is not None and other.total_s else None
        per_step = None if ratio is None or steps_ratio is None else ratio * steps_ratio
        pairs.append(Pair(*key, row, other, ratio, per_step))
    return pairs
