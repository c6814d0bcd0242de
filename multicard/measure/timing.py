"""Clocks, memory counters and the formulas on them. No other file touches a clock or a memory counter.

Raw samples are kept and statistics derived from them; nothing here synchronises with the GPU inside a step.
"""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from multicard.measure.ranges import Ranges

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
DATA, H2D, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))


def clock_s() -> float:
    """Seconds on a clock that all processes of this machine share (CLOCK_MONOTONIC)."""
    return time.monotonic()


def pause(seconds: float) -> None:
    time.sleep(seconds)


def process_started_s() -> float:
    """When this process was started, on `clock_s`, to 10 ms: the interpreter's own start-up counts too."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return clock_s() - age_s


def timestamp() -> str:
    """The time of day in UTC, ISO 8601, for records; never for durations."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


class Marks:
    """Points in the device's work: events on CUDA, which cost no synchronisation, the clock on CPU."""

    def __init__(self, device: "torch.device") -> None:
        self._device = device
        self._cuda = device.type == "cuda"
        self._pool: list[Any] = []
        self._marks: list[Any] = []

    def clear(self) -> None:
        """Begin anew; CUDA's events are used again."""
        self._marks = []

    def add(self) -> None:
        if not self._cuda:
            self._marks.append(time.perf_counter())
            return
        import torch

        used = len(self._marks)
        if used == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))
        self._pool[used].record()
        self._marks.append(self._pool[used])

    def seconds(self) -> Sequence[float] | np.ndarray:
        """The time between each mark and the next. Waits for the device."""
        synchronize(self._device)
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(self._marks)] if self._cuda else np.diff(self._marks)


class StepTimer:
    """Seconds that each step spent in each of `PHASES`.

    `begin(phase)` gives the time since the last one to the phase that was under way. A step starts in DATA, and ends
    when OPTIMIZER does. On CUDA a mark is an event in the stream, read only after the epoch: the figures are then the
    GPU's, and `data` is the time for which it stood idle waiting for the host to have a batch. On CPU it is the clock.

    Args:
        ranges: names the phases for a profiler, if one looks on.
    """

    def __init__(self, device: "torch.device", ranges: "Ranges | None" = None) -> None:
        self._device, self._ranges, self._marks = device, ranges, Marks(device)
        self._phases: list[int] = []
        self._now = DATA
        self._started_s = 0.0

    def start(self) -> None:
        """Begin an epoch, in DATA."""
        self._phases = []
        self._marks.clear()
        self._enter(DATA)
        self._started_s = clock_s()

    def begin(self, phase: int) -> None:
        self._phases.append(self._now)
        self._enter(phase)

    def _enter(self, phase: int) -> None:
        self._now = phase
        if self._ranges is not None:
            self._ranges.open(PHASES[phase])
        self._marks.add()

    def stop(self) -> tuple[float, np.ndarray]:
        """End the epoch.

        Returns:
            Wall seconds since `start`, the device's work included, and an array of seconds (steps, phases).
        """
        if self._ranges is not None:
            self._ranges.close()
        synchronize(self._device)
        wall_s = clock_s() - self._started_s
        return wall_s, phase_table(self._phases, self._marks.seconds())


def phase_table(phases: Sequence[int], laps_s: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sum laps into an array of seconds (steps, phases); a lap of OPTIMIZER ends its step."""
    phase = np.asarray(phases, dtype=int)
    ended = phase == OPTIMIZER
    step = np.cumsum(ended) - ended  # the number of steps that ended before this lap
    table = np.zeros((int(ended.sum()), len(PHASES)))
    kept = step < len(table)  # laps after the last step's end belong to none
    np.add.at(table, (step[kept], phase[kept]), np.asarray(laps_s, dtype=float)[kept])
    return table


def synchronize(device: "torch.device") -> None:
    """Wait until the device has done what it was given; on CPU nothing is ever outstanding."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def reset_peak_memory(device: "torch.device") -> None:
    """Forget the peak so far, as far as the system allows: what is held now still counts."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # needs a kernel with CONFIG_PROC_PAGE_MONITOR; without, the peak is the process's
        Path("/proc/self/clear_refs").write_text("5")


def held_memory_bytes(device: str) -> int:
    """What this process holds now: in torch's allocator on CUDA, resident in memory on CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_memory_bytes(device: "torch.device") -> int:
    """What can still be allocated: on the GPU, whoever uses the rest; on CPU what the system can give."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def proportional_memory_bytes() -> int:
    """This process's resident memory, each page divided by the number of processes that map it (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def peak_memory_bytes(device: "torch.device") -> int:
    """This process's peak: bytes that torch's allocator handed out on CUDA, else the resident set (VmHWM).

    VmHWM and not `ru_maxrss`, which a process inherits from what it was before exec.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def peak_memory_kind(device_type: str) -> str:
    return "cuda_allocated" if device_type == "cuda" else "rss"


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
