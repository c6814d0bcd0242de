"""Strategies on real gloo ranks: who loads, moves and trains what, and that the ranks agree."""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.config.placement import Placement
from multicard.config.vision import VisionConfig
from multicard.ranks import elastic
from multicard.ranks.failures import Failure
from multicard.ranks.process import Job
from multicard.records.progress import Board
from multicard.vision import models
from multicard.vision.data import datasets
from multicard.vision.data.loaders import LOADERS
from tests.conftest import SMALL, has_dali, typed, warm_up

pytestmark = pytest.mark.usefixtures("processes")


def on_ranks(world: int, work: str, folder: Path, *arguments: Any) -> list[Any]:
    """What each rank of `tests.helpers.rank_work:work` saved."""
    folder.mkdir(exist_ok=True)
    Board(folder, world, create=True)
    warm_up()
    job = Job(folder, "cpu", "gloo", 0, 1, "tuned")
    failure = elastic.launch(f"tests.helpers.rank_work:{work}", arguments, Placement("cpu", "gloo", world, False), job)
    if isinstance(failure, Failure):
        pytest.fail("\n".join([failure.message, *failure.log_tail]))
    return [torch.load(folder / f"{rank}.pt") for rank in range(world)]


def small(*overrides: str) -> VisionConfig:
    return typed(*SMALL, *overrides)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_each_rank_loads_and_trains_on(world: int, tmp_path: Path):
    sizes = [5, 10, 50, 64]
    ranks = on_ranks(world, "shares", tmp_path, small("batch_size=8"), tmp_path, sizes)
    for samples in sizes:
        everything = list(range(samples))
        rr, ds, ddp = ([rank[samples, name] for rank in ranks] for name in ("ddp_rr", "ddp_ds", "ddp"))
        assert all(rank["loaded"] == rr[0]["loaded"] for rank in rr)  # each rank loads every batch, in one order
        assert sorted(rr[0]["loaded"]) == everything
        assert sorted(i for rank in rr for i in rank["trained"]) == everything  # none twice, none lost

        assert all(rank["loaded"] == rank["trained"] for rank in ds)
        assert len({len(rank["loaded"]) for rank in ds}) == 1  # all have as many: the sampler repeats a few
        counts = Counter(i for rank in ds for i in rank["trained"])
        assert sorted(counts) == everything
        assert sum(counts.values()) - samples == -samples % world

        assert all(sorted(rank["trained"]) == everything for rank in ddp)
        assert world == 1 or ddp[0]["trained"] != ddp[1]["trained"]
        assert all(len({rank["steps"] for rank in strategy}) == 1 for strategy in (rr, ds, ddp))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_every_loader_reads_what_the_strategy_says(world: int, tmp_path: Path):
    loaders = [name for name in LOADERS if name != "dali" or has_dali()]
    configs = [small("batch_size=8", f"loader={loader}") for loader in loaders]
    ranks = on_ranks(world, "reads", tmp_path, configs, tmp_path, 50)
    for strategy in ("ddp_ds", "ddp_rr", "ddp"):
        for rank, loader in product(ranks, loaders):  # the same batches in the same order as torch's
            assert rank[f"{strategy} {loader}"]["batches"] == rank[f"{strategy} torch"]["batches"]
        for epoch in range(2):
            counts = Counter(number for rank in ranks for number in rank[f"{strategy} torch"]["trained"][epoch])
            trained = {"ddp_ds": 50 + -50 % world, "ddp_rr": 50, "ddp": 50 * world}[strategy]
            assert sorted(counts) == list(range(50)) and sum(counts.values()) == trained
            assert strategy != "ddp" or set(counts.values()) == {world}
    mode = "shard" if world > 1 else "resident"
    assert {rank["ddp_ds device"]["facts"]["mode"] for rank in ranks} == {mode}
    assert {rank["ddp_rr device"]["facts"]["mode"] for rank in ranks} == {"resident"}


def test_the_loop_trains_every_image_once_under_round_robin(tmp_path: Path):
    config = small("strategy=ddp_rr", "dataset.train_limit=101")
    trained = on_ranks(2, "train_and_record_pixels", tmp_path, config, tmp_path)
    pixels = [image.tobytes() for image in datasets.load(config.dataset, config.seed).train.images]
    assert len(set(pixels)) == 101 and len(trained[0]) > len(trained[1]) > 0
    counts = Counter(trained[0] + trained[1])
    assert len(counts) == 101 and set(counts.values()) == {1}


def largest_difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


def quietly(world: int, folder: Path, *words: str) -> list[dict[str, Any]]:
    folder = folder / "-".join(map(str, [world, len(list(folder.iterdir()))]))
    return on_ranks(world, "train_quietly", folder, small(*words), folder)


def test_two_ranks_step_as_one_on_the_joined_batch(tmp_path: Path):
    words = ("precision=fp64", "dataset.train_limit=32", "schedule=constant")
    one, two = quietly(1, tmp_path, *words, "batch_size=32"), quietly(2, tmp_path, *words, "batch_size=16")
    assert largest_difference(one[0]["parameters"], two[0]["parameters"]) < 1e-6
    assert largest_difference(two[0]["parameters"], two[1]["parameters"]) == 0


def test_round_robin_steps_alike_through_an_uneven_round(tmp_path: Path):
    # 72 samples: 9 batches of 8 on 2 ranks, so the last round has one
    words = ("strategy=ddp_rr", "batch_size=8", "model.width=0.35")  # fp16 is slow on CPU
    ranks = quietly(2, tmp_path, *words, "precision=fp16", "dataset.train_limit=72", "epochs=2")
    assert largest_difference(ranks[0]["parameters"], ranks[1]["parameters"]) == 0
    assert largest_difference(ranks[0]["momentum"], ranks[1]["momentum"]) == 0
    assert ranks[0]["scale"] == ranks[1]["scale"]
    # one batch in all: the two ranks step exactly as one rank on that batch
    words = (*words, "precision=fp64", "dataset.train_limit=8", "schedule=constant")
    one, two = quietly(1, tmp_path, *words), quietly(2, tmp_path, *words)
    assert max(largest_difference(one[0]["parameters"], rank["parameters"]) for rank in two) < 1e-12


def test_accuracy_is_exact_at_any_number_of_ranks(tmp_path: Path):
    # 301 samples in batches of 16: no number of ranks divides them, the last batches are not full
    config = small("dataset.test_limit=301")
    ranks = [
        rank
        for folder in (tmp_path / str(world) for world in (1, 2, 3))
        for rank in on_ranks(int(folder.name), "evaluate_only", folder, config, folder)
    ]
    assert len({rank["test_right"] for rank in ranks}) == 1 and 0 < ranks[0]["test_right"] < 301
    assert {rank["test_samples"] for rank in ranks} == {301}
    losses = [rank["test_loss"] for rank in ranks]
    assert max(losses) - min(losses) < 1e-6


def test_communication_is_computed_from_what_ddp_puts_in_its_buckets(tmp_path: Path):
    config = small()
    bucketed_bytes, _ = on_ranks(2, "buckets", tmp_path, config, tmp_path)
    assert bucketed_bytes == sum(p.nbytes for p in models.build(config.model, 10, 32).parameters())


@pytest.mark.parametrize(
    ("how", "kind", "says"),
    [
        ("raise", "exception", "rank 1: KeyError: 'no such thing'"),
        ("refuse", "exception", "rank 1: photo.jpg: cannot be decoded"),
        ("oom", "oom", "rank 1: OutOfMemoryError: CUDA out of memory"),
        ("exit", "exit", "rank 1 exited with code 7"),
        ("SIGKILL", "signal", "rank 1 was killed by SIGKILL"),
        ("SIGSEGV", "signal", "rank 1 was killed by SIGSEGV"),
    ],
)
def test_the_rank_that_died_first_is_named(how: str, kind: str, says: str, tmp_path: Path):
    warm_up()
    job = Job(tmp_path, "cpu", "gloo", 0, 1, "system")
    failure = elastic.launch("tests.helpers.rank_work:fail", (how,), Placement("cpu", "gloo", 3, False), job)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.log) == (kind, 1, "logs/r01.log")
    assert failure.message.startswith(says)
    assert "rank 1 was here" in (tmp_path / "logs" / "r01.log").read_text()
    assert how == "SIGSEGV" or "rank 1 was here" in failure.log_tail  # there the tail is the fault handler's
