"""NVML readings of one GPU: a sample of its state, and the processes on it."""

from functools import partial
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
    "reasons",  # NVML's bits for reduced clocks, see `integrals.REASONS`
)


def read_gpu(library: Any, handle: Any) -> list[float]:
    """One sample, as COLUMNS without the time; NaN where the GPU does not report a figure.

    Power is NVML's own: on most GPUs the mean of the last second. Utilisation is the share of NVML's last period (a
    second at most) in which any kernel ran.
    """
    ask = partial(nvml.ask, library)
    millijoules = ask(library.nvmlDeviceGetTotalEnergyConsumption, handle)  # first: it belongs to the time just read
    milliwatts = ask(library.nvmlDeviceGetPowerUsage, handle)
    temperature_c = ask(library.nvmlDeviceGetTemperatureV, handle, library.NVML_TEMPERATURE_GPU)
    if temperature_c is None:  # an older driver
        temperature_c = ask(library.nvmlDeviceGetTemperature, handle, library.NVML_TEMPERATURE_GPU)
    rates = ask(library.nvmlDeviceGetUtilizationRates, handle)
    reasons = ask(library.nvmlDeviceGetCurrentClocksEventReasons, handle)
    if reasons is None:  # older drivers call it so
        reasons = ask(library.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    figures = (
        None if millijoules is None else millijoules / 1e3,
        None if milliwatts is None else milliwatts / 1e3,
        ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_SM),
        ask(library.nvmlDeviceGetClockInfo, handle, library.NVML_CLOCK_MEM),
        temperature_c,
        None if rates is None else rates.gpu / 100,
        reasons,
    )
    return [float("nan") if figure is None else float(figure) for figure in figures]


def read_processes(library: Any, handle: Any) -> dict[int, int | None]:
    """Bytes that each compute or graphics process holds on a GPU, by PID; None where NVML does not say."""
    held_bytes: dict[int, int | None] = {}
    for function in (library.nvmlDeviceGetComputeRunningProcesses, library.nvmlDeviceGetGraphicsRunningProcesses):
        for process in nvml.ask(library, function, handle) or []:
            held_bytes[process.pid] = process.usedGpuMemory
    return held_bytes


def process_name(library: Any, pid: int) -> str | None:
    """NVML's name of a process, which may be invisible to this container."""
    name = nvml.ask(library, library.nvmlSystemGetProcessName, pid)
    return None if name is None else Path(name).name
