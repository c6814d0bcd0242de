"""Growth of a step with the number of GPUs, each with its own batch (weak scaling).

With T(n) the time of a step on n GPUs and d = T(2) / T(1) - 1:

    T(n) / T(1) = 1 + d + r(n) (slope max(d - threshold, 0) + constant)
    r(n) = (ring(n) - 1) / (ring(8) - 1)

A small d is the cost of exchanging at all (more kernels, copies of buckets), and stays as it is.
Above the threshold computing no longer hides the exchange, which grows as the bytes that a rank of
a ring sends, ring(n) = 2 (n - 1) / n of those of the gradients (Patarasuk and Yuan 2009, J.
Parallel Distrib. Comput. 69:117). A slope of 0.75 is the ring's own share from 2 to 8 GPUs; more is
contention. `benchmarks.prediction` fits the three figures to published tables,
with an interval of 90 % by families of GPUs that were left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.estimate.observations import (
    GPUS,
    Basis,
    Cell,
    StepEstimate,
    joined,
    spanned_busy,
    without,
)
from multicard.measure.repeated_runs import PRIOR_SD
from multicard.messages import Message
from multicard.records.comparable import DOUBTFUL

FAR = 8  # GPUs of the slope and the constant
FASTER_LIMIT = -0.05  # d below it is noise: a second GPU does not shorten a step by more
# the spread of the logarithm of T(8) at d is NOISE + NOISE_SLOPE |d|
NOISE = 0.02
NOISE_SLOPE = 0.2
EXTENDED = 2.6  # times that spread, where T is on a line through two counts
CONFIDENCE = 0.90  # of all intervals
RANKS_SD = 0.25  # of the exponent with which a step grows with CPU ranks that share their cores


def ring(gpus: int) -> float:
    """Bytes that a rank sends in a ring all-reduce,
    over the bytes that are reduced: 2 (n - 1) / n.
    """
    return 2 * (gpus - 1) / gpus


@dataclass(frozen=True)
class Growth:
    """The model's three figures, and its interval: quantiles of log(T(8) / predicted) over NOISE +
    NOISE_SLOPE |d|, for families that were left out. `extended` is EXTENDED,
    or what `benchmarks.prediction` fits without a node.
    """

    threshold: float
    slope: float
    constant: float
    low: float = math.nan
    high: float = math.nan
    extended: float = EXTENDED

    def log_ratio(self, growth_2: float, gpus: int) -> float:
        """log T(n) / T(1), by d = `growth_2`."""
        share = (ring(gpus) - 1) / (ring(FAR) - 1)
        more = self.slope * max(growth_2 - self.threshold, 0.0) + self.constant
        return math.log1p(max(growth_2, FASTER_LIMIT) + share * more)

    def bounds(self, growth_2: float, gpus: int) -> tuple[float, float]:
        """The 90 % interval of log T(n) around `log_ratio`; 0 at 2 GPUs, where d is known."""
        share = (ring(gpus) - 1) / (ring(FAR) - 1)
        scale = share * (NOISE + NOISE_SLOPE * abs(growth_2))
        return scale * self.low, scale * self.high


# By `benchmarks.prediction_replays` (`fitted`) of the rows of
# `published.csv` without defects (a test compares)
PUBLISHED = Growth(threshold=0.137, slope=0.895, constant=0.009, low=-1.674, high=4.700)


def cells_on_gpus(
    known: Sequence[StepEstimate], gpus: int, growth: Growth, on_gpu: bool
) -> list[StepEstimate]:
    """Cells on a number of GPUs on which they did not run, by two other numbers at least.

    From 1 and 2 GPUs by `growth`; where a larger count is nearer, and from others, by a ring's
    bytes alone. CPU ranks
    share their cores: there a step grows as a power of the number of ranks.
    """
    by_rest: dict[Cell, dict[int, StepEstimate]] = {}
    for cell in known:
        by_rest.setdefault((cell.machine, without(cell.setting, GPUS)), {})[cell.gpus] = cell
    lines = [counts for counts in by_rest.values() if gpus not in counts and len(counts) > 1]
    cells: list[StepEstimate] = []
    for counts in lines:
        if on_gpu and _is_from_two(counts, gpus):
            cells.append(_grown(counts, gpus, growth))
        else:
            cells.append(_extended(counts, gpus, on_gpu, growth.extended))
    return cells


def _is_from_two(counts: Mapping[int, StepEstimate], gpus: int) -> bool:
    """True where T(1) and T(2) are known, and no larger count is nearer to the wanted one."""
    nearest = min(counts, key=lambda count: abs(ring(count) - ring(gpus)))
    return {1, 2} <= counts.keys() and nearest <= 2


def doubt(clipped: float) -> str:
    """The mark of scaling beyond linear, by the logarithm that was clipped; none of noise."""
    return DOUBTFUL * (abs(clipped) > -FASTER_LIMIT)


def _grown(counts: Mapping[int, StepEstimate], gpus: int, growth: Growth) -> StepEstimate:
    """Step on `gpus` from T(1) and T(2). The interval of `growth` comes from tables with one run a
    time, so it includes the difference between runs.
    """
    one = counts[1]
    two = counts[2]
    growth_2 = math.expm1(two.log_s - one.log_s)

    def carried(d: float) -> float:
        return growth.log_ratio(d, gpus) - growth.log_ratio(d, 2)

    low, high = growth.bounds(growth_2, gpus)
    # Errors of T(1) and T(2) are taken for growth, as far as that is carried on
    slope = (carried(growth_2 + 0.01) - carried(growth_2)) / 0.01
    variance = _beyond_runs(two) + slope**2 * (_beyond_runs(one) + _beyond_runs(two))
    slowed = two.slowed + slope**2 * (one.slowed + two.slowed)
    log_s = two.log_s + carried(growth_2)
    about = _known_times([1, 2])
    cell = replace(two, log_s=log_s, variance=variance, about=about, slowed=slowed)
    return _on(cell, gpus, [one, two], abs(low), abs(high), doubt(min(growth_2, 0.0)))


def _known_times(gpus: Sequence[int]) -> Message:
    """The numbers of GPUs whose steps a growth follows from."""
    sentence = f"{', '.join(f'T({number})' for number in gpus)} of gpus"
    return Message("estimate.known-gpus", sentence, gpus=[*gpus])


def _beyond_runs(cell: StepEstimate) -> float:
    """The variance of a cell without that of one run from another."""
    return max(cell.variance - 2 * PRIOR_SD**2, 0.0)


def _extended(
    counts: Mapping[int, StepEstimate], gpus: int, on_gpu: bool, extended: float
) -> StepEstimate:
    """Step on `gpus` from the line through the two nearest counts: T over ring(n);
    on CPU ranks log T over log n.

    On GPUs the interval reaches as far as the line over n itself: where ranks of several switches
    or sockets exchange, a step grows nearly so.
    """

    def place(count: int) -> float:
        return ring(count) if on_gpu else math.log(count)

    near, far = sorted(counts, key=lambda count: abs(place(count) - place(gpus)))[:2]
    share = (place(gpus) - place(near)) / (place(near) - place(far))
    rise = counts[near].log_s - counts[far].log_s
    falls = (rise < 0) == (near > far) and not min(counts) < gpus < max(counts)
    fallen = rise if falls else 0.0
    # beyond the measured range nothing is faster than linear
    clipped, rise = share * fallen, rise - fallen
    # the logarithm of the step on the line over n, over that of the step on the line over ring(n)
    by_number = 0.0
    if on_gpu:
        log_ratio = _along(share, rise)
        by_number = _along((gpus - near) / (near - far), rise) - log_ratio
        sd = extended * abs(share) * (NOISE + NOISE_SLOPE * abs(rise))
    else:
        log_ratio = share * rise
        sd = RANKS_SD * abs(place(gpus) - place(near))
    variance = (1 + share) ** 2 * counts[near].variance + share**2 * counts[far].variance + sd**2
    slowed = (1 + share) ** 2 * counts[near].slowed + share**2 * counts[far].slowed
    log_s = counts[near].log_s + log_ratio
    about = _known_times(sorted({near, far}))
    cell = replace(counts[near], log_s=log_s, variance=variance, about=about, slowed=slowed)
    below = max(abs(clipped), -by_number)
    above = max(0.0, by_number)
    return _on(cell, gpus, [counts[near], counts[far]], below, above, doubt(fallen))


def _along(share: float, rise: float) -> float:
    """The logarithm of a step, over the nearer one, on a line that is
    continued by a share of its rise between both.
    """
    return math.log(max(1 + share * -math.expm1(-rise), 0.1))


def _on(
    cell: StepEstimate,
    gpus: int,
    behind: Sequence[StepEstimate],
    below: float,
    above: float,
    mark: str,
) -> StepEstimate:
    """The cell on another number of GPUs, with the runs and marks of the cells behind it."""
    marks = joined([*(each.marks for each in behind), mark])
    setting = {**cell.setting, GPUS: str(gpus)}
    runs = sum(each.runs for each in behind)
    basis = Basis.published if cell.published else Basis.scaled
    cell = replace(cell, setting=setting, runs=runs, basis=basis, below=below, above=above)
    return replace(cell, marks=marks, busy=spanned_busy(behind))
