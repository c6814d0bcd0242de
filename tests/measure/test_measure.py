"""The formulas in closed form."""

import gc
import math
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch

from multicard.measure import formulas, garbage, memory, timing
from multicard.measure.timing import BACKWARD, DATA, FORWARD, H2D, OPTIMIZER
from tests.conftest import ROOT


def test_statistics_leave_the_warm_up_out_and_are_null_of_nothing():
    figures = formulas.statistics([100.0, 100.0, 1.0, 2.0, 3.0, 4.0, 5.0], warmup=2)
    assert figures["mean"] == 3 and figures["median"] == 3
    assert figures["std"] == pytest.approx(math.sqrt(2.5))  # n - 1
    assert figures["p95"] == pytest.approx(4.8)  # 1 + 0.95 x 4
    assert figures["p99"] == pytest.approx(4.96)
    assert (figures["count"], figures["warmup_count"]) == (5, 2)
    for samples, warmup in (([], 0), ([1.0], 5), ([1.0, 2.0], 2)):
        figures = formulas.statistics(samples, warmup)
        assert figures["count"] == 0 and figures["warmup_count"] == len(samples)
        assert figures["mean"] is figures["median"] is figures["p99"] is figures["std"] is None


def test_steps_by_the_slowest_ranks_clock_add_up_to_the_epoch():
    by_rank_s = np.random.default_rng(0).exponential(size=(3, 2, 5))  # ranks, epochs, steps
    rank, epoch, step = (index.ravel() for index in np.indices(by_rank_s.shape))
    shuffled = np.random.default_rng(1).permutation(len(rank))
    table = [column[shuffled] for column in (epoch, rank, step, by_rank_s.ravel())]
    ends_s = [[max(by_rank_s[:, e, : k + 1].sum(axis=1)) for k in range(5)] for e in range(2)]
    expected = [end_s - ([0.0, *ends])[k] for ends in ends_s for k, end_s in enumerate(ends)]
    steps_s = formulas.step_times_s(*table)
    assert steps_s == pytest.approx(expected) and (steps_s >= 0).all()
    assert steps_s.reshape(2, 5).sum(axis=1) == pytest.approx(by_rank_s.sum(axis=2).max(axis=0))
    assert formulas.step_times_s(*(column[:0] for column in table)).size == 0


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (formulas.statistics([7.0], 0)["std"], None),  # one sample has no spread
        # of all ranks, over the slowest one's time
        (formulas.throughput_per_s([640, 640], [2.0, 4.0]), 320),
        (formulas.throughput_per_s([100], [0.5]), 200),
        (formulas.throughput_per_s([], []), None),
        (formulas.throughput_per_s([0], [0.0]), None),
        (formulas.speedup(100.0, 40.0), 2.5),
        (formulas.parallel_efficiency(100.0, 25.0, 4), 1),  # n GPUs, n times as fast
        (formulas.parallel_efficiency(100.0, 50.0, 4), 0.5),
        *((formulas.ring_all_reduce_bytes(1000, w), 2000 * (w - 1) / w) for w in (1, 2, 4, 8)),
    ],
)
def test_formulas_in_closed_form(value: float | None, expected: float | None):
    assert value == expected


def test_laps_add_up_to_steps():
    # two steps; the second moved two batches before it trained
    phases = [
        DATA,
        H2D,
        FORWARD,
        BACKWARD,
        OPTIMIZER,
        DATA,
        H2D,
        DATA,
        H2D,
        FORWARD,
        BACKWARD,
        OPTIMIZER,
    ]
    table = timing.phase_table(
        [*zip(phases, [1, 2, 3, 4, 5, 10, 20, 30, 40, 50, 60, 70], strict=True)]
    )
    np.testing.assert_array_equal(table, [[1, 2, 3, 4, 5], [40, 60, 50, 60, 70]])
    # laps after the last step belong to none
    assert timing.phase_table([(OPTIMIZER, 1), (DATA, 9)]).tolist() == [[0, 0, 0, 0, 1]]
    assert timing.phase_table([]).shape == (0, 5)


def test_step_timer_on_cpu():
    timer = timing.StepTimer(torch.device("cpu"))
    for _ in range(2):  # a second epoch starts from nothing
        timer.start()
        for phase in (H2D, FORWARD, BACKWARD, OPTIMIZER, DATA):
            timer.begin(phase)
            time.sleep(0.01 if phase == FORWARD else 0)
        wall_s, table = timer.stop()
    assert table.shape == (1, 5)
    assert table[0, FORWARD] >= 0.01
    assert 0.01 <= table.sum() <= wall_s


PEAK = """
import torch
from multicard.measure import memory as measure
device = torch.device("cpu")
measure.reset_peak_memory(device)
before = measure.peak_memory_bytes(device)
held = torch.ones(64 * 2**20, dtype=torch.uint8)
after = measure.peak_memory_bytes(device)
del held
print(before, after, measure.peak_memory_bytes(device))
"""


@pytest.mark.usefixtures("processes")
def test_peak_memory_grows_with_what_is_held():
    # in a process of its own: where the system does not let a peak be reset,
    # that of earlier tests would stand
    done = subprocess.run(
        [sys.executable, "-c", PEAK], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after, later = map(int, done.stdout.split())
    assert after >= before + 32 * 2**20
    assert later >= before + 32 * 2**20  # a peak does not fall with what is freed


def test_clocks_of_the_process_and_of_the_day_go_on_evenly_where_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
):
    assert 0 < timing.clock_s() - timing.process_started_s() < 3600
    before_s = timing.since_epoch_s()
    assert before_s == pytest.approx(time.time(), abs=60)
    for days in (-1, 1):
        monkeypatch.setattr(time, "time", lambda days=days: before_s + days * 86_400)
        assert 0 <= timing.since_epoch_s() - before_s < 60


def test_memory_of_cuda_graphs_is_what_their_pools_hold_beyond_the_allocations():
    def segment(device: int, pool: tuple[int, int], total: int, allocated: int) -> dict[str, Any]:
        return {
            "device": device,
            "segment_pool_id": pool,
            "total_size": total,
            "allocated_size": allocated,
        }

    segments = [
        segment(0, (0, 0), 900, 100),
        segment(0, (0, 1), 500, 20),
        segment(0, (0, 1), 70, 70),
    ]
    segments.append(segment(1, (0, 1), 10_000, 0))
    assert memory.graph_pool_bytes(segments, 0) == memory.graph_pool_bytes(segments, None) == 480
    assert memory.graph_pool_bytes(segments, 1) == 10_000


# ---- slow steps


def slow(
    steps_s: list[float], warmup: int = 0, per_epoch: int = 1000, work: list[int] | None = None
) -> list[int]:
    counted = np.arange(len(steps_s)) >= warmup
    return formulas.find_slow_steps(
        np.array(steps_s), counted, per_epoch, None if work is None else np.array(work)
    )


def test_steps_of_over_three_medians_are_named_where_one_in_twenty_is():
    steps_s = [1.0] * 40
    assert slow(steps_s) == []
    steps_s[7] = steps_s[19] = 3.1
    assert slow(steps_s) == []  # the 95th percentile of 39 is that of the others
    steps_s[30] = 20.0
    assert slow(steps_s) == [7, 19, 30]
    assert slow(steps_s, warmup=25) == [30]  # one in fifteen
    assert slow([*steps_s[:30], *[2.9] * 10]) == []


def test_neither_the_first_step_of_an_epoch_nor_a_step_of_longer_rows_is_slow():
    steps_s = [10.0 if step % 10 == 0 else 1.0 for step in range(40)]
    assert slow(steps_s, per_epoch=10) == []
    assert slow(steps_s) == [10, 20, 30]
    tokens = [1000 if step % 10 == 0 else 100 for step in range(40)]
    assert slow(steps_s, work=tokens) == []
    assert slow(steps_s, work=[100] * 40) == [10, 20, 30]
    assert slow([1.0], work=[0]) == []


# ---- garbage collection


def test_garbage_is_collected_at_fixed_steps_alone(monkeypatch: pytest.MonkeyPatch):
    collected: list[int] = []
    garbage.begin()
    try:
        assert not gc.isenabled() and gc.get_freeze_count() > 1000
        monkeypatch.setattr(gc, "collect", collected.append)
        for step in range(1, 2 * garbage.COLLECT_EVERY + 1):
            garbage.step_ended(step)
        assert collected == [0, 0]
    finally:
        garbage.end()
    assert gc.isenabled() and gc.get_freeze_count() == 0
