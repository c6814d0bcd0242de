"""NVML readings of one GPU: a sample of its state, and the processes on it."""

from pathlib import Path
from typing import Any

from multicard.machine import nvml

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
    "reasons",  # NVML's bits for reduced clocks, see `integrals.REASONS`
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
