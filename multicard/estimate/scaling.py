"""Growth of a step with the number of GPUs, each with its own batch (weak scaling).

With T(n) the time of a step on n GPUs and d = T(2) / T(1) - 1:

    T(n) / T(1) = 1 + d + r(n) (slope max(d - threshold, 0) + constant)
    r(n) = (ring(n) - 1) / (ring(8) - 1)

A small d is the fixed cost of exchanging at all (more kernels, copies of buckets). Above the
threshold, computing no longer hides the exchange. The exchange grows with the bytes that a rank of
a ring sends: ring(n) = 2 (n - 1) / n times the gradients' bytes (Patarasuk and Yuan 2009, J.
Parallel Distrib. Comput. 69:117). A slope of 0.75 is the ring's share from 2 to 8 GPUs. A larger
slope means contention. `benchmarks.prediction` fits the three figures to published tables. Its
90 % interval comes from families of GPUs that were left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.estimate.observations import (
    GPUS,
    Basis,
    Cell,
    StepEstimate,
    range_of_busy_shares,
    unique_marks,
    without,
)
from multicard.measure.repeated_runs import PRIOR_SD
from multicard.messages import Message
from multicard.records.comparable import DOUBTFUL

REFERENCE_GPUS = 8  # The number of GPUs to which the slope and the constant refer.
FASTER_LIMIT = -0.05  # A smaller d is noise: a second GPU does not shorten a step by more.
# The spread of the logarithm of T(8) at d is NOISE + NOISE_SLOPE |d|.
NOISE = 0.02
NOISE_SLOPE = 0.2
EXTENDED = 2.6  # Factor on that spread if T lies on a line through two counts.
CONFIDENCE = 0.90  # The level of all intervals.
# The error of the exponent with which a step grows with CPU ranks, which share their cores.
RANKS_SD = 0.25


def ring(gpus: int) -> float:
    """Return bytes a rank sends in a ring all-reduce, per byte that is reduced: 2 (n - 1) / n."""
    return 2 * (gpus - 1) / gpus


@dataclass(frozen=True)
class Growth:
    """The model's three figures and its interval.

    Fields:
        low, high: quantiles of log(T(8) / predicted) over NOISE + NOISE_SLOPE |d|, for families
            that were left out.
        extended: EXTENDED, or the value that `benchmarks.prediction` fits without one node.
    """

    threshold: float
    slope: float
    constant: float
    low: float = math.nan
    high: float = math.nan
    extended: float = EXTENDED

    def log_ratio(self, growth_2: float, gpus: int) -> float:
        """Return log T(n) / T(1) for d = `growth_2`."""
        share = (ring(gpus) - 1) / (ring(REFERENCE_GPUS) - 1)
        more = self.slope * max(growth_2 - self.threshold, 0.0) + self.constant
        return math.log1p(max(growth_2, FASTER_LIMIT) + share * more)

    def bounds(self, growth_2: float, gpus: int) -> tuple[float, float]:
        """Return the 90 % interval of log T(n) around `log_ratio`. At 2 GPUs, d is known: 0, 0."""
        share = (ring(gpus) - 1) / (ring(REFERENCE_GPUS) - 1)
        scale = share * (NOISE + NOISE_SLOPE * abs(growth_2))
        return scale * self.low, scale * self.high


# Fitted by `benchmarks.prediction_replays` (`fitted`) to the rows of `published.csv` without
# defects. A test compares.
PUBLISHED = Growth(threshold=0.137, slope=0.895, constant=0.009, low=-1.674, high=4.700)


def cells_on_gpus(
    known: Sequence[StepEstimate], gpus: int, growth: Growth, on_gpu: bool
) -> list[StepEstimate]:
    """Derive cells on a number of GPUs from cells on at least two other numbers.

    If 1 and 2 GPUs are known and no larger number is nearer, `growth` gives the step. Otherwise it
    follows a ring's bytes alone. CPU ranks share their cores: their step grows as a power of the
    number of ranks.
    """
    by_rest: dict[Cell, dict[int, StepEstimate]] = {}
    for cell in known:
        by_rest.setdefault((cell.machine, without(cell.setting, GPUS)), {})[cell.gpus] = cell
    lines = [counts for counts in by_rest.values() if gpus not in counts and len(counts) > 1]
    cells: list[StepEstimate] = []
    for counts in lines:
        if on_gpu and _is_from_two(counts, gpus):
            cells.append(_cell_by_growth(counts, gpus, growth))
        else:
            cells.append(_cell_on_line(counts, gpus, on_gpu, growth.extended))
    return cells


def _is_from_two(counts: Mapping[int, StepEstimate], gpus: int) -> bool:
    """True if T(1) and T(2) are known, and no larger number is nearer to the wanted one."""
    nearest = min(counts, key=lambda count: abs(ring(count) - ring(gpus)))
    return {1, 2} <= counts.keys() and nearest <= 2


def doubt(clipped: float) -> str:
    """Return the mark of scaling beyond linear if more than noise was clipped, else no mark."""
    return DOUBTFUL * (abs(clipped) > -FASTER_LIMIT)


def _cell_by_growth(counts: Mapping[int, StepEstimate], gpus: int, growth: Growth) -> StepEstimate:
    """Derive the step on `gpus` from T(1) and T(2).

    The interval of `growth` comes from tables with one run per time. It thus includes the
    difference between runs.
    """
    one = counts[1]
    two = counts[2]
    growth_2 = math.expm1(two.log_s - one.log_s)

    def log_growth_beyond_two(growth_2: float) -> float:
        return growth.log_ratio(growth_2, gpus) - growth.log_ratio(growth_2, 2)

    low, high = growth.bounds(growth_2, gpus)
    # Errors of T(1) and T(2) look like growth, and the model carries it on by this slope.
    slope = (log_growth_beyond_two(growth_2 + 0.01) - log_growth_beyond_two(growth_2)) / 0.01
    variance = _beyond_runs(two) + slope**2 * (_beyond_runs(one) + _beyond_runs(two))
    load_variance = two.load_variance + slope**2 * (one.load_variance + two.load_variance)
    log_s = two.log_s + log_growth_beyond_two(growth_2)
    about = _known_times([1, 2])
    cell = replace(two, log_s=log_s, variance=variance, about=about, load_variance=load_variance)
    return _cell_on_gpus(cell, gpus, [one, two], abs(low), abs(high), doubt(min(growth_2, 0.0)))


def _known_times(gpus: Sequence[int]) -> Message:
    """Name the numbers of GPUs whose steps the estimate follows from."""
    sentence = f"{', '.join(f'T({number})' for number in gpus)} of gpus"
    return Message("estimate.known-gpus", sentence, gpus=[*gpus])


def _beyond_runs(cell: StepEstimate) -> float:
    """Return the variance of a cell without the variance between runs."""
    return max(cell.variance - 2 * PRIOR_SD**2, 0.0)


def _cell_on_line(
    counts: Mapping[int, StepEstimate], gpus: int, on_gpu: bool, extended: float
) -> StepEstimate:
    """Derive the step on `gpus` from the line through the two nearest counts.

    The line is T over ring(n) on GPUs, and log T over log n on CPU ranks. On GPUs, the interval
    also includes the line over n itself. A step grows nearly like this if the ranks exchange over
    several switches or sockets.
    """

    def abscissa(count: int) -> float:
        return ring(count) if on_gpu else math.log(count)

    near, far = sorted(counts, key=lambda count: abs(abscissa(count) - abscissa(gpus)))[:2]
    share = (abscissa(gpus) - abscissa(near)) / (abscissa(near) - abscissa(far))
    rise = counts[near].log_s - counts[far].log_s
    is_shorter_on_more = (rise < 0) == (near > far) and not min(counts) < gpus < max(counts)
    ignored_rise = rise if is_shorter_on_more else 0.0
    # Beyond the measured range, nothing scales better than linear.
    clipped, rise = share * ignored_rise, rise - ignored_rise
    # log(step on the line over n / step on the line over ring(n)).
    linear_in_gpus_excess = 0.0
    if on_gpu:
        log_ratio = _log_step_on_line(share, rise)
        linear_in_gpus_excess = _log_step_on_line((gpus - near) / (near - far), rise) - log_ratio
        sd = extended * abs(share) * (NOISE + NOISE_SLOPE * abs(rise))
    else:
        log_ratio = share * rise
        sd = RANKS_SD * abs(abscissa(gpus) - abscissa(near))
    variance = (1 + share) ** 2 * counts[near].variance + share**2 * counts[far].variance + sd**2
    near_load_variance = (1 + share) ** 2 * counts[near].load_variance
    load_variance = near_load_variance + share**2 * counts[far].load_variance
    log_s = counts[near].log_s + log_ratio
    about = _known_times(sorted({near, far}))
    cell = replace(
        counts[near], log_s=log_s, variance=variance, about=about, load_variance=load_variance
    )
    below = max(abs(clipped), -linear_in_gpus_excess)
    above = max(0.0, linear_in_gpus_excess)
    return _cell_on_gpus(cell, gpus, [counts[near], counts[far]], below, above, doubt(ignored_rise))


def _log_step_on_line(share: float, rise: float) -> float:
    """Return the log step, relative to the nearer count, on a line through both counts.

    Args:
        share: how far the line continues, as a share of the distance between both counts.
    """
    return math.log(max(1 + share * -math.expm1(-rise), 0.1))


def _cell_on_gpus(
    cell: StepEstimate,
    gpus: int,
    behind: Sequence[StepEstimate],
    below: float,
    above: float,
    mark: str,
) -> StepEstimate:
    """Return the cell on another number of GPUs, with the runs and marks of the cells behind it."""
    marks = unique_marks([*(cell_behind.marks for cell_behind in behind), mark])
    setting = {**cell.setting, GPUS: str(gpus)}
    runs = sum(cell_behind.runs for cell_behind in behind)
    basis = Basis.published if cell.published else Basis.scaled
    cell = replace(cell, setting=setting, runs=runs, basis=basis, below=below, above=above)
    return replace(cell, marks=marks, busy_shares=range_of_busy_shares(behind))
