"""Strategies on real gloo ranks: who loads, moves and trains what, and that the ranks agree."""

from collections import Counter
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from multicard.config.vision import VisionConfig
from multicard.vision import models
from multicard.vision.data.loaders import LOADERS
from tests.conftest import SMALL, has_dali, typed, warm_up
from tests.helpers.launching import launch, on_ranks
from tests.helpers.messages import Told

pytestmark = pytest.mark.usefixtures("processes")


def small(*overrides: str) -> VisionConfig:
    return typed(*SMALL, *overrides)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_each_rank_loads_and_trains_on_with_every_loader(world: int, tmp_path: Path):
    loaders, sizes = [name for name in LOADERS if name != "dali" or has_dali()], [5, 50, 64]
    configs = [small("batch_size=8", f"loader={loader}") for loader in loaders]
    ranks = on_ranks(world, "reads", tmp_path, configs, tmp_path, sizes)
    for samples, epoch in product(sizes, range(2)):
        rr, ds, ddp = (
            [rank[name, "torch", samples] for rank in ranks] for name in ("ddp_rr", "ddp_ds", "ddp")
        )
        assert all(len({rank["steps"] for rank in strategy}) == 1 for strategy in (rr, ds, ddp))
        # each rank loads every batch, in one order
        assert all(rank["batches"] == rr[0]["batches"] for rank in rr)
        assert world == 1 or ddp[0]["batches"] != ddp[1]["batches"]
        once, filled, often = (
            Counter(n for rank in each for n in rank["trained"][epoch]) for each in (rr, ds, ddp)
        )
        assert once == dict.fromkeys(range(samples), 1)  # none twice, none lost
        # repeats a few
        assert filled.keys() == once.keys() and filled.total() - samples == -samples % world
        assert len({len(rank["trained"][epoch]) for rank in ds}) == 1
        assert often == dict.fromkeys(range(samples), world)
        assert all(len({*rank["trained"][epoch]}) == samples for rank in ddp)
    for rank in ranks:  # all loaders: the same batches in the same order
        assert all(
            seen["batches"] == rank[name, "torch", size]["batches"]
            for (name, _, size), seen in rank.items()
        )
        modes = [rank[strategy, "device", 50]["facts"]["mode"] for strategy in ("ddp_ds", "ddp_rr")]
        assert modes == ["shard" if world > 1 else "resident", "resident"]


def largest_difference(a: list[torch.Tensor], b: list[torch.Tensor]) -> float:
    return max((x - y).abs().max().item() for x, y in zip(a, b, strict=True))


def quietly(world: int, folder: Path, *words: str) -> list[dict[str, Any]]:
    folder = folder / "-".join(map(str, [world, len(list(folder.iterdir()))]))
    return on_ranks(world, "train_quietly", folder, small(*words), folder)


@pytest.mark.parametrize(
    "words", [["dataset.train_limit=32"], ["strategy=ddp_rr", "dataset.train_limit=64"]]
)
def test_two_ranks_step_as_one_on_the_joined_batch(words: list[str], tmp_path: Path):
    words = ["precision=fp64", "schedule=constant", *words]
    one, two = (
        quietly(1, tmp_path, *words, "batch_size=32"),
        quietly(2, tmp_path, *words, "batch_size=16"),
    )
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
    ("how", "kind", "named"),
    [
        ("raise", "exception", "KeyError: 'no such thing'"),
        ("refuse", "exception", "photo.jpg: cannot be decoded"),
        ("oom", "oom", "OutOfMemoryError: CUDA out of memory"),
        ("exit", "exit", Told("rank.exited", facts={"rank": 1, "exit_code": 7})),
        ("worker", "exception", "DataLoader worker (pid 9)"),
        pytest.param(
            "SIGKILL",
            "signal",
            Told("rank.killed", facts={"rank": 1, "signal": "SIGKILL"}),
            marks=pytest.mark.core,
        ),
        ("SIGSEGV", "signal", Told("rank.killed", facts={"rank": 1, "signal": "SIGSEGV"})),
    ],
)
def test_the_rank_that_died_first_is_named(how: str, kind: str, named: str | Told, tmp_path: Path):
    warm_up()
    failure = launch("fail", how, folder=tmp_path, ranks=3)
    assert failure is not None
    assert (failure.kind, failure.rank, failure.log) == (kind, 1, "logs/r01.log")
    if isinstance(named, Told):
        assert (failure.code, failure.facts) == (named.code, named.facts)
    else:
        assert named in failure.message
    assert "rank 1 was here" in (tmp_path / "logs" / "r01.log").read_text()
    # there the tail is the fault handler's
    assert how == "SIGSEGV" or "rank 1 was here" in failure.log_tail
