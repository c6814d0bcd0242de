"""Statistics and formulas on measured times and bytes."""

from collections.abc import Sequence

import numpy as np


def statistics(samples_s: Sequence[float] | np.ndarray, warmup: int) -> dict[str, float | int | None]:
    """Mean, median, 95th and 99th percentile and standard deviation (n - 1) of the samples after the warm-up.

    Percentiles interpolate linearly. Without samples all are None; `std` needs two.
    """
    warmup = min(warmup, len(samples_s))
    measured_s = np.asarray(samples_s, dtype=float)[warmup:]
    count = len(measured_s)
    median, p95, p99 = np.percentile(measured_s, [50, 95, 99]).tolist() if count else (None, None, None)
    return {
        "mean": float(measured_s.mean()) if count else None,
        "median": median,
        "p95": p95,
        "p99": p99,
        "std": float(measured_s.std(ddof=1)) if count > 1 else None,
        "count": count,
        "warmup_count": warmup,
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


DOUBTFUL_EFFICIENCY = 1.1  # above it, a parallel efficiency says more of the run on one GPU than of the others


def parallel_efficiency(one_gpu_s: float, time_s: float, gpus: int) -> float:
    """T(1) / (n T(n)): 1 if n GPUs are n times as fast as one."""
    return one_gpu_s / (gpus * time_s)


def ring_all_reduce_bytes(payload_bytes: int, world_size: int) -> float:
    """Bytes each rank sends, and receives, in a ring all-reduce: 2 (w - 1) / w x payload (Patarasuk, Yuan 2009)."""
    return 2 * (world_size - 1) / world_size * payload_bytes
