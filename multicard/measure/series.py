"""The mean of a run's steps: which of them are warm-up, and how sure it is.

Neighbouring steps are alike, so that n of them are worth fewer.

The number of independent samples that a series is worth is n / τ, where τ is 1 + twice the sum of
its autocorrelations. Two estimates of τ are made, and the larger one counts,
since each misses what the other sees:

- that of a first-order process, (1 + r) / (1 - r), with the lag-1 correlation r corrected for the
  bias that it has in short series (Marriott and Pope 1954, Biometrika 41:390);
- the initial monotone sequence of the sums of neighbouring autocovariances (Geyer 1992, Stat. Sci.
  7:473), each corrected by the variance of the mean, by which centring makes them too small.

Intervals then have Student's t with one degree of freedom less than that number.

A run that is to end once its mean is known (`mean_step`) takes batch means first (Schmeiser 1982,
Oper. Res. 30:556): 20 to 39 of them, as more gain little. They are nearly normal, where single
steps have long tails, and nearly independent; what correlation is left, of a drift above all,
widens the interval as above, or leaves none.
"""

import math
from dataclasses import dataclass

import numpy as np

from multicard.measure.repeated_runs import CONFIDENCE, Term, student_quantile

MIN_SAMPLES = 8  # below which the correlation of a series cannot be told
MIN_WORTH = 4.0  # independent samples below which there is no interval
BIAS_ROUNDS = 3  # in which Geyer's estimate and its correction settle
# samples in each batch, and from how many on they are batched
MSER_BATCH = 5
MSER_LEAST = 50
BATCHES = 20  # at least, where there are as many samples
LEAST_STEPS = 20  # with fewer no mean is known
LEAST_SHARE = 0.1  # of its seconds, trained before the first look
# steps and training between two looks at the mean, which take 0.2 ms each
GROWTH = 1.2
APART_S = 0.5


@dataclass(frozen=True)
class MeanStep:
    """The mean of a series of steps without its warm-up.

    steps: that it is of. warmup_steps: that were left out before them. half_width: of its 95 %
    interval, relative to the mean; None where the steps are too few or too much alike to tell.
    """

    step_s: float
    steps: int
    warmup_steps: int
    half_width: float | None


def mean_step(samples_s: np.ndarray) -> MeanStep:
    """The mean of steps (n,), n at least 1, in seconds and in their order, by batch means."""
    warmup_steps = warm_up(samples_s)
    rest = samples_s[warmup_steps:]
    mean_s = float(rest.mean())
    count = len(rest)
    size = max(1, count // BATCHES)
    batches = rest[count % size :].reshape(-1, size).mean(axis=1)
    term = mean_variance(batches)
    half_width = None
    if term is not None and term.degrees >= 1:
        half_width = student_quantile(CONFIDENCE, term.degrees) * math.sqrt(term.variance) / mean_s
    return MeanStep(mean_s, count, warmup_steps, half_width)


def warm_up(samples: np.ndarray) -> int:
    """How many samples at the start of (n,) are warm-up, at most a quarter of them, by MSER-5.

    It is the cut after which the standard error of the mean of the rest is least, taken as
    independent, over means of 5 (White, Cobb and Spratt 2000, Proc. Winter Simulation Conf., 755);
    over single samples where they are few. They cut up to a half; but where a machine changes its
    speed in the middle, what came before counts too.
    """
    size = MSER_BATCH if len(samples) >= MSER_LEAST else 1
    means = samples[: len(samples) // size * size].reshape(-1, size).mean(axis=1)
    centred = means - means.mean()  # for precision
    left = np.arange(len(means), 0, -1)
    totals = [np.cumsum(part[::-1])[::-1] for part in (centred, np.square(centred))]
    squares = totals[1] - np.square(totals[0]) / left
    error = squares / np.square(left)
    return size * int(np.argmin(error[: len(means) // 4 + 1]))


def mean_variance(samples: np.ndarray) -> Term | None:
    """The variance of the mean of samples (n,) in their order;
    None where they are too few to tell.
    """
    count = len(samples)
    if count < MIN_SAMPLES:
        return None
    covariance = _autocovariance(samples - samples.mean())
    if covariance[0] <= np.finfo(float).eps * float(np.square(samples).mean()):
        return Term(0.0, count - 1)  # all samples are equal
    estimates = (_first_order(covariance, count), _initial_monotone(covariance, count))
    worth = min(worth for _, worth in estimates)
    return (
        Term(max(variance for variance, _ in estimates), worth - 1) if worth >= MIN_WORTH else None
    )


def _autocovariance(centred: np.ndarray) -> np.ndarray:
    """The biased autocovariances of lags 0 to 3 √n + 5, an even number of them."""
    count = len(centred)
    lags = min(count - 2, math.ceil(3 * math.sqrt(count)) + 5) // 2 * 2
    return np.array([centred[: count - lag] @ centred[lag:] for lag in range(lags)]) / count


def _first_order(covariance: np.ndarray, count: int) -> tuple[float, float]:
    """The variance of the mean of a first-order process,
    and how many independent samples it is worth.
    """
    biased = float(covariance[1] / covariance[0])
    correlation = min(max((count * biased + 1) / (count - 4), 0.0), 0.99)
    inflation = min((1 + correlation) / (1 - correlation), count / 1.01)
    return float(covariance[0]) / (1 - inflation / count) * inflation / count, count / inflation


def _initial_monotone(covariance: np.ndarray, count: int) -> tuple[float, float]:
    """Variance of the mean and number of independent
    samples by Geyer's initial monotone sequence.
    """
    unbiased = covariance / (1 - np.arange(len(covariance)) / count)
    variance = float(covariance[0]) / count
    for _ in range(BIAS_ROUNDS):
        pairs = np.minimum.accumulate((unbiased + variance).reshape(-1, 2).sum(axis=1))
        own = float(unbiased[0]) + variance
        variance = min(max(2 * float(pairs[pairs > 0].sum()) - own, own) / count, own / 1.01)
    return variance, (float(unbiased[0]) + variance) / variance


class StopRule:
    """Ends a short run once its mean step is known: takes the
    seconds of each step and says when to stop.

    The mean is looked at ever more rarely, and is known once two looks in a row say so: every look
    is another chance to be sure by accident. In simulated probes of 60 s, a mean called known to 1
    % was within 1 % in 95 to 99 % of them, with steps independent or correlated by 0.5; in 79 %
    with few steps, of 0.2 s, correlated by 0.9. A drift that a probe sees leaves it without an
    interval until its time is over; a slower drift is not seen.

    The first step of an epoch, which waits for the first batch,
    counts as training but is left out of the mean.

    Args:
        error: half width of the mean's 95 % interval, relative to the mean, at which it is known.
        seconds: of training, after which to stop in any case.
        steps_per_epoch: of the whole run; with 1, first steps count, as there are no others.
    """

    def __init__(self, error: float, seconds: float, steps_per_epoch: int) -> None:
        self.error = error
        self.seconds = seconds
        self._one_step = steps_per_epoch == 1
        self._first = True
        self._series: list[float] = []
        self._trained_s = self._series_s = 0.0
        self.fastest_s = math.inf  # step so far
        self._look_at = LEAST_STEPS, seconds * LEAST_SHARE
        self._seemed_known = False
        # imports scipy, which would count as part of a step later
        mean_step(np.arange(1.0, LEAST_STEPS))

    def start_epoch(self) -> None:
        self._first = True

    def add(self, step_s: float) -> None:
        if self._one_step or not self._first:
            self._series.append(step_s)
            self._series_s += step_s
        self._first = False
        self._trained_s += step_s
        self.fastest_s = min(self.fastest_s, step_s)

    def reason(self, ahead: int = 0) -> str | None:
        """The reason to stop now: "error", as the mean is known, or "seconds"; None to train on.

        Args:
            ahead: steps that will be trained before the run has stopped.
        """
        steps, trained_s = self._look_at
        count = len(self._series)
        late = self._trained_s + ahead * self._series_s / max(1, count) >= self.seconds
        if late or (count >= steps and self._trained_s >= trained_s):
            self._look_at = math.ceil(GROWTH * count), self._trained_s + APART_S
            half_width = (
                mean_step(np.array(self._series)).half_width if count >= LEAST_STEPS else None
            )
            known = half_width is not None and half_width <= self.error
            if known and (self._seemed_known or late):
                return "error"
            self._seemed_known = known
        return "seconds" if late else None
