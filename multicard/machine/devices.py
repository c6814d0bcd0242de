"""The GPUs that a process may use, by NVML's UUIDs, without starting CUDA on them.

CUDA counts GPUs by speed unless CUDA_DEVICE_ORDER says PCI_BUS_ID, NVML always by PCI bus. Of MIG
instances CUDA shows a process one, whatever CUDA_VISIBLE_DEVICES names (NVIDIA's MIG User Guide,
"CUDA Device Enumeration").
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

VISIBLE = "CUDA_VISIBLE_DEVICES"
ORDER = "CUDA_DEVICE_ORDER"
MIG = "MIG-"  # begins the UUID of a MIG instance


def device_order() -> str:
    """CUDA's order of GPUs: NVML's, unless the user chose another."""
    return os.environ.get(ORDER, "PCI_BUS_ID")


def variables() -> dict[str, str]:
    """The variables with which CUDA numbers the GPUs of a process as NVML does."""
    visible = visible_gpus()
    # by name, as only then it is known which instance CUDA takes
    instance = {VISIBLE: visible[0]} if visible and visible[0].startswith(MIG) else {}
    return {ORDER: device_order()} | instance


def visible_gpus() -> list[str]:
    """The GPUs that CUDA would show this process, by UUID: whole ones, or a single MIG instance."""
    named = named_gpus()
    if named and named[0].startswith(MIG):
        return named[:1]
    return [uuid for uuid in named if not uuid.startswith(MIG)]


def named_gpus() -> list[str]:
    """The GPUs and MIG instances that CUDA_VISIBLE_DEVICES names;
    each of them alone would be visible to a process.
    """
    with nvml() as library:
        if library is None:
            return []
        numbers = range(ask(library, library.nvmlDeviceGetCount) or 0)
        # None for a GPU that this process may not use, and CUDA does not count either
        handles = [ask(library, library.nvmlDeviceGetHandleByIndex, index) for index in numbers]
        uuids = {
            ask(library, library.nvmlDeviceGetUUID, handle): handle for handle in handles if handle
        }
        uuids.pop(None, None)
        chosen = select_visible(os.environ.get(VISIBLE), list(uuids))
        names = []
        for uuid in chosen:
            names.extend(_instances(library, uuid, uuids.get(uuid)))
        return names


def _instances(library: Any, uuid: str, handle: Any) -> list[str]:
    """The GPU's MIG instances; itself where it is not divided, or is an instance already."""
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
    """The UUIDs that CUDA_VISIBLE_DEVICES names of those of all GPUs, in its order; as CUDA does,
    the first wrong entry ends the list. A MIG instance (`MIG-...`) is taken as it is.
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
                known for known in uuids if entry.startswith("GPU-") and known.startswith(entry)
            ]
            if len(matches) != 1:
                break
            uuid = matches[0]
        if uuid in chosen:
            return []  # CUDA shows no device where one is named twice
        chosen.append(uuid)
    return chosen


def used_gpu(device: Any) -> str | None:
    """The UUID of the GPU behind torch's device, as NVML writes it; None on CPU,
    and where torch does not say.
    """
    if device.type != "cuda":
        return None
    import torch

    with suppress(AttributeError, RuntimeError):
        return f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    return None


@contextmanager
def nvml() -> Iterator[Any]:
    """NVML, NVIDIA's management library, which sees GPUs without starting CUDA on them;
    None where there is none.
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
    """The result of a function, bytes as text; None where GPU,
    driver or container do not support or allow it.
    """
    return ask_why(library, function, *arguments)[0]


def ask_why(library: Any, function: Callable[..., Any], *arguments: Any) -> tuple[Any, str | None]:
    """The same, and NVML's reason where there is none: Not Supported,
    Insufficient Permissions and so on.
    """
    try:
        value = function(*arguments)
    except library.NVMLError as error:
        return None, str(error)
    return value.decode() if isinstance(value, bytes) else value, None
