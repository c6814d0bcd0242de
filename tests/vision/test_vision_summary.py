"""The summary of a run in closed form, from invented rank files and steps."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest

from multicard.config.placement import Placement
from multicard.measure.timing import PHASES
from multicard.records.rank_files import VisionRankEpoch, VisionReport
from multicard.records.schema_parts import Parts, Segment
from multicard.vision.summary import summarise
from tests.conftest import typed
from tests.helpers import records

PER_EPOCH, SAMPLES = 4, 10  # steps an epoch, samples a step and rank


def rank_file(rank: int, epochs: int, segments: list[tuple[int, int]]) -> VisionReport:
    """Of a rank that ended `epochs` epochs, a second each, in segments of (first step, steps)."""
    ended = [
        VisionRankEpoch(
            epoch=e,
            train_s=0.75,
            ended_s=e + 1.0,
            evaluate_s=0.25,
            test_loss=1.0,
            test_accuracy=0.5,
            test_right=5,
            test_samples=10,
            first_batch_s=0.1 * (rank + 1),
            gap_s=0.2 * (rank + 1) if e else None,
            evaluate_h2d_images_bytes=100,
            evaluate_h2d_labels_bytes=1,
        )
        for e in range(epochs)
    ]
    return VisionReport(
        rank=rank,
        setup_h2d_bytes=Parts(1000, 100),
        steps_per_epoch=PER_EPOCH,
        distinct_samples=PER_EPOCH * SAMPLES,
        peak_memory_bytes=7,
        parameter_bytes=40,
        gradient_bytes=40,
        buffer_bytes=20,
        statistics_bytes=16,
        epochs=ended,
        segments=[
            Segment(first_step=first, steps=steps, trained_s=1.0) for first, steps in segments
        ],
    )


def steps(*ranks: list[float]) -> pa.Table:
    """The steps of ranks that took these seconds, all in the forward pass."""
    parts = [
        records.steps(own, PER_EPOCH) | {"rank": np.full(len(own), rank)}
        for rank, own in enumerate(ranks)
    ]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    count = len(columns["step_s"])
    phases = {
        f"{phase}_s": columns["step_s"] if phase == "forward" else np.zeros(count)
        for phase in PHASES
    }
    counts = {
        key: np.full(count, SAMPLES)
        for key in ("samples", "loaded", "h2d_images_bytes", "h2d_labels_bytes")
    }
    return pa.table({**columns, **phases, **counts, "loss": np.ones(count)})


def summary(
    ranks: list[VisionReport],
    table: pa.Table | None,
    warmup_steps: int = 0,
    joules: float | None = None,
) -> dict[str, Any]:
    gpu, config = {"energy_joules": joules, "covers": "training"}, {"warmup_steps": warmup_steps}
    record = records.as_record({"gpu": gpu, "config": config})
    config, placement = (
        typed(f"warmup_steps={warmup_steps}"),
        Placement("cpu", "gloo", len(ranks), False),
    )
    summarise(record, config, placement, ranks, table)
    return msgspec.to_builtins(record, enc_hook=float)


@pytest.mark.parametrize(
    ("segments", "warmup_steps", "measured_s"),
    [
        ([(0, 8)], 0, [1, 2, 3, 4, 5, 6, 7, 8]),
        ([(0, 8)], 2, [3, 4, 5, 6, 7, 8]),
        ([(0, 3), (3, 5)], 1, [2, 3, 5, 6, 7, 8]),
        # the first segment is all warm-up: none of it is taken from the second
        ([(0, 3), (3, 5)], 4, [8]),
        ([(0, 4), (4, 1), (5, 3)], 2, [3, 4, 8]),
        ([(0, 8), (8, 0)], 2, [3, 4, 5, 6, 7, 8]),  # stopped before the last evaluation
        ([(4, 0), (0, 8)], 1, [2, 3, 4, 5, 6, 7, 8]),  # the first one's work was lost
        ([(0, 8)], 9, []),
    ],
)
def test_the_first_steps_of_every_segment_are_warm_up(
    segments: list[tuple[int, int]], warmup_steps: int, measured_s: list[float]
):
    figures = summary([rank_file(0, 2, segments)], steps([1, 2, 3, 4, 5, 6, 7, 8]), warmup_steps)
    assert (figures["step_s"]["count"], figures["step_s"]["warmup_count"]) == (
        len(measured_s),
        8 - len(measured_s),
    )
    mean_s = np.mean(measured_s) if measured_s else None
    assert figures["step_s"]["mean"] == (mean_s and pytest.approx(mean_s))
    assert figures["images_per_s"] == (mean_s and pytest.approx(SAMPLES / mean_s))
    assert figures["phases_s"] == (
        mean_s and pytest.approx(dict.fromkeys(PHASES, 0) | {"forward": mean_s})
    )
    assert [(s["first_step"], s["steps"]) for s in figures["segments"]] == segments


def test_a_step_in_which_a_process_stood_still_is_in_no_figure():
    figures = summary(
        [rank_file(0, 2, [(0, 8)])], steps([1, 2, 3, 4, 5, 6, 7, 198]), warmup_steps=0
    )
    assert (
        figures["step_s"]["count"],
        figures["step_s"]["stalled_count"],
        figures["step_s"]["mean"],
    ) == (7, 1, 4)
    assert (
        figures["images_per_s"] == pytest.approx(SAMPLES / 4)
        and figures["phases_s"]["forward"] == 4
    )


def test_a_step_is_by_the_clock_of_the_slowest_rank():
    ranks = [rank_file(rank, 1, [(0, 2), (2, 2)]) for rank in range(2)]
    figures = summary(ranks, steps([9, 1, 9, 4], [9, 3, 9, 2]), warmup_steps=1)
    # ends: 9, 12, 21, 23; the warm-up is steps 0 and 2
    assert figures["step_s"]["mean"] == (3 + 2) / 2 and figures["step_s"]["warmup_count"] == 2
    assert figures["trained_images_per_s"] == 4 * SAMPLES / max(1 + 4, 3 + 2)


def test_a_run_cut_short_counts_epochs_that_all_ranks_finished():
    table = steps([1] * 8, [1] * 4)  # rank 0 has written an epoch more
    figures = summary([rank_file(0, 2, [(0, 8)]), rank_file(1, 1, [(0, 4)])], table, warmup_steps=0)
    assert len(figures["epochs"]) == 1 and figures["total_s"] == 1
    assert figures["step_s"]["count"] == 4 and figures["trained_images_per_s"] == 2 * SAMPLES
    assert figures["transfer_bytes"]["h2d_images"] == {
        "train": 2 * 4 * SAMPLES,
        "evaluate": 2 * 100,
    }
    assert figures["communication_bytes"]["all_reduce"] == 4 * 40
    assert figures["communication_bytes"]["broadcast"] == (40 + 20) + 4 * 20 + 16


def test_the_accuracy_of_a_run_is_that_of_its_last_epoch():
    ranks = [rank_file(rank, 3, [(0, 12)]) for rank in range(2)]
    for rank in ranks:
        # neither the best nor the first
        for epoch, accuracy in zip(rank.epochs, (0.3, 0.9, 0.6), strict=True):
            epoch.test_accuracy = accuracy
    figures = summary(ranks, steps([1] * 12, [1] * 12))
    assert figures["test_accuracy"] == 0.6
    assert [epoch["test_accuracy"] for epoch in figures["epochs"]] == [0.3, 0.9, 0.6]


def test_rounds_without_a_batch_for_every_rank_broadcast_no_buffers():
    ranks = [rank_file(rank, 2, [(0, 8)]) for rank in range(2)]
    table = steps([1] * 8, [1] * 8)
    samples = np.where(
        (table["rank"].to_numpy() == 1) & (table["step"].to_numpy() == PER_EPOCH - 1), 0, SAMPLES
    )
    table = table.set_column(table.column_names.index("samples"), "samples", pa.array(samples))
    moved = summary(ranks, table, 0)["communication_bytes"]
    assert moved["all_reduce"] == 8 * 40  # average_gradients takes DDP's part
    assert moved["broadcast"] == (40 + 20) + 6 * 20 + 2 * 16


def test_joules_per_image_count_every_training_of_an_image():
    ranks, table = [rank_file(rank, 2, [(0, 8)]) for rank in range(2)], steps([1] * 8, [1] * 8)
    assert summary(ranks, table, joules=3200.0)["joules_per_image"] == 3200 / (2 * 8 * SAMPLES)
    assert (
        summary(ranks, table)["joules_per_image"]
        is summary([], None, joules=9.0)["joules_per_image"]
        is None
    )


def test_a_run_without_a_whole_epoch_has_no_figures():
    for ranks in ([], [rank_file(0, 1, [(0, 4)]), rank_file(1, 0, [(0, 0)])]):
        figures = summary(ranks, steps([1] * 4) if ranks else None, warmup_steps=1)
        assert (
            figures["epochs"] == []
            and figures["total_s"] is None
            and figures["images_per_s"] is None
        )
        assert figures["step_s"]["count"] == figures["step_s"]["warmup_count"] == 0


def test_waits_are_the_slowest_ranks_and_a_resident_set_crosses_once():
    seconds = [0.1] * 2 * PER_EPOCH
    figures = summary(
        [rank_file(rank, 2, [(0, 8)]) for rank in range(2)], steps(seconds, seconds), 0
    )
    assert [(epoch["first_batch_s"], epoch["gap_s"]) for epoch in figures["epochs"]] == [
        (0.2, None),
        (0.2, 0.4),
    ]
    moved = figures["transfer_bytes"]
    assert moved["h2d_setup"] == {"train": 2000, "evaluate": 200}
    assert moved["h2d"] == 2 * (2 * 2 * PER_EPOCH * SAMPLES + 2 * 101) + 2200
