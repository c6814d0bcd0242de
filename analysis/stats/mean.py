"""The mean of a few runs, and Student's t interval in which the mean of many would lie."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """Mean of n values, and the bounds of its interval; None for a single value, which has no spread."""

    mean: float
    low: float | None
    high: float | None
    n: int


def interval(values: Sequence[float]) -> Interval:
    """Mean ± t s / √n, of independent values that are about normal (Student 1908).

    Raises:
        ValueError: no value.
    """
    n = len(values)
    if not n:
        raise ValueError("no value to take the mean of")
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


@lru_cache
def t_quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """t such that |T| is below it with this probability, for T of Student's distribution.

    Found by bisection in the angle atan(t / √freedom), of which the probability is a finite sum.

    Args:
        freedom: degrees, from 1.
    """
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # to the last bit of a float
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < confidence else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def _within(angle: float, freedom: int) -> float:
    """P(|T| < √freedom tan(angle)): Abramowitz and Stegun 1964, 26.7.3 and 26.7.4."""
    odd = freedom % 2
    term, total = math.cos(angle) if odd else 1.0, 0.0
    for power in range(2 + odd, freedom + 1, 2):  # cos, 2/3 cos^3 ... or 1, 1/2 cos^2 ...
        total += term
        term *= math.cos(angle) ** 2 * (power - 1) / power
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total
