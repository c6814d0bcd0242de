"""Clocks and the timing of steps; no other module reads a clock.

Raw samples are stored and statistics derived from them. Nothing here synchronises with the GPU inside a step.
"""

import os
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # the controller times without importing torch
    import torch

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
DATA, H2D, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))
PAUSED = len(PHASES)  # of no step


def clock_s() -> float:
    """Seconds on a clock that all processes of this machine share (CLOCK_MONOTONIC)."""
    return time.monotonic()


def pause(seconds: float) -> None:
    time.sleep(seconds)


def in_hours(seconds: float) -> str:
    """A duration for a person to read, as hours, minutes and seconds: "1:02:03"."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def process_started_s() -> float:
    """Start of this process on `clock_s`, to 10 ms; the interpreter's own start-up comes after it."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return clock_s() - age_s


def timestamp() -> str:
    """The time of day in UTC, ISO 8601, for records; never for durations."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def age_s(status: os.stat_result) -> float:
    """Seconds since a file was written to or touched, by the system's clock: right to a second or so."""
    return time.time() - status.st_mtime


def since_epoch_s() -> float:
    """The time of day, for moments that a later command compares; never for durations within a process."""
    return time.time()


def synchronize(device: "torch.device") -> None:
    """Wait for all work queued on the device; CPU work is never queued."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


class _Clock:
    """Points in the device's work: events on CUDA, which do not synchronise and are used again, readings on CPU."""

    def __init__(self, device: "torch.device") -> None:
        self.device, self.cuda = device, device.type == "cuda"
        self._unused: list[Any] = []

    def point(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        import torch

        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, first: Any, second: Any) -> float:
        """Seconds between two points that the device has passed."""
        return first.elapsed_time(second) / 1e3 if self.cuda else second - first

    def reuse(self, points: Sequence[Any]) -> None:
        self._unused += points if self.cuda else ()


class Marks:
    """Points in the device's work, read after it."""

    def __init__(self, device: "torch.device") -> None:
        self._clock = _Clock(device)
        self._marks: list[Any] = []

    def clear(self) -> None:
        self._clock.reuse(self._marks)
        self._marks = []

    def add(self) -> None:
        self._marks.append(self._clock.point())

    def seconds(self) -> list[float]:
        """Seconds between consecutive marks. Waits for the device."""
        synchronize(self._clock.device)
        return [self._clock.seconds(*pair) for pair in pairwise(self._marks)]


class StepEnds:
    """Seconds of steps as soon as they are known, while the device works on.

    On CUDA they are the time between events that the device has passed. Nothing waits for it except a host that is more
    than `lead` steps ahead: the device has work for that long.
    """

    def __init__(self, device: "torch.device", lead: int) -> None:
        self._clock, self._lead = _Clock(device), lead
        self._ends: list[Any] = []  # the end of the last step that is known, then those of the later ones

    @property
    def pending(self) -> int:
        """Steps that the device is not known to have ended."""
        return len(self._ends) - 1

    def start(self) -> None:
        """Begin an epoch, once the device has done all before."""
        self._clock.reuse(self._ends)
        self._ends = [self._clock.point()]

    def add(self) -> None:
        """Note that the host has ended a step."""
        self._ends.append(self._clock.point())
        if self._clock.cuda and self.pending >= self._lead:
            self._ends[-1 - self._lead].synchronize()

    def seconds(self) -> list[float]:
        """Seconds of the steps that have ended since the last call."""
        known = []
        while self.pending and (not self._clock.cuda or self._ends[1].query()):
            known.append(self._clock.seconds(*self._ends[:2]))
            self._clock.reuse([self._ends.pop(0)])
        return known


class Laps:
    """Laps of the device's work, each with a label, read as soon as the device has passed them, so that few are held
    however long a run is. Waits for nothing until `known(wait=True)`."""

    def __init__(self, device: "torch.device") -> None:
        self._clock = _Clock(device)
        self._last = self._clock.point()
        self._ends: list[tuple[int, Any]] = []

    def end(self, label: int) -> None:
        """Credit the time since the last call to `label`."""
        self._ends.append((label, self._clock.point()))

    def known(self, wait: bool = False) -> list[tuple[int, float]]:
        """The laps since the last call that the device has passed, each with its seconds.

        Args:
            wait: for the device, and return all.
        """
        cuda, passed = self._clock.cuda, 0
        if wait:
            synchronize(self._clock.device)
        laps = []
        for label, end in self._ends:
            if cuda and not wait and not end.query():
                break
            laps.append((label, self._clock.seconds(self._last, end)))
            self._clock.reuse([self._last])
            self._last, passed = end, passed + 1
        del self._ends[:passed]
        return laps


class Ranges:
    """Phase ranges for profilers (NVTX, record_function): at most one is open, named as in `phases_s`, or `evaluate`.

    On CUDA an NVTX range: well below a microsecond without a listener, and visible to any profiler attached from
    outside. torch's own ranges cost more and are opened only while `recording` is set.
    """

    def __init__(self, device: "torch.device", nvtx: bool = False) -> None:
        from torch import cuda, profiler

        self.recording = False
        self._nvtx = cuda.nvtx if nvtx or device.type == "cuda" else None
        self._record_function = profiler.record_function
        self._pushed = False
        self._recorded: Any = None

    def open(self, name: str) -> None:
        """Close the open range and begin another."""
        self.close()
        if self._nvtx is not None:
            self._nvtx.range_push(name)
            self._pushed = True
        if self.recording:
            self._recorded = self._record_function(name)
            self._recorded.__enter__()

    def close(self) -> None:
        if self._recorded is not None:
            self._recorded.__exit__(None, None, None)
            self._recorded = None
        if self._nvtx is not None and self._pushed:
            self._nvtx.range_pop()
            self._pushed = False


class StepTimer:
    """Measures the seconds of each step in each of `PHASES`.

    `begin(phase)` credits the time since the last call to the phase before. A step starts in DATA and ends with
    OPTIMIZER. On CUDA a mark is an event in the stream, read after the epoch: figures are GPU time, and `data` is the
    time that the GPU idles while the host prepares a batch. On CPU they are wall time.

    Args:
        ranges: names the phases for a profiler.
    """

    def __init__(self, device: "torch.device", ranges: Ranges | None = None) -> None:
        self._device, self._ranges, self._marks = device, ranges, Marks(device)
        self._phases: list[int] = []
        self._now = DATA
        self._started_s = self.paused_s = 0.0

    def start(self) -> None:
        """Begin an epoch, in DATA."""
        self._phases, self.paused_s = [], 0.0
        self._marks.clear()
        self._enter(DATA)
        self._started_s = clock_s()

    def begin(self, phase: int) -> None:
        self._phases.append(self._now)
        self._enter(phase)

    def leave_out(self, paused_s: float) -> None:
        """Count the time since the last call to no step: the run paused, for so many seconds of the host's clock."""
        self._phases.append(PAUSED)
        self.paused_s += paused_s
        self._enter(self._now)

    def _enter(self, phase: int) -> None:
        self._now = phase
        if self._ranges is not None:
            self._ranges.open(PHASES[phase])
        self._marks.add()

    def stop(self) -> tuple[float, np.ndarray]:
        """End the epoch.

        Returns:
            Wall seconds since `start`, the device's work included and pauses left out, and seconds (steps, phases).
        """
        if self._ranges is not None:
            self._ranges.close()
        synchronize(self._device)
        wall_s = clock_s() - self._started_s - self.paused_s
        return wall_s, phase_table(self._phases, self._marks.seconds())


def phase_table(phases: Sequence[int], laps_s: Sequence[float] | np.ndarray) -> np.ndarray:
    """Sum laps (n,) by phase, but PAUSED, into seconds (steps, phases); a lap of OPTIMIZER ends its step."""
    phase = np.asarray(phases, dtype=int)
    ends_step = phase == OPTIMIZER
    step = np.cumsum(ends_step) - ends_step  # steps that ended before this lap
    table = np.zeros((int(ends_step.sum()), len(PHASES)))
    counted = (step < len(table)) & (phase < len(PHASES))  # laps after the end of the last step belong to none
    np.add.at(table, (step[counted], phase[counted]), np.asarray(laps_s, dtype=float)[counted])
    return table
