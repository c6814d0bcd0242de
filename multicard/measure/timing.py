"""Read clocks and time steps. No other module reads a clock.

Raw samples are stored, and statistics are computed from them later. Nothing here synchronises with
the GPU within a step.
"""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # The controller uses this module without importing torch.
    import torch

PHASES = ("data", "h2d", "forward", "backward", "optimizer")
DATA, H2D, FORWARD, BACKWARD, OPTIMIZER = range(len(PHASES))
PAUSED = len(PHASES)  # The label of a lap that belongs to no step.
# When this machine was started, in seconds since 1970.
BOOTED_S = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def clock_s() -> float:
    """Return seconds on a clock that all processes of this machine share (CLOCK_MONOTONIC)."""
    return time.monotonic()


def pause(seconds: float) -> None:
    time.sleep(seconds)


def in_hours(seconds: float) -> str:
    """Format a duration as hours, minutes and seconds, such as "1:02:03"."""
    whole_seconds = round(seconds)
    return f"{whole_seconds // 3600}:{whole_seconds // 60 % 60:02d}:{whole_seconds % 60:02d}"


def process_started_s() -> float:
    """Return when this process was started on the clock of `clock_s`, to 10 ms.

    The start-up of the interpreter comes after this time.
    """
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - (start_ticks() or 0) / os.sysconf(
        "SC_CLK_TCK"
    )
    return clock_s() - age_s


def start_ticks(process: int | str = "self") -> int | None:
    """Return when a process was started, in clock ticks since the start of the machine.

    Returns None if this cannot be read.
    """
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return None


def timestamp() -> str:
    """Return the time of day in UTC (ISO 8601) for records. It must not be used for durations."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def age_s(status: os.stat_result, now_s: float | None = None) -> float:
    """Return the seconds since a file was last written or touched.

    The end is `now_s`, or the present by the system's clock. The result is right to about a second.
    """
    return (time.time() if now_s is None else now_s) - status.st_mtime


def since_epoch_s() -> float:
    """Return the time of day in seconds since 1970, for times that a later command compares.

    If the system's clock is set while this process runs, the result does not jump.
    """
    return BOOTED_S + time.clock_gettime(time.CLOCK_BOOTTIME)


def synchronize(device: "torch.device") -> None:
    """Wait for all work that is queued on the device. CPU work is never queued."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


class Laps:
    """Times labelled laps of the device's work.

    On CUDA, a lap is the time between two events in the stream. Events do not synchronise, and are
    reused. On the CPU, it is the time between two readings of a clock. Laps can be read as soon as
    the device has passed them.

    Nothing waits for the device, except `known(wait=True)` and a host that is more than `lead` laps
    ahead of it. The device then still has work for `lead` laps.
    """

    def __init__(self, device: "torch.device", lead: int | None = None) -> None:
        self._device = device
        self._lead = lead
        self._cuda = device.type == "cuda"
        self._mark: Callable[[], Any] = self._event if self._cuda else time.perf_counter
        self._unused_events: list[Any] = []
        self._ends: list[tuple[int, Any]] = []
        self._last = self._mark()

    @property
    def pending(self) -> int:
        """Number of laps that the device may not have passed yet."""
        return len(self._ends)

    def start(self) -> None:
        """Begin anew, and drop the pending laps."""
        for _, end in self._ends:
            self._recycle(end)
        self._recycle(self._last)
        self._ends = []
        self._last = self._mark()

    def end(self, label: int = 0) -> None:
        """Credit the time since the last call to `label`."""
        self._ends.append((label, self._mark()))
        if self._cuda and self._lead is not None and self.pending >= self._lead:
            event = self._ends[-1 - self._lead][1] if self.pending > self._lead else self._last
            event.synchronize()

    def known(self, wait: bool = False) -> list[tuple[int, float]]:
        """Return the laps since the last call that the device has passed, as (label, seconds).

        Args:
            wait: Wait for the device, and return all laps.
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
            self._recycle(self._last)
            self._last = end
        del self._ends[: len(laps)]
        return laps

    def _event(self) -> Any:
        import torch

        event = (
            self._unused_events.pop()
            if self._unused_events
            else torch.cuda.Event(enable_timing=True)
        )
        event.record()
        return event

    def _recycle(self, point: Any) -> None:
        if self._cuda:
            self._unused_events.append(point)


class Ranges:
    """Marks phases for profilers, by NVTX or record_function. At most one phase is open.

    Phases are named as in `phases_s`, or `evaluate`. On CUDA, NVTX ranges are always set: without a
    profiler they take far less than a microsecond, and any profiler attached from outside sees
    them. torch's own ranges cost more, and are only set while `recording` is True.
    """

    def __init__(self, device: "torch.device", nvtx: bool = False) -> None:
        from torch import cuda, profiler

        self.recording = False
        self._nvtx = cuda.nvtx if nvtx or device.type == "cuda" else None
        self._record_function = profiler.record_function
        self._is_pushed = False
        self._recorded: Any = None

    def open(self, name: str) -> None:
        """Close the open phase, and open another."""
        self.close()
        if self._nvtx is not None:
            self._nvtx.range_push(name)
            self._is_pushed = True
        if self.recording:
            self._recorded = self._record_function(name)
            self._recorded.__enter__()

    def close(self) -> None:
        if self._recorded is not None:
            self._recorded.__exit__(None, None, None)
            self._recorded = None
        if self._nvtx is not None and self._is_pushed:
            self._nvtx.range_pop()
            self._is_pushed = False


class StepTimer:
    """Measures the seconds of each step in each of `PHASES`.

    `begin(phase)` counts the time since the last call to the previous phase. A step starts in DATA
    and ends with OPTIMIZER. On the CPU, times are wall time. On CUDA, they are GPU time and are
    read after the epoch; `data` is then the time in which the GPU idles while the host prepares a
    batch.

    Args:
        ranges: Marks the phases for a profiler.
    """

    def __init__(self, device: "torch.device", ranges: Ranges | None = None) -> None:
        self._device = device
        self._ranges = ranges
        self._laps = Laps(device)
        self._phase = DATA
        self._started_s = self.paused_s = 0.0

    def start(self) -> None:
        """Begin an epoch, in DATA."""
        self.paused_s = 0.0
        self._enter(DATA)
        self._laps.start()
        self._started_s = clock_s()

    def begin(self, phase: int) -> None:
        ended_phase = self._phase
        self._enter(phase)
        self._laps.end(ended_phase)

    def leave_out(self, paused_s: float) -> None:
        """Leave the time since the last call out of all steps, because the run paused.

        The pause took `paused_s` seconds of the host's clock.
        """
        self.paused_s += paused_s
        self._enter(self._phase)
        self._laps.end(PAUSED)

    def _enter(self, phase: int) -> None:
        self._phase = phase
        if self._ranges is not None:
            self._ranges.open(PHASES[phase])

    def stop(self) -> tuple[float, np.ndarray]:
        """End the epoch.

        Returns:
            The wall time since `start` in seconds, with the device's work and without pauses, and
            the seconds of each phase (steps, phases).
        """
        if self._ranges is not None:
            self._ranges.close()
        synchronize(self._device)
        wall_s = clock_s() - self._started_s - self.paused_s
        return wall_s, phase_table(self._laps.known(wait=True))


def phase_table(laps: Sequence[tuple[int, float]]) -> np.ndarray:
    """Sum laps (phase, seconds) to a table of seconds (steps, phases).

    A lap of OPTIMIZER ends its step. PAUSED laps are left out.
    """
    phase = np.array([phase for phase, _ in laps], int)
    laps_s = np.array([lap_s for _, lap_s in laps], float)
    ends_step = phase == OPTIMIZER
    step = np.cumsum(ends_step) - ends_step  # Number of steps that ended before this lap.
    table = np.zeros((int(ends_step.sum()), len(PHASES)))
    # Laps after the end of the last step belong to no step.
    is_counted = (step < len(table)) & (phase < len(PHASES))
    np.add.at(table, (step[is_counted], phase[is_counted]), laps_s[is_counted])
    return table
