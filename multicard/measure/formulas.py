"""Compute statistics and formulas of measured times, bytes and losses."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

STEP_DEFINITION = "slowest rank's clock"
# A step is slow if it is longer than this many medians, and if at least one in twenty steps is.
SLOW_MEDIANS = 3
# A stall is longer than the median step by both these limits. If there are more than MOST_STALLS,
# they belong to the run itself.
STALL_S = 10.0
STALL_MEDIANS = 20
MOST_STALLS = 2


def step_times_s(
    epoch: np.ndarray, rank: np.ndarray, step: np.ndarray, step_s: np.ndarray
) -> np.ndarray:
    """Return the seconds of each step of a run (steps,), given those of all ranks (ranks x steps,).

    A step ends when its slowest rank has ended it. Let T_k be the longest time that any rank took
    from the start of the epoch to the end of step k. Then step k takes T_k - T_(k-1), and the steps
    add up to the epoch. The maxima over ranks of single steps would add up to more, because a rank
    that is late in one step waits less in the next.
    """
    if not len(step_s):
        return np.empty(0)
    per_epoch = int(step.max()) + 1
    seconds = np.zeros((int(rank.max()) + 1, int(epoch.max()) + 1, per_epoch))
    seconds[rank, epoch, step] = step_s
    ends_s = seconds.cumsum(axis=2).max(axis=0)
    step_number = epoch.astype(int) * per_epoch + step
    return np.diff(ends_s, axis=1, prepend=0.0).ravel()[: step_number.max() + 1]


def flag_stalled_steps(steps_s: np.ndarray, steps_per_epoch: int) -> np.ndarray:
    """Return flags of the stalled steps (steps,): a process was stopped, or the machine slept.

    A stalled step is longer than the median step by 10 s and by 20 medians. The first step of an
    epoch never counts as stalled, because it starts workers. If more than two steps are that long,
    none of them counts.

    Args:
        steps_s: Seconds of all steps (steps,), as in `step_times_s`.
    """
    if not len(steps_s):
        return np.zeros(0, dtype=bool)
    median_s = float(np.median(steps_s))
    flags = steps_s - median_s > max(STALL_S, STALL_MEDIANS * median_s)
    flags &= np.arange(len(steps_s)) % steps_per_epoch > 0
    return flags & (flags.sum() <= MOST_STALLS)


def find_slow_steps(
    steps_s: np.ndarray, counted: np.ndarray, steps_per_epoch: int, work: np.ndarray | None = None
) -> list[int]:
    """Return the steps, from 0, that took more than three times the median step.

    There are none if the 95th percentile is below that. The first step of an epoch never counts as
    slow, because it starts workers. A step with more work, such as longer rows, only counts if its
    time per unit of work is also above three times the median.

    Args:
        steps_s: Seconds of all steps (steps,), as in `step_times_s`.
        counted: Flags of the steps that statistics count (steps,).
        work: Work of each step (steps,), such as tokens, or None if all steps have the same work.
    """
    judged_steps = counted & (np.arange(len(steps_s)) % steps_per_epoch > 0)
    if not judged_steps.any():
        return []
    is_slow = judged_steps.copy()
    for costs in (steps_s,) if work is None else (steps_s, steps_s / np.maximum(work, 1)):
        limit = SLOW_MEDIANS * float(np.median(costs[judged_steps]))
        if float(np.percentile(costs[judged_steps], 95)) <= limit:
            return []
        is_slow &= costs > limit
    return np.flatnonzero(is_slow).tolist()


def statistics(
    samples_s: Sequence[float] | np.ndarray,
    warmup: int | np.ndarray,
    stalls: np.ndarray | None = None,
) -> dict[str, float | int | str | None]:
    """Return statistics of the steps after the warm-up.

    They are the mean, the median, the 95th and 99th percentiles, and the standard deviation
    (n - 1). Percentiles are interpolated linearly. Without samples, all are None; `std` needs two.

    Args:
        samples_s: Seconds of all steps, as in `step_times_s`.
        warmup: Number of warm-up steps at the start, or flags of the warm-up steps (steps,).
        stalls: Flags of stalled steps, as in `flag_stalled_steps`. They are left out too.
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
    """Return the units of all ranks divided by the slowest rank's time, or None without a time.

    Args:
        units: For each rank, the images or tokens that it processed in the measured steps.
        seconds: For each rank, the duration of these steps.
    """
    slowest = max(seconds, default=0.0)
    return sum(units) / slowest if slowest > 0 else None


def speedup(reference_s: float, time_s: float) -> float:
    """Return reference time / time, which 2503.15252 (Tables 2 and 3) prints as efficiency."""
    return reference_s / time_s


# A higher parallel efficiency says more about the run on one GPU than about the other runs.
DOUBTFUL_EFFICIENCY = 1.1


def parallel_efficiency(one_gpu_s: float, time_s: float, gpus: int) -> float:
    """Return T(1) / (n T(n)), which is 1 if n GPUs are n times as fast as one."""
    return one_gpu_s / (gpus * time_s)


def ring_all_reduce_bytes(payload_bytes: int, world_size: int) -> float:
    """Return the bytes that each rank sends, and receives, in a ring all-reduce.

    They are 2 (w - 1) / w x payload (Patarasuk, Yuan 2009).
    """
    return 2 * (world_size - 1) / world_size * payload_bytes


class FurtherGpus(NamedTuple):
    """The samples, and the replicas of the model, that all GPUs except the first one get."""

    samples: int
    replicas: int


def on_further_gpus(batches: Mapping[int, int], gpus: int) -> FurtherGpus:
    """Return how nn.DataParallel divides batches. It does so like `torch.chunk`.

    Args:
        batches: Number of batches for each batch size.
    """
    samples = replicas = 0
    for size, count in batches.items():
        on_first = -(-size // gpus)
        samples += count * (size - on_first)
        replicas += count * (-(-size // on_first) - 1)
    return FurtherGpus(samples, replicas)


def count_non_finite(
    table: Mapping[str, np.ndarray], finite: np.ndarray
) -> tuple[int, tuple[int, int, int] | None]:
    """Return the number of losses that are not finite, and where the run diverged, if it did.

    A run diverged if the last loss of a rank is not finite. The place is the epoch, step and rank
    of the first loss after its last finite one. Losses from which the run recovered only count in
    the number.

    Args:
        table: Epoch, step of the epoch and rank of each loss (losses,).
        finite: True for each loss that is finite (losses,).
    """
    epoch, step, rank = (table[name] for name in ("epoch", "step", "rank"))
    starts = []
    for rank_number in np.unique(rank):
        rows = np.flatnonzero(rank == rank_number)
        rows = rows[np.lexsort((step[rows], epoch[rows]))]
        finite_rows = np.flatnonzero(finite[rows])
        trailing = rows[finite_rows[-1] + 1 :] if len(finite_rows) else rows
        starts += [(int(epoch[row]), int(step[row]), int(rank_number)) for row in trailing[:1]]
    return int((~finite).sum()), min(starts, default=None)
