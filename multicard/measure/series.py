"""Estimate the mean of a run's steps, its warm-up, and how certain the mean is.

Neighbouring steps are correlated, so n steps are worth fewer independent samples. Their number is
n / τ, where τ is 1 plus twice the sum of the autocorrelations. Two estimates of τ are made. The
larger one is used, because each misses correlations that the other detects:

- The estimate for a first-order process is (1 + r) / (1 - r). The lag-1 correlation r is corrected
  for its bias in short series (Marriott and Pope 1954, Biometrika 41:390).
- The initial monotone sequence sums neighbouring autocovariances (Geyer 1992, Stat. Sci. 7:473).
  Centring makes each autocovariance too small, so the variance of the mean is added to it.

Intervals then use Student's t with one degree of freedom less than the number of independent
samples.

If a run should end once its mean is known, `mean_step` first takes batch means (Schmeiser 1982,
Oper. Res. 30:556). It uses 20 to 39 batches, as more gain little. Single steps have long tails, but
their batch means are nearly normal and nearly independent. The correlation that remains, above all
from a drift, widens the interval as above. If it is too strong, there is no interval.
"""

import math
from dataclasses import dataclass

import numpy as np

from multicard.measure.repeated_runs import CONFIDENCE, Term, student_quantile

MIN_SAMPLES = 8  # With fewer samples, the correlation of a series cannot be estimated.
MIN_WORTH = 4.0  # With fewer independent samples, there is no interval.
BIAS_ROUNDS = 3  # Geyer's estimate and its correction converge in this number of rounds.
# MSER takes means of this number of samples, if there are at least MSER_LEAST samples.
MSER_BATCH = 5
MSER_LEAST = 50
BATCHES = 20  # Least number of batches, if there are enough samples.
LEAST_STEPS = 20  # With fewer steps, no mean is known.
LEAST_SHARE = 0.1  # The first look at the mean comes after this share of the seconds.
# The factor of steps, and the seconds of training, between two looks. A look takes 0.2 ms.
GROWTH = 1.2
APART_S = 0.5


@dataclass(frozen=True)
class MeanStep:
    """The mean of a series of steps, without its warm-up.

    Attributes:
        steps: Number of steps in the mean.
        warmup_steps: Number of steps that were left out before them.
        half_width: Half of the 95 % interval, relative to the mean. None if the steps are too few
            or too correlated to estimate it.
    """

    step_s: float
    steps: int
    warmup_steps: int
    half_width: float | None


def mean_step(samples_s: np.ndarray) -> MeanStep:
    """Return the mean of steps (n,) in seconds, in their order and at least one, by batch means."""
    warmup_steps = count_warm_up_steps(samples_s)
    measured_s = samples_s[warmup_steps:]
    mean_s = float(measured_s.mean())
    count = len(measured_s)
    size = max(1, count // BATCHES)
    batches = measured_s[count % size :].reshape(-1, size).mean(axis=1)
    term = mean_variance(batches)
    half_width = None
    if term is not None and term.degrees >= 1:
        half_width = student_quantile(CONFIDENCE, term.degrees) * math.sqrt(term.variance) / mean_s
    return MeanStep(mean_s, count, warmup_steps, half_width)


def count_warm_up_steps(samples: np.ndarray) -> int:
    """Return how many samples at the start of (n,) are warm-up, by MSER-5, at most a quarter.

    MSER cuts where the standard error of the mean of the remaining samples is least, if these were
    independent. It works on means of 5 samples, or on single samples if there are few (White, Cobb
    and Spratt 2000, Proc. Winter Simulation Conf., 755). The authors cut up to a half. Here, the
    limit is a quarter: if a machine changes its speed in the middle, the steps before count too.
    """
    size = MSER_BATCH if len(samples) >= MSER_LEAST else 1
    means = samples[: len(samples) // size * size].reshape(-1, size).mean(axis=1)
    centred = means - means.mean()  # Centring improves the precision of the squares.
    remaining = np.arange(len(means), 0, -1)
    totals = [np.cumsum(values[::-1])[::-1] for values in (centred, np.square(centred))]
    squares = totals[1] - np.square(totals[0]) / remaining
    error = squares / np.square(remaining)
    return size * int(np.argmin(error[: len(means) // 4 + 1]))


def mean_variance(samples: np.ndarray) -> Term | None:
    """Return the variance of the mean of samples (n,) in their order.

    Returns None if there are too few to estimate it.
    """
    count = len(samples)
    if count < MIN_SAMPLES:
        return None
    covariance = _autocovariance(samples - samples.mean())
    if covariance[0] <= np.finfo(float).eps * float(np.square(samples).mean()):
        return Term(0.0, count - 1)  # All samples are equal.
    estimates = (_first_order(covariance, count), _initial_monotone(covariance, count))
    worth = min(worth for _, worth in estimates)
    return (
        Term(max(variance for variance, _ in estimates), worth - 1) if worth >= MIN_WORTH else None
    )


def _autocovariance(centred: np.ndarray) -> np.ndarray:
    """Return the biased autocovariances of lags 0 to 3 √n + 5, an even number of them."""
    count = len(centred)
    lags = min(count - 2, math.ceil(3 * math.sqrt(count)) + 5) // 2 * 2
    return np.array([centred[: count - lag] @ centred[lag:] for lag in range(lags)]) / count


def _first_order(covariance: np.ndarray, count: int) -> tuple[float, float]:
    """Return the variance of the mean and the number of independent samples.

    The series is taken as a first-order process.
    """
    biased_correlation = float(covariance[1] / covariance[0])
    correlation = min(max((count * biased_correlation + 1) / (count - 4), 0.0), 0.99)
    inflation = min((1 + correlation) / (1 - correlation), count / 1.01)
    return float(covariance[0]) / (1 - inflation / count) * inflation / count, count / inflation


def _initial_monotone(covariance: np.ndarray, count: int) -> tuple[float, float]:
    """Return the variance of the mean and the number of independent samples.

    They are estimated by Geyer's initial monotone sequence.
    """
    unbiased = covariance / (1 - np.arange(len(covariance)) / count)
    variance = float(covariance[0]) / count
    for _ in range(BIAS_ROUNDS):
        pairs = np.minimum.accumulate((unbiased + variance).reshape(-1, 2).sum(axis=1))
        lag_0 = float(unbiased[0]) + variance
        variance = min(max(2 * float(pairs[pairs > 0].sum()) - lag_0, lag_0) / count, lag_0 / 1.01)
    return variance, (float(unbiased[0]) + variance) / variance


class StopRule:
    """Decides when a short run has seen enough steps for its mean to be known.

    It looks at the mean more and more rarely, because every look is another chance to be certain by
    accident. The mean is known once two looks in a row say so. In simulated probes of 60 s, a mean
    known to 1 % was within 1 % in 95 to 99 % of the probes. The steps were independent, or had a
    correlation of 0.5. With few steps, of 0.2 s and a correlation of 0.9, it was 79 %. A drift that
    a probe detects leaves the mean without an interval until the time is over. A slower drift is
    not detected.

    The first step of an epoch, which waits for the first batch, counts as training time but not in
    the mean.

    Args:
        error: The mean is known once half of its 95 % interval, relative to the mean, is at most
            this.
        seconds: The run stops after this time of training in any case.
        steps_per_epoch: Steps in an epoch of the whole run. If it is 1, first steps count in the
            mean, because there are no others.
    """

    def __init__(self, error: float, seconds: float, steps_per_epoch: int) -> None:
        self.error = error
        self.seconds = seconds
        self._has_single_steps = steps_per_epoch == 1
        self._is_first_step = True
        self._series: list[float] = []
        self._trained_s = self._series_s = 0.0
        self.fastest_s = math.inf  # The fastest step so far.
        self._look_at = LEAST_STEPS, seconds * LEAST_SHARE
        self._seemed_known = False
        # This imports scipy now. Later, the import would count as part of a step.
        mean_step(np.arange(1.0, LEAST_STEPS))

    def start_epoch(self) -> None:
        self._is_first_step = True

    def add(self, step_s: float) -> None:
        if self._has_single_steps or not self._is_first_step:
            self._series.append(step_s)
            self._series_s += step_s
        self._is_first_step = False
        self._trained_s += step_s
        self.fastest_s = min(self.fastest_s, step_s)

    def reason(self, ahead: int = 0) -> str | None:
        """Return why to stop now: "error" (the mean is known), "seconds", or None to go on.

        Args:
            ahead: Number of steps that will be trained before the run can stop.
        """
        steps, trained_s = self._look_at
        count = len(self._series)
        is_late = self._trained_s + ahead * self._series_s / max(1, count) >= self.seconds
        if is_late or (count >= steps and self._trained_s >= trained_s):
            self._look_at = math.ceil(GROWTH * count), self._trained_s + APART_S
            half_width = (
                mean_step(np.array(self._series)).half_width if count >= LEAST_STEPS else None
            )
            is_known = half_width is not None and half_width <= self.error
            if is_known and (self._seemed_known or is_late):
                return "error"
            self._seemed_known = is_known
        return "seconds" if is_late else None
