"""Ratios of two settings with intervals that include how runs differ, which more steps do not show.

Two runs of the same program differ by more than their steps show: memory lies elsewhere, clocks and
neighbours change. `multicard.measure.noise` says by how much, setting by setting. Student's t has
the degrees of freedom of all parts together (Satterthwaite). A difference that a comparison sees
with a probability of POWER follows from the noncentral t.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from multicard.measure import noise
from multicard.measure.noise import Spread, Term
from multicard.messages import Refusal

CONFIDENCE = 0.95
NORMAL = 1e6  # degrees of freedom from which on Student's t is the normal distribution
POWER = 0.8
PRIOR_SD = noise.GPU_SD  # of the logarithm of a run's mean, before any run was repeated
PRIOR_DEGREES = noise.PRIOR_DEGREES
PRIOR_LIMIT = noise.PRIOR_LIMIT
MARGIN = 0.05  # relative difference up to which two settings count as equal
MOST_LOG = 700.0  # of half an interval: its power is a number yet
ABOVE = "above"
BELOW = "below"
WITHIN = "within"
UNDECIDED = "undecided"


def combined(terms: Sequence[Term]) -> Term:
    """The sum of independent estimates of variances
    (Satterthwaite 1946, Biometrics Bull. 2:110).
    """
    total = math.fsum(term.variance for term in terms)
    if not total:
        return Term(0.0, min(term.degrees for term in terms))
    # nothing, of infinite degrees
    uncertain = math.fsum(term.variance**2 / term.degrees for term in terms)
    return Term(total, total**2 / uncertain if uncertain else math.inf)


@cache
def student_quantile(confidence: float, degrees: float) -> float:
    """The two-sided quantile of Student's t: 3.18 at 95 % and 3 degrees of freedom; the normal one
    at infinitely many. A ValueError for less than 1 degree.
    """
    from scipy.special import stdtrit  # a third of a second, which most commands do without

    if degrees < 1:
        raise ValueError("a spread needs at least two values")
    return float(stdtrit(min(degrees, NORMAL), 0.5 + confidence / 2))


@dataclass(frozen=True)
class Ratio:
    """The mean of B / the mean of A.

    error: standard error of the logarithm; None where the samples are too few. degrees: of freedom.
    repeated: `error` includes how runs differ; else it is that of the samples of single runs alone.
    """

    ratio: float
    error: float | None
    degrees: float
    repeated: bool

    def bounds(self, confidence: float = CONFIDENCE) -> tuple[float, float] | None:
        if self.error is None:
            return None
        half = min(student_quantile(confidence, self.degrees) * self.error, MOST_LOG)
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)

    def verdict(
        self, margin: float = MARGIN, confidence: float = CONFIDENCE, is_known: bool = False
    ) -> str:
        """Where the whole interval lies: ABOVE 1, BELOW 1, WITHIN 1 / (1 + margin) to 1 + margin,
        or UNDECIDED.

        Args:
            is_known: what is assumed of repetitions is enough, where there are none.
        """
        bounds = self.bounds(confidence)
        if bounds is None or not (self.repeated or is_known):
            return UNDECIDED
        low, high = bounds
        if low > 1:
            return ABOVE
        if high < 1:
            return BELOW
        return WITHIN if low >= 1 / (1 + margin) and high <= 1 + margin else UNDECIDED

    def least_difference(self) -> float | None:
        """The relative difference that such a comparison
        tells from none with a probability of POWER.
        """
        if self.error is None or not self.repeated:
            return None
        return math.expm1(min(_noncentral(self.degrees) * self.error, MOST_LOG))


def of_values(a: Sequence[float], b: Sequence[float], spreads: tuple[Spread, Spread]) -> Ratio:
    """The mean of B's runs / the mean of A's, of one figure a run.

    Where nothing was repeated, runs are taken to differ as is usual for their kind of machine.

    Args:
        spreads: of the logarithm of the figure, of A's setting and of B's.

    Raises:
        ValueError: a mean that is not above 0.
    """
    means = [math.fsum(side) / len(side) for side in (a, b)]
    if min(means) <= 0:
        raise Refusal("repeated.zero", "nothing to compare with: it is 0")
    total = combined(terms_between(spreads, len(a), len(b)))
    is_repeated = all(spread.repetitions for spread in spreads)
    return Ratio(means[1] / means[0], math.sqrt(total.variance), total.degrees, is_repeated)


def half_width(runs: int, spread: Spread, confidence: float = CONFIDENCE) -> float:
    """Half of the interval of a mean over `runs` runs, on the scale of the spread."""
    return min(
        student_quantile(confidence, spread.term.degrees) * math.sqrt(spread.variance / runs),
        MOST_LOG,
    )


def variance_between(
    spreads: tuple[Spread, Spread], count_a: int, count_b: int
) -> list[Term] | None:
    """Variance between runs of the difference of two means over `count_a` and `count_b` runs (of
    logarithms: of a ratio); None where nothing was repeated on a machine.
    """
    if not all(spread.repetitions for spread in spreads):
        return None
    return terms_between(spreads, count_a, count_b)


def terms_between(spreads: tuple[Spread, Spread], count_a: int, count_b: int) -> list[Term]:
    """The same, also where nothing was repeated: then by what is usual for the kind of machine."""
    a, b = (spread.term for spread in spreads)
    if spreads[0] == spreads[1]:
        return [Term(a.variance * (1 / count_a + 1 / count_b), a.degrees)]
    return [Term(a.variance / count_a, a.degrees), Term(b.variance / count_b, b.degrees)]


def _noncentral(degrees: float) -> float:
    """The noncentrality with which Student's t exceeds its quantile with a probability of POWER."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(min(degrees, NORMAL), 1 - POWER, student_quantile(CONFIDENCE, degrees)))
