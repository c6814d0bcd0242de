"""Two groups of runs, `top` and `bottom`, and the interval of a figure that compares them.

Each run gives one figure: its time, its mean step, the mean over its ranks. The interval holds how runs of one setting
differ on that machine, from all settings that were measured more than once (`analysis.stats.between_runs`). Without
repetitions there is no interval: neither the epochs and steps of a run, nor its ranks, nor its answers show how another
run of the same setting would have gone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec

from analysis.runs.grouping import by_seed
from analysis.runs.load import Run
from analysis.stats import between_runs, intervals
from analysis.stats.between_runs import Machines, Spread
from analysis.stats.intervals import Interval
from multicard.observe.profiles.metrics import Profile
from multicard.records.text_table import clean

PRIOR_SHARE_SD = 0.02  # of a share of a run's time, before any run was repeated
READ = ("epochs", "transfer_bytes", "input")  # keys of a record, beside its profile
Scale = Callable[[float], float | None]


class Readings:
    """Records and profiles of runs, each read once, and how runs of one setting differ.

    Args:
        runs: all that are judged; settings that were measured more than once show how runs differ.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._repeated = between_runs.RepeatedRuns(runs)
        self._machines: dict[Figure, Machines] = {}
        self._parts: dict[Path, dict[str, Any]] = {}

    def machines(self, figure: "Figure", scale: Scale, prior_sd: float, of_seeds: bool = False) -> Machines:
        """How runs differ in a figure on a scale (see `between_runs.by_machine`); a figure always has one scale."""
        if figure not in self._machines:
            self._machines[figure] = between_runs.by_machine(
                self._repeated.settings, lambda run: scale(figure(self, run)), prior_sd, of_seeds
            )
        return self._machines[figure]

    def record(self, run: Run) -> dict[str, Any]:
        """Keys READ of the record, empty where it lacks one, and "profile" with "profile_step_s"."""
        if run.folder not in self._parts:
            record = msgspec.to_builtins(run.record())
            profile = record.get("profile")
            parts = {key: record.get(key) or {} for key in READ}
            parts |= {"profile": _profile(profile), "profile_step_s": (profile or {}).get("step_s") or {}}
            self._parts[run.folder] = parts
        return self._parts[run.folder]

    def profile(self, run: Run) -> Profile:
        """The summary of the run's profile.

        Raises:
            ValueError: there is none, or it is broken.
        """
        profile = self.record(run)["profile"]
        if isinstance(profile, str):
            raise ValueError(f"{clean(str(run.folder))}: {clean(profile)}")
        return profile


Figure = Callable[[Readings, Run], float]  # raises ValueError where a run has none


def _profile(content: dict[str, Any] | None) -> Profile | str:
    """A profile, or why there is none."""
    if content is None:
        return "its record has no profile"
    if "error" in content:
        return f"its profile could not be read ({content['error']})"
    try:
        return Profile.from_dict(content)
    except ValueError:
        return "its profile is broken"


@dataclass(frozen=True)
class Sides:
    """Two groups of runs to compare, and the confidence of their interval; no `bottom` for a cell by itself."""

    top: Sequence[Run]
    bottom: Sequence[Run]
    confidence: float
    readings: Readings

    def values(self, figure: Figure, of_seeds: bool = False) -> tuple[list[float], list[float]]:
        """A figure by side: of every run, or of every seed, the mean over its runs."""

        def side_values(side: Sequence[Run]) -> list[float]:
            groups = by_seed(side) if of_seeds else [[run] for run in side]
            return [fmean([figure(self.readings, run) for run in group]) for group in groups]

        return side_values(self.top), side_values(self.bottom)

    def spreads(self, figure: Figure, scale: Scale, prior_sd: float, of_seeds: bool = False) -> tuple[Spread, Spread]:
        """How runs differ in a figure on a scale: on the machine of the bottom, and of the top."""
        machines = self.readings.machines(figure, scale, prior_sd, of_seeds)
        return machines.of(self.bottom[0]), machines.of(self.top[0])

    def ratio(self, figure: Figure, of_seeds: bool = False) -> Interval:
        """The ratio of mean figures, with how runs differ."""
        top, bottom = self.values(figure, of_seeds)
        one = between_runs.of_values(bottom, top, self.spreads(figure, log, between_runs.PRIOR_SD, of_seeds))
        low, high = (one.bounds(self.confidence) if one.repeated else None) or (None, None)
        return Interval(one.ratio, low, high, self.basis)

    def exact_ratio(self, figure: Figure) -> Interval:
        """The ratio of mean figures that are counted; its interval has no width for single runs."""
        top, bottom = self.values(figure)
        basis = "exact" if len(top) == len(bottom) == 1 else self.basis
        return intervals.ratio_of_means(top, bottom, self.confidence, basis, exact=True)

    def share(self, figure: Figure) -> Interval:
        """A share of the runs of `top`, with how runs differ; bounds within 0 and 1."""
        one = self._mean(figure, float, PRIOR_SHARE_SD)
        if one.low is None or one.high is None:
            return one
        return Interval(one.estimate, max(0.0, one.low), min(1.0, one.high), one.basis)

    def factor(self, figure: Figure) -> Interval:
        """A ratio that each run of `top` has by itself: its geometric mean, with how runs differ.

        Raises:
            ValueError: a run whose ratio is 0 or infinite.
        """
        if not all(0 < value < math.inf for value in self.values(figure)[0]):
            raise ValueError("one side of a ratio is 0")
        return self._mean(figure, math.log, between_runs.PRIOR_SD).mapped(math.exp)

    def _mean(self, figure: Figure, scale: Callable[[float], float], prior_sd: float) -> Interval:
        """The mean over `top` on a scale."""
        mean = fmean(map(scale, self.values(figure)[0]))
        half = self.half_width(self.readings.machines(figure, scale, prior_sd).of(self.top[0]), len(self.top))
        low, high = (None, None) if half is None else (mean - half, mean + half)
        return Interval(mean, low, high, self.basis)

    def half_width(self, spread: Spread, count: int) -> float | None:
        """Half the interval of a mean over `count` runs; None where nothing was repeated on the machine."""
        if not spread.degrees:
            return None
        return intervals.student_quantile(self.confidence, spread.term.degrees) * math.sqrt(spread.variance / count)

    @property
    def basis(self) -> str:
        """The number of runs, as in "2 and 3 runs"."""
        counts = {len(self.top), len(self.bottom)} - {0}
        return f"{' and '.join(map(str, sorted(counts)))} run{'s' * (max(counts) > 1)}"


def log(value: float) -> float | None:
    """The logarithm; None where it is not finite."""
    return math.log(value) if 0 < value < math.inf else None
