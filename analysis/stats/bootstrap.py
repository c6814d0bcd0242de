"""Confidence intervals for the ratio of two mean times, from the steps of runs.

What is resampled: the measured steps of each run (in order; after the warm-up; each as long as its slowest rank), in
circular blocks, since neighbouring steps are alike (Politis and Romano 1992; a block's length is chosen from the
steps' autocorrelation: Politis and White 2004, with the correction of Patton, Politis and White 2009). Where a side has
several runs (seeds), the runs are drawn with replacement too, and within each its blocks (Davison and Hinkley 1997,
section 3.8). A bootstrap of few is too narrow: both are spread by what the variance of so many lacks, and by Student's
t against the normal (`wider`; Hesterberg 2015, section 3.2). The interval is of percentiles of the log ratio, to first
order in each mean's relative deviation, so that its bounds are above 0 however few steps there are. With several runs a
side it is wider than need be (the scatter of steps counts within the runs, and again between them): it errs to "no
difference".

The steps of one run cannot tell how another run of the same would have gone: only several seeds can.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
Z = 1.96  # the normal's quantile at it
RESAMPLES = 2000
LEAST = 8  # samples of a run; of fewer there is no interval
SEED = 20250315
AT_ONCE = 4_000_000  # indices that are held at a time: 32 MB


@dataclass(frozen=True)
class Ratio:
    """Mean time of B ÷ that of A, and the interval in which it lies; None where there are too few samples."""

    ratio: float
    low: float | None
    high: float | None


def ratio(a: Sequence[np.ndarray], b: Sequence[np.ndarray], block: int | None = None, least: int = LEAST) -> Ratio:
    """The mean of B's runs ÷ the mean of A's, each run counting the same.

    Args:
        a, b: samples (n,) of each run of a side, in the order in which they were taken.
        block: the length of a block; chosen for each run where it is not given.
        least: samples that each run must have for an interval.

    Raises:
        ValueError: a side without samples.
    """
    if not a or not b or not all(len(samples) for samples in (*a, *b)):
        raise ValueError("no sample was taken")
    point = _mean(b) / _mean(a)
    if min(len(samples) for samples in (*a, *b)) < least:
        return Ratio(point, None, None)
    random = np.random.default_rng(SEED)
    off = _resampled(b, random, block) - _resampled(a, random, block)
    tail = (1 - CONFIDENCE) / 2
    low, high = (point * np.exp(np.quantile(off, [tail, 1 - tail]))).tolist()
    return Ratio(point, low, high)


def _mean(runs: Sequence[np.ndarray]) -> float:
    return float(np.mean([samples.mean() for samples in runs]))


def _resampled(runs: Sequence[np.ndarray], random: np.random.Generator, block: int | None) -> np.ndarray:
    """By what share of it the mean over the runs of a side is off when it is resampled (RESAMPLES,)."""
    means = np.array([samples.mean() for samples in runs])
    noise = np.array([_block_means(samples, random, block) - samples.mean() for samples in runs])  # (runs, RESAMPLES)
    count = len(runs)
    drawn = random.integers(count, size=(count, RESAMPLES))
    between = wider(count) * (means[drawn].mean(axis=0) - means.mean())
    within = np.take_along_axis(noise, drawn, axis=0).mean(axis=0)
    return (between + within) / means.mean()


def _block_means(samples: np.ndarray, random: np.random.Generator, block: int | None) -> np.ndarray:
    """Means of circular blocks put together to about as many samples as there were (RESAMPLES,)."""
    count = len(samples)
    length = block or block_length(samples)
    blocks = max(2, round(count / length))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([samples, samples[:length]]))])
    block_means = (sums[length : length + count] - sums[:count]) / length  # (count,), by where the block starts
    mean = samples.mean()
    drawn = np.empty(RESAMPLES)
    for rows in np.array_split(np.arange(RESAMPLES), math.ceil(RESAMPLES * blocks / AT_ONCE)):
        drawn[rows] = block_means[random.integers(count, size=(len(rows), blocks))].mean(axis=1)
    return mean + wider(blocks) * (drawn - mean)


def wider(count: int) -> float:
    """By what to spread resampled means of `count` units about their mean; 1 for a single one, which has no spread.

    sqrt(k / (k - 1)), and t / z by the first term of its expansion, 1 + (z² + 1) / (4 (k - 1)) (Abramowitz and Stegun
    1964, 26.7.5).
    """
    return 1.0 if count < 2 else math.sqrt(count / (count - 1)) * (1 + (Z**2 + 1) / (4 * (count - 1)))


def block_length(samples: np.ndarray) -> int:
    """The length of a circular block that is best for the variance of the mean; 1 for independent samples.

    Politis and White (2004), section 3.2, with the constant of Patton, Politis and White (2009): (2 G² / D)^(1/3)
    n^(1/3) with D = 4/3 g², where g sums the autocovariances R(k) under a flat-top window, and G those times |k|.
    """
    count = len(samples)
    centred = samples - samples.mean()
    limit = min(count - 1, math.ceil(math.sqrt(count)) + max(5, math.ceil(math.sqrt(math.log10(count)))))
    covariance = np.array([centred[: count - lag] @ centred[lag:] for lag in range(limit + 1)]) / count
    if covariance[0] <= np.finfo(float).eps * float(samples.mean()) ** 2:
        return 1  # all alike
    small = np.abs(covariance / covariance[0]) < 2 * math.sqrt(math.log10(count) / count)
    run = max(5, math.ceil(math.sqrt(math.log10(count))))  # lags in a row that must be negligible
    last = next((lag for lag in range(limit + 1 - run) if small[lag + 1 : lag + 1 + run].all()), limit // 2)
    width = min(2 * max(last, 1), limit)
    lags = np.arange(1, width + 1)
    window = np.clip(2 * (1 - lags / width), 0, 1)
    g = covariance[0] + 2 * float(window @ covariance[1 : width + 1])
    big_g = 2 * float((window * lags) @ covariance[1 : width + 1])
    if g <= 0:
        return 1  # neighbours undo one another: blocks of one are wide enough
    best = (2 * big_g**2 / (4 / 3 * g**2)) ** (1 / 3) * count ** (1 / 3)
    return int(np.clip(round(best), 1, max(1, min(math.ceil(3 * math.sqrt(count)), count // 3))))
