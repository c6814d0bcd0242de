"""Runs that are stopped after a step and go on: the same results as without the stop,
and every step counted once.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicard.ranks import checkpoint
from multicard.records import rank_files
from tests.helpers.stopped_runs import case

THREADS = ("loader=batched", "loader.ahead=3", "dataset.augment=true")
pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.slow]
NO_WORKERS_KEPT = ("loader.persistent_workers=false",)
STREAMED = ("dataset.device_budget_bytes=0", "dataset.augment=true")
WAITS = {"first_batch_s", "evaluate_first_batch_s", "gap_s"}
MEASURED = {"train_s", "evaluate_s", "ended_s", "images_per_s", *WAITS}  # of an epoch: differ
COUNTED = (
    "epoch",
    "rank",
    "step",
    "loss",
    "samples",
    "loaded",
    "h2d_images_bytes",
    "h2d_labels_bytes",
)


def without_times(epochs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in epoch.items() if key not in MEASURED} for epoch in epochs]


@pytest.mark.parametrize(
    ("words", "world", "workers", "per_epoch", "stops"),
    [
        # in an epoch, at its end, and in the next
        (["epochs=3", *NO_WORKERS_KEPT], 1, 2, 6, [3, 6, 8]),
        (
            ["optimizer=adamw", "schedule=cosine", "layout=nhwc", "dataset.flip=true", *THREADS],
            1,
            2,
            6,
            [2, 4],
        ),
        # 101 samples are 51 on a rank, 4 batches of which the last has 3
        (["strategy=ddp_ds", "dataset.train_limit=101"], 2, 0, 4, [2, 7]),
        # 9 batches of 8: the fifth round, an epoch's last, has one
        (["strategy=ddp_rr", "dataset.train_limit=72", "batch_size=8"], 2, 2, 5, [4, 5]),
        # each batch crosses by itself: what crosses for a
        # whole epoch would cross once more after a stop
        (
            ["strategy=ddp", "optimizer=adam", "schedule=constant", "loader=device", *STREAMED],
            2,
            0,
            6,
            [5, 7],
        ),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else None,
)
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    words: list[str], world: int, workers: int, per_epoch: int, stops: list[int], tmp_path: Path
):
    """Bit for bit: one thread a rank, and two ranks'
    gradients have one order in which to be added.
    """
    whole = case(tmp_path / "whole", *words, world=world, workers=workers)
    cut = case(tmp_path / "cut", *words, world=world, workers=workers)
    expected, summary = whole.train(), cut.train(*stops)
    for name in COUNTED:
        np.testing.assert_array_equal(cut.rows()[name], whole.rows()[name], err_msg=name)
    assert without_times(summary["epochs"]) == without_times(expected["epochs"])
    assert summary["transfer_bytes"] == expected["transfer_bytes"]
    assert summary["communication_bytes"] == expected["communication_bytes"]

    steps = per_epoch * cut.config.epochs
    spans = list(zip([0, *stops], [*stops, steps], strict=True))
    assert [(s["first_step"], s["steps"]) for s in summary["segments"]] == [
        (a, b - a) for a, b in spans
    ]
    assert [(s["first_step"], s["steps"]) for s in expected["segments"]] == [(0, steps)]
    assert summary["step_s"]["warmup_count"] == sum(a < steps for a, _ in spans)
    assert summary["step_s"]["count"] + summary["step_s"]["warmup_count"] == steps
    rows = cut.rows()
    # time counts once, that of an epoch before its stop too
    for rank in rank_files.read_reports(cut.folder):
        assert sum(s.trained_s for s in rank.segments) == pytest.approx(rank.epochs[-1].ended_s)
        for epoch in rank.epochs:
            own = (rows["rank"] == rank.rank) & (rows["epoch"] == epoch.epoch)
            assert 0 < rows["step_s"][own].sum() <= epoch.train_s


@pytest.mark.parametrize(("precision", "scale"), [("fp32", None), ("fp16", 2**13)])
def test_the_state_at_the_end_is_the_same_to_the_last_bit(
    precision: str, scale: int | None, tmp_path: Path
):
    # 5 batches of 8 are 3 rounds, the last of which has one.
    # MobileNetV2's fp16 overflows in all of them
    words = (
        f"precision={precision}",
        "strategy=ddp_rr",
        "dataset.train_limit=40",
        "batch_size=8",
        "epochs=1",
    )
    words = (*words, "model.width=0.25")  # fp16 is slow on CPU
    whole, cut = (
        case(tmp_path / name, *words, "dataset.test_limit=8", world=2) for name in ("whole", "cut")
    )
    # of 3 steps: after the last, only evaluation is left
    expected, summary = whole.train(3), cut.train(1, 2, 3)
    assert summary["test_accuracy"] == expected["test_accuracy"]
    assert summary["segments"][-1]["steps"] == 0 and summary["step_s"]["warmup_count"] == 3
    for rank in range(2):
        a, b = whole.state(3, rank), cut.state(3, rank)
        for name, tensor in a["model"].items():
            assert torch.equal(tensor, b["model"][name]), name
        momentum = a["optimizer"]["state"]
        assert len(momentum) == len(b["optimizer"]["state"]) == (158 if scale is None else 0)
        for index, state in momentum.items():
            assert torch.equal(
                state["momentum_buffer"], b["optimizer"]["state"][index]["momentum_buffer"]
            )
        assert a["optimizer"]["param_groups"] == b["optimizer"]["param_groups"]
        assert a["schedule"] == b["schedule"]
        assert a["scaler"] == b["scaler"] and a["scaler"].get("scale") == scale
        assert torch.equal(a["random"][0], b["random"][0])
        assert (a["steps"], a["samples"], a["epoch"], a["step"]) == (3, (24, 16)[rank], 0, 3)


def test_stops_beyond_the_end_and_before_the_start_and_a_partial_checkpoint(tmp_path: Path):
    run = case(tmp_path / "run", "epochs=1")
    assert run.start(stop_at=7) is None  # after the last step: the run ends
    assert (
        checkpoint.latest(run.folder) is None
        and len(rank_files.read_reports(run.folder)[0].epochs) == 1
    )
    run = case(tmp_path / "again", "epochs=1")
    assert run.start(stop_at=3) is None
    failure = run.start(stop_at=2)
    assert failure is not None
    assert (failure.code, failure.facts) == ("rank.stop-missed", {"stop_at": 2, "steps": 4})
    assert failure.message.startswith("rank 0: ")
    (run.folder / "checkpoint" / "latest.json").unlink()
    assert checkpoint.latest(run.folder) is None
    assert [(s["first_step"], s["steps"]) for s in run.train()["segments"]] == [(0, 6)]
