"""Collectives that every rank calls, whatever it runs."""

from multicard.ranks.process import Rank


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
