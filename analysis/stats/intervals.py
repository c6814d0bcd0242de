"""Confidence intervals: of proportions and their differences, over few repetitions, and of several cells together.

Where a claim compares several cells, each interval is at 1 - 0.05 / cells (`together`), so that all of them cover at
95 % (Bonferroni): of 20 figures, one would else be expected to be off by chance.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from analysis.stats import bootstrap

ALPHA = 1 - bootstrap.CONFIDENCE


@dataclass(frozen=True)
class Interval:
    """An estimate and where it lies; without bounds where nothing says how it scatters.

    basis: what the interval is over: "steps", "epochs", "3 runs", "4 ranks", "exact".
    """

    estimate: float
    low: float | None
    high: float | None
    basis: str

    def mapped(self, of: Callable[[float], float]) -> "Interval":
        """The same in another unit; `of` is increasing."""
        low, high = (None if bound is None else of(bound) for bound in (self.low, self.high))
        return replace(self, estimate=of(self.estimate), low=low, high=high)


def together(count: int) -> float:
    """The confidence of each of `count` intervals that are to cover all together at 95 %, by Bonferroni's bound."""
    return 1 - ALPHA / max(1, count)


def normal(confidence: float) -> float:
    """The normal's two-sided quantile: 1.96 at 95 %."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def student(confidence: float, freedom: int) -> float:
    """The two-sided quantile of Student's t: in closed form for 1 and 2 degrees of freedom, above by its expansion
    about the normal (Abramowitz and Stegun 1964, 26.7.5), which is off by less than 0.2 % at 95 %.

    Raises:
        ValueError: no degree of freedom.
    """
    if freedom < 1:
        raise ValueError("a spread needs at least two values")
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = normal(confidence)
    return z + sum(
        term / (divisor * freedom**power)
        for power, (term, divisor) in enumerate(
            (
                (z**3 + z, 4),
                (5 * z**5 + 16 * z**3 + 3 * z, 96),
                (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z, 384),
                (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z, 92160),
            ),
            1,
        )
    )


def wilson(right: int, count: int, confidence: float) -> Interval:
    """right / count with Wilson's score interval (Wilson 1927; Newcombe 1998, Stat. Med. 17:857, method 3)."""
    share, z = right / count, normal(confidence)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    return Interval(
        share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half)), f"{count:,} answers"
    )


def difference(first: Interval, second: Interval) -> Interval:
    """first - second of two independent estimates, from the interval of each (Zou and Donner 2008, Stat. Med. 27:1693).

    Of two of Wilson's intervals it is Newcombe's method 10 (1998, Stat. Med. 17:873).
    """
    off = first.estimate - second.estimate
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return Interval(off, None, None, first.basis)
    low = off - math.hypot(first.estimate - first.low, second.high - second.estimate)
    high = off + math.hypot(first.high - first.estimate, second.estimate - second.low)
    return Interval(off, low, high, first.basis)


def mean(values: Sequence[float], confidence: float, basis: str) -> Interval:
    """Student's interval of a mean; without bounds of a single value."""
    found = np.asarray(values, dtype=float)
    if len(found) < 2:
        return Interval(float(found[0]), None, None, basis)
    half = student(confidence, len(found) - 1) * float(found.std(ddof=1)) / math.sqrt(len(found))
    return Interval(float(found.mean()), float(found.mean()) - half, float(found.mean()) + half, basis)


def means_apart(top: Sequence[float], bottom: Sequence[float], confidence: float, basis: str) -> Interval:
    """The difference of two means by Welch's standard error, with the degrees of freedom of the smaller side, which are
    too few rather than too many; without bounds where a side has a single value."""
    ours, theirs = np.asarray(top, dtype=float), np.asarray(bottom, dtype=float)
    off = float(ours.mean() - theirs.mean())
    if min(len(ours), len(theirs)) < 2:
        return Interval(off, None, None, basis)
    error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) for side in (ours, theirs)))
    half = student(confidence, min(len(ours), len(theirs)) - 1) * error
    return Interval(off, off - half, off + half, basis)


def ratio(
    top: Sequence[float], bottom: Sequence[float], confidence: float, basis: str, exact: bool = False
) -> Interval:
    """The mean of `top` ÷ the mean of `bottom`, by Student's interval of its logarithm (delta method).

    Args:
        exact: a side of one value has no scatter (a count of bytes); else there are no bounds then.

    Raises:
        ValueError: a mean that is not above 0.
    """
    sides = [np.asarray(side, dtype=float) for side in (top, bottom)]
    if min(side.mean() for side in sides) <= 0:
        raise ValueError("nothing to compare with: it is 0")
    found = float(sides[0].mean() / sides[1].mean())
    several = [side for side in sides if len(side) > 1]
    if len(several) < 2 and not exact:
        return Interval(found, None, None, basis)
    if not several:
        return Interval(found, found, found, basis)
    error = math.sqrt(sum(float(side.var(ddof=1)) / len(side) / float(side.mean()) ** 2 for side in several))
    half = student(confidence, min(len(side) for side in several) - 1) * error
    return Interval(found, found * math.exp(-half), found * math.exp(half), basis)


def alike(top: Sequence[float], bottom: Sequence[float], confidence: float, basis: str) -> Interval:
    """The ratio of geometric means by Student's interval of the logarithms, which are taken to scatter alike on both
    sides, so that few values of each do; without bounds of fewer than three values.

    Raises:
        ValueError: a value that is not above 0.
    """
    if min(*top, *bottom) <= 0:
        raise ValueError("nothing to compare with: it is 0")
    sides = [np.log(np.asarray(side, dtype=float)) for side in (top, bottom)]
    off = float(sides[0].mean() - sides[1].mean())
    freedom = len(top) + len(bottom) - 2
    if freedom < 1:
        return Interval(math.exp(off), None, None, basis)
    scatter = sum(float(((side - side.mean()) ** 2).sum()) for side in sides) / freedom
    half = student(confidence, freedom) * math.sqrt(scatter * (1 / len(top) + 1 / len(bottom)))
    return Interval(math.exp(off), math.exp(off - half), math.exp(off + half), basis)


def resampled(
    top: Sequence[np.ndarray], bottom: Sequence[np.ndarray], confidence: float, basis: str, block: int | None = None
) -> Interval:
    """The same of the samples of runs, by `analysis.bootstrap`.

    Its interval is at 95 %; at another confidence it is stretched about the estimate, in the logarithm, by how much
    farther out Student's quantile lies: the quantiles of 2,000 resamples do not reach that far themselves.

    Raises:
        ValueError: a run without samples, or whose samples are not above 0 in the mean.
    """
    if not all(len(samples) and samples.mean() > 0 for samples in (*top, *bottom)):
        raise ValueError(f"{basis} that took no time")
    found = bootstrap.ratio(bottom, top, block)
    if found.low is None or found.high is None:
        return Interval(found.ratio, None, None, basis)
    freedom = max(1, _units(top, bottom, block) - 1)
    factor = student(confidence, freedom) / student(bootstrap.CONFIDENCE, freedom)
    low, high = (found.ratio * (bound / found.ratio) ** factor for bound in (found.low, found.high))
    return Interval(found.ratio, low, high, basis)


def _units(top: Sequence[np.ndarray], bottom: Sequence[np.ndarray], block: int | None) -> int:
    """What is drawn of the side that has least of it: runs, or blocks of the only one."""
    return min(
        len(side) if len(side) > 1 else round(len(side[0]) / (block or bootstrap.block_length(side[0])))
        for side in (top, bottom)
    )
