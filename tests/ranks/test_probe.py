"""`probe=true`: when it stops, that all ranks stop after the same step,
and that no table holds it.
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from analysis.runs import load
from multicard.config.base import plain
from multicard.config.placement import Placement
from multicard.machine.slurm import Allocation
from multicard.measure.series import GROWTH, LEAST_STEPS, StopRule
from multicard.measure.timing import Laps
from multicard.ranks import gates
from multicard.ranks.gates import LEAD, Probing
from multicard.ranks.process import Rank
from multicard.records import comparable, run_folder, table
from multicard.records.progress import Board
from multicard.run import outcome, preemption
from multicard.run.preemption import StopOnWarning
from tests.conftest import SMALL, Called, Measured, awaited, ok, typed
from tests.helpers import records, wandb_file
from tests.helpers.messages import says
from tests.measure.test_series import autocorrelated
from tests.tracking.test_runs import OFFLINE


def stopped(
    steps_s: Sequence[float] | np.ndarray, error: float = 0.01, seconds: float = 60.0
) -> tuple[int, str]:
    """After how many of these steps, of one epoch, a probe stops, and why."""
    rule = StopRule(error, seconds, len(steps_s))
    for number, step_s in enumerate(steps_s, 1):
        rule.add(float(step_s))
        if (reason := rule.reason()) is not None:
            return number, reason
    return len(steps_s), "run"


def test_a_probe_stops_on_its_error():
    random = np.random.default_rng(1)
    ends = [
        stopped(autocorrelated(random, 5000, 0.1, phi, 0.05), seconds=300.0)
        for phi in [0.0] * 40 + [0.5] * 40
    ]
    assert all(reason == "error" for _, reason in ends)
    independent, correlated = (
        np.median([steps for steps, _ in part]) for part in (ends[:40], ends[40:])
    )
    # 1.96^2 (0.05 / 0.01)^2 = 96 independent steps, but not before a tenth of the time;
    # correlated, three times as many
    assert 300 <= independent <= 96 * 4 and correlated >= independent
    fast = autocorrelated(random, 20_000, 0.01, 0.5, 0.2)
    steps, reason = stopped(fast, error=0.05)
    assert reason == "error" and fast[:steps].sum() >= 6.0  # a tenth of the time


def test_a_probe_stops_on_its_time():
    random = np.random.default_rng(1)
    noisy = autocorrelated(random, 1000, 0.1, 0.9, 0.5)
    steps, reason = stopped(noisy, seconds=20.0)
    assert reason == "seconds" and noisy[: steps - 1].sum() < 20.0 <= noisy[:steps].sum()
    assert stopped([100.0, 1.0]) == (1, "seconds")
    assert stopped([0.1] * 100, seconds=2.05) == (21, "error")  # late, but known


def test_steps_ahead_count_and_the_first_of_an_epoch_is_no_part_of_the_mean():
    ahead = StopRule(0.01, 10.0, 100)
    ahead.add(5.0)
    assert ahead.reason(ahead=99) is None  # the first step says nothing of the others
    ahead.add(0.5)
    assert ahead.reason(ahead=8) is None and ahead.reason(ahead=9) == "seconds"

    def known(steps_per_epoch: int) -> bool:
        rule = StopRule(0.01, 37.0, steps_per_epoch)
        for step in range(50):
            if step % 3 == 0:
                rule.start_epoch()
            rule.add(2.0 if step % 3 == 0 else 0.1)
        return rule.reason() == "error"

    assert known(3) and not known(1)


class Event:
    """A CUDA event that its device passes at `passed_s`; None: not yet."""

    waited: list["Event"]

    def __init__(self, **_: Any) -> None:
        self.passed_s: float | None = None

    def record(self) -> None:
        self.passed_s = None

    def query(self) -> bool:
        return self.passed_s is not None

    def synchronize(self) -> None:
        Event.waited.append(self)
        self.passed_s = self.passed_s or 0.0

    def elapsed_time(self, later: "Event") -> float:
        assert self.passed_s is not None and later.passed_s is not None
        return (later.passed_s - self.passed_s) * 1e3


def test_on_cuda_the_device_times_steps_and_only_a_host_far_ahead_waits(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    Event.waited = []
    laps = Laps(torch.device("cuda"), lead=3)
    start = laps._last
    for _ in range(2):
        laps.end()
    assert laps.known() == [] and laps.pending == 2 and not Event.waited
    first = laps._ends[0][1]
    start.passed_s, first.passed_s = 10.0, 10.5
    # by the device's clock, of what it has passed
    assert laps.known() == [(0, 0.5)] and laps.pending == 1
    laps.end()
    assert not Event.waited
    laps.end()
    assert Event.waited == [first]  # the end of the step 3 ago
    marks = [event for _, event in laps._ends]
    for number, event in enumerate(marks, 1):
        event.passed_s = 10.5 + number
    assert laps.known() == [(0, 1.0)] * 3
    laps.start()
    assert laps.pending == 0 and laps._last in (start, first, *marks)  # used again


def time_steps(monkeypatch: pytest.MonkeyPatch, step_s: float) -> None:
    """Have every step take so long, and be known at once."""
    laps = SimpleNamespace(
        start=lambda: None, end=lambda: None, known=lambda: [(0, step_s)], pending=0
    )
    monkeypatch.setattr(gates, "Laps", lambda *_: laps)


def rank_of(rank: int, world_size: int) -> Rank:
    return SimpleNamespace(rank=rank, world_size=world_size)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("device", "ranks", "nodes", "ahead"),
    [("cpu", 2, 1, 1), ("cuda", 1, 1, 1), ("cuda", 2, 1, LEAD + 1)],
)
def test_rank_0_names_a_step_that_no_rank_can_have_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, ranks: int, nodes: int, ahead: int
):
    time_steps(monkeypatch, 1.0)
    board = Board(tmp_path, ranks, create=True)
    config = typed("probe.enabled=true", "probe.seconds=40.0", "epochs=9", f"gpus={ranks}")
    first, *others = (
        Probing(config, rank_of(number, ranks), torch.device(device), board, 100)
        for number in range(ranks)
    )
    steps = 0
    while not board.stop_at:
        steps += 1
        for other in others:
            other.step_ended(steps)
            assert not board.stop_at
        first.step_ended(steps)
    assert board.stop_at == steps + ahead and first.ended_by == "error"
    assert steps == 1 + math.ceil(GROWTH * LEAST_STEPS)  # two looks
    assert [board.stops(step) for step in (steps, steps + ahead)] == [False, True]
    with pytest.raises(RuntimeError) as error:
        board.stops(steps + ahead + 1)
    assert says(
        str(error.value), "rank.stop-missed", stop_at=steps + ahead, steps=steps + ahead + 1
    )
    first.step_ended(steps + 1)
    assert board.stop_at == steps + ahead  # it stands
    board.remove()


def test_the_other_nodes_hear_of_it_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    time_steps(monkeypatch, 0.5)
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    heard: list[int] = []
    board = Board(tmp_path, 4, create=True)
    peers: Any = SimpleNamespace(tell_stop=heard.append)
    allocation = Allocation(job="7", hosts=("a", "b"))
    with StopOnWarning(
        allocation, board, Placement("cpu", "gloo", 2, False, 2), tmp_path, False, peers
    ) as stop:
        config = typed("probe.enabled=true", "probe.seconds=0.4", "nodes=2", "gpus=2")
        Probing(config, rank_of(0, 4), torch.device("cpu"), board, 100).step_ended(12)
        assert board.stop_at == 12 + 1 + 4  # 2 s of steps of 0.5 s
        awaited(lambda: heard)
    assert heard == [17] and stop.outcome(None) is None
    board.remove()


def written(record: dict[str, Any]) -> dict[str, Any]:
    return json.loads((Path(record["folder"]) / "result.json").read_text())


@pytest.mark.usefixtures("processes")
def test_a_probe_of_training_and_the_full_run_stand_side_by_side(called: Called, tmp_path: Path):
    words = [*SMALL, "gpus=2", "epochs=2", "model.width=0.35", "dataset.train_limit=256"]
    words += [f"hydra.run.dir={tmp_path / 'sweep'}"]
    code, printed = called(*words, "probe=true", "probe.seconds=0.001")
    assert code == 0 and "[probe] step " in printed and "ended: probe.seconds" in printed
    assert says(printed, "table.probes")
    (folder,) = (tmp_path / "sweep").iterdir()
    probe = json.loads((folder / "result.json").read_text())
    assert folder.name.endswith(f"-{probe['identity']}-probe") and probe["status"] == "ok"
    end = probe["probe"]
    assert (end["ended_by"], end["steps_per_epoch"], end["half_width"]) == ("seconds", 8, None)
    (epoch,) = probe["epochs"]
    assert (
        epoch["steps"] == 2
        and epoch["samples"] == epoch["samples_trained"] == 64
        and epoch["evaluate_s"] > 0
    )
    assert (
        epoch["images_per_s"] == pytest.approx(64 / epoch["train_s"])
        and epoch["first_batch_s"] is not None
    )
    with pytest.raises(ValueError):  # the only run is a probe
        load.read_runs([tmp_path])

    code, printed = called(*words)
    assert code == 0 and "measured before" not in printed and "images/s" in printed
    (run,) = load.read_runs([tmp_path]).runs
    assert (
        run.folder.name == folder.name.removesuffix("-probe")
        and run["identity"] == probe["identity"]
    )
    assert [found.folder for found in load.read_runs([tmp_path], probes=True).runs] == [
        run.folder,
        folder,
    ]
    assert (whole := json.loads((run.folder / "result.json").read_text()))["probe"] is None
    assert [epoch["steps"] for epoch in whole["epochs"]] == [8, 8]


def test_a_probe_whose_epochs_end_first_has_them_all(measured: Measured):
    words = (
        "probe.enabled=true",
        "probe.error=0.0001%",
        "probe.seconds=1e6",
        "epochs=3",
        "model.width=0.35",
    )
    record = measured(*words, *OFFLINE)
    assert (
        record["status"] == "ok" and len(record["epochs"]) == 3 and record["epochs"][1]["gap_s"] > 0
    )
    end = written(record)["probe"]
    assert (end["ended_by"], end["steps_per_epoch"]) == ("run", 6)
    assert end["steps"] + end["warmup_steps"] == 3 * 5  # without the first of each epoch
    assert "ended: last epoch" in outcome.line(records.as_run(record))
    # a busy machine, where it was
    limited = [limit["code"] for limit in record["limits"] if limit["forbids"]]
    assert list(wandb_file.read(Path(record["folder"]))["run"].tags) == [
        "a",
        "b",
        "probe",
        *limited,
    ]


def test_a_probe_of_tuning_stops_all_ranks_after_the_same_step(tuned: Measured):
    record = ok(
        tuned("gpus=2", "probe.enabled=true", "probe.seconds=0.001", "max_steps=null", "epochs=3")
    )
    end = written(record)["probe"]
    assert (end["ended_by"], end["steps"], end["half_width"]) == ("seconds", 1, None) and end[
        "steps_per_epoch"
    ] > 10
    assert [epoch["steps"] for epoch in record["epochs"]] == [2]


def test_no_run_is_compared_with_a_probe():
    made = records.vision()
    own = {"config": made["config"] | {"probe": plain(typed("probe.enabled=true"))["probe"]}}
    run, probe = (records.as_record(record) for record in (made, made | own))
    assert comparable.reference(run, [run]) is run and comparable.reference(run, [probe]) is None
    refused_probe = Path("x-1a2b3c4d-probe")
    assert run_folder.is_probe(records.as_record({}), refused_probe) and not run_folder.is_probe(
        run, refused_probe
    )
    refused = {key: made[key] for key in ("kind", "name", "axes")} | {"status": "refused"}
    assert [line.split()[2] for line in table.probe_lines([records.as_run(refused)])[:2]] == [
        "status",
        "refused",
    ]
