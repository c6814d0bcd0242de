"""Clocks and the timing of steps; no other module reads a clock.

Raw samples are stored and statistics derived from them.
Nothing here synchronises with the GPU inside a step.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # the controller times without importing torch
    import torch

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
DATA, H2D, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))
PAUSED = len(PHASES)  # of no step
# when this machine was started, since 1970
BOOTED_S = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


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
    """Start of this process on `clock_s`, to 10 ms;
    the interpreter's own start-up comes after it.
    """
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (start_ticks() or 0) / os.sysconf(
        "SC_CLK_TCK"
    )
    return clock_s() - age_s


def start_ticks(process: int | str = "self") -> int | None:
    """When a process was started, in clock ticks since the machine was;
    None where that cannot be read.
    """
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def timestamp() -> str:
    """The time of day in UTC, ISO 8601, for records; never for durations."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def age_s(status: os.stat_result, now_s: float | None = None) -> float:
    """Seconds since a file was written to or touched, by the system's clock, or until another was:
    right to a second or so.
    """
    return (time.time() if now_s is None else now_s) - status.st_mtime


def since_epoch_s() -> float:
    """The time of day, for moments that a later command compares. A clock that is set while this
    process runs does not change it.
    """
    return BOOTED_S + time.clock_gettime(time.CLOCK_BOOTTIME)


def synchronize(device: "torch.device") -> None:
    """Wait for all work queued on the device; CPU work is never queued."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


class Laps:
    """Laps of the device's work, each with a label, read as soon as the device has passed them.

    On CUDA they are the time between events in the stream, which do not synchronise and are used
    again; on CPU between readings of a clock. Nothing waits for the device until
    `known(wait=True)`, except a host that is more than `lead` laps ahead of it: the device has work
    for that long.
    """

    def __init__(self, device: "torch.device", lead: int | None = None) -> None:
        self._device = device
        self._lead = lead
        self._cuda = device.type == "cuda"
        self._point: Callable[[], Any] = self._event if self._cuda else time.perf_counter
        self._unused: list[Any] = []
        self._ends: list[tuple[int, Any]] = []
        self._last = self._point()

    @property
    def pending(self) -> int:
        """Laps that the device is not known to have ended."""
        return len(self._ends)

    def start(self) -> None:
        """Begin anew: what is pending counts no longer."""
        for _, end in self._ends:
            self._reuse(end)
        self._reuse(self._last)
        self._ends = []
        self._last = self._point()

    def end(self, label: int = 0) -> None:
        """Credit the time since the last call to `label`."""
        self._ends.append((label, self._point()))
        if self._cuda and self._lead is not None and self.pending >= self._lead:
            (
                self._ends[-1 - self._lead][1] if self.pending > self._lead else self._last
            ).synchronize()

    def known(self, wait: bool = False) -> list[tuple[int, float]]:
        """The laps since the last call that the device has passed, each with its seconds.

        Args:
            wait: for the device, and return all.
        """
        if wait:
            synchronize(self._device)
        laps = []
        for label, end in self._ends:
            if self._cuda and not wait and not end.query():
                break
            laps.append(
                (label, self._last.elapsed_time(end) / 1e3 if self._cuda else end - self._last)
            )
            self._reuse(self._last)
            self._last = end
        del self._ends[: len(laps)]
        return laps

    def _event(self) -> Any:
        import torch

        event = self._unused.pop() if self._unused else torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _reuse(self, point: Any) -> None:
        if self._cuda:
            self._unused.append(point)


class Ranges:
    """Phase ranges for profilers (NVTX, record_function): at most one is open,
    named as in `phases_s`, or `evaluate`.

    On CUDA an NVTX range: well below a microsecond without a listener, and visible to any profiler
    attached from outside. torch's own ranges cost more and are opened only while `recording` is
    set.
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

    `begin(phase)` credits the time since the last call to the phase before. A step starts in DATA
    and ends with OPTIMIZER. On CUDA figures are GPU time, read after the epoch, and `data` is the
    time that the GPU idles while the host prepares a batch. On CPU they are wall time.

    Args:
        ranges: names the phases for a profiler.
    """

    def __init__(self, device: "torch.device", ranges: Ranges | None = None) -> None:
        self._device = device
        self._ranges = ranges
        self._laps = Laps(device)
        self._now = DATA
        self._started_s = self.paused_s = 0.0

    def start(self) -> None:
        """Begin an epoch, in DATA."""
        self.paused_s = 0.0
        self._enter(DATA)
        self._laps.start()
        self._started_s = clock_s()

    def begin(self, phase: int) -> None:
        ended = self._now
        self._enter(phase)
        self._laps.end(ended)

    def leave_out(self, paused_s: float) -> None:
        """Count the time since the last call to no step: the run paused,
        for so many seconds of the host's clock.
        """
        self.paused_s += paused_s
        self._enter(self._now)
        self._laps.end(PAUSED)

    def _enter(self, phase: int) -> None:
        self._now = phase
        if self._ranges is not None:
            self._ranges.open(PHASES[phase])

    def stop(self) -> tuple[float, np.ndarray]:
        """End the epoch.

        Returns:
            Wall seconds since `start`, the device's work included and pauses left out,
            and seconds (steps, phases).
        """
        if self._ranges is not None:
            self._ranges.close()
        synchronize(self._device)
        wall_s = clock_s() - self._started_s - self.paused_s
        return wall_s, phase_table(self._laps.known(wait=True))


def phase_table(laps: Sequence[tuple[int, float]]) -> np.ndarray:
    """Sum laps, each with its phase and seconds, by phase, but PAUSED, into seconds (steps,
    phases); a lap of OPTIMIZER ends its step.
    """
    phase, laps_s = (
        np.array([phase for phase, _ in laps], int),
        np.array([lap_s for _, lap_s in laps], float),
    )
    ends_step = phase == OPTIMIZER
    step = np.cumsum(ends_step) - ends_step  # steps that ended before this lap
    table = np.zeros((int(ends_step.sum()), len(PHASES)))
    # laps after the end of the last step belong to none
    counted = (step < len(table)) & (phase < len(PHASES))
    np.add.at(table, (step[counted], phase[counted]), laps_s[counted])
    return table
