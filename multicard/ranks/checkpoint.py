"""Checkpoints of a run that was stopped, in `checkpoint/` of its
folder: its next start resumes from the latest.

| file | what |
|---|---|
| sSSSSSSSS/rRR.pt | rank RR's state after SSSSSSSS steps |
| latest.json | `steps` and `world_size` to resume from; written once all its rank files are there |
"""

import shutil
from pathlib import Path
from typing import Any

from multicard.machine import private
from multicard.machine.environment import host
from multicard.messages import Refusal
from multicard.ranks.process import Rank, max_over_ranks, meet
from multicard.records import run_folder


def latest(folder: Path) -> int | None:
    """The step after which the run resumes; None where it has no complete checkpoint."""
    saved = run_folder.read_json(_latest_file(folder))
    return None if saved is None else saved.get("steps")


def save(folder: Path, rank: Rank, steps: int, state: dict[str, Any]) -> None:
    """Save this rank's state after `steps` steps: tensors and plain values, in dicts and lists. All
    ranks call it; the checkpoint counts once all have written.
    """
    import torch

    path = _rank_file(folder, steps, rank.rank)
    private.folder(_latest_file(folder).parent, "start again with `rerun=true`")
    with run_folder.replacing(path) as file:
        torch.save(state, file)
    meet(rank)
    if rank.rank == 0:
        run_folder.write_json(_latest_file(folder), {"steps": steps, "world_size": rank.world_size})
        for older in set(path.parent.parent.glob("s*")) - {path.parent}:
            shutil.rmtree(older)


def load(folder: Path, rank: Rank) -> dict[str, Any] | None:
    """This rank's state in the latest checkpoint, with all tensors on the host; None where there is
    none. A ValueError where another number of ranks saved it, or not all ranks see the same one.
    """
    import torch

    saved = {"steps": 0, "world_size": rank.world_size} | (
        run_folder.read_json(_latest_file(folder)) or {}
    )
    ranks = saved["world_size"]
    if ranks != rank.world_size:
        raise Refusal(
            "checkpoint.other-ranks",
            f"gpus: the run was stopped on {ranks} ranks, and cannot go on with {rank.world_size}; "
            "use as many as before, or start again with `rerun=true`",
            key="gpus",
            before=ranks,
            now=rank.world_size,
        )
    seen = saved["steps"]
    newest = max_over_ranks(rank, seen)
    if seen != newest:
        what = f"the checkpoint after step {seen}" if seen else "no checkpoint"
        raise Refusal(
            "checkpoint.late",
            f"rank {rank.rank} on {host()} sees {what} in {folder}, another rank the one after step"
            f" {newest}: the file system shows files late; start the command again",
            rank=rank.rank,
            host=host(),
            seen=seen,
            newest=newest,
        )
    if newest == 0:
        return None
    return torch.load(
        _rank_file(folder, saved["steps"], rank.rank), map_location="cpu", weights_only=True
    )


def remove(folder: Path) -> None:
    """Remove all checkpoints of the run."""
    _latest_file(folder).unlink(missing_ok=True)  # first: a half removed checkpoint must not count
    shutil.rmtree(_latest_file(folder).parent, ignore_errors=True)


def _latest_file(folder: Path) -> Path:
    return folder / "checkpoint" / "latest.json"


def _rank_file(folder: Path, steps: int, rank: int) -> Path:
    return folder / "checkpoint" / f"s{steps:08d}" / f"r{rank:02d}.pt"
