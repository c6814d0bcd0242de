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

SHARED_MEMORY = Path("/dev/shm")  # Loader workers and caches keep data here.
CGROUPS = Path("/sys/fs/cgroup")
PROCESS_CGROUPS = Path("/proc/self/cgroup")


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
    # This needs a kernel with CONFIG_PROC_PAGE_MONITOR. Without it, the peak is that since the
    # process began.
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
    """Return the memory of this machine that this process and its children can still get.

    It does not exceed what the control groups of this process have left of their limits. As on the
    machine, file pages that the kernel can drop count as available.
    """
    import psutil

    available_bytes = psutil.virtual_memory().available
    for group in _memory_groups():
        # Without a limit, version 1 of control groups has a number that exceeds all memory.
        limit = group.read("memory.limit_in_bytes", "memory.max").strip()
        used = group.read("memory.usage_in_bytes", "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            statistics = group.statistics("memory.stat", "memory.stat")
            # In version 1, only the total includes groups inside this one, as `used` does.
            own_bytes = statistics.get("inactive_file", 0)
            droppable_bytes = statistics.get("total_inactive_file", own_bytes)
            left_bytes = int(limit) - int(used) + droppable_bytes
            available_bytes = min(available_bytes, max(0, left_bytes))
    return available_bytes


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


def oom_kills() -> int | None:
    """Return how many processes of this control group the kernel has killed for lack of memory.

    The group or the whole machine may have run out of memory. The number is in memory.events
    (version 2) or memory.oom_control (version 1). Returns None if neither has it.

    SLURM's jobs and containers each have a control group. Inside a container, its group may be at
    the root of the tree.
    """
    for group in _memory_groups():
        counts = group.statistics("memory.oom_control", "memory.events")
        if "oom_kill" in counts:
            return counts["oom_kill"]
    return None


class MemoryGroup(NamedTuple):
    """The folder of a control group that limits memory, in version 1 or 2 of its interface."""

    folder: Path
    version: int

    def read(self, version_1_name: str, version_2_name: str) -> str:
        """Return the content of a file, empty if there is none."""
        name = version_1_name if self.version == 1 else version_2_name
        try:
            return (self.folder / name).read_text()
        except OSError:
            return ""

    def statistics(self, version_1_name: str, version_2_name: str) -> dict[str, int]:
        """Return the numbers in a file whose lines have a name and a number."""
        rows = (row.split() for row in self.read(version_1_name, version_2_name).splitlines())
        return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdecimal()}


def _memory_groups() -> Iterator[MemoryGroup]:
    """Yield the control groups that limit this process's memory, and then their parents."""
    try:
        lines = PROCESS_CGROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        # A line is "0::/path" in version 2, and "4:memory:/path" in version 1.
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = CGROUPS / "memory" if controllers else CGROUPS
        group = Path(path)
        for parent in (group, *group.parents):
            yield MemoryGroup(root / parent.relative_to("/"), version=1 if controllers else 2)


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
