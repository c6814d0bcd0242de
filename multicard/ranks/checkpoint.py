"""Save and load checkpoints of a run that was stopped. Its next start resumes from the latest one.

They are in `checkpoint/` of the run's folder:

| file | content |
|---|---|
| sSSSSSSSS/rRR.pt | rank RR's state after SSSSSSSS steps |
| latest.json | `steps` and `world_size` to resume from, written once all rank files exist |
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
    """Return the step after which the run resumes, or None if it has no complete checkpoint."""
    saved = run_folder.read_json(_latest_file(folder))
    return None if saved is None else saved.get("steps")


def save(folder: Path, rank: Rank, steps: int, state: dict[str, Any]) -> None:
    """Save this rank's state after `steps` steps. The checkpoint counts once all ranks have saved.

    All ranks call it.

    Args:
        state: Tensors and plain values, in dictionaries and lists.
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


def load_checkpoint(folder: Path, rank: Rank) -> dict[str, Any] | None:
    """Load this rank's state from the latest checkpoint, with all tensors on the host.

    Returns:
        The state, or None if there is no checkpoint.

    Raises:
        ValueError: Another number of ranks saved it, or ranks see different checkpoints.
    """
    import torch

    saved = {"steps": 0, "world_size": rank.world_size} | (
        run_folder.read_json(_latest_file(folder)) or {}
    )
    ranks = saved["world_size"]
    if ranks != rank.world_size:
        raise Refusal(
            "checkpoint.other-ranks",
            f"gpus: the run was stopped on {ranks} ranks, and cannot resume on {rank.world_size}; "
            "use the same number as before, or start again with `rerun=true`",
            key="gpus",
            before=ranks,
            now=rank.world_size,
        )
    own_step = saved["steps"]
    newest = max_over_ranks(rank, own_step)
    if own_step != newest:
        seen_checkpoint = f"the checkpoint after step {own_step}" if own_step else "no checkpoint"
        raise Refusal(
            "checkpoint.late",
            f"rank {rank.rank} on {host()} sees {seen_checkpoint} in {folder}, while another rank"
            f" sees the one after step {newest}: the file system shows files late; start the"
            " command again",
            rank=rank.rank,
            host=host(),
            seen=own_step,
            newest=newest,
        )
    if newest == 0:
        return None
    return torch.load(
        _rank_file(folder, saved["steps"], rank.rank), map_location="cpu", weights_only=True
    )


def remove(folder: Path) -> None:
    """Remove all checkpoints of the run."""
    # Remove this file first: a checkpoint that is partly removed must not count.
    _latest_file(folder).unlink(missing_ok=True)
    shutil.rmtree(_latest_file(folder).parent, ignore_errors=True)


def _latest_file(folder: Path) -> Path:
    return folder / "checkpoint" / "latest.json"


def _rank_file(folder: Path, steps: int, rank: int) -> Path:
    return folder / "checkpoint" / f"s{steps:08d}" / f"r{rank:02d}.pt"
