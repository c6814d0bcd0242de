"""Estimate how runs of one setting differ, from the settings that were repeated.

The variance between runs is that of the logarithm of a run's figure, or of the figure itself for
accuracies. Each setting of a machine has its own variance: a setting that swaps, or shares a core,
varies more than others. Two or three repetitions say little about a single setting, so its variance
is moderated: it is drawn towards those of the other settings (Smyth 2004, Statistical Applications
in Genetics and Molecular Biology 3:3). Let s² be the variance of a setting on d degrees of freedom,
and s0² a prior on d0 degrees that is learnt from the other settings. The moderated variance is

    (d0 s0² + d s²) / (d0 + d)    on d0 + d degrees of freedom,

but never less than s²: a setting that shows more noise than the rest is believed at once. d0 and
s0² follow from the mean and the variance of log s² over the settings (section 6.2 there). Until
enough settings were repeated, the prior is the usual variance of the machine's kind, and one or two
repeated settings stand for all.

If runs agree to the last digit, they count as if they differed by a fiftieth of the usual. A
variance of 0 has no logarithm, and one near 0 would say that variances do not agree at all.

The usual variance counts as four degrees of freedom before any repetition, and as one degree
together with repetitions. So one repetition without a difference widens the interval of a single
run by a tenth: Student's t with two degrees of freedom outweighs the smaller variance. With more
degrees, 12 % instead of 4 % of the comparisons on machines with twice the usual noise would find a
false difference (simulated, one repetition). Five repetitions of one setting teach more than one
repetition of each of two settings.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

GPU_SD = 0.02  # Between runs on GPUs, before any was repeated.
CPU_SD = 0.08  # Between runs on CPU ranks, which share their machine with other processes.
PRIOR_FREEDOM = 4.0  # Degrees of freedom of the usual variance of a kind of machine.
LEAST_SETTINGS = 3  # With this many repeated settings, one learns how variances differ.
# The prior keeps at least this freedom, even if variances hardly agree: Student's t needs it.
LEAST_FREEDOM = 1.0
# The pooled variance of few settings is drawn towards the kind's with this weight, unless it
# exceeds the kind's standard deviation by this factor.
PRIOR_DEGREES = 1
PRIOR_LIMIT = 1.5
# If runs agree better than this share of the usual standard deviation, it is chance or rounding.
RESOLVED_SHARE = 0.02
LEAST_VARIANCE = 1e-12  # Replaces a variance of 0, which has no logarithm.
TRIGAMMA_STEPS = 50  # At most this many Newton iterations. About 5 suffice.
# The runs of a setting: each run's value, and the value's variance due to the run's steps.
Values = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Term:
    """A part of an estimate's variance, with its degrees of freedom."""

    variance: float
    degrees: float


@dataclass(frozen=True)
class Spread:
    """The moderated variance between runs of one setting.

    Attributes:
        variance: Variance of a run's value.
        freedom: Degrees of freedom of the variance.
        repetitions: Sum of n - 1 over all settings that it was learnt from. 0 if nothing was
            repeated.
        within: The part of the variance that the steps would cause if they were uncorrelated.
    """

    variance: float = GPU_SD**2
    freedom: float = PRIOR_FREEDOM
    repetitions: int = 0
    within: float = 0.0

    @property
    def term(self) -> Term:
        return Term(self.variance, self.freedom)


def prior_sd(on_cpu: bool, is_timed: bool = True) -> float:
    """Return the usual standard deviation of a figure's logarithm, before any run was repeated."""
    return CPU_SD if on_cpu and is_timed else GPU_SD


@dataclass(frozen=True)
class Noise:
    """How runs differ on a machine, learnt from all its settings.

    Attributes:
        prior: The spread of a setting without any runs.
        has_equal_variances: True if too few settings were repeated to show how their variances
            differ. All settings then get the prior's variance.
    """

    prior: Spread
    has_equal_variances: bool = False

    @classmethod
    def of_kind(cls, prior_sd: float) -> "Noise":
        """Return the usual noise of a kind of machine, before any setting was repeated."""
        return cls(Spread(prior_sd**2))

    @classmethod
    def learnt(cls, settings: Iterable[Values], prior_sd: float) -> "Noise":
        """Learn from the settings that have two runs or more."""
        repeated = [runs for runs in settings if len(runs) > 1]
        if not repeated:
            return cls.of_kind(prior_sd)
        least_variance = (RESOLVED_SHARE * prior_sd) ** 2
        variances = np.array([max(_variance(runs), least_variance) for runs in repeated])
        degrees = np.array([len(runs) - 1 for runs in repeated])
        repetitions = int(degrees.sum())
        step_variances = [float(np.mean([variance for _, variance in runs])) for runs in repeated]
        within = float(np.dot(degrees, step_variances)) / repetitions
        if len(repeated) < LEAST_SETTINGS:
            squares = float(np.dot(degrees, variances))
            freedom = repetitions + (
                0 if _refutes(squares, repetitions, prior_sd) else PRIOR_DEGREES
            )
            level = _drawn_variance(squares, repetitions, prior_sd)
            return cls(Spread(level, freedom, repetitions, within), has_equal_variances=True)
        freedom, level = fit_prior(variances, degrees)
        level = _drawn_variance(level * repetitions, repetitions, prior_sd)
        return cls(Spread(level, min(freedom, float(repetitions)), repetitions, within))

    @property
    def unrepeated_spread(self) -> Spread:
        """The spread of a setting that was not repeated."""
        return replace(self.prior, freedom=max(self.prior.freedom, LEAST_FREEDOM))

    def of(self, runs: Values) -> Spread:
        """Return the spread of a setting, from its runs and from the other settings."""
        prior = self.prior
        degrees = len(runs) - 1
        if degrees < 1 or self.has_equal_variances:
            return self.unrepeated_spread
        setting_variance = _variance(runs)
        moderated = (prior.freedom * prior.variance + degrees * setting_variance) / (
            prior.freedom + degrees
        )
        freedom = prior.freedom + degrees
        if prior.repetitions:
            freedom = min(freedom, max(float(prior.repetitions), PRIOR_FREEDOM))
        return Spread(
            max(moderated, setting_variance), freedom, max(prior.repetitions, degrees), prior.within
        )


def fit_prior(variances: np.ndarray, degrees: np.ndarray) -> tuple[float, float]:
    """Fit a prior to variances, and return its degrees of freedom d0 and its level s0².

    d0 may be infinite.

    Args:
        variances: s² (n,) of each setting, with n at least 2.
        degrees: Degrees of freedom (n,) of each variance.

    Source: Smyth (2004), section 6.2, by the moments of log s².
    """
    from scipy.special import digamma, polygamma

    half_degrees = degrees / 2
    centred = (
        np.log(np.maximum(variances, LEAST_VARIANCE)) - digamma(half_degrees) + np.log(half_degrees)
    )
    mean = float(centred.mean())
    excess = float(centred.var(ddof=1)) - float(polygamma(1, half_degrees).mean())
    # The variances differ no more than equal ones would. The pooled one is then the best estimate.
    if excess <= 0:
        return math.inf, float(np.average(variances, weights=degrees))
    half_freedom = inverse_trigamma(excess)
    level = math.exp(mean + float(digamma(half_freedom)) - math.log(half_freedom))
    return 2 * half_freedom, level


def inverse_trigamma(value: float) -> float:
    """Return the x with trigamma(x) = value, for a value above 0 (Smyth 2004, appendix)."""
    from scipy.special import polygamma

    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(TRIGAMMA_STEPS):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x


def _variance(runs: Values) -> float:
    return float(np.var([value for value, _ in runs], ddof=1))


def _refutes(squares: float, degrees: int, prior_sd: float) -> bool:
    """Return True if repetitions differ far more than usual for the machine's kind."""
    return squares > degrees * (PRIOR_LIMIT * prior_sd) ** 2


def _drawn_variance(squares: float, degrees: int, prior_sd: float) -> float:
    """Return the pooled variance of few settings, drawn towards that of the machine's kind.

    If the settings refute the kind's variance, theirs is not drawn. Otherwise, up to 12 % of the
    comparisons would find a false difference.
    """
    if _refutes(squares, degrees, prior_sd):
        return squares / degrees
    return (PRIOR_DEGREES * prior_sd**2 + squares) / (PRIOR_DEGREES + degrees)
