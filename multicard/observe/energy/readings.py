"""Readings of NVML: a sample of a GPU's state, the processes on it, and the energy counters that ranks read."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from multicard.machine import devices, nvml
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
    "memory_bytes",
    "reasons",  # NVML's bits for reduced clocks, see `gpu_record.REASONS`
)


def read_gpu(library: Any, handle: Any, missing: dict[str, str]) -> list[float]:
    """One sample, as COLUMNS without the time; NaN where the GPU does not report a figure.

    Power is NVML's own: on most GPUs the mean of the last second. Utilisation is the share of NVML's last period (a
    second at most) in which any kernel ran.

    Args:
        missing: gets NVML's reason for each column that is NaN.
    """

    def ask(column: str, *calls: tuple[Any, ...], scale: float = 1.0) -> float:
        """The first answer of these functions, each with what it takes besides the handle: older drivers know the last
        alone."""
        reason = None
        for function, *arguments in calls:
            value, reason = nvml.ask_why(library, function, handle, *arguments)
            if value is not None:  # utilisation: of the GPU, not of its memory; memory: in use
                return float(getattr(value, "gpu", getattr(value, "used", value))) * scale
        missing[column] = reason or "no value"
        return float("nan")

    sensor = library.NVML_TEMPERATURE_GPU
    return [
        # first, as it belongs to the time just read
        ask("energy_joules", (library.nvmlDeviceGetTotalEnergyConsumption,), scale=1e-3),
        ask("power_w", (library.nvmlDeviceGetPowerUsage,), scale=1e-3),
        ask("sm_clock_mhz", (library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM)),
        ask("memory_clock_mhz", (library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_MEM)),
        ask(
            "temperature_c",
            (library.nvmlDeviceGetTemperatureV, sensor),
            (library.nvmlDeviceGetTemperature, sensor),
        ),
        ask("utilisation", (library.nvmlDeviceGetUtilizationRates,), scale=0.01),
        ask("memory_bytes", (library.nvmlDeviceGetMemoryInfo,)),
        ask(
            "reasons",
            (library.nvmlDeviceGetCurrentClocksEventReasons,),
            (library.nvmlDeviceGetCurrentClocksThrottleReasons,),
        ),
    ]


def read_processes(library: Any, handle: Any, missing: dict[str, str]) -> dict[int, int | None]:
    """Bytes that each compute or graphics process holds on a GPU, by PID; None where NVML does not say.

    Args:
        missing: gets NVML's reason, as "processes", where it does not list those that compute.
    """
    compute, reason = nvml.ask_why(library, library.nvmlDeviceGetComputeRunningProcesses, handle)
    if reason is not None:
        missing["processes"] = reason
    graphics = nvml.ask(library, library.nvmlDeviceGetGraphicsRunningProcesses, handle)
    held_bytes: dict[int, int | None] = {}
    for process in [*(compute or []), *(graphics or [])]:
        held_bytes[process.pid] = process.usedGpuMemory
    return held_bytes


def process_name(library: Any, pid: int) -> str | None:
    """NVML's name of a process, which may be invisible to this container."""
    name = nvml.ask(library, library.nvmlSystemGetProcessName, pid)
    return None if name is None else Path(name).name


Reading = tuple[float, str, float]  # on `clock_s`, the GPU's UUID, joules


class Counters:
    """The counters of the GPUs that a rank uses, read where a span begins and ends whose energy is to be known: between
    the controller's samples, a second apart, power rises as training begins, and the energy of 3 s is off by a tenth.

    There is nothing to read on CPU ranks, or where NVML gives none.

    readings: all so far, in the order in which they were taken.
    """

    def __init__(self, used: Sequence[Any]) -> None:
        self.readings: list[Reading] = []
        self._handles: dict[str, Any] = {}
        uuids = [uuid for device in used if (uuid := devices.used_gpu(device)) is not None]
        if not uuids:
            return
        self._library = ExitStack().enter_context(nvml.opened())  # until the process ends
        if self._library is not None:
            handles = {uuid: nvml.ask(self._library, self._library.nvmlDeviceGetHandleByUUID, uuid) for uuid in uuids}
            self._handles = {uuid: handle for uuid, handle in handles.items() if handle is not None}

    def read(self) -> None:
        """Read all counters. Call it right before a span begins and right after it has ended."""
        for uuid, handle in self._handles.items():
            time_s = clock_s()
            mj = nvml.ask(self._library, self._library.nvmlDeviceGetTotalEnergyConsumption, handle)
            if mj is not None:
                self.readings.append((time_s, uuid, 1e-3 * mj))
