"""Two groups of runs, `top` and `bottom`, and the interval of what a figure of a run says of them.

Each run gives one figure: its time, its mean step, the mean over its ranks. The interval holds how runs of one setting
differ on that machine, from all settings that were measured more than once (`analysis.stats.between_runs`). Where none
was, there is no interval: neither the epochs and steps of a run, nor its ranks, nor its answers show how another run of
the same setting would have gone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from analysis.claims.readings import Figure, Readings, Scale
from analysis.runs.load import Run
from analysis.runs.setting_figure import by_seed
from analysis.stats import between_runs, intervals
from analysis.stats.between_runs import Spread
from analysis.stats.intervals import Interval

PRIOR_SHARE_SD = 0.02  # of a share of a run's time, before any run was repeated


@dataclass(frozen=True)
class Sides:
    """Two groups of runs to compare, and the confidence that their interval needs; no `bottom` for a cell by itself."""

    top: Sequence[Run]
    bottom: Sequence[Run]
    confidence: float
    readings: Readings

    def each(self, figure: Figure) -> tuple[list[float], list[float]]:
        """A figure of every run, by side."""
        top, bottom = ([figure(self.readings, run) for run in side] for side in (self.top, self.bottom))
        return top, bottom

    def of_seeds(self, figure: Figure) -> tuple[list[float], list[float]]:
        """A figure of every seed, by side: the mean over its runs."""
        seeds = ([[figure(self.readings, run) for run in runs] for runs in by_seed(s)] for s in (self.top, self.bottom))
        top, bottom = ([fmean(values) for values in side] for side in seeds)
        return top, bottom

    def spreads(self, figure: Figure, scale: Scale, prior_sd: float, of_seeds: bool = False) -> tuple[Spread, Spread]:
        """How runs differ in a figure, on a scale: on the machine of the bottom, and of the top."""
        machines = self.readings.machines(figure, scale, prior_sd, of_seeds)
        return machines.of(self.bottom[0]), machines.of(self.top[0])

    def ratio(self, figure: Figure, of_seeds: bool = False) -> Interval:
        """The ratio of mean figures, with how runs differ."""
        top, bottom = self.of_seeds(figure) if of_seeds else self.each(figure)
        one = between_runs.of_values(bottom, top, self.spreads(figure, log, between_runs.PRIOR_SD, of_seeds))
        low, high = (one.bounds(self.confidence) if one.repeated else None) or (None, None)
        return Interval(one.ratio, low, high, self.basis)

    def exact_ratio(self, figure: Figure) -> Interval:
        """The ratio of mean figures that are counted: of single runs it has no width."""
        top, bottom = self.each(figure)
        basis = "exact" if len(top) == len(bottom) == 1 else self.basis
        return intervals.ratio_of_means(top, bottom, self.confidence, basis, exact=True)

    def share(self, figure: Figure) -> Interval:
        """A share of the runs of `top`, with how runs differ."""
        mean, low, high = self._of_top(figure, float, PRIOR_SHARE_SD)
        if low is not None and high is not None:
            low, high = max(0.0, low), min(1.0, high)
        return Interval(mean, low, high, self.basis)

    def factor(self, figure: Figure) -> Interval:
        """A ratio that each run of `top` has by itself: its geometric mean, with how runs differ.

        Raises:
            ValueError: a run whose ratio is 0 or infinite.
        """
        if not all(0 < value < math.inf for value in self.each(figure)[0]):
            raise ValueError("one side of a ratio is 0")
        return Interval(*self._of_top(figure, math.log, between_runs.PRIOR_SD), self.basis).mapped(math.exp)

    def _of_top(
        self, figure: Figure, scale: Callable[[float], float], prior_sd: float
    ) -> tuple[float, float | None, float | None]:
        """The mean on a scale, and its bounds."""
        mean = fmean(map(scale, self.each(figure)[0]))
        half = self.half_width(self.readings.machines(figure, scale, prior_sd).of(self.top[0]), len(self.top))
        return (mean, None, None) if half is None else (mean, mean - half, mean + half)

    def half_width(self, spread: Spread, count: int) -> float | None:
        """Half the interval of a mean of so many runs; None where nothing was repeated on the machine."""
        if not spread.degrees:
            return None
        error = math.sqrt(spread.variance / count)
        return intervals.student_quantile(self.confidence, spread.term.degrees) * error

    @property
    def basis(self) -> str:
        """ "2 and 3 runs"."""
        counts = {len(self.top), len(self.bottom)} - {0}
        return f"{' and '.join(map(str, sorted(counts)))} run{'s' * (max(counts) > 1)}"


def log(value: float) -> float | None:
    return math.log(value) if 0 < value < math.inf else None
