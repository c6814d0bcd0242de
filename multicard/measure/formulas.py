"""The formulas on what was measured."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    pass


def statistics(samples_s: Sequence[float] | np.ndarray, warmup: int) -> dict[str, float | int | None]:
    """Mean, median, 95th and 99th percentile and standard deviation (n - 1) of all samples after the warm-up.

    Percentiles interpolate linearly. A figure that its samples do not give (no sample; one, for `std`) is None.
    """
    warmup = min(warmup, len(samples_s))
    kept = np.asarray(samples_s, dtype=float)[warmup:]
    count = len(kept)
    median, p95, p99 = np.percentile(kept, [50, 95, 99]).tolist() if count else (None, None, None)
    return {
        "mean": float(kept.mean()) if count else None,
        "median": median,
        "p95": p95,
        "p99": p99,
        "std": float(kept.std(ddof=1)) if count > 1 else None,
        "count": count,
        "warmup_count": warmup,
    }


def throughput_per_s(units: Sequence[float], seconds: Sequence[float]) -> float | None:
    """Units of all ranks ÷ the wall time of the same steps: the slowest rank's. None where no time was measured.

    Args:
        units: what each rank processed in its measured steps.
        seconds: what those steps took on each rank.
    """
    slowest = max(seconds, default=0.0)
    return sum(units) / slowest if slowest > 0 else None


def speedup(reference_s: float, time_s: float) -> float:
    """How many times faster than the reference: what 2503.15252 (Tables 2 and 3) prints as efficiency."""
    return reference_s / time_s


def parallel_efficiency(one_gpu_s: float, time_s: float, gpus: int) -> float:
    """T(1) / (n T(n)): 1 where n GPUs are n times as fast as one."""
    return one_gpu_s / (gpus * time_s)


def ring_all_reduce_bytes(payload_bytes: int, world_size: int) -> float:
    """What a rank sends, and receives, in a ring all-reduce: 2 (w - 1) / w of the payload (Patarasuk, Yuan 2009)."""
    return 2 * (world_size - 1) / world_size * payload_bytes
