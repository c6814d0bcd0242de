"""Statistics and formulas on measured times, bytes and losses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

STEP_DEFINITION = "slowest rank's clock"
SLOW_MEDIANS = 3  # steps longer than so many medians are slow, where one in twenty is
# the shortest stall, also in median steps; more are the run's own
STALL_S = 10.0
STALL_MEDIANS = 20
MOST_STALLS = 2


def step_times_s(
    epoch: np.ndarray, rank: np.ndarray, step: np.ndarray, step_s: np.ndarray
) -> np.ndarray:
    """Seconds of each step of a run (steps,), from those of each rank (ranks x steps,).

    A step ends when its slowest rank has ended it: with T_k the longest that any rank took from the
    start of the epoch to the end of step k, a step takes T_k - T_(k-1), and the steps add up to the
    epoch. The maxima over ranks of single steps add up to more, as a rank that is late in one step
    waits less in the next.
    """
    if not len(step_s):
        return np.empty(0)
    per_epoch = int(step.max()) + 1
    seconds = np.zeros((int(rank.max()) + 1, int(epoch.max()) + 1, per_epoch))
    seconds[rank, epoch, step] = step_s
    ends_s = seconds.cumsum(axis=2).max(axis=0)
    number = epoch.astype(int) * per_epoch + step
    return np.diff(ends_s, axis=1, prepend=0.0).ravel()[: number.max() + 1]


def stalled(steps_s: np.ndarray, steps_per_epoch: int) -> np.ndarray:
    """Flags of the steps (steps,) in which a process was stopped, or the machine slept: longer than
    the median step by 10 s and by 20 medians. The first step of an epoch, which starts workers, is
    none, nor are any where more than two are that long.

    Args:
        steps_s: of all steps (steps,), as `step_times_s` has them.
    """
    if not len(steps_s):
        return np.zeros(0, dtype=bool)
    median_s = float(np.median(steps_s))
    flags = steps_s - median_s > max(STALL_S, STALL_MEDIANS * median_s)
    flags &= np.arange(len(steps_s)) % steps_per_epoch > 0
    return flags & (flags.sum() <= MOST_STALLS)


def slow(
    steps_s: np.ndarray, counted: np.ndarray, steps_per_epoch: int, work: np.ndarray | None = None
) -> list[int]:
    """The steps, from 0, that took over three times the median step;
    none where the 95th percentile is below that.

    The first step of an epoch, which starts workers, is none. Nor is one whose work took no longer
    than three times the median's: rows differ in length.

    Args:
        steps_s: of all steps (steps,), as `step_times_s` has them.
        counted: flags of those that statistics count (steps,).
        work: of each step (steps,), as tokens; None where all steps have the same.
    """
    judged = counted & (np.arange(len(steps_s)) % steps_per_epoch > 0)
    if not judged.any():
        return []
    is_slow = judged.copy()
    for costs in (steps_s,) if work is None else (steps_s, steps_s / np.maximum(work, 1)):
        most = SLOW_MEDIANS * float(np.median(costs[judged]))
        if float(np.percentile(costs[judged], 95)) <= most:
            return []
        is_slow &= costs > most
    return np.flatnonzero(is_slow).tolist()


def statistics(
    samples_s: Sequence[float] | np.ndarray,
    warmup: int | np.ndarray,
    stalls: np.ndarray | None = None,
) -> dict[str, float | int | str | None]:
    """Mean, median, 95th and 99th percentile and standard
    deviation (n - 1) of the steps after the warm-up.

    Percentiles interpolate linearly. Without samples all are None; `std` needs two.

    Args:
        samples_s: of all steps, as `step_times_s` has them.
        warmup: the number of the first steps that are warm-up, or flags of those (steps,).
        stalls: flags of the steps that are left out as well, as `stalled` has them.
    """
    is_warm = np.arange(len(samples_s)) < warmup if isinstance(warmup, int) else warmup
    is_stalled = np.zeros_like(is_warm) if stalls is None else stalls & ~is_warm
    measured_s = np.asarray(samples_s, dtype=float)[~(is_warm | is_stalled)]
    count = len(measured_s)
    median, p95, p99 = (
        np.percentile(measured_s, [50, 95, 99]).tolist() if count else (None, None, None)
    )
    return {
        "mean": float(measured_s.mean()) if count else None,
        "median": median,
        "p95": p95,
        "p99": p99,
        "std": float(measured_s.std(ddof=1)) if count > 1 else None,
        "count": count,
        "warmup_count": int(is_warm.sum()),
        "stalled_count": int(is_stalled.sum()),
        "definition": STEP_DEFINITION,
    }


def throughput_per_s(units: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Units of all ranks / the slowest rank's time for them; None where no time was measured.

    Args:
        units: per rank, images or tokens processed in the measured steps.
        seconds: per rank, duration of those steps.
    """
    slowest = max(seconds, default=0.0)
    return sum(units) / slowest if slowest > 0 else None


def speedup(reference_s: float, time_s: float) -> float:
    """Reference time / time, which 2503.15252 (Tables 2 and 3) prints as efficiency."""
    return reference_s / time_s


# above it, a parallel efficiency says more of the run on one GPU than of the others
DOUBTFUL_EFFICIENCY = 1.1


def parallel_efficiency(one_gpu_s: float, time_s: float, gpus: int) -> float:
    """T(1) / (n T(n)): 1 if n GPUs are n times as fast as one."""
    return one_gpu_s / (gpus * time_s)


def ring_all_reduce_bytes(payload_bytes: int, world_size: int) -> float:
    """Bytes each rank sends, and receives, in a ring all-reduce: 2
    (w - 1) / w x payload (Patarasuk, Yuan 2009).
    """
    return 2 * (world_size - 1) / world_size * payload_bytes


class FurtherGpus(NamedTuple):
    """What all GPUs but the first one get: samples, and replicas of the model."""

    samples: int
    replicas: int


def on_further_gpus(batches: Mapping[int, int], gpus: int) -> FurtherGpus:
    """How nn.DataParallel divides batches, which it does as `torch.chunk`.

    Args:
        batches: how many there are, by size.
    """
    samples = replicas = 0
    for size, count in batches.items():
        on_first = -(-size // gpus)
        samples += count * (size - on_first)
        replicas += count * (-(-size // on_first) - 1)
    return FurtherGpus(samples, replicas)


def not_finite(
    table: Mapping[str, np.ndarray], finite: np.ndarray
) -> tuple[int, tuple[int, int, int] | None]:
    """The number of losses that are not finite, and epoch, step and rank where a run diverged.

    A run diverged where the last loss of a rank is not finite.
    Losses from which it recovered are only counted.

    Args:
        table: epoch, step of the epoch and rank of each loss (losses,).
        finite: whether it is a finite number (losses,).
    """
    epoch, step, rank = (table[name] for name in ("epoch", "step", "rank"))
    starts = []
    for number in np.unique(rank):
        rows = np.flatnonzero(rank == number)
        rows = rows[np.lexsort((step[rows], epoch[rows]))]
        finite_rows = np.flatnonzero(finite[rows])
        trailing = rows[finite_rows[-1] + 1 :] if len(finite_rows) else rows
        starts += [(int(epoch[row]), int(step[row]), int(number)) for row in trailing[:1]]
    return int((~finite).sum()), min(starts, default=None)
