"""Attempts of a run and the folder that they share;
a controller that is killed once its ranks have ended.
"""

import json
import multiprocessing
import os
import shutil
import signal
import sys
from dataclasses import replace
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import msgspec
import pytest
from omegaconf import DictConfig

from multicard.config.placement import Placement
from multicard.machine import slurm
from multicard.machine.slurm import Allocation
from multicard.ranks import failures
from multicard.ranks.failures import Failure
from multicard.ranks.gates import LEAD
from multicard.records import limits, ownership, run_folder
from multicard.records.progress import Board
from multicard.records.schema_data import DataContent
from multicard.records.schema_parts import Segment
from multicard.run import attempts, outcome, preemption
from multicard.run import controller as run
from multicard.run.peers import Peers
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, awaited, composed, warm_up
from tests.helpers.messages import refused
from tests.helpers.records import GONE, as_record, claim, vision

CPU = Placement("cpu", "gloo", 1, False)
JOB = Allocation(("n1", "n2"), job="12_3")
PREEMPTED = Failure("preempted", "SLURM preempted the job")


def save(folder: Path, step: int) -> None:
    run_folder.write_json(folder / "checkpoint" / "latest.json", {"steps": step, "world_size": 1})


def test_attempts_are_listed_with_what_each_trained(tmp_path: Path):
    attempts.begin(tmp_path, JOB)
    save(tmp_path, 10)
    attempts.end(tmp_path, PREEMPTED)
    assert attempts.moved_on(tmp_path)
    attempts.begin(tmp_path, JOB)  # killed without a word: what it did is lost
    attempts.begin(tmp_path, JOB)
    save(tmp_path, 15)
    attempts.begin(tmp_path, JOB)  # killed without a word too, but saved before
    attempts.end(tmp_path, None)
    trained = [(0, 10), (10, 5), (15, 3)]
    segments = attempts.merge(
        tmp_path, [Segment(first_step=first, steps=steps) for first, steps in trained]
    )
    assert [(one.end, one.first_step, one.steps) for one in segments] == [
        ("preempted", 0, 10),
        (None, 10, 0),
        (None, 10, 5),
        ("ok", 15, 3),
    ]
    assert (segments[-1].job, segments[-1].hosts) == ("12_3", ["n1", "n2"])
    assert attempts.requeues(tmp_path) == 1 and attempts.current(tmp_path) == 3
    assert attempts.parts(tmp_path) == [(0, 0), (0, 1), (2, 0), (2, 1), (3, 0), (3, 1)]


def test_data_that_was_changed_while_a_run_trained_is_noted(tmp_path: Path):
    for now, changed in (("a", None), (None, None), ("b", "dataset a, now b")):
        attempts.begin(tmp_path, JOB, data=DataContent("x", {"dataset": "a"}, 1, 1))
        attempts.end(tmp_path, None, data=now and DataContent("x", {"dataset": now}, 1, 1))
        data = attempts.last(tmp_path).data
        run = as_record(vision(data=msgspec.to_builtins(data)))
        assert data is not None and data.changed == changed
        assert (limits.MIXED_DATA.sign in limits.brief_signs(run)) is (changed is not None)


def test_an_attempt_that_saved_nothing_new_did_not_move_on(tmp_path: Path):
    attempts.begin(tmp_path, JOB)
    attempts.end(tmp_path, Failure("timeout", "the job reached its time limit"))
    assert not attempts.moved_on(tmp_path)
    save(tmp_path, 10)
    attempts.begin(tmp_path, JOB)
    attempts.end(tmp_path, Failure("timeout", "the job reached its time limit"))
    assert not attempts.moved_on(tmp_path)  # still the checkpoint that it began from


def test_a_requeued_job_finds_its_folder_again(tmp_path: Path):
    folder = tmp_path / "sweep" / "cell"
    assert ownership.claim(folder, "12_3") is False
    ownership.release(folder)
    claim(folder, job="12_3", pid=GONE)  # of the start that SLURM ended
    (folder / "kept").write_text("")
    assert ownership.claim(folder, "12_3") is True
    assert (folder / "kept").exists()
    attempts.begin(folder, JOB)
    ownership.clear(folder)
    assert [path.name for path in folder.iterdir()] == [run_folder.SEGMENTS]


def test_a_folder_is_not_taken_from_another_job_that_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "sweep" / "cell"
    claimed = claim(folder, job="12_3", pid=GONE)
    monkeypatch.setattr(slurm, "is_alive", lambda job: job == "12_3")
    for other in ("13", None):
        with refused("claim.in-use", key="name", who="job 12_3", cell="cell"):
            ownership.claim(folder, other)
    monkeypatch.setattr(slurm, "is_alive", lambda _: False)
    assert ownership.claim(folder, "13") is False
    assert not claimed.exists()
    claims = [run_folder.read_json(path) or {} for path in ownership.claims(folder)]
    assert [(one["host"], one["pid"], one["job"]) for one in claims] == [
        (os.uname().nodename, os.getpid(), "13")
    ]


def test_ranks_that_are_too_slow_to_save_before_the_time_limit_are_ended(
    tmp_path: Path, monkeypatch
):
    ended, board = list[Failure](), Board(tmp_path, 1, create=True)
    monkeypatch.setattr("tests.conftest.PATIENCE_S", 20.0)
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    monkeypatch.setattr(slurm, "why_warned", lambda _: "timeout")
    monkeypatch.setattr(failures, "end", ended.append)
    monkeypatch.setattr(preemption, "_warning_received", warned := Event())
    board.post(0, 3, 10, 48, 0, 0.5)
    warned.set()
    allocation = Allocation(job="12_3", grace_s=0.1)
    with preemption.StopOnWarning(
        allocation, board, CPU, tmp_path, True, Peers(allocation)
    ) as stop:
        awaited(lambda: ended)
    assert (
        board.stop_at > 3
        and [failure.kind for failure in ended] == ["timeout"]
        and stop.outcome(None) is None
    )
    board.remove()


@pytest.mark.parametrize(
    ("device", "nodes", "ahead"), [("cuda", 2, LEAD), ("cuda", 1, 2), ("cpu", 2, 2)]
)
def test_a_stop_over_several_nodes_is_as_far_ahead_as_their_hosts_may_be_of_their_gpus(
    device: str, nodes: int, ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    allocation, placement = (
        Allocation(("n1", "n2")[:nodes], job="12_3"),
        Placement(device, "gloo", 1, False, nodes),
    )
    board = Board(tmp_path, placement.world_size, create=True)
    board.post(0, 30, 100, 48, 0, 0.5)  # and no step is over until it is read again
    stop = preemption.StopOnWarning(allocation, board, placement, tmp_path, True, Peers(allocation))
    assert stop._choose_step() and board.stop_at == 30 + ahead
    board.remove()


WORDS = (
    *SMALL,
    "name=cut-off",
    "epochs=2",
    "dataset.train_limit=32",
    "dataset.test_limit=16",
    "model.width=0.25",
)
# audit events
CHANGES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}


def measure_until(cfg: DictConfig, folder: Path, change: int) -> None:
    """Measure, but be killed just before a change to a file of `folder`, or to its claim.

    Args:
        change: its number, from 0.
    """
    changes = count()

    def kill(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        path, last = arguments[0], arguments[-1]
        writes = event != "open" or bool(last & (os.O_WRONLY | os.O_RDWR))
        within = isinstance(path, str | os.PathLike) and (
            str(folder.parent) in str(path) or not Path(path).is_absolute()
        )
        if writes and within and next(changes) == change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(kill)
    run.measure(WORKLOAD, cfg, folder, keep_refused=True)


def start(cfg: DictConfig, folder: Path, workload: Any = WORKLOAD) -> dict[str, Any] | None:
    """As the same command does that was killed before. Returns what is in result.json then."""
    if run_folder.finished(folder) is None:
        run.measure(workload, cfg, folder, keep_refused=True)
    else:
        outcome.release_finished(folder)
    return run_folder.read_json(folder / "result.json")


class Trained:
    """A run, its record, and copies of its folder just before and after its end was noted."""

    def __init__(self, root: Path) -> None:
        self.root, self.numbers = root, count()
        self.cfg, self.folder = composed(*WORDS), root / "cut-off" / "cell"
        note = attempts.end

        def note_end(*arguments: Any) -> None:
            self._copy(root / "ended")
            note(*arguments)
            self._copy(root / "noted")

        warm_up()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attempts, "end", note_end)
            assert run.measure(WORKLOAD, self.cfg, self.folder, keep_refused=True).status == "ok"
        self.record = run_folder.read_json(self.folder / "result.json")

    def _copy(self, target: Path) -> None:
        shutil.copytree(self.folder, target)

    def killed(self, name: str) -> Path:
        """A folder as a killed controller left it."""
        cell = self.root / str(next(self.numbers)) / self.folder.parent.name / "cell"
        shutil.copytree(self.root / name, cell)
        claim(cell, pid=GONE)
        return cell


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.fixture(scope="module")
def trained(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("runs"))


def test_killed_at_any_change_of_its_folder_the_next_start_writes_the_same_record(trained: Trained):
    context = multiprocessing.get_context("forkserver")
    steps = run_folder.read_steps(trained.folder)
    for change in count():
        folder = trained.killed("noted")
        process = context.Process(target=measure_until, args=(trained.cfg, folder, change))
        process.start()
        process.join()
        assert process.exitcode in (0, -signal.SIGKILL)
        assert start(trained.cfg, folder) == trained.record, change
        assert (files(folder.parent), run_folder.read_steps(folder)) == (
            files(trained.folder.parent),
            steps,
        ), change
        if process.exitcode == 0:
            break
    assert change > 15


def test_killed_before_the_end_was_noted_only_what_was_measured_beside_is_lost(trained: Trained):
    folder = trained.killed("ended")
    record = start(trained.cfg, folder)
    assert record is not None and trained.record is not None
    lost = {"ended_at", "load", "beside", "limits"}  # of its limits, the one of its load
    assert record["limits"] == [
        each for each in trained.record["limits"] if each["code"] != limits.LOADED.code
    ]
    assert [record[key] for key in ("load", "beside")] == [None, None]
    assert {key for key in record if record[key] != trained.record[key]} - {"segments"} <= lost
    assert files(folder) == files(trained.folder)


def test_an_error_while_recording_leaves_the_cause_and_what_the_record_is_made_of(trained: Trained):
    def fail(*_: object) -> dict[str, Any]:
        raise ZeroDivisionError("weights sum to zero")

    folder = trained.killed("noted")
    for _ in range(2):
        record = start(trained.cfg, folder, replace(WORKLOAD, summarise=fail))
        assert record is not None
        assert (record["status"], record["cause"]["kind"]) == ("failed", "record")
        assert record["cause"]["code"] == "run.not-recorded"
        assert record["cause"]["facts"] == {"reason": "ZeroDivisionError: weights sum to zero"}
        assert "in fail" in "".join(record["cause"]["log_tail"])
    assert start(trained.cfg, folder) == trained.record
    assert files(folder) == files(trained.folder)


def test_what_was_trained_is_measured_again_only_where_that_is_asked_for(
    trained: Trained, monkeypatch
):
    monkeypatch.setattr(run, "_run_ranks", lambda *_: pytest.fail("trained again"))
    folder = trained.killed("noted")
    json.dump({"segments": []}, (folder / "segments.json").open("w"))
    with pytest.raises(pytest.fail.Exception):
        start(trained.cfg, folder)
    again = composed(*WORDS, "rerun=true")
    with pytest.raises(pytest.fail.Exception):
        start(again, trained.killed("noted"))
    assert start(trained.cfg, trained.killed("noted")) == trained.record
