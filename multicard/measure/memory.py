"""Memory counters of this process and of its device; no other module reads one."""

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
    """Memory of a CUDA device, whoever holds it; `failed_allocations` of torch in this process,
    caught ones too.
    """

    free_bytes: int
    total_bytes: int
    failed_allocations: int


def reset_peak_memory(device: "torch.device") -> None:
    """Restart the peak at what is allocated now, where the system allows it."""
    if device.type == "cuda":
        import torch

        torch.cuda.reset_peak_memory_stats(device)
        return
    # needs a kernel with CONFIG_PROC_PAGE_MONITOR; without, the peak is the process's
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def held_memory_bytes(device: str) -> int:
    """Memory that this process holds now: torch's allocations on CUDA, the resident set on CPU."""
    if device == "cuda":
        import torch

        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_memory_bytes() -> int:
    """This process's resident memory without what is mapped from files or shared."""
    resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def free_memory_bytes(device: "torch.device") -> int:
    """Memory that can still be allocated: free on the GPU, whoever holds the rest,
    or available in the system.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


def available_memory_bytes() -> int:
    """Memory of this machine that processes can still have;
    no more than the limit of their control groups.
    """
    import psutil

    # version 1 has a number above all memory for none
    limits = _cgroup_files("memory.limit_in_bytes", "memory.max")
    return min(
        [
            psutil.virtual_memory().available,
            *(int(text) for text in limits if text.strip().isdecimal()),
        ]
    )


def device_memory(device: str) -> DeviceMemory | None:
    """The current device's memory; None on CPU,
    and where CUDA has not started or does not answer.
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
    """Bytes that processes can still share through /dev/shm;
    None where the system has no such folder.
    """
    try:
        return shutil.disk_usage(SHARED_MEMORY).free
    except OSError:
        return None


SHARED_MEMORY = Path("/dev/shm")  # which workers of loaders, and caches, fill
CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def oom_kills() -> int | None:
    """How many processes of this process's control group the kernel has killed for want of memory,
    of the group or of the machine (memory.events of version 2, memory.oom_control of version 1);
    None where it does not say.

    SLURM's jobs and containers each have a group.
    A container may see its group at the root of the tree.
    """
    for text in _cgroup_files("memory.oom_control", "memory.events"):
        counts = dict(row.split() for row in text.splitlines())
        if "oom_kill" in counts:
            return int(counts["oom_kill"])
    return None


def _cgroup_files(name_of_version_1: str, name_of_version_2: str) -> Iterator[str]:
    """The texts of a file of the memory controller,
    of this process's control group and those that it lies in.
    """
    with suppress(OSError):
        # "0::/path" of version 2, "4:memory:/path" of version 1
        for line in OWN_CGROUPS.read_text().splitlines():
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
    """This process's peak: torch's allocations and the memory of CUDA graphs on CUDA,
    else the resident set.
    """
    if device.type == "cuda":
        import torch

        peak = torch.cuda.max_memory_allocated(device)
        if "torch._inductor.cudagraph_trees" in sys.modules:
            peak += held_by_graphs_bytes(
                torch.cuda.memory_snapshot(include_traces=False), device.index
            )
        return peak
    return peak_resident_bytes()


def held_by_graphs_bytes(segments: list[dict[str, Any]], device: int | None) -> int:
    """Memory in the pools of CUDA graphs that is not counted as allocated: a graph that is replayed
    writes to it, and the counters of allocations stand still.

    Args:
        segments: of `torch.cuda.memory_snapshot`; device: its index.
    """
    pools = [
        s
        for s in segments
        if s["device"] == (device or 0) and tuple(s["segment_pool_id"]) != (0, 0)
    ]
    return sum(segment["total_size"] - segment["allocated_size"] for segment in pools)


def peak_resident_bytes() -> int:
    """The peak of this process's resident set (VmHWM).

    Not `ru_maxrss`, which survives exec and so includes the program that ran before.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
