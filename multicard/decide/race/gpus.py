"""Memory and energy counters of the GPUs, as the race reads them from outside of its cells' processes."""

from collections.abc import Sequence
from typing import Any

from multicard.machine import devices, nvml
from multicard.measure import memory


def free_bytes(on_gpus: bool) -> int:
    """Memory that a process can still have: of the host, or of the GPU that has least."""
    if not on_gpus:
        return memory.available_memory_bytes()
    with nvml.opened() as library:
        used = [_ask(library, "nvmlDeviceGetMemoryInfo", uuid) for uuid in devices.visible_gpus()]
    return min((0 if each is None else each.free for each in used), default=0)


def joules(uuids: Sequence[str]) -> float | None:
    """What the GPUs' energy counters show, together; None where there is no GPU, or one has no counter."""
    with nvml.opened() as library:
        read = [_ask(library, "nvmlDeviceGetTotalEnergyConsumption", uuid) for uuid in uuids]
    return 1e-3 * sum(read) if read and None not in read else None


def _ask(library: Any, function: str, uuid: str) -> Any:
    handle = None if library is None else nvml.ask(library, library.nvmlDeviceGetHandleByUUID, uuid)
    return None if handle is None else nvml.ask(library, getattr(library, function), handle)
