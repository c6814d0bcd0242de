"""Bootstrap intervals for the ratio of two mean times, from the steps of runs.

The measured steps of each run (after the warm-up, in order, each as long as its slowest rank) are resampled in circular
blocks, since neighbouring steps are correlated (Politis and Romano 1992). The length of a block follows from the
autocorrelation of the steps (Politis and White 2004, corrected by Patton, Politis and White 2009). Where a side has
several runs (seeds), the runs are drawn with replacement too, and within each its blocks (Davison and Hinkley 1997,
section 3.8). A bootstrap over few units is too narrow, so both are widened for the missing variance and for Student's t
against the normal (`small_sample_factor`; Hesterberg 2015, section 3.2). The interval is taken from percentiles of the
log ratio, to first order in the relative deviation of each mean, so that its bounds stay above 0 however few steps
there are. With several runs a side it is wider than necessary, because the scatter of steps counts within the runs and
again between them: it errs towards "no difference".

The steps of one run cannot show how another run of the same setting would differ: only several seeds can.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
Z = 1.96  # the two-sided normal quantile at CONFIDENCE
RESAMPLES = 2000
MIN_SAMPLES = 8  # samples of a run below which there is no interval
SEED = 20250315
INDICES_AT_ONCE = 4_000_000  # 32 MB


@dataclass(frozen=True)
class Ratio:
    """The mean time of B / that of A, with bounds that are None where there are too few samples."""

    ratio: float
    low: float | None
    high: float | None


def ratio(
    a: Sequence[np.ndarray], b: Sequence[np.ndarray], block: int | None = None, min_samples: int = MIN_SAMPLES
) -> Ratio:
    """The mean of B's runs / the mean of A's, each run with the same weight.

    Args:
        a, b: samples (n,) of each run of a side, in the order in which they were measured.
        block: the length of a block; None to choose it for each run.
        min_samples: samples that every run needs for an interval.

    Raises:
        ValueError: a side without samples.
    """
    if not a or not b or not all(len(samples) for samples in (*a, *b)):
        raise ValueError("no sample was taken")
    estimate = _mean_of_runs(b) / _mean_of_runs(a)
    if min(len(samples) for samples in (*a, *b)) < min_samples:
        return Ratio(estimate, None, None)
    random = np.random.default_rng(SEED)
    deviations = _resampled(b, random, block) - _resampled(a, random, block)
    tail = (1 - CONFIDENCE) / 2
    low, high = (estimate * np.exp(np.quantile(deviations, [tail, 1 - tail]))).tolist()
    return Ratio(estimate, low, high)


def _mean_of_runs(runs: Sequence[np.ndarray]) -> float:
    return float(np.mean([samples.mean() for samples in runs]))


def _resampled(runs: Sequence[np.ndarray], random: np.random.Generator, block: int | None) -> np.ndarray:
    """The relative deviations of a side's mean over RESAMPLES resamples (RESAMPLES,)."""
    means = np.array([samples.mean() for samples in runs])
    noise = np.array([_block_means(samples, random, block) - samples.mean() for samples in runs])  # (runs, RESAMPLES)
    count = len(runs)
    drawn = random.integers(count, size=(count, RESAMPLES))
    between = small_sample_factor(count) * (means[drawn].mean(axis=0) - means.mean())
    within = np.take_along_axis(noise, drawn, axis=0).mean(axis=0)
    return (between + within) / means.mean()


def _block_means(samples: np.ndarray, random: np.random.Generator, block: int | None) -> np.ndarray:
    """Means of circular blocks that together have about as many samples as the run (RESAMPLES,)."""
    count = len(samples)
    length = block or block_length(samples)
    blocks = max(2, round(count / length))
    sums = np.concatenate([[0.0], np.cumsum(np.concatenate([samples, samples[:length]]))])
    means_by_start = (sums[length : length + count] - sums[:count]) / length  # (count,)
    mean = samples.mean()
    means = np.empty(RESAMPLES)
    for rows in np.array_split(np.arange(RESAMPLES), math.ceil(RESAMPLES * blocks / INDICES_AT_ONCE)):
        means[rows] = means_by_start[random.integers(count, size=(len(rows), blocks))].mean(axis=1)
    return mean + small_sample_factor(blocks) * (means - mean)


def small_sample_factor(count: int) -> float:
    """By how much to spread the resampled means of `count` units; 1 for a single unit, which has no spread.

    sqrt(k / (k - 1)) times t / z by the first term of its expansion, 1 + (z² + 1) / (4 (k - 1)) (Abramowitz and Stegun
    1964, 26.7.5).
    """
    return 1.0 if count < 2 else math.sqrt(count / (count - 1)) * (1 + (Z**2 + 1) / (4 * (count - 1)))


def block_length(samples: np.ndarray) -> int:
    """The length of a circular block that is optimal for the variance of the mean; 1 for independent samples.

    Politis and White (2004), section 3.2, with the constant of Patton, Politis and White (2009): (2 G² / D)^(1/3)
    n^(1/3) with D = 4/3 g², where g sums the autocovariances R(k) under a flat-top window, and G those times |k|.
    """
    count = len(samples)
    centred = samples - samples.mean()
    lags_in_a_row = max(5, math.ceil(math.sqrt(math.log10(count))))  # that must be negligible
    limit = min(count - 1, math.ceil(math.sqrt(count)) + lags_in_a_row)
    covariance = np.array([centred[: count - lag] @ centred[lag:] for lag in range(limit + 1)]) / count
    if covariance[0] <= np.finfo(float).eps * float(samples.mean()) ** 2:
        return 1  # all samples are equal
    small = np.abs(covariance / covariance[0]) < 2 * math.sqrt(math.log10(count) / count)
    starts = range(limit + 1 - lags_in_a_row)
    last = next((lag for lag in starts if small[lag + 1 : lag + 1 + lags_in_a_row].all()), limit // 2)
    width = min(2 * max(last, 1), limit)
    lags = np.arange(1, width + 1)
    window = np.clip(2 * (1 - lags / width), 0, 1)
    g = covariance[0] + 2 * float(window @ covariance[1 : width + 1])
    big_g = 2 * float((window * lags) @ covariance[1 : width + 1])
    if g <= 0:
        return 1  # negative correlation: blocks of one are wide enough
    best = (2 * big_g**2 / (4 / 3 * g**2)) ** (1 / 3) * count ** (1 / 3)
    return int(np.clip(round(best), 1, max(1, min(math.ceil(3 * math.sqrt(count)), count // 3))))
