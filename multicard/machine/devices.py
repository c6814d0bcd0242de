"""Find the GPUs that a process may use, by their UUIDs in NVML, without starting CUDA on them.

NVML always orders GPUs by PCI bus. CUDA orders them by speed, unless CUDA_DEVICE_ORDER is
PCI_BUS_ID. CUDA shows a process a single MIG instance, whatever CUDA_VISIBLE_DEVICES names
(NVIDIA's MIG User Guide, "CUDA Device Enumeration").
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MIG = "MIG-"  # The UUID of a MIG instance begins like this.


def device_order() -> str:
    """Return the order in which CUDA counts GPUs: NVML's order, unless the user chose another."""
    return os.environ.get(ORDER, "PCI_BUS_ID")


def variables() -> dict[str, str]:
    """Return the environment variables with which CUDA numbers a process's GPUs as NVML does."""
    visible = visible_gpus()
    # Naming one MIG instance decides which of several CUDA takes.
    instance = {VISIBLE: visible[0]} if visible and visible[0].startswith(MIG) else {}
    return {ORDER: device_order()} | instance


def visible_gpus() -> list[str]:
    """Return the UUIDs of the GPUs that CUDA shows this process: whole GPUs or one MIG instance."""
    named_uuids = named_gpus()
    if named_uuids and named_uuids[0].startswith(MIG):
        return named_uuids[:1]
    return [uuid for uuid in named_uuids if not uuid.startswith(MIG)]


def named_gpus() -> list[str]:
    """Return the GPUs and MIG instances that CUDA_VISIBLE_DEVICES names.

    Each of them would be visible to a process if it were named alone.
    """
    with nvml() as library:
        if library is None:
            return []
        numbers = range(ask(library, library.nvmlDeviceGetCount) or 0)
        # The handle of a GPU that this process may not use is None. CUDA does not count it either.
        handles = [ask(library, library.nvmlDeviceGetHandleByIndex, index) for index in numbers]
        uuids = {
            ask(library, library.nvmlDeviceGetUUID, handle): handle for handle in handles if handle
        }
        uuids.pop(None, None)
        chosen = select_visible(os.environ.get(VISIBLE), list(uuids))
        names = []
        for uuid in chosen:
            names.extend(_mig_instances(library, uuid, uuids.get(uuid)))
        return names


def _mig_instances(library: Any, uuid: str, handle: Any) -> list[str]:
    """Return a GPU's MIG instances. An undivided GPU, or an instance, gives its own UUID."""
    mode = None if handle is None else ask(library, library.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != library.NVML_DEVICE_MIG_ENABLE:
        return [uuid]
    count = ask(library, library.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    instances = [
        ask(library, library.nvmlDeviceGetMigDeviceHandleByIndex, handle, i) for i in range(count)
    ]
    return [
        ask(library, library.nvmlDeviceGetUUID, instance)
        for instance in instances
        if instance is not None
    ]


def select_visible(setting: str | None, uuids: list[str]) -> list[str]:
    """Return the UUIDs that CUDA_VISIBLE_DEVICES selects, in its order.

    As in CUDA, the first wrong entry ends the list. A MIG instance (`MIG-...`) is not checked.
    """
    if setting is None:
        return uuids
    chosen: list[str] = []
    for entry in (part.strip() for part in setting.split(",")):
        if entry.isdecimal() and int(entry) < len(uuids):
            uuid = uuids[int(entry)]
        elif entry.startswith(MIG):
            uuid = entry
        else:
            matches = [
                full_uuid
                for full_uuid in uuids
                if entry.startswith("GPU-") and full_uuid.startswith(entry)
            ]
            if len(matches) != 1:
                break
            uuid = matches[0]
        if uuid in chosen:
            return []  # If a device is named twice, CUDA shows none.
        chosen.append(uuid)
    return chosen


def used_gpu(device: Any) -> str | None:
    """Return NVML's UUID of the GPU behind a torch device.

    Return None on CPU, and if torch does not know the UUID.
    """
    if device.type != "cuda":
        return None
    import torch

    with suppress(AttributeError, RuntimeError):
        return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return None


@contextmanager
def nvml() -> Iterator[Any]:
    """Yield NVML, NVIDIA's management library, or None if it is absent.

    NVML sees GPUs without starting CUDA on them.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(library: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call an NVML function and return its result, with bytes as text.

    Return None if the GPU, driver or container does not support or allow the call.
    """
    return ask_why(library, function, *arguments)[0]


def ask_why(library: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """Call an NVML function like `ask`, and also return NVML's reason if it fails.

    Reasons are texts such as Not Supported or Insufficient Permissions.
    """
    try:
        value = function(*arguments)
    except library.NVMLError as error:
        return None, str(error)
    return value.decode() if isinstance(value, bytes) else value, None
