"""Memory counters: of a device, of a process."""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def synchronize(device: "torch.device") -> None:
    """Wait until the device has done what it was given; on CPU nothing is ever outstanding."""
    if device.type == "cuda":
        import torch

        torch.cuda.synchronize(device)


def reset_peak_memory(device: "torch.device") -> None:
    """Forget the peak so far, as far as the system allows: what is held now still counts."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):  # needs a kernel with CONFIG_PROC_PAGE_MONITOR; without, the peak is the process's
        Path("/proc/self/clear_refs").write_text("5")


def held_memory_bytes(device: str) -> int:
    """What this process holds now: in torch's allocator on CUDA, resident in memory on CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_memory_bytes(device: "torch.device") -> int:
    """What can still be allocated: on the GPU, whoever uses the rest; on CPU what the system can give."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def proportional_memory_bytes() -> int:
    """This process's resident memory, each page divided by the number of processes that map it (PSS)."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def peak_memory_bytes(device: "torch.device") -> int:
    """This process's peak: bytes that torch's allocator handed out on CUDA, else the resident set (VmHWM).

    VmHWM and not `ru_maxrss`, which a process inherits from what it was before exec.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def peak_memory_kind(device_type: str) -> str:
    return "cuda_allocated" if device_type == "cuda" else "rss"
