"""Two groups of runs, `top` and `bottom`, and the interval of what a figure of a run says of them.

Each run gives one figure: its time, its mean step, the mean over its ranks. The interval holds how runs of one setting
differ on that machine, from all settings that were measured more than once (`analysis.stats.between_runs`). Where none
was, there is no interval: neither the epochs and steps of a run, nor its ranks, nor its answers show how another run of
the same setting would have gone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from analysis.claims.readings import Readings
from analysis.runs.load import Run
from analysis.runs.setting_figure import by_seed
from analysis.stats import between_runs, intervals
from analysis.stats.between_runs import Spread
from analysis.stats.intervals import Interval

PRIOR_SHARE_SD = 0.02  # of a share of a run's time, before any run was repeated
T = TypeVar("T")
Figure = Callable[[Run], float]


@dataclass(frozen=True)
class Sides:
    """Two groups of runs to compare, and the confidence that their interval needs; no `bottom` for a cell by itself."""

    top: Sequence[Run]
    bottom: Sequence[Run]
    confidence: float
    readings: Readings

    def each(self, figure: Callable[[Run], T]) -> tuple[list[T], list[T]]:
        """A figure of every run, by side."""
        return [figure(run) for run in self.top], [figure(run) for run in self.bottom]

    def spreads(
        self, figure: Figure, scale: Callable[[float], float | None], prior_sd: float, of_seeds: bool = False
    ) -> tuple[Spread, Spread]:
        """How runs differ in a figure, on a scale: on the machine of the bottom, and of the top."""
        machines = self.readings.machines(figure, scale, prior_sd, of_seeds)
        return machines.of(self.bottom[0]), machines.of(self.top[0])

    def of_seeds(self, figure: Figure) -> tuple[list[float], list[float]]:
        """A figure of every seed, by side: the mean over its runs."""
        top, bottom = ([mean(list(map(figure, runs))) for runs in by_seed(side)] for side in (self.top, self.bottom))
        return top, bottom

    def ratio(self, figure: Figure, of_seeds: bool = False) -> Interval:
        """The ratio of mean figures, with how runs differ."""
        top, bottom = self.of_seeds(figure) if of_seeds else self.each(figure)
        one = between_runs.of_values(bottom, top, self.spreads(figure, log, between_runs.PRIOR_SD, of_seeds))
        low, high = one.bounds(self.confidence) or (None, None)
        return Interval(one.ratio, *((low, high) if one.repeated else (None, None)), self.basis)

    def share(self, figure: Figure) -> Interval:
        """A share of the runs of `top`, with how runs differ."""
        interval = self._of_top(figure, float, PRIOR_SHARE_SD)
        if interval.low is None or interval.high is None:
            return interval
        return Interval(interval.estimate, max(0.0, interval.low), min(1.0, interval.high), interval.basis)

    def factor(self, figure: Figure) -> Interval:
        """A ratio that each run of `top` has by itself: its geometric mean, with how runs differ.

        Raises:
            ValueError: a run whose ratio is 0 or infinite.
        """
        if not all(0 < figure(run) < math.inf for run in self.top):
            raise ValueError("one side of a ratio is 0")
        return self._of_top(figure, math.log, between_runs.PRIOR_SD).mapped(math.exp)

    def _of_top(self, figure: Figure, scale: Callable[[float], float], prior_sd: float) -> Interval:
        """The mean on a scale."""
        values = [scale(figure(run)) for run in self.top]
        spread = self.readings.machines(figure, scale, prior_sd).of(self.top[0])
        if not spread.degrees:
            return Interval(mean(values), None, None, self.basis)
        error = math.sqrt(spread.variance / len(values))
        half = intervals.student_quantile(self.confidence, spread.term.degrees) * error
        return Interval(mean(values), mean(values) - half, mean(values) + half, self.basis)

    @property
    def basis(self) -> str:
        """ "2 and 3 runs"."""
        counts = {len(self.top), len(self.bottom)} - {0}
        return f"{' and '.join(map(str, sorted(counts)))} run{'s' * (max(counts) > 1)}"


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def log(value: float) -> float | None:
    return math.log(value) if 0 < value < math.inf else None
