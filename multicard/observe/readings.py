"""Readings of NVML: a sample of a GPU's state, the processes on it,
and the energy counters that ranks read.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from multicard.machine import devices
from multicard.measure.timing import clock_s

# One row per sample; NaN where a GPU does not report a figure
COLUMNS = (
    "time_s",
    "energy_joules",
    "power_w",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "temperature_c",
    "utilisation",
)
COLUMNS += ("memory_bytes", "reasons")  # NVML's bits for reduced clocks, see `gpu_record.REASONS`


def read_gpu(library: Any, handle: Any, missing: dict[str, str]) -> list[float]:
    """One sample, as COLUMNS without the time; NaN where the GPU does not report a figure, for
    which `missing` gets NVML's reason.

    Power is NVML's own: on most GPUs the mean of the last second. Utilisation is the share of
    NVML's last period (a second at most) in which any kernel ran.
    Temperature and reasons are asked by the functions that all drivers have.
    """
    calls = (
        # first, as it belongs to the time just read
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
        # of rates; of memory
        sample.append(float(getattr(value, "gpu", getattr(value, "used", value))) * scale)
    return sample


def read_processes(library: Any, handle: Any, missing: dict[str, str]) -> dict[int, int | None]:
    """Bytes that each compute or graphics process holds on a GPU, by PID; None where NVML does not
    say. Where it does not list those that compute, `missing` gets its reason, as "processes".
    """
    compute, reason = devices.ask_why(library, library.nvmlDeviceGetComputeRunningProcesses, handle)
    if reason is not None:
        missing["processes"] = reason
    graphics = devices.ask(library, library.nvmlDeviceGetGraphicsRunningProcesses, handle)
    return {process.pid: process.usedGpuMemory for process in [*(compute or []), *(graphics or [])]}


class Neighbours:
    """Separates the processes of the run's ranks on this node from foreign ones in NVML's lists.

    Descendants of this process are the run's own, other visible processes foreign. To a container
    NVML may list PIDs of the host, which are not visible: one that was there before the ranks
    started is foreign, and of later ones the first are taken as own, up to the number of ranks that
    were not seen otherwise. A host PID that another process has here is judged as that process.
    What comes and goes between two samples is missed, and in containers where NVML lists nothing no
    process is seen.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._own: dict[int, bool | None] = {}  # None: not visible. In order of appearance
        self._names: dict[int, str | None] = {}
        # by GPU and PID: first and last seen, most memory
        self._seen: dict[tuple[str, int], list[Any]] = {}

    def note(
        self,
        time_s: float,
        gpu: str,
        pid: int,
        memory_bytes: int | None,
        before_ranks: bool = False,
    ) -> None:
        """Note that a process is on a GPU."""
        if pid not in self._own:
            own, self._names[pid] = identify(pid)
            self._own[pid] = False if before_ranks and own is None else own
        seen = self._seen.setdefault((gpu, pid), [time_s, time_s, memory_bytes])
        seen[1] = time_s
        if memory_bytes is not None:
            seen[2] = max(memory_bytes, seen[2] or 0)

    def foreign(self, spans_s: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
        """Foreign processes that were seen within these spans, a row for each GPU,
        with the most memory they held.
        """
        visible_ranks = sum(own is True and pid != os.getpid() for pid, own in self._own.items())
        hidden = [pid for pid, own in self._own.items() if own is None]
        foreign = {pid for pid, own in self._own.items() if own is False}
        foreign |= {*hidden[max(0, self._ranks - visible_ranks) :]}
        return [
            {"gpu": gpu, "pid": pid, "name": self._names[pid], "memory_bytes": memory_bytes}
            for (gpu, pid), (first_s, last_s, memory_bytes) in self._seen.items()
            if pid in foreign
            and any(first_s <= end_s and last_s >= start_s for start_s, end_s in spans_s)
        ]


def identify(pid: int) -> tuple[bool | None, str | None]:
    """True for this process and its descendants (None: not visible), and the process's name."""
    import psutil

    try:
        process = psutil.Process(pid)
        return os.getpid() in (pid, *(parent.pid for parent in process.parents())), process.name()
    except psutil.NoSuchProcess:
        return None, None
    except psutil.AccessDenied:  # visible, and another user's
        return False, None


class Counters:
    """Energy counters of a rank's GPUs, read where a span begins and ends whose energy is to be
    known: between the controller's samples, a second apart, power rises as training begins,
    and the energy of 3 s is off by a tenth.

    readings: time on `clock_s`, the GPU's UUID and joules; none on CPU ranks,
    or where NVML gives none.
    """

    def __init__(self, used: Sequence[Any]) -> None:
        self.readings: list[tuple[float, str, float]] = []
        self._handles: dict[str, Any] = {}
        uuids = [uuid for device in used if (uuid := devices.used_gpu(device)) is not None]
        if not uuids:
            return
        # kept until the process ends: NVML is shut down as its context is collected
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
