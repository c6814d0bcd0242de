"""The figure of a block of steps, and how sure it is."""

import math

import numpy as np

from multicard.measure.series import mean_variance

FEW_STEPS = 2.0  # times the standard error of so few steps that their correlation cannot be told
LEAST_ERROR = 1e-4  # of a block whose steps are all equal: clocks tick
SINGLE_ERROR = 0.1  # of a block of a single step


def of_steps(steps_s: np.ndarray, samples: float) -> tuple[float, float]:
    """The logarithm of samples a second over consecutive steps (n,), n at least 1, and its standard error.

    Args:
        samples: of all steps together.

    Returns:
        Neither is finite where a step is not, or took no time.
    """
    total_s, count = float(steps_s.sum()), len(steps_s)
    if not (math.isfinite(total_s) and total_s > 0 and samples > 0):
        return math.nan, math.nan
    mean_s = total_s / count
    term = mean_variance(steps_s)
    if term is not None and term.degrees >= 1:
        error = math.sqrt(term.variance) / mean_s
    elif count > 1:
        error = FEW_STEPS * float(steps_s.std(ddof=1)) / math.sqrt(count) / mean_s
    else:
        error = SINGLE_ERROR
    return math.log(samples / total_s), max(error, LEAST_ERROR)
