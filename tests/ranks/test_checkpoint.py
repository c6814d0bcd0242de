"""The files of a checkpoint: which of them count, and what is refused."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from multicard.ranks import checkpoint
from multicard.ranks.process import Rank


def alone(world_size: int = 1) -> Rank:
    return Rank(0, 0, world_size, torch.device("cpu"), "gloo", 1)


def test_the_last_checkpoint_replaces_those_before(tmp_path: Path):
    assert checkpoint.latest(tmp_path) is checkpoint.load(tmp_path, alone()) is None
    for steps in (3, 20):
        half = tmp_path / "checkpoint" / f"s{steps - 1:08d}" / "r01.pt"  # saved when its run was killed
        half.parent.mkdir(parents=True)
        half.touch()
        checkpoint.save(tmp_path, alone(), steps, {"weights": torch.arange(steps), "name": "x", "none": None})
        assert checkpoint.latest(tmp_path) == steps
    assert sorted(path.name for path in (tmp_path / "checkpoint").rglob("*")) == ["latest.json", "r00.pt", "s00000020"]
    state = checkpoint.load(tmp_path, alone())
    assert state is not None and state["weights"].tolist() == list(range(20))
    assert (state["name"], state["none"]) == ("x", None)
    checkpoint.remove(tmp_path)
    checkpoint.remove(tmp_path)  # nothing is there, and nothing is wrong
    assert checkpoint.latest(tmp_path) is None and not list(tmp_path.iterdir())


def test_another_number_of_ranks_is_refused(tmp_path: Path):
    checkpoint.save(tmp_path, alone(), 5, {})
    with pytest.raises(ValueError, match=r"gpus: .* stopped on 1 ranks, and cannot go on with 3; .* rerun=true"):
        checkpoint.load(tmp_path, alone(world_size=3))


@pytest.mark.parametrize(("seen", "words"), [(0, "sees no checkpoint in"), (5, "the checkpoint after step 5")])
def test_a_rank_that_sees_an_older_checkpoint_than_the_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seen: int, words: str
):
    if seen:
        checkpoint.save(tmp_path, alone(), seen, {})
    monkeypatch.setattr(checkpoint, "max_over_ranks", lambda rank, steps: max(steps, 9))
    with pytest.raises(ValueError, match=rf"rank 0 on .*{words}.* after step 9: .* late; start the command again"):
        checkpoint.load(tmp_path, alone())


@pytest.mark.usefixtures("processes")
def test_the_controller_needs_no_torch_for_it():
    line = "import sys, multicard.ranks.checkpoint; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0
