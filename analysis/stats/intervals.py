"""Confidence intervals of proportions, means, differences and ratios of a few values.

A claim that compares several cells takes each interval at a confidence of 1 - 0.05 / cells
(`bonferroni`), so that all of them together cover at 95 %. Otherwise, one of 20 intervals at 95 %
would be expected to miss.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from multicard.measure.repeated_runs import CONFIDENCE, MOST_LOG, student_quantile
from multicard.messages import Refusal
from multicard.records import figures

MAX_RATIO = 1000  # A larger ratio is written as ">1000x".


@dataclass(frozen=True)
class Interval:
    """An estimate with its bounds, which are None if nothing shows how it scatters.

    basis: what the interval is computed from: "3 runs", "exact".
    """

    estimate: float
    low: float | None
    high: float | None
    basis: str = ""

    @property
    def excludes_zero(self) -> bool:
        """True if the bounds are known and exclude 0."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def mapped(self, unit: Callable[[float], float]) -> "Interval":
        """Return the interval in another unit; `unit` is an increasing function."""
        low, high = (None if bound is None else unit(bound) for bound in (self.low, self.high))
        return replace(self, estimate=unit(self.estimate), low=low, high=high)


def text(name: str, interval: Interval) -> str:
    """Write a figure with its interval for a person.

    For example "61.2 ± 0.4", "98.1% ± 0.2" or "21.4 ± 0.3 kJ". A wide interval is written as "61
    (40 to 160)".
    """
    shown = figures.text(name, interval.estimate)
    low = interval.low
    high = interval.high
    if low is None or high is None or low == high:
        return shown
    half = (high - low) / 2
    if half > abs(interval.estimate) / 2:
        return f"{shown} ({figures.text(name, low)} to {figures.text(name, high)})"
    if name.endswith("accuracy"):
        return f"{shown} ± {100 * half:.2f}"
    unit = figures.of_column(name).unit
    estimate = interval.estimate
    scale = (
        unit.scale(abs(estimate)) if unit in (figures.BYTES, figures.JOULES) else figures.Scale("")
    )
    is_scaled = unit in (figures.SECONDS, figures.PLAIN) or bool(scale.name)
    is_scaled |= unit is figures.RATE and abs(estimate) < 100
    if not is_scaled or half >= 100 * scale.divisor:
        return f"{shown} ± {figures.text(name, half)}"
    short = f"{half / scale.divisor:{'.1f' if half >= scale.divisor else '.2g'}}"
    digits = len(short.partition(".")[2])  # The estimate has as many digits as the half width.
    return f"{estimate / scale.divisor:,.{digits}f} ± {short} {scale.name}".rstrip()


def times(ratio: float) -> str:
    """Write a ratio as "1.33x", or as "1.004x" near 1.

    A ratio that no interval supports is written as ">1000x".
    """
    digits = 3 if 0.0005 <= abs(ratio - 1) < 0.005 else 2 if ratio < 10 else 0
    return f"{ratio:.{digits}f}x" if ratio < MAX_RATIO else f">{MAX_RATIO}x"


def faster(ratio: float) -> str:
    """Write a ratio of speeds: "1.33x faster", "1.10x slower"."""
    return f"{times(max(ratio, 1 / ratio))} {'faster' if ratio >= 1 else 'slower'}"


def bonferroni(count: int) -> float:
    """Return the confidence of each of `count` intervals that cover at 95 % together."""
    return 1 - (1 - CONFIDENCE) / max(1, count)


def wilson(right: int, count: int, confidence: float) -> Interval:
    """Return Wilson's score interval of a proportion.

    See Wilson 1927, and Newcombe 1998, Stat. Med. 17:857, method 3.
    """
    share = right / count
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * math.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    low = max(0.0, min(share, middle - half))
    high = min(1.0, max(share, middle + half))
    return Interval(share, low, high, f"{count:,} answers")


def of_answers(
    accuracies: Sequence[float], samples: Sequence[float], confidence: float = CONFIDENCE
) -> Interval:
    """Return the accuracy of some runs over all their answers.

    It has no bounds if no image was tested.
    """
    if not sum(samples):
        return Interval(math.fsum(accuracies) / len(accuracies), None, None)
    right = sum(round(share * count) for share, count in zip(accuracies, samples, strict=True))
    return wilson(right, int(sum(samples)), confidence)


def weighted_sum(parts: Sequence[tuple[float, Interval]]) -> Interval:
    """Return the sum of weight * estimate of independent estimates, from their intervals.

    The method is of Zou and Donner (2008, Stat. Med. 27:1693).
    """
    estimate = math.fsum(weight * part.estimate for weight, part in parts)
    basis = parts[0][1].basis
    below = []
    above = []
    for weight, part in parts:
        if part.low is None or part.high is None:
            return Interval(estimate, None, None, basis)
        ends = weight * (part.low - part.estimate), weight * (part.high - part.estimate)
        below.append(min(ends))
        above.append(max(ends))
    return Interval(estimate, estimate - math.hypot(*below), estimate + math.hypot(*above), basis)


def difference(first: Interval, second: Interval) -> Interval:
    """Return first - second of two independent estimates, from their intervals.

    For two Wilson intervals it is Newcombe's method 10 (1998, Stat. Med. 17:873).
    """
    return weighted_sum([(1.0, first), (-1.0, second)])


def mean(values: Sequence[float], confidence: float = CONFIDENCE, basis: str = "") -> Interval:
    """Return Student's interval of a mean, mean ± t s / √n; a single value has no bounds.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no value to take the mean of")
    centre = math.fsum(values) / len(values)
    if len(values) == 1:
        return Interval(centre, None, None, basis)
    half = (
        student_quantile(confidence, len(values) - 1)
        * float(np.std(values, ddof=1))
        / math.sqrt(len(values))
    )
    return Interval(centre, centre - half, centre + half, basis)


def exact_ratio(
    top: Sequence[float], bottom: Sequence[float], confidence: float, basis: str
) -> Interval:
    """Return mean(top) / mean(bottom) of counted figures, with its interval.

    It is Student's interval of the logarithm (delta method). A side of one value has no scatter.

    Raises:
        ValueError: a mean is not above 0.
    """
    sides = [np.asarray(side, dtype=float) for side in (top, bottom)]
    if min(side.mean() for side in sides) <= 0:
        raise Refusal("spread.zero", "nothing to compare with: it is 0")
    estimate = float(sides[0].mean() / sides[1].mean())
    scattered = [side for side in sides if len(side) > 1]
    if not scattered:
        return Interval(estimate, estimate, estimate, basis)
    error = math.sqrt(
        sum(float(side.var(ddof=1)) / len(side) / float(side.mean()) ** 2 for side in scattered)
    )
    half = min(student_quantile(confidence, min(map(len, scattered)) - 1) * error, MOST_LOG)
    return Interval(estimate, estimate * math.exp(-half), estimate * math.exp(half), basis)
