"""Compare two groups of runs, `top` and `bottom`: the interval of a figure, and its verdict.

Each run gives one figure: its time, its mean step, or the mean over its ranks. The interval
includes how runs of one setting differ on that machine, estimated from all settings that were
repeated (`analysis.stats.between_runs`). Without repetitions there is no interval. The epochs,
steps, ranks and answers of one run do not show how another run of the same setting would have gone.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from multicard.messages import Message, Refusal
from multicard.observe.profiles.metrics import Profile
from multicard.records.schema import AnyRecord, VisionRecord
from multicard.records.text_table import clean

from ..runs.grouping import by_seed
from ..runs.load import Run
from ..stats import between_runs, intervals
from ..stats.between_runs import Machines, Prior, Spread, log
from ..stats.intervals import Interval

HOLDS = "holds"
FAILS = "does not hold"
UNDECIDED = "undecided"
UNMEASURED = "not measured"
EXCEEDS = "exceeds"  # The figure is above the range, or the "up to", that the paper prints.
# These two are verdicts on a claim: comparisons are missing, or its runs may not decide.
HALF = "half measured"
ILLUSTRATED = "illustrated"
# The assumed standard deviation of a share of a run's time, as long as no run was repeated.
PRIOR_SHARE_SD = 0.02
Scale = Callable[[float], float | None]


class Readings:
    """Reads records of runs once each, and knows how repeated runs differ.

    All runs that are judged count for how repeated runs differ.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._repeated = between_runs.RepeatedRuns(runs)
        self._machines: dict[Figure, Machines] = {}
        self._records: dict[Path, AnyRecord] = {}
        self._versions: dict[Path, str] = {}

    def machines(
        self, figure: "Figure", scale: Scale, prior_sd: Prior, of_seeds: bool = False
    ) -> Machines:
        """Return how runs differ in a figure on a scale (see `between_runs.by_machine`).

        The result is cached by the figure, so a figure must always be used with the same scale.
        """
        if figure not in self._machines:
            self._machines[figure] = between_runs.by_machine(
                self._repeated.settings, lambda run: scale(figure(self, run)), prior_sd, of_seeds
            )
        return self._machines[figure]

    def record(self, run: Run) -> AnyRecord:
        if run.folder not in self._records:
            self._records[run.folder] = run.record()
        return self._records[run.folder]

    def versions(self, run: Run) -> str:
        """Name the versions of torch and of the driver of a run."""
        if run.folder not in self._versions:
            machine = run.environment()
            driver = machine.gpus[0].driver if machine.gpus else None
            versions = f"torch {machine.packages.get('torch')}"
            if driver:
                versions += f", driver {driver}"
            self._versions[run.folder] = versions
        return self._versions[run.folder]

    def training(self, run: Run) -> VisionRecord:
        """Return the record of a run that trained on images; raise ValueError for other runs."""
        record = self.record(run)
        if not isinstance(record, VisionRecord):
            folder = clean(str(run.folder))
            raise Refusal("claim.not-training", f"{folder}: no training of images", folder=folder)
        return record

    def profile(self, run: Run) -> Profile:
        """Return the summary of the run's profile; raise ValueError if it is missing or broken."""
        try:
            return Profile.of(self.record(run).profile)
        except ValueError as error:
            folder = clean(str(run.folder))
            reason = str(error) if isinstance(error, Refusal) else clean(str(error))
            raise Refusal(
                "claim.no-profile", f"{folder}: {reason}", folder=folder, reason=reason
            ) from None


# Reads a figure of a run, or raises ValueError if the run has none.
Figure = Callable[[Readings, Run], float]


@dataclass(frozen=True)
class Sides:
    """Two groups of runs to compare, and the confidence of the interval.

    If a cell is measured by itself, it is `top`, and `bottom` is empty.
    """

    top: Sequence[Run]
    bottom: Sequence[Run]
    confidence: float
    readings: Readings

    def values(self, figure: Figure, of_seeds: bool = False) -> tuple[list[float], list[float]]:
        """Return a figure for each run of both sides; with `of_seeds`, the mean for each seed."""

        def side_values(side: Sequence[Run]) -> list[float]:
            return [
                fmean([figure(self.readings, run) for run in group])
                for group in by_seed(side, of_seeds)
            ]

        return side_values(self.top), side_values(self.bottom)

    def spreads(
        self, figure: Figure, scale: Scale, prior_sd: Prior, of_seeds: bool = False
    ) -> tuple[Spread, Spread]:
        """Return how runs differ in a figure on the machine of the bottom, and of the top."""
        machines = self.readings.machines(figure, scale, prior_sd, of_seeds)
        return machines.of(self.bottom), machines.of(self.top)

    def ratio(self, figure: Figure, of_seeds: bool = False) -> Interval:
        """Return the ratio of a figure's means, with how runs differ."""
        top, bottom = self.values(figure, of_seeds)
        ratio = between_runs.of_values(
            bottom, top, self.spreads(figure, log, between_runs.timed_prior, of_seeds)
        )
        low, high = (ratio.bounds(self.confidence) if ratio.repeated else None) or (None, None)
        return Interval(ratio.ratio, low, high, self.basis)

    def exact_ratio(self, figure: Figure) -> Interval:
        """Return the ratio of means of counted figures; of single runs, without any width."""
        top, bottom = self.values(figure)
        basis = "exact" if len(top) == len(bottom) == 1 else self.basis
        return intervals.exact_ratio(top, bottom, self.confidence, basis)

    def share(self, figure: Figure) -> Interval:
        """Return the mean share of the runs of `top`, with how runs differ, within 0 and 1."""
        mean = self._mean(figure, float, PRIOR_SHARE_SD)
        if mean.low is None or mean.high is None:
            return mean
        return Interval(mean.estimate, max(0.0, mean.low), min(1.0, mean.high), mean.basis)

    def factor(self, figure: Figure) -> Interval:
        """Return the geometric mean of a ratio that each run of `top` has by itself.

        Raises:
            ValueError: the ratio of a run is 0 or infinite.
        """
        if not all(0 < value < math.inf for value in self.values(figure)[0]):
            raise Refusal("claim.zero", "one side of a ratio is 0")
        return self._mean(figure, math.log, between_runs.timed_prior).mapped(math.exp)

    def _mean(self, figure: Figure, scale: Callable[[float], float], prior_sd: Prior) -> Interval:
        """Return the mean over `top` on a scale; without bounds if the machine repeated nothing."""
        mean = fmean(map(scale, self.values(figure)[0]))
        spread = self.readings.machines(figure, scale, prior_sd).of(self.top)
        if not spread.repetitions:
            return Interval(mean, None, None, self.basis)
        half = between_runs.half_width(len(self.top), spread, self.confidence)
        return Interval(mean, mean - half, mean + half, self.basis)

    @property
    def basis(self) -> str:
        """The number of runs that an interval rests on, in words."""
        counts = {len(self.top), len(self.bottom)} - {0}
        runs = "runs" if max(counts) > 1 else "run"
        return f"{' and '.join(map(str, sorted(counts)))} {runs}"


# Returns the interval of a measured ratio at a confidence.
AtConfidence = Callable[[Readings, float], Interval]


@dataclass(frozen=True)
class ClaimUnit:
    """A unit in which a figure of a claim is printed.

    text: the words around the number.
    convert: an increasing function that converts the measured ratio or share into the unit.
    of_bottom: True if the figure says how much better the bottom is, as "faster by" does.
    opposite: the words around a negative number, which `mirrored` makes positive. If it is empty,
        the number keeps its sign.
    """

    name: str
    text: str
    convert: Callable[[float], float]
    digits: int = 1
    of_bottom: bool = False
    opposite: str = ""
    mirrored: Callable[[float], float] = abs

    def phrase(
        self, estimate: float, low: float | None = None, high: float | None = None
    ) -> Message:
        """Write a figure with its interval in words.

        Examples are "faster by 25.0 % (20.0 to 30.0)" and "slower by 10.0 % (5.0 to 15.0)".
        """
        bounds = [] if low is None or high is None or low == high else [low, high]
        is_opposite = bool(self.opposite) and estimate < 0
        # If the bounds have different signs, each of them needs its own words.
        if self.opposite and any((bound < 0) != is_opposite for bound in bounds):
            ends = [self._bound(bound) for bound in bounds]
        elif is_opposite:
            ends = [self._number(self.mirrored(bound)) for bound in reversed(bounds)]
        else:
            ends = [self._number(bound) for bound in bounds]
        words, value = (
            (self.opposite, self.mirrored(estimate)) if is_opposite else (self.text, estimate)
        )
        number = self._number(value)
        text = words.format(number) + (f" ({' to '.join(ends)})" if ends else "")
        return Message(
            "claim.figure", text, unit=self.name, number=number, opposite=is_opposite, ends=ends
        )

    def _bound(self, value: float) -> str:
        """Write a bound with its direction, in percent or, from twice as much on, in times.

        An example is "2.6x faster".
        """
        is_opposite = value < 0
        words, amount = (self.opposite, self.mirrored(value)) if is_opposite else (self.text, value)
        if amount < 100:
            number = self._number(amount)
            return Message("claim.bound", words.format(number), number=number, opposite=is_opposite)
        times = intervals.times(1 + amount / 100)
        return Message(
            "claim.bound-in-times", f"{times} {words.split()[0]}", times=times, opposite=is_opposite
        )

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


def _slower(percent: float) -> float:
    """Convert "slower by" into "faster by", in percent, for the other side.

    B is 20 % slower than A if A is 25 % faster than B.
    """
    share = 1 + percent / 100
    return 100 * (1 / share - 1) if share > 0 else math.inf


UnitName = Literal["faster", "less", "times", "points", "percent"]
UNITS: dict[UnitName, ClaimUnit] = {
    "faster": ClaimUnit(
        "% faster", "faster by {} %", lambda x: 100 * (x - 1), 1, True, "slower by {} %", _slower
    ),
    "less": ClaimUnit(
        "% less", "less by {} %", lambda ratio: 100 * (1 - 1 / ratio), 1, True, "more by {} %"
    ),
    "times": ClaimUnit("x", "{} x", float, 2),
    "points": ClaimUnit("points", "{} points", lambda share: 100 * share, 2),
    "percent": ClaimUnit("%", "{} %", lambda share: 100 * share),
}


@dataclass(frozen=True)
class ComparedCell:
    """One side of a comparison: the cell as a person would type it, and its runs."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class RuleComparison:
    """One comparison of a rule, before its interval is computed.

    what: the sides that are compared ("gpus=4 against 1").
    where: the cell that both sides are in ("precision=fp32").
    over, under: the bounds between which the claim expects the figure, in `unit`.
    upto: the most that the claim allows. A figure above it exceeds the claim.
    runs: the runs of both sides; empty if a cell was not measured.
    sides: the cells that these runs belong to.
    beyond: True for cells that the papers do not have.
    interval: computes the interval of the measured ratio at a confidence; None if `settled`.
    stands_for: the number of comparisons from which this one was picked. The confidence is
        corrected for it.
    settled: the verdict and text of a comparison that has no number.
    least, most: the range of possible ratios. A ratio beyond it is marked as doubtful.
    """

    what: str
    where: str
    unit: ClaimUnit
    over: float
    under: float
    upto: float = math.inf
    runs: tuple[Run, ...] = ()
    sides: tuple[ComparedCell, ...] = ()
    beyond: bool = False
    interval: AtConfidence | None = None
    stands_for: int = 1
    settled: tuple[str, str] | None = None
    least: float = 0.0
    most: float = math.inf

    def verdict(self, low: float | None, high: float | None) -> str:
        """Judge the comparison by where the whole interval lies.

        It is undecided if there is no interval, or if the interval contains a bound.
        """
        if low is None or high is None:
            return UNDECIDED
        if high <= self.over or _reaches(low, self.under):
            return FAILS
        if low > self.over and _reaches(low, self.upto):
            return EXCEEDS
        is_below = not _reaches(high, self.under) and not _reaches(high, self.upto)
        return HOLDS if low > self.over and is_below else UNDECIDED


def _reaches(figure: float, bound: float) -> bool:
    """Return True if a figure is at an upper bound or above it.

    An infinite bound is never reached, not even by an infinite figure.
    """
    return bound < math.inf and figure >= bound
