"""Comparisons of two groups of runs, `top` and `bottom`: the interval
of a figure that compares them, and its verdict.

Each run gives one figure: its time, its mean step, the mean over its ranks. The interval holds how
runs of one setting differ on that machine, from all settings that were measured more than once
(`analysis.stats.between_runs`). Without repetitions there is no interval: neither the epochs and
steps of a run, nor its ranks, nor its answers show how another run of the same setting would have
gone.
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
EXCEEDS = "exceeds"  # more than the paper prints, where it prints a range or "up to"
# of a claim: comparisons are missing, or its runs may not decide
HALF = "half measured"
ILLUSTRATED = "illustrated"
PRIOR_SHARE_SD = 0.02  # of a share of a run's time, before any run was repeated
Scale = Callable[[float], float | None]


class Readings:
    """Records of runs, each read once, and how runs of one
    setting differ among all that are judged.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._repeated = between_runs.RepeatedRuns(runs)
        self._machines: dict[Figure, Machines] = {}
        self._records: dict[Path, AnyRecord] = {}
        self._versions: dict[Path, str] = {}

    def machines(
        self, figure: "Figure", scale: Scale, prior_sd: Prior, of_seeds: bool = False
    ) -> Machines:
        """How runs differ in a figure on a scale (see `between_runs.by_machine`);
        a figure always has one scale.
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
        """The driver and torch of a run."""
        if run.folder not in self._versions:
            machine = run.environment()
            driver = machine.gpus[0].driver if machine.gpus else None
            versions = f"torch {machine.packages.get('torch')}"
            if driver:
                versions += f", driver {driver}"
            self._versions[run.folder] = versions
        return self._versions[run.folder]

    def training(self, run: Run) -> VisionRecord:
        """The record of a training run; raises ValueError for another."""
        record = self.record(run)
        if not isinstance(record, VisionRecord):
            folder = clean(str(run.folder))
            raise Refusal("claim.not-training", f"{folder}: no training of images", folder=folder)
        return record

    def profile(self, run: Run) -> Profile:
        """The summary of the run's profile; raises ValueError where there is none,
        or it is broken.
        """
        try:
            return Profile.of(self.record(run).profile)
        except ValueError as error:
            folder = clean(str(run.folder))
            reason = str(error) if isinstance(error, Refusal) else clean(str(error))
            raise Refusal(
                "claim.no-profile", f"{folder}: {reason}", folder=folder, reason=reason
            ) from None


Figure = Callable[[Readings, Run], float]  # raises ValueError where a run has none


@dataclass(frozen=True)
class Sides:
    """Two groups of runs to compare, and the confidence of their interval;
    no `bottom` for a cell by itself.
    """

    top: Sequence[Run]
    bottom: Sequence[Run]
    confidence: float
    readings: Readings

    def values(self, figure: Figure, of_seeds: bool = False) -> tuple[list[float], list[float]]:
        """A figure by side: of every run, or of every seed, the mean over its runs."""

        def side_values(side: Sequence[Run]) -> list[float]:
            return [
                fmean([figure(self.readings, run) for run in group])
                for group in by_seed(side, of_seeds)
            ]

        return side_values(self.top), side_values(self.bottom)

    def spreads(
        self, figure: Figure, scale: Scale, prior_sd: Prior, of_seeds: bool = False
    ) -> tuple[Spread, Spread]:
        """How runs differ in a figure on a scale: on the machine of the bottom, and of the top."""
        machines = self.readings.machines(figure, scale, prior_sd, of_seeds)
        return machines.of(self.bottom), machines.of(self.top)

    def ratio(self, figure: Figure, of_seeds: bool = False) -> Interval:
        top, bottom = self.values(figure, of_seeds)
        one = between_runs.of_values(
            bottom, top, self.spreads(figure, log, between_runs.timed_prior, of_seeds)
        )
        low, high = (one.bounds(self.confidence) if one.repeated else None) or (None, None)
        return Interval(one.ratio, low, high, self.basis)

    def exact_ratio(self, figure: Figure) -> Interval:
        """The ratio of mean figures that are counted; its interval has no width for single runs."""
        top, bottom = self.values(figure)
        basis = "exact" if len(top) == len(bottom) == 1 else self.basis
        return intervals.exact_ratio(top, bottom, self.confidence, basis)

    def share(self, figure: Figure) -> Interval:
        """A share of the runs of `top`, with how runs differ; bounds within 0 and 1."""
        one = self._mean(figure, float, PRIOR_SHARE_SD)
        if one.low is None or one.high is None:
            return one
        return Interval(one.estimate, max(0.0, one.low), min(1.0, one.high), one.basis)

    def factor(self, figure: Figure) -> Interval:
        """The geometric mean of a ratio that each run of `top` has by itself;
        raises ValueError for 0 and infinity.
        """
        if not all(0 < value < math.inf for value in self.values(figure)[0]):
            raise Refusal("claim.zero", "one side of a ratio is 0")
        return self._mean(figure, math.log, between_runs.timed_prior).mapped(math.exp)

    def _mean(self, figure: Figure, scale: Callable[[float], float], prior_sd: Prior) -> Interval:
        """The mean over `top` on a scale; without bounds
        where nothing was repeated on the machine.
        """
        mean = fmean(map(scale, self.values(figure)[0]))
        spread = self.readings.machines(figure, scale, prior_sd).of(self.top)
        if not spread.repetitions:
            return Interval(mean, None, None, self.basis)
        half = between_runs.half_width(len(self.top), spread, self.confidence)
        return Interval(mean, mean - half, mean + half, self.basis)

    @property
    def basis(self) -> str:
        counts = {len(self.top), len(self.bottom)} - {0}
        runs = "runs" if max(counts) > 1 else "run"
        return f"{' and '.join(map(str, sorted(counts)))} {runs}"


# the interval of a measured ratio at a confidence
AtConfidence = Callable[[Readings, float], Interval]


@dataclass(frozen=True)
class ClaimUnit:
    """A unit in which a figure of a claim is printed.

    convert: brings the measured ratio or share into the unit; it increases.
    text: the words around the number. opposite: those around a number below 0, which `mirrored`
    makes positive; empty
        where a sign says it.
    of_bottom: True if the figure says what the bottom has over the top, as "faster by" does.
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
        """A figure in words, with its interval: "faster by 25.0 % (20.0 to 30.0)",
        "slower by 10.0 % (5.0 to 15.0)".
        """
        bounds = [] if low is None or high is None or low == high else [low, high]
        is_opposite = bool(self.opposite) and estimate < 0
        # each bound needs words of its own
        if self.opposite and any((bound < 0) != is_opposite for bound in bounds):
            ends = [self._bound(bound) for bound in bounds]
        elif is_opposite:
            ends = [self._number(self.mirrored(bound)) for bound in reversed(bounds)]
        else:
            ends = [self._number(bound) for bound in bounds]
        words, shown = (
            (self.opposite, self.mirrored(estimate)) if is_opposite else (self.text, estimate)
        )
        number = self._number(shown)
        said = words.format(number) + (f" ({' to '.join(ends)})" if ends else "")
        return Message(
            "claim.figure", said, unit=self.name, number=number, opposite=is_opposite, ends=ends
        )

    def _bound(self, value: float) -> str:
        """A bound beyond which lies the other side: in percent,
        from twice as much on in times ("2.6x faster").
        """
        is_opposite = value < 0
        words, more = (self.opposite, self.mirrored(value)) if is_opposite else (self.text, value)
        if more < 100:
            number = self._number(more)
            return Message("claim.bound", words.format(number), number=number, opposite=is_opposite)
        times = intervals.times(1 + more / 100)
        return Message(
            "claim.bound-in-times", f"{times} {words.split()[0]}", times=times, opposite=is_opposite
        )

    def _number(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


def _slower(percent: float) -> float:
    """How much faster the other side is, in percent: B is 25 %
    slower than A where A is 25 % faster than B.
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
    """One side of a comparison: a cell as a person would type it, and its runs."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class RuleComparison:
    """One comparison of a rule, before its interval is worked out.

    what: what is compared ("gpus=4 against 1"). where: the cell that both are in
    ("precision=fp32").
    over, under: the bounds between which the claim has the figure, in `unit`.
    upto: the most that the claim has; a figure above it exceeds the claim.
    runs: of both sides; empty where a cell was not measured.
    sides: the cells that these runs are of.
    beyond: True in cells that the papers do not have.
    interval: the interval of the measured ratio at a confidence; None where `settled`.
    stands_for: the number of comparisons from which this one was picked, for the correction of the
    confidence.
    settled: verdict and text of a comparison that has no number.
    least, most: the ratios between which what is measured can lie;
    one beyond them is marked as doubtful.
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
        """By where the whole interval lies; undecided where there is none,
        or it contains a bound.
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
    """True of a figure at an upper bound or above it; an infinite bound is none,
    also for an infinite figure.
    """
    return bound < math.inf and figure >= bound
