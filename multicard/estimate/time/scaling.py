"""How a step grows with the number of GPUs, each with its own batch (weak scaling).

With T(n) the time of a step on n GPUs and d = T(2) / T(1) - 1:

    T(n) / T(1) = 1 + d + r(n) (slope max(d - threshold, 0) + constant),    r(n) = (ring(n) - 1) / (ring(8) - 1)

A small d is the cost of exchanging at all (kernels more, buckets copied), and stays as it is. What exceeds the
threshold is exchange that computing no longer hides: it grows as the bytes that a rank of a ring sends, which are
ring(n) = 2 (n - 1) / n of those of the gradients (Patarasuk and Yuan 2009, J. Parallel Distrib. Comput. 69:117). A
slope of 0.75 is the ring's own share from 2 to 8 GPUs; more is contention. `benchmarks.prediction_growth` learns the
three figures from published tables, with an interval of 90 % by families of GPUs that were left out.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from multicard.measure.repeated_runs import PRIOR_SD

FAR = 8  # GPUs that the slope and the constant are of
FASTER_LIMIT = -0.05  # d below it is noise: two GPUs do not make a step so much shorter
NOISE, NOISE_SLOPE = 0.02, 0.2  # the spread of the logarithm of T(8) at d is taken as NOISE + NOISE_SLOPE |d|
CONFIDENCE = 0.90


def ring(gpus: int) -> float:
    """Bytes that a rank sends in a ring all-reduce, over the bytes that are reduced: 2 (n - 1) / n."""
    return 2 * (gpus - 1) / gpus


@dataclass(frozen=True)
class Growth:
    """The model's three figures, and its interval.

    low, high: quantiles of log(T(8) / predicted) over NOISE + NOISE_SLOPE |d|, of families that were left out.
    """

    threshold: float
    slope: float
    constant: float
    low: float = math.nan
    high: float = math.nan

    def log_ratio(self, growth_2: float, gpus: int) -> float:
        """log T(n) / T(1), of d = `growth_2`."""
        share = (ring(gpus) - 1) / (ring(FAR) - 1)
        more = self.slope * max(growth_2 - self.threshold, 0.0) + self.constant
        return math.log1p(max(growth_2, FASTER_LIMIT) + share * more)

    def bounds(self, growth_2: float, gpus: int) -> tuple[float, float]:
        """The 90 % interval of log T(n) around `log_ratio`; it is 0 at 2 GPUs, where d is known."""
        share = (ring(gpus) - 1) / (ring(FAR) - 1)
        scale = share * (NOISE + NOISE_SLOPE * abs(growth_2))
        return scale * self.low, scale * self.high


def whole_run(times: Mapping[int, float], gpus: int) -> tuple[float, float]:
    """The total time of a run that is divided over n GPUs (strong scaling), from those on 1 and 2.

    The middle of two readings of what the second GPU did not save: a part that no GPU shares (Amdahl 1967), so that
    T(n) = T(1) (s + (1 - s) / n), and a cost that comes with each doubling, T(n) = T(1) (T(2) / T(1))^log2(n).

    Returns:
        The time, and the standard deviation of its logarithm: the two readings apart, and `PRIOR_SD` of each run.
    """
    ratio = times[2] / times[1]
    serial = 2 * ratio - 1
    amdahl, doubling = math.log(serial + (1 - serial) / gpus), math.log2(gpus) * math.log(ratio)
    runs = PRIOR_SD * math.hypot(math.log2(gpus) - 1, math.log2(gpus), 1.0)
    return times[1] * math.exp((amdahl + doubling) / 2), math.hypot((amdahl - doubling) / 2, runs)


# By `benchmarks.prediction_growth.calibrated` of the rows of `published.csv` without defects (a test compares)
PUBLISHED = Growth(threshold=0.137, slope=0.895, constant=0.009, low=-1.674, high=4.700)
