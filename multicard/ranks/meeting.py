"""What all ranks do, whatever they run: wait for one another, and begin their report."""

import os
from typing import TYPE_CHECKING, Any

from multicard.machine.devices import used_gpu
from multicard.machine.environment import cpu_set, host
from multicard.measure import memory
from multicard.ranks.process import Rank
from multicard.records.schema_parts import Memory

if TYPE_CHECKING:
    import torch


def head(rank: Rank, flags: dict[str, Any]) -> dict[str, Any]:
    """The beginning of a rank's report; what is None or empty is filled in as the run goes on.

    `spans_s` are the start and end, on the machine's clock, of all that counts as training in `total_s`: one entry for
    each epoch, or part of one.
    """
    return {
        "rank": rank.rank,
        "host": host(),
        "pid": os.getpid(),
        "device": device_name(rank.device),
        "gpu": used_gpu(rank.device),
        "threads": rank.threads,
        "cpus": cpu_set(),  # left to it by NUMA binding, or by whoever started the command
        "flags": flags,
        "openmp": {name: value for name, value in sorted(os.environ.items()) if name.startswith(("OMP_", "GOMP_"))},
        "started_s": None,
        "spans_s": [],
        "peak_memory_bytes": None,
        "epochs": [],
    }


def meet(rank: Rank) -> None:
    """Wait until all ranks are here."""
    if rank.world_size > 1:
        import torch.distributed as dist

        dist.barrier()


def as_on_rank_0(rank: Rank, flag: bool) -> bool:
    """Rank 0's flag. A collective: every rank calls it."""
    if rank.world_size == 1:
        return flag
    import torch
    import torch.distributed as dist

    shared = torch.tensor(flag, device=rank.device)
    dist.broadcast(shared, src=0)
    return bool(shared)


def max_over_ranks(rank: Rank, number: int) -> int:
    """The largest of all ranks' numbers. A collective: every rank calls it."""
    if rank.world_size == 1:
        return number
    import torch
    import torch.distributed as dist

    largest = torch.tensor(number, device=rank.device)
    dist.all_reduce(largest, dist.ReduceOp.MAX)
    return int(largest)


def device_name(device: "torch.device") -> str:
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_memory(ranks: list[dict[str, Any]], device: str) -> Memory:
    """The summary's `peak_memory_bytes`: the maximum and every rank's."""
    per_rank = [rank["peak_memory_bytes"] for rank in ranks]
    known = [peak for peak in per_rank if peak is not None]
    return Memory(max(known, default=None), per_rank, memory.peak_memory_kind(device))
