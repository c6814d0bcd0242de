"""Clocks, memory counters and the formulas on them. No other file touches a clock or a memory counter.

Raw samples are kept and statistics derived from them; nothing here synchronises with the GPU inside a step.
"""

import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from multicard.measure.ranges import Ranges
from multicard.measure.memory import synchronize

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
