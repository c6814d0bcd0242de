"""Compare two settings by a ratio whose interval includes how repeated runs differ.

Two runs of the same program differ by more than their steps show, because memory is laid out
differently, and clocks and neighbouring processes change. `multicard.measure.noise` estimates by
how much, for each setting. Student's t gets the degrees of freedom of all parts of the variance
together (Satterthwaite). The noncentral t gives the difference that a comparison detects with a
probability of POWER.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from multicard.measure import noise
from multicard.measure.noise import Spread, Term
from multicard.messages import Refusal

CONFIDENCE = 0.95
NORMAL = 1e6  # From this number of degrees of freedom on, Student's t equals the normal.
POWER = 0.8
# Standard deviation of the logarithm of a run's mean, before any run was repeated.
PRIOR_SD = noise.GPU_SD
PRIOR_DEGREES = noise.PRIOR_DEGREES
PRIOR_LIMIT = noise.PRIOR_LIMIT
LEAST_MEASURED = 5  # A run with fewer measured steps is too short to judge.
MARGIN = 0.05  # Two settings count as equal up to this relative difference.
MOST_LOG = 700.0  # Half of an interval is at most this large, so that its exponential is finite.
ABOVE = "above"
BELOW = "below"
WITHIN = "within"
UNDECIDED = "undecided"


def combined(terms: Sequence[Term]) -> Term:
    """Return the sum of independent estimates of variances.

    Source: Satterthwaite (1946), Biometrics Bull. 2:110.
    """
    total = math.fsum(term.variance for term in terms)
    if not total:
        return Term(0.0, min(term.degrees for term in terms))
    # This is 0 if all degrees of freedom are infinite.
    uncertainty = math.fsum(term.variance**2 / term.degrees for term in terms)
    return Term(total, total**2 / uncertainty if uncertainty else math.inf)


@cache
def student_quantile(confidence: float, degrees: float) -> float:
    """Return the two-sided quantile of Student's t, such as 3.18 at 95 % and 3 degrees of freedom.

    With infinitely many degrees, this is the normal quantile.

    Raises:
        ValueError: There is less than 1 degree of freedom.
    """
    # Importing scipy takes a third of a second, and most commands do not need it.
    from scipy.special import stdtrit

    if degrees < 1:
        raise ValueError("a spread needs at least two values")
    return float(stdtrit(min(degrees, NORMAL), 0.5 + confidence / 2))


@dataclass(frozen=True)
class Ratio:
    """The ratio of the mean of B to the mean of A.

    Attributes:
        error: Standard error of the logarithm, or None if there are too few samples.
        degrees: Degrees of freedom.
        repeated: True if `error` includes how runs differ. If False, it only includes how the
            samples of single runs differ.
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
        """Return where the whole interval lies.

        ABOVE and BELOW are above and below 1. WITHIN is from 1 / (1 + margin) to 1 + margin. All
        other intervals are UNDECIDED.

        Args:
            is_known: True if assumptions about repetitions suffice when there are none.
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
        """Return the relative difference that this comparison detects with probability POWER."""
        if self.error is None or not self.repeated:
            return None
        return math.expm1(min(_noncentrality(self.degrees) * self.error, MOST_LOG))


def of_values(a: Sequence[float], b: Sequence[float], spreads: tuple[Spread, Spread]) -> Ratio:
    """Return the ratio of the mean of B's runs to the mean of A's, given one figure for each run.

    If nothing was repeated, runs are assumed to differ as usual for their kind of machine.

    Args:
        spreads: How the logarithm of the figure differs between runs, in A's setting and in B's.

    Raises:
        ValueError: A mean is not above 0.
    """
    means = [math.fsum(side) / len(side) for side in (a, b)]
    if min(means) <= 0:
        raise Refusal("repeated.zero", "nothing to compare with: it is 0")
    total = combined(terms_between(spreads, len(a), len(b)))
    is_repeated = all(spread.repetitions for spread in spreads)
    return Ratio(means[1] / means[0], math.sqrt(total.variance), total.degrees, is_repeated)


def half_width(runs: int, spread: Spread, confidence: float = CONFIDENCE) -> float:
    """Return half of the interval of a mean over `runs` runs, on the scale of the spread."""
    return min(
        student_quantile(confidence, spread.term.degrees) * math.sqrt(spread.variance / runs),
        MOST_LOG,
    )


def variance_between(
    spreads: tuple[Spread, Spread], count_a: int, count_b: int
) -> list[Term] | None:
    """Return the variance between runs of the difference of two means.

    The means are over `count_a` and `count_b` runs. For means of logarithms, it is the variance of
    a ratio. Returns None if nothing was repeated on a machine.
    """
    if not all(spread.repetitions for spread in spreads):
        return None
    return terms_between(spreads, count_a, count_b)


def terms_between(spreads: tuple[Spread, Spread], count_a: int, count_b: int) -> list[Term]:
    """Return the same as `variance_between`, even if nothing was repeated.

    Then it uses the usual variance of the kind of machine.
    """
    a, b = (spread.term for spread in spreads)
    if spreads[0] == spreads[1]:
        return [Term(a.variance * (1 / count_a + 1 / count_b), a.degrees)]
    return [Term(a.variance / count_a, a.degrees), Term(b.variance / count_b, b.degrees)]


def _noncentrality(degrees: float) -> float:
    """Return the noncentrality at which Student's t exceeds its quantile with probability POWER."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(min(degrees, NORMAL), 1 - POWER, student_quantile(CONFIDENCE, degrees)))
