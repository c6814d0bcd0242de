"""Read the memory counters of this process and its device. No other module reads them."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch


class DeviceMemory(NamedTuple):
    """The memory of a CUDA device, including that of other processes.

    Attributes:
        failed_allocations: Number of torch's failed allocations in this process, including those
            whose error was caught.
    """

    free_bytes: int
    total_bytes: int
    failed_allocations: int


def reset_peak_memory(device: "torch.device") -> None:
    """Reset the peak to what is allocated now, if the system allows it."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    # This needs a kernel with CONFIG_PROC_PAGE_MONITOR. Without it, the peak stays the process's.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def held_memory_bytes(device: str) -> int:
    """Return the memory in use: torch's allocations on CUDA, and the resident set on the CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_memory_bytes() -> int:
    """Return this process's resident memory, without memory that is shared or mapped from files."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def free_memory_bytes(device: "torch.device") -> int:
    """Return the memory that can still be allocated on the GPU, or on the machine for a CPU."""
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def available_memory_bytes() -> int:
    """Return the memory of this machine that processes can still get.

    It does not exceed the limit of their control groups.
    """
    import psutil

    # Without a limit, version 1 of control groups has a number that exceeds all memory.
    limit_texts = _cgroup_files("memory.limit_in_bytes", "memory.max")
    return min(
        [
            psutil.virtual_memory().available,
            *(int(text) for text in limit_texts if text.strip().isdecimal()),
        ]
    )


def device_memory(device: str) -> DeviceMemory | None:
    """Return the memory of the current device.

    Returns None on the CPU, and if CUDA has not started or does not respond.
    """
    if device != "cuda":
        return None
    import torch

    if not torch.cuda.is_initialized():
        return None
    try:
        return DeviceMemory(
            *torch.cuda.mem_get_info(), torch.cuda.memory_stats().get("num_ooms", 0)
        )
    except RuntimeError:
        return None


def free_shared_memory_bytes() -> int | None:
    """Return the bytes that processes can still share through /dev/shm.

    Returns None if the system has no such folder.
    """
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return None


SHARED_MEMORY = Path("/dev/shm")  # Loaders' workers, and caches, store data here.
CGROUPS = Path("/sys/fs/cgroup")
PROCESS_CGROUPS = Path("/proc/self/cgroup")


def oom_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for lack of memory.

    The group or the whole machine may have run out of memory. The number is in memory.events
    (version 2) or memory.oom_control (version 1). Returns None if neither has it.

    SLURM's jobs and containers each have a control group. Inside a container, its group may be at
    the root of the tree.
    """
    for text in _cgroup_files("memory.oom_control", "memory.events"):
        counts = dict(row.split() for row in text.splitlines())
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return None


def _cgroup_files(name_of_version_1: str, name_of_version_2: str) -> Iterator[str]:
    """Yield a memory controller's file of this process's control group, and of its parents."""
    with suppress(OSError):
        # A line is "0::/path" in version 2, and "4:memory:/path" in version 1.
        for line in PROCESS_CGROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            root, name = (
                (CGROUPS / "memory", name_of_version_1)
                if controllers
                else (CGROUPS, name_of_version_2)
            )
            if controllers and "memory" not in controllers.split(","):
                continue
            group = Path(path)
            for parent in (group, *group.parents):
                with suppress(OSError):
                    yield (root / parent.relative_to("/") / name).read_text()


def peak_memory_bytes(device: "torch.device") -> int:
    """Return this process's peak memory.

    On CUDA, this is torch's allocations and the memory of CUDA graphs. On the CPU, it is the
    resident set.
    """
    if device.type == "cuda":
        import torch

        peak = torch.cuda.max_memory_allocated(device)
        if "torch._inductor.cudagraph_trees" in sys.modules:
            peak += graph_pool_bytes(torch.cuda.memory_snapshot(include_traces=False), device.index)
        return peak
    return peak_resident_bytes()


def graph_pool_bytes(segments: list[dict[str, Any]], device: int | None) -> int:
    """Return the memory in the pools of CUDA graphs that does not count as allocated.

    When a graph is replayed, it writes to this memory, but torch's counters do not change.

    Args:
        segments: The result of `torch.cuda.memory_snapshot`.
        device: Index of the device.
    """
    pools = [
        segment
        for segment in segments
        if segment["device"] == (device or 0) and tuple(segment["segment_pool_id"]) != (0, 0)
    ]
    return sum(segment["total_size"] - segment["allocated_size"] for segment in pools)


def peak_resident_bytes() -> int:
    """Return the peak of this process's resident set (VmHWM).

    `ru_maxrss` would not do: it survives exec, and so includes the program that ran before.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
