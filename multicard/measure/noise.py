"""How runs of one setting differ, learnt from the settings
that were repeated: one place for all who ask.

The variance between runs is that of the logarithm of a run's figure (of the value itself for
accuracies). Settings of one machine have variances of their own: a setting that swaps, or shares a
core, differs more from run to run than its neighbours. Two or three repetitions say little about
one setting alone, so its
variance is moderated: drawn towards that of the others (Smyth 2004, Statistical Applications in
Genetics and Molecular Biology 3:3). With the variance s² of a setting on d degrees of freedom,
and a prior s0² on d0 degrees that the other settings teach, it is

    (d0 s0² + d s²) / (d0 + d)    on d0 + d degrees of freedom,

and never less than s²: a setting that shows more noise than the rest is believed at once. d0 and
s0² follow from the mean and the variance of log s² over the settings (section 6.2 there). Before
enough settings were repeated, what is known of the machine's kind takes their place,
and one or two that were repeated speak for all.

Runs that agree to the last digit count as if they differed by a fiftieth of what is usual: a
variance of 0 has no logarithm, and one near 0 would say that variances do not agree at all.

What is usual counts as four degrees of freedom before any repetition, and as one beside
repetitions. So one repetition without a difference widens the interval of a single run, by a tenth:
Student's t of two degrees of freedom outweighs the smaller variance. With more degrees, machines
with twice the usual noise would be called different in 12 % of the cases, not in 4 % (simulated,
one repetition). Five repetitions of one setting tell more than one each of two.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

GPU_SD = 0.02  # between runs on GPUs, before any was repeated
CPU_SD = 0.08  # between runs on CPU ranks: others share their machine
PRIOR_FREEDOM = 4.0  # degrees of freedom of what is known of a kind of machine
LEAST_SETTINGS = 3  # repeated ones, from which on they teach how variances differ
# of what others teach, however little their variances agree: Student's t needs one degree
LEAST_FREEDOM = 1.0
# of few settings: drawn towards the kind's, unless they refute it
PRIOR_DEGREES = 1
PRIOR_LIMIT = 1.5
RESOLVED = 0.02  # of the kind's standard deviation: with less, runs agree by chance or by rounding
TINY = 1e-12  # a variance of equal values, whose logarithm is a number
TRIGAMMA_STEPS = 50  # of Newton's iteration; about 5 suffice
# the runs of a setting: the value, and its variance by the steps of the run
Values = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Term:
    """A part of the variance of an estimate, with its degrees of freedom."""

    variance: float
    degrees: float


@dataclass(frozen=True)
class Spread:
    """The variance between runs of one setting, moderated.

    variance: of a run's value. freedom: degrees of freedom with which it is known.
    repetitions: n - 1, over all settings that taught it; 0 where nothing was repeated.
    within: the part of the variance that steps without correlation would have.
    """

    variance: float = GPU_SD**2
    freedom: float = PRIOR_FREEDOM
    repetitions: int = 0
    within: float = 0.0

    @property
    def term(self) -> Term:
        return Term(self.variance, self.freedom)


def prior_sd(on_cpu: bool, is_timed: bool = True) -> float:
    """The standard deviation of the logarithm of a figure between runs, before any was repeated."""
    return CPU_SD if on_cpu and is_timed else GPU_SD


@dataclass(frozen=True)
class Noise:
    """What the settings of a machine teach of one another.

    prior: of a setting of which nothing is known yet.
    alike: too few settings were repeated to show how their
    variances differ: all are taken to have the prior's.
    """

    prior: Spread
    alike: bool = False

    @classmethod
    def of_kind(cls, prior_sd: float) -> "Noise":
        """Before any setting was repeated: what is known of the kind of machine."""
        return cls(Spread(prior_sd**2))

    @classmethod
    def learnt(cls, settings: Iterable[Values], prior_sd: float) -> "Noise":
        """From settings, of which those with two runs or more teach."""
        repeated = [runs for runs in settings if len(runs) > 1]
        if not repeated:
            return cls.of_kind(prior_sd)
        least = (RESOLVED * prior_sd) ** 2
        variances = np.array([max(_variance(runs), least) for runs in repeated])
        degrees = np.array([len(runs) - 1 for runs in repeated])
        repetitions = int(degrees.sum())
        scatter = [float(np.mean([variance for _, variance in runs])) for runs in repeated]
        within = float(np.dot(degrees, scatter)) / repetitions
        if len(repeated) < LEAST_SETTINGS:
            squares = float(np.dot(degrees, variances))
            freedom = repetitions + (
                0 if _refutes(squares, repetitions, prior_sd) else PRIOR_DEGREES
            )
            level = _drawn(squares, repetitions, prior_sd)
            return cls(Spread(level, freedom, repetitions, within), alike=True)
        freedom, level = fitted(variances, degrees)
        level = _drawn(level * repetitions, repetitions, prior_sd)
        return cls(Spread(level, min(freedom, float(repetitions)), repetitions, within))

    @property
    def usual(self) -> Spread:
        """The spread of a setting that was not repeated."""
        return replace(self.prior, freedom=max(self.prior.freedom, LEAST_FREEDOM))

    def of(self, runs: Values) -> Spread:
        """The spread of a setting, by its own runs and by what the others teach."""
        prior = self.prior
        degrees = len(runs) - 1
        if degrees < 1 or self.alike:
            return self.usual
        own = _variance(runs)
        moderated = (prior.freedom * prior.variance + degrees * own) / (prior.freedom + degrees)
        freedom = prior.freedom + degrees
        if prior.repetitions:
            freedom = min(freedom, max(float(prior.repetitions), PRIOR_FREEDOM))
        return Spread(max(moderated, own), freedom, max(prior.repetitions, degrees), prior.within)


def fitted(variances: np.ndarray, degrees: np.ndarray) -> tuple[float, float]:
    """Degrees of freedom and level of the prior of some
    variances: d0, which may be infinite, and s0².

    Args:
        variances: s² (n,) of each setting, on `degrees` (n,) of freedom; n of 2 or more.

    Source: Smyth (2004), section 6.2, by the moments of log s².
    """
    from scipy.special import digamma, polygamma

    half = degrees / 2
    centred = np.log(np.maximum(variances, TINY)) - digamma(half) + np.log(half)
    mean = float(centred.mean())
    beyond = float(centred.var(ddof=1)) - float(polygamma(1, half).mean())
    # no more apart than equal variances would be: the pooled one is the best estimate then
    if beyond <= 0:
        return math.inf, float(np.average(variances, weights=degrees))
    half_freedom = inverse_trigamma(beyond)
    level = math.exp(mean + float(digamma(half_freedom)) - math.log(half_freedom))
    return 2 * half_freedom, level


def inverse_trigamma(value: float) -> float:
    """The x with trigamma(x) = value, for values above 0 (Smyth 2004, appendix)."""
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
    """True where repetitions differ by far more than is usual for the machine's kind."""
    return squares > degrees * (PRIOR_LIMIT * prior_sd) ** 2


def _drawn(squares: float, degrees: int, prior_sd: float) -> float:
    """The pooled variance of few settings: drawn towards that of the machine's kind, unless they
    refute it. Drawn to it all the same, runs would be called different in up to 12 % of the cases.
    """
    if _refutes(squares, degrees, prior_sd):
        return squares / degrees
    return (PRIOR_DEGREES * prior_sd**2 + squares) / (PRIOR_DEGREES + degrees)
