"""Readings of NVML: samples of a GPU's state, its processes, and energy counters for ranks."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from multicard.machine import devices
from multicard.measure.timing import clock_s

# A sample has one row. A figure that the GPU does not report is NaN.
COLUMNS = (
    "time_s",
    "energy_joules",
    "power_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "utilisation",
)
# `reasons` holds NVML's bits for reduced clocks, see `gpu_record.REASONS`.
COLUMNS += ("memory_bytes", "reasons")


def read_gpu(library: Any, handle: Any, missing: dict[str, str]) -> list[float]:
    """Return one sample: COLUMNS without the time.

    If the GPU does not report a figure, it is NaN, and `missing` gets NVML's reason. NVML defines
    power, on most GPUs as the mean of the last second. Utilisation is the share of NVML's last
    period (a second at most) in which any kernel ran. Temperature and reasons use the functions
    that all drivers have.
    """
    calls = (
        # Energy comes first, because it belongs to the time that was just read.
        (1e-3, library.nvmlDeviceGetTotalEnergyConsumption),
        (1e-3, library.nvmlDeviceGetPowerUsage),
        (1, library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM),
        (1, library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_MEM),
        (1, library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU),
        (0.01, library.nvmlDeviceGetUtilizationRates),
        (1, library.nvmlDeviceGetMemoryInfo),
        (1, library.nvmlDeviceGetCurrentClocksThrottleReasons),
    )
    sample = []
    for column, (scale, function, *arguments) in zip(COLUMNS[1:], calls, strict=True):
        value, reason = devices.ask_why(library, function, handle, *arguments)
        if value is None:
            missing[column] = reason or "no value"
            value = float("nan")
        # Utilisation rates have `gpu`, and memory has `used`.
        sample.append(float(getattr(value, "gpu", getattr(value, "used", value))) * scale)
    return sample


def read_processes(library: Any, handle: Any, missing: dict[str, str]) -> dict[int, int | None]:
    """Return the bytes that each compute or graphics process holds on a GPU, by PID.

    Unknown bytes are None. If NVML does not list compute processes, `missing` gets its reason as
    "processes".
    """
    compute, reason = devices.ask_why(library, library.nvmlDeviceGetComputeRunningProcesses, handle)
    if reason is not None:
        missing["processes"] = reason
    graphics = devices.ask(library, library.nvmlDeviceGetGraphicsRunningProcesses, handle)
    return {process.pid: process.usedGpuMemory for process in [*(compute or []), *(graphics or [])]}


class Neighbours:
    """Separates the processes of the run's ranks on this node from foreign ones in NVML's lists.

    Descendants of this process belong to the run, and other visible processes are foreign. In a
    container, NVML may list PIDs of the host, which are not visible here. Such a PID is foreign if
    it was listed before the ranks started. Of later ones, the first count as the run's, up to the
    number of ranks that are not visible. If another process here happens to have a host PID, the
    PID is judged as that process.

    Processes that come and go between two samples are missed. In containers where NVML lists
    nothing, no process is seen.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        # By PID in order of appearance. None means that the process is not visible.
        self._is_own: dict[int, bool | None] = {}
        self._names: dict[int, str | None] = {}
        # By GPU and PID: times of the first and last sighting, and the most memory.
        self._sightings: dict[tuple[str, int], list[Any]] = {}

    def note(
        self,
        time_s: float,
        gpu: str,
        pid: int,
        memory_bytes: int | None,
        before_ranks: bool = False,
    ) -> None:
        """Note that a process is on a GPU."""
        if pid not in self._is_own:
            is_own, self._names[pid] = identify(pid)
            self._is_own[pid] = False if before_ranks and is_own is None else is_own
        sighting = self._sightings.setdefault((gpu, pid), [time_s, time_s, memory_bytes])
        sighting[1] = time_s
        if memory_bytes is not None:
            sighting[2] = max(memory_bytes, sighting[2] or 0)

    def foreign(self, spans_s: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
        """Return foreign processes seen within these spans, with the most memory they held.

        There is a row for each GPU.
        """
        visible_ranks = sum(
            is_own is True and pid != os.getpid() for pid, is_own in self._is_own.items()
        )
        invisible = [pid for pid, is_own in self._is_own.items() if is_own is None]
        foreign_pids = {pid for pid, is_own in self._is_own.items() if is_own is False}
        foreign_pids |= {*invisible[max(0, self._ranks - visible_ranks) :]}
        return [
            {"gpu": gpu, "pid": pid, "name": self._names[pid], "memory_bytes": memory_bytes}
            for (gpu, pid), (first_s, last_s, memory_bytes) in self._sightings.items()
            if pid in foreign_pids
            and any(first_s <= end_s and last_s >= start_s for start_s, end_s in spans_s)
        ]


def identify(pid: int) -> tuple[bool | None, str | None]:
    """Return whether a PID is this process or its descendant, and its name. None: not visible."""
    import psutil

    try:
        process = psutil.Process(pid)
        return os.getpid() in (pid, *(parent.pid for parent in process.parents())), process.name()
    except psutil.NoSuchProcess:
        return None, None
    except psutil.AccessDenied:  # It is visible, and belongs to another user.
        return False, None


class Counters:
    """Energy counters of a rank's GPUs, read at the start and end of a span.

    The controller's samples are a second apart, and power rises as training begins. By these
    samples alone, the energy of 3 s would be off by a tenth.

    Attributes:
        readings: time on `clock_s`, the GPU's UUID and joules. Empty on CPU ranks, and if NVML has
            no counter.
    """

    def __init__(self, used: Sequence[Any]) -> None:
        self.readings: list[tuple[float, str, float]] = []
        self._handles: dict[str, Any] = {}
        uuids = [uuid for device in used if (uuid := devices.used_gpu(device)) is not None]
        if not uuids:
            return
        # Open until the process ends: NVML is shut down when its context is collected.
        self._open = ExitStack()
        self._library = self._open.enter_context(devices.nvml())
        if self._library is None:
            return
        for uuid in uuids:
            handle = devices.ask(self._library, self._library.nvmlDeviceGetHandleByUUID, uuid)
            if handle is not None:
                self._handles[uuid] = handle

    def read(self) -> None:
        """Read the counters. Call it right before a span begins and right after it has ended."""
        for uuid, handle in self._handles.items():
            time_s = clock_s()
            mj = devices.ask(
                self._library, self._library.nvmlDeviceGetTotalEnergyConsumption, handle
            )
            if mj is not None:
                self.readings.append((time_s, uuid, 1e-3 * mj))
