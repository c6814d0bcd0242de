"""Attempts of a run, and the folder that they share."""

import os
from pathlib import Path
from threading import Event

import msgspec
import pytest

from multicard.config.placement import Placement
from multicard.machine import slurm
from multicard.machine.slurm import Allocation
from multicard.ranks import failures
from multicard.ranks.failures import Failure
from multicard.records import comparable, ownership, run_folder
from multicard.records.progress import Board
from multicard.records.schema_parts import Data, Segment
from multicard.run import attempts, preemption
from multicard.run.peers import Peers
from tests.conftest import awaited
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
    segments = attempts.merge(tmp_path, [Segment(first_step=first, steps=steps) for first, steps in trained])
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
        attempts.begin(tmp_path, JOB, data=Data("x", {"dataset": "a"}, 1, 1))
        attempts.end(tmp_path, None, data=now and Data("x", {"dataset": now}, 1, 1))
        data = attempts.last(tmp_path).data
        run = as_record(vision(data=msgspec.to_builtins(data)))
        assert data is not None and data.changed == changed
        assert (comparable.MIXED in comparable.marks(run)) is (changed is not None)


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


def test_a_folder_is_not_taken_from_another_job_that_is_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "sweep" / "cell"
    claimed = claim(folder, job="12_3", pid=GONE)
    monkeypatch.setattr(slurm, "is_alive", lambda job: job == "12_3")
    for other in ("13", None):
        with pytest.raises(ValueError, match=r"name=sweep: job 12_3 is measuring cell; wait for it"):
            ownership.claim(folder, other)
    monkeypatch.setattr(slurm, "is_alive", lambda _: False)
    assert ownership.claim(folder, "13") is False
    assert not claimed.exists()
    claims = [run_folder.read_json(path) or {} for path in ownership.claims(folder)]
    assert [(one["host"], one["pid"], one["job"]) for one in claims] == [(os.uname().nodename, os.getpid(), "13")]


def test_ranks_that_are_too_slow_to_save_before_the_time_limit_are_ended(tmp_path: Path, monkeypatch):
    ended, board = list[Failure](), Board(tmp_path, 1, create=True)
    monkeypatch.setattr("tests.conftest.PATIENCE_S", 20.0)
    monkeypatch.setattr(preemption, "POLL_S", 0.01)
    monkeypatch.setattr(slurm, "why_warned", lambda _: "timeout")
    monkeypatch.setattr(failures, "end", ended.append)
    monkeypatch.setattr(preemption, "_warned", warned := Event())
    board.post(0, 3, 10, 48, 0, 0.5)
    warned.set()
    allocation = Allocation(job="12_3", grace_s=0.1)
    with preemption.StopOnWarning(allocation, board, CPU, tmp_path, True, Peers(allocation)) as stop:
        awaited(lambda: ended)
    assert board.stop_at > 3 and [failure.kind for failure in ended] == ["timeout"] and stop.outcome(None) is None
    board.remove()
