"""Cells of a race on the ranks: they wait where they are told, and measure what lies between."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from multicard.measure import timing
from multicard.measure.timing import DATA, FORWARD, OPTIMIZER, StepTimer, clock_s
from multicard.ranks import gates
from multicard.ranks.gates import Pausing, blocks_file
from multicard.records import rank_files
from multicard.records.progress import Board
from multicard.records.rank_files import RankProbe, RankReport
from tests.conftest import Measured, awaited

CPU = torch.device("cpu")
HELD_S = 1.0  # ranks wait that long before each block of `race`


def lines(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    path = blocks_file(folder, rank)
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def one_rank(number: int = 0) -> Any:
    return SimpleNamespace(rank=number, device=CPU, world_size=1)


class Ticks:
    """Laps of a clock that goes on by a second with each step,
    and by 100 while nothing is marked.
    """

    now_s = 0.0

    def __init__(self, _: torch.device) -> None:
        self.marks: list[float] = []

    def start(self) -> None:
        self.marks = [Ticks.now_s]

    def end(self) -> None:
        self.marks.append(Ticks.now_s)

    def known(self, wait: bool) -> list[tuple[int, float]]:
        laps = [(0, float(lap_s)) for lap_s in np.diff(self.marks)]
        self.marks = self.marks[-1:]
        return laps if wait else []


@pytest.fixture
def trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[Pausing, Board]]:
    """Trains steps of 10 samples, of so many an epoch,
    to the step that ends the last of the blocks.
    """
    monkeypatch.setattr(gates, "Laps", Ticks)
    Ticks.now_s = 0.0

    def train(blocks: list[int], epoch: int, **options: Any) -> tuple[Pausing, Board]:
        board = Board(tmp_path, 1, create=True)
        targets = iter([*blocks[1:], 0])

        def race(self: Pausing, steps: int) -> None:  # while the ranks wait
            Ticks.now_s += 100.0
            self.board.run_to(next(targets) or steps + 1)

        monkeypatch.setattr(Pausing, "_wait_for_race", race)
        follower = Pausing(one_rank(), CPU, board, tmp_path, epoch, **options)
        board.run_to(blocks[0])
        for steps in range(1, blocks[-1] + 1):
            if (steps - 1) % epoch == 0:
                Ticks.now_s += 100.0  # evaluation
                follower.start_epoch()
                Ticks.now_s += 50.0  # the first batch
            Ticks.now_s += 1.0
            board.post(0, steps, 100, 10 * steps, 0, 0.5)
            follower.step_ended(steps)
            follower.end_epoch()
        return follower, board

    return train


def test_a_block_leaves_out_the_warm_up_what_lay_ready_and_the_starts_of_epochs(
    trained: Callable[..., tuple[Pausing, Board]], tmp_path: Path
):
    losses = iter([2.5, 0.5, float("nan")])  # of the last step, though the board may lag
    follower, _ = trained([6, 12, 20], 8, warm_up=4, prepared=2, last_loss=lambda: next(losses))
    blocks = lines(tmp_path)
    assert [block["loss"] for block in blocks] == [2.5, 0.5, None]
    assert [block["step"] for block in blocks] == [6, 12, 20]
    # steps 5 and 6; 10, 11 and 12 after two left of three that were skipped,
    # as an epoch began with 9; 16, 18, 19, 20
    assert [len(block["step_s"]) for block in blocks] == [2, 3, 4]
    assert all(step_s == 1.0 for block in blocks for step_s in block["step_s"])
    assert all(samples == 10.0 for block in blocks for samples in block["samples"])
    assert follower.result() == RankProbe("race", 8, [0, 1, 2, 3, 6, 7, 8, 12, 13, 14, 16])


def test_epochs_of_one_step_are_measured_with_their_first_batch(
    trained: Callable[..., tuple[Pausing, Board]], tmp_path: Path
):
    trained([4, 7], 1, warm_up=2, weight=0.5)
    first, second = lines(tmp_path)
    assert first["step_s"] == [51.0, 51.0] and second["step_s"] == [51.0, 51.0]
    assert first["samples"] == [5.0, 5.0]


def test_the_time_of_a_pause_is_no_steps(monkeypatch: pytest.MonkeyPatch):
    now = iter(np.arange(0.0, 100.0, 1.0))
    monkeypatch.setattr(timing.time, "perf_counter", lambda: next(now))
    monkeypatch.setattr(timing, "clock_s", lambda: next(now))
    timer = StepTimer(CPU)
    timer.start()  # a lap starts at 1, the epoch at 2
    for phase in (FORWARD, OPTIMIZER, DATA):
        timer.begin(phase)
    timer.leave_out(1.0)
    for phase in (FORWARD, OPTIMIZER, DATA):
        timer.begin(phase)
    train_s, table = timer.stop()
    assert train_s == 9.0 - 1.0 - 1.0 and timer.paused_s == 1.0
    assert table.sum() == 2.0 + 1.0 + 1.0 + 3.0  # the lap that was left out is in none


@contextmanager
def race(
    folder: Path, ranks: int, blocks: list[int]
) -> Iterator[tuple[list[BaseException], list[float]]]:
    """Meanwhile, lets the ranks of the run in `folder` train one block after the other,
    and has them stop.

    Yields errors, and the times at which they were let go.
    """
    errors, let_go_s = list[BaseException](), list[float]()

    def lead() -> None:
        awaited(lambda: len(lines(folder)) == 1)
        board, step = Board(folder, ranks), 1
        try:
            began = rank_files.read_reports(folder)[0]
            assert began.started_s is not None  # its start ends where it waits
            for done, step in enumerate(blocks, 1):
                awaited(
                    lambda done=done: all(len(lines(folder, rank)) == done for rank in range(ranks))
                )
                time.sleep(HELD_S)
                let_go_s.append(clock_s())
                board.run_to(step)
            awaited(
                lambda: all(len(lines(folder, rank)) == len(blocks) + 1 for rank in range(ranks))
            )
        except BaseException as error:
            errors.append(error)
        board.ask_stop(step)

    thread = Thread(target=lead, daemon=True)
    thread.start()
    yield errors, let_go_s
    thread.join(60)
    assert not thread.is_alive()


def test_ranks_of_training_pause_together_and_end_as_a_probe(measured: Measured, tmp_path: Path):
    folder = tmp_path / "sweep" / "1"
    words = (
        "probe.enabled=true",
        "race.figure=images_per_s",
        "gpus=2",
        "model.width=0.35",
        "strategy=ddp",
    )
    with race(folder, 2, [4, 9, 14]) as (errors, let_go_s):  # of 6 steps an epoch, and 1 epoch
        record = measured(
            *words, "stop_at_target=true", "target_accuracy=0.01", "schedule=onecycle"
        )
    assert not errors and record["status"] == "ok", (errors, record["cause"])
    for rank in range(2):
        start, *blocks = lines(folder, rank)
        assert (
            start["step"] == 0
            and start["step_s"] == []
            and [block["step"] for block in blocks] == [4, 9, 14]
        )
        assert [len(block["step_s"]) for block in blocks] == [4 - 1, 5 - 2, 5 - 2]
        assert all(samples == 8.0 for samples in blocks[0]["samples"])  # 16, which both ranks train
        assert blocks[-1]["peak_memory_bytes"] > 0 and np.isfinite(blocks[-1]["loss"])
    result = json.loads((folder / "result.json").read_text())
    assert result["probe"]["ended_by"] == "race" and result["probe"]["steps_per_epoch"] == 6
    assert [epoch["steps"] for epoch in result["epochs"]] == [6, 6, 2]
    assert result["epochs"][0]["test_samples"] == 32  # a batch of each rank
    assert record["total_s"] <= clock_s() - let_go_s[0] - 2 * HELD_S
    assert not list(folder.glob(".progress*"))


def test_ranks_of_tuning_pause_together(tuned: Measured, tmp_path: Path):
    folder = tmp_path / "sweep" / "1"
    with race(folder, 2, [4, 7]) as (errors, let_go_s):
        record = tuned("gpus=2", "probe.enabled=true", "race.figure=tokens_per_s", "max_steps=3")
    assert not errors and record["status"] == "ok", (errors, record["cause"])
    for rank in range(2):
        _, first, second = lines(folder, rank)
        assert (
            len(first["step_s"]) == 4 - 2
            and len(second["step_s"]) == 3 - 2
            and min(first["samples"]) > 0
        )
    assert [epoch["steps"] for epoch in record["epochs"]] == [3, 3, 1]
    assert record["total_s"] <= clock_s() - let_go_s[0] - HELD_S


def test_a_probe_of_a_race_is_known_by_the_steps_that_counted():
    columns = {
        "epoch": [0] * 6,
        "rank": [0] * 6,
        "step": [*range(6)],
        "step_s": [9.0, 1.0, 1.0, 5.0, 1.0, 1.0],
    }
    table = {
        name: SimpleNamespace(to_numpy=lambda values=values: np.array(values))
        for name, values in columns.items()
    }
    end = rank_files.probe_end([RankReport(rank=0, probe=RankProbe("race", 6, [0, 3]))], table)
    assert end is not None and end.step_s == 1.0 and end.steps + end.warmup_steps == 4
