"""How runs of one setting differ from one another, and what a ratio of two settings is worth for it.

Two runs of the same program differ by more than their steps show: memory lies elsewhere, clocks and neighbours change.
More steps do not help; more runs do. So the variance between runs is part of every interval:

- It is that of the logarithm of a run's mean, pooled over all settings of a machine and a kind of run (`vision`, `llm`)
  that were measured more than once, with n - 1 degrees of freedom of n runs.
- Few repetitions are drawn towards a prior that counts as PRIOR_DEGREES of freedom: a standard deviation of PRIOR_SD.
- It holds the scatter of the steps already. Runs with more scatter than those it comes from (shorter ones) add theirs:
  the share of it by which they exceed these.
- Student's t has the degrees of freedom of all parts together (Satterthwaite). A difference that a comparison sees with
  a probability of POWER follows from the noncentral t.

Where nothing was repeated, the interval is that of the steps alone, and nothing is decided by it.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.runs import grouping
from analysis.runs.load import Run
from analysis.stats.intervals import CONFIDENCE, NORMAL, Interval, student_quantile
from analysis.stats.series import Term, combined, mean_variance

POWER = 0.8
PRIOR_SD = 0.02  # of the logarithm of a run's mean, before any run was repeated
PRIOR_DEGREES = 1
MARGIN = 0.05  # relative difference up to which two settings count as equal
MAX_RUNS = 50  # a side, beyond which repeating is not worth naming
ABOVE, BELOW, WITHIN, UNDECIDED = "above", "below", "within", "undecided"


@dataclass(frozen=True)
class Spread:
    """How runs of one setting differ.

    variance: of the logarithm of a run's mean, shrunk to the prior. degrees: n - 1 over all repeated settings.
    within: the part of the variance that steps without correlation would have.
    """

    variance: float = PRIOR_SD**2
    degrees: int = 0
    within: float = 0.0

    @property
    def term(self) -> Term:
        return Term(self.variance, self.degrees + PRIOR_DEGREES)


def pooled(settings: Iterable[Sequence[tuple[float, float]]], prior_sd: float = PRIOR_SD) -> Spread:
    """The spread of settings that were repeated.

    Args:
        settings: of each, its runs: the value of which the spread is wanted, and the variance that its steps give it.
    """
    squares = degrees = 0.0
    within = 0.0
    for runs in settings:
        values = np.array([value for value, _ in runs])
        squares += float(np.square(values - values.mean()).sum())
        degrees += len(runs) - 1
        within += (len(runs) - 1) * float(np.mean([variance for _, variance in runs]))
    variance = (PRIOR_DEGREES * prior_sd**2 + squares) / (PRIOR_DEGREES + degrees)
    return Spread(variance, round(degrees), within / degrees if degrees else 0.0)


@dataclass(frozen=True)
class Machines:
    """The spread of a figure by the kind of run and the machine."""

    spreads: Mapping[tuple[str, str | None], Spread]
    prior_sd: float

    def of(self, run: Run) -> Spread:
        return self.spreads.get((run["kind"], run["hardware"]), Spread(self.prior_sd**2))


def repeated(*sweeps: Sequence[Run]) -> list[list[Run]]:
    """The settings that were measured more than once, by their runs that ended ok.

    Args:
        sweeps: runs of one setting are repetitions within one of them; whether two of them differ is what is asked.
    """
    settings = (
        setting for runs in sweeps for setting in grouping.by_setting([r for r in runs if r["status"] == "ok"]).values()
    )
    return [setting for setting in settings if len(setting) > 1]


def by_machine(
    settings: Iterable[Sequence[Run]], figure: Callable[[Run], float | None], prior_sd: float = PRIOR_SD
) -> Machines:
    """How the runs of `repeated` settings differ in a figure.

    Args:
        figure: of a run, on a scale on which differences count: the logarithm for relative ones (`log_of`). None, or a
            ValueError, where it has none.
        prior_sd: before any run was repeated, on that scale.
    """
    measured: dict[tuple[str, str | None], list[list[tuple[float, float]]]] = {}
    for setting in settings:
        values = [(value, _step_variance(run)) for run in setting if (value := _known(figure, run)) is not None]
        if len(values) > 1:
            measured.setdefault((setting[0]["kind"], setting[0]["hardware"]), []).append(values)
    return Machines({machine: pooled(values, prior_sd) for machine, values in measured.items()}, prior_sd)


def log_of(column: str) -> Callable[[Run], float | None]:
    """The logarithm of a column, if it is above 0."""
    return lambda run: math.log(run[column]) if (run[column] or 0) > 0 else None


def _known(figure: Callable[[Run], float | None], run: Run) -> float | None:
    try:
        return figure(run)
    except ValueError:
        return None


def _step_variance(run: Run) -> float:
    """The relative variance of a run's mean step, as if its steps were independent."""
    mean_s, std_s, count = run["step_s"], run["step_std_s"], run["steps"]
    return (std_s / mean_s) ** 2 / count if mean_s and std_s and count else 0.0


@dataclass(frozen=True)
class Ratio:
    """The mean of B / that of A.

    error: the standard error of the logarithm; None where the samples are too few. degrees: of freedom.
    repeated: whether `error` holds how runs differ; else it is that of the samples of single runs alone.
    runs: of the smaller side. run_variance: of the logarithm of the ratio of one run a side.
    """

    ratio: float
    error: float | None
    degrees: float
    repeated: bool
    runs: int
    run_variance: float

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        if self.error is None:
            return None
        half = student_quantile(confidence, self.degrees) * self.error
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    def verdict(self, margin: float = MARGIN, confidence: float = CONFIDENCE) -> str:
        """Where the whole interval lies: ABOVE 1, BELOW 1, WITHIN 1 / (1 + margin) to 1 + margin, or UNDECIDED."""
        bounds = self.bounds(confidence)
        if bounds is None or not self.repeated:
            return UNDECIDED
        low, high = bounds
        if low > 1:
            return ABOVE
        if high < 1:
            return BELOW
        return WITHIN if low >= 1 / (1 + margin) and high <= 1 + margin else UNDECIDED

    def least_difference(self, confidence: float = CONFIDENCE) -> float | None:
        """The relative difference that such a comparison tells from none with a probability of POWER."""
        if self.error is None or not self.repeated:
            return None
        return math.expm1(_noncentral(confidence, self.degrees) * self.error)

    def runs_to_decide(self, margin: float = MARGIN) -> int | None:
        """Runs a side with which a difference as large as this one would be seen, or shown to be within the margin,
        with a probability of POWER; None if it takes more than MAX_RUNS."""
        seen = abs(math.log(self.ratio))
        to_tell = max(seen, math.log1p(margin) - seen)
        for count in range(self.runs + 1, MAX_RUNS + 1):
            degrees = max(self.degrees if self.repeated else PRIOR_DEGREES, PRIOR_DEGREES) + 2 * (count - self.runs)
            if _noncentral(CONFIDENCE, degrees) * math.sqrt(self.run_variance / count) <= to_tell:
                return count
        return None


def ratio(
    a: Sequence[np.ndarray],
    b: Sequence[np.ndarray],
    spreads: tuple[Spread, Spread],
    paired: bool = False,
    independent: bool = False,
) -> Ratio:
    """The mean of B's runs / the mean of A's, each run with the same weight.

    Args:
        a, b: samples (n,) of each run of a side, in the order in which they were measured.
        spreads: how runs of A's machine differ, and those of B's.
        paired: whether each run of A had the batches of the run of B with its index, one by one.
        independent: whether neighbouring samples are known not to be alike (epochs).

    Raises:
        ValueError: a side without samples, or samples that took no time.
    """
    if not a or not b or not all(len(samples) for samples in (*a, *b)):
        raise ValueError("none beyond the warm-up")
    means = [[float(samples.mean()) for samples in side] for side in (a, b)]
    if min(*means[0], *means[1]) <= 0:
        raise ValueError("samples that took no time")
    estimate = float(np.mean(means[1]) / np.mean(means[0]))
    runs = min(len(a), len(b))
    between = variance_between(spreads, len(a), len(b))
    if between is None:  # nothing was repeated
        within = _within(a, b, paired, independent)
        run_variance = 2 * PRIOR_SD**2 + (0.0 if within is None else within.variance * runs)
        error, degrees = (None, 0) if within is None else (math.sqrt(within.variance), within.degrees)
        return Ratio(estimate, error, degrees, False, runs, run_variance)
    share = _share_beyond([*a, *b], max(spread.within for spread in spreads))
    if share:
        within = _within(a, b, paired, independent)
        if within is None:
            return Ratio(estimate, None, 0, True, runs, combined(between).variance * runs)
        between.append(Term(within.variance * share, within.degrees))
    total = combined(between)
    return Ratio(estimate, math.sqrt(total.variance), total.degrees, True, runs, total.variance * runs)


def of_values(a: Sequence[float], b: Sequence[float], spreads: tuple[Spread, Spread]) -> Ratio:
    """The mean of B's runs / the mean of A's, of one figure a run.

    Where nothing was repeated, runs are taken to differ by PRIOR_SD exactly.

    Args:
        spreads: of the logarithm of the figure, on A's machine and on B's.

    Raises:
        ValueError: a mean that is not above 0.
    """
    means = [math.fsum(side) / len(side) for side in (a, b)]
    if min(means) <= 0:
        raise ValueError("nothing to compare with: it is 0")
    between, runs = variance_between(spreads, len(a), len(b)), min(len(a), len(b))
    total = Term(PRIOR_SD**2 * (1 / len(a) + 1 / len(b)), math.inf) if between is None else combined(between)
    error, known = math.sqrt(total.variance), between is not None
    return Ratio(means[1] / means[0], error, total.degrees, known, runs, total.variance * runs)


def mean(values: Sequence[float], spread: Spread, relative: bool = True) -> Interval:
    """The mean of one figure a run, with how runs of the machine differ; without bounds where nothing was repeated.

    Args:
        relative: whether the spread is that of the logarithm of the figure.
    """
    centre = math.fsum(values) / len(values)
    if not spread.degrees:
        return Interval(centre, None, None)
    half = student_quantile(CONFIDENCE, spread.term.degrees) * math.sqrt(spread.variance / len(values))
    if relative:
        return Interval(centre, centre * math.exp(-half), centre * math.exp(half))
    return Interval(centre, centre - half, centre + half)


def variance_between(spreads: tuple[Spread, Spread], count_a: int, count_b: int) -> list[Term] | None:
    """The variance of the difference of two means (of logarithms: of a ratio), each over so many runs, from run to run;
    None where nothing was repeated on a machine."""
    if not all(spread.degrees for spread in spreads):
        return None
    a, b = (spread.term for spread in spreads)
    if spreads[0] == spreads[1]:
        return [Term(a.variance * (1 / count_a + 1 / count_b), a.degrees)]
    return [Term(a.variance / count_a, a.degrees), Term(b.variance / count_b, b.degrees)]


def _share_beyond(runs: Sequence[np.ndarray], within: float) -> float:
    """The share of the scatter of these runs' steps that the variance between runs does not hold yet."""
    own = float(np.mean([samples.var() / samples.mean() ** 2 / len(samples) for samples in runs]))
    return max(0.0, 1 - within / own) if own else 0.0


def _within(a: Sequence[np.ndarray], b: Sequence[np.ndarray], paired: bool, independent: bool) -> Term | None:
    """The variance of the logarithm of the ratio from the samples within the runs."""
    relative_a, relative_b = ([samples / samples.mean() for samples in side] for side in (a, b))
    if paired:
        series = [second - first for first, second in zip(relative_a, relative_b, strict=True)]
        weights = [1 / len(series)] * len(series)
    else:
        series = [*relative_a, *relative_b]
        weights = [*[1 / len(a)] * len(a), *[1 / len(b)] * len(b)]
    parts = [mean_variance(samples, independent) for samples in series]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return combined([Term(part.variance * w**2, part.degrees) for part, w in zip(known, weights, strict=True)])


def _noncentral(confidence: float, degrees: float) -> float:
    """The noncentrality with which Student's t exceeds its quantile with a probability of POWER."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(min(degrees, NORMAL), 1 - POWER, student_quantile(confidence, degrees)))
