"""NVML without a GPU: the functions of `pynvml` that are asked, over GPUs that a test makes up.

Constants and errors are pynvml's own, and so are the names: what
pynvml does not have cannot be asked here either.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest


def process(pid: int, memory_bytes: int | None = None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=memory_bytes)


@dataclass
class Gpu:
    """What NVML says of one GPU; functions in `lacks` (without "nvmlDeviceGet") are not supported
    by it, those in `forbids` not permitted; `instances` are its MIG instances,
    None where it is not divided.
    """

    uuid: str
    bus: int = 0
    energy_mj: int = 0
    power_mw: int = 100_000
    sm_clock_mhz: int = 1980
    memory_clock_mhz: int = 2619
    temperature_c: int = 40
    utilisation_percent: int = 50
    reasons: int = 0
    compute: list[SimpleNamespace] = field(default_factory=list)
    graphics: list[SimpleNamespace] = field(default_factory=list)
    nvlinks: list[tuple[int, int]] = field(default_factory=list)  # (kind of the other end, its bus)
    lacks: tuple[str, ...] = ()
    forbids: tuple[str, ...] = ()
    instances: "list[Gpu] | None" = None
    # generation now and at most, width now and at most
    pcie: tuple[int, int, int, int] = (4, 5, 8, 16)


def of_gpu(name: str, read: Callable[..., Any]) -> Callable[..., Any]:
    def function(handle: Gpu, *arguments: Any) -> Any:
        if name.removeprefix("nvmlDeviceGet") in handle.lacks:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        if name.removeprefix("nvmlDeviceGet") in handle.forbids:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return read(handle, *arguments)

    return function


def _link(gpu: Gpu, link: int) -> tuple[int, int]:
    if link >= len(gpu.nvlinks):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
    return gpu.nvlinks[link]


def _instance(gpu: Gpu, index: int) -> Gpu:
    if index >= len(gpu.instances or []):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return (gpu.instances or [])[index]


def _clock(gpu: Gpu, kind: int) -> int:
    return {pynvml.NVML_CLOCK_SM: gpu.sm_clock_mhz, pynvml.NVML_CLOCK_MEM: gpu.memory_clock_mhz}[
        kind
    ]


def _pci(bus: int) -> SimpleNamespace:
    return SimpleNamespace(domain=0, bus=bus, device=0)


READS: dict[str, Callable[..., Any]] = {
    "nvmlDeviceGetUUID": lambda gpu: gpu.uuid,
    "nvmlDeviceGetIndex": lambda gpu: gpu.bus,
    "nvmlDeviceGetName": lambda _: "H200",
    "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=150_000_000_000, used=3_000_000_000),
    "nvmlDeviceGetMaxClockInfo": _clock,
    "nvmlDeviceGetTotalEnergyConsumption": lambda gpu: gpu.energy_mj,
    "nvmlDeviceGetPowerUsage": lambda gpu: gpu.power_mw,
    "nvmlDeviceGetClockInfo": _clock,
    "nvmlDeviceGetTemperature": lambda gpu, sensor: {
        pynvml.NVML_TEMPERATURE_GPU: gpu.temperature_c
    }[sensor],
    "nvmlDeviceGetUtilizationRates": lambda gpu: SimpleNamespace(
        gpu=gpu.utilisation_percent, memory=0
    ),
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda gpu: gpu.reasons,
    "nvmlDeviceGetComputeRunningProcesses": lambda gpu: list(gpu.compute),
    "nvmlDeviceGetGraphicsRunningProcesses": lambda gpu: list(gpu.graphics),
    "nvmlDeviceGetPciInfo": lambda gpu: _pci(gpu.bus),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda gpu: gpu.pcie[0],
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda gpu: gpu.pcie[1],
    "nvmlDeviceGetCurrPcieLinkWidth": lambda gpu: gpu.pcie[2],
    "nvmlDeviceGetMaxPcieLinkWidth": lambda gpu: gpu.pcie[3],
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 650_000,
    "nvmlDeviceGetPowerManagementDefaultLimit": lambda _: 700_000,
    "nvmlDeviceGetNvLinkState": lambda gpu, link: int(_link(gpu, link) is not None),
    "nvmlDeviceGetNvLinkRemoteDeviceType": lambda gpu, link: _link(gpu, link)[0],
    "nvmlDeviceGetNvLinkRemotePciInfo": lambda gpu, link: _pci(_link(gpu, link)[1]),
    "nvmlDeviceGetMigMode": lambda gpu: [int(gpu.instances is not None)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": _instance,
    "nvmlDeviceGetTopologyCommonAncestor": lambda one, other: pynvml.NVML_TOPOLOGY_SYSTEM,
}


class Nvml:
    """In the place of the module."""

    def __init__(self, *gpus: Gpu, driver: bool = True) -> None:
        self.gpus, self.driver = gpus, driver
        self.open = 0  # inits that have not been shut down

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        if name in READS:
            return self.opened(of_gpu(name, READS[name]))
        assert not callable(real) or isinstance(real, type), f"{name} has no stand-in"
        return real

    def opened(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which NVML refuses before it is initialised and once it is shut down."""

        def ask(*arguments: Any) -> Any:
            if not self.open:
                raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
            return function(*arguments)

        return ask

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if not self.driver:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        return self.opened(of_gpu("HandleByIndex", lambda gpu: gpu))(self.gpus[index])

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:  # noqa: N802
        for gpu in (
            *self.gpus,
            *(instance for whole in self.gpus for instance in whole.instances or []),
        ):
            if gpu.uuid == uuid:
                return self.opened(of_gpu("HandleByUUID", lambda gpu: gpu))(gpu)
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.1"


def install(monkeypatch: pytest.MonkeyPatch, nvml: Nvml) -> Nvml:
    """Have `multicard.machine.devices` open this one."""
    monkeypatch.setitem(__import__("sys").modules, "pynvml", nvml)
    return nvml
