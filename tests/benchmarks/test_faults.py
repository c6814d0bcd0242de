"""`benchmarks.faults`: faults that hold, and lines that turn red where something is lost, measured twice or left."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from benchmarks.faults import __main__ as bench
from benchmarks.faults import observe, work
from benchmarks.faults.fault import RUN, TOKEN, Fault, Outcome
from multicard.records import run_folder

FAULTS = {fault.name: fault for faults in bench.GROUPS.values() for fault in faults}
SCRIPT = Fault("", "", (), statuses=None, ends=None, code=0)
WRITES = """
import json, pathlib, time
folder = pathlib.Path({sweep!r}) / "seed=1-01234567"
folder.mkdir(parents=True, exist_ok=True)
(folder / "result.json").write_text(json.dumps({{"status": "oom", "started_at": time.monotonic(), "identity": "1"}}))
"""
LEAVES = """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""


def test_every_fault_has_a_name_of_its_own_and_they_are_many():
    assert len(FAULTS) == sum(map(len, bench.GROUPS.values())) >= 40
    for fault in FAULTS.values():
        assert fault.what and not set(fault.name) - set("abcdefghijklmnopqrstuvwxyz0123456789-.")
        act, _, _ = fault.inside.partition("@")
        assert not act or act in work.ACTS


def test_faults_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    on_one_rank = replace(FAULTS["rank-killed"], words=(*RUN, "seed=1"), says="rank 0 was killed by SIGKILL")
    shrunk = [
        FAULTS["key-mistyped"],
        replace(FAULTS["full-from-the-start"], ends=None),
        FAULTS["data-missing"],
        replace(on_one_rank, statuses=("failed",), ends=("ok",)),
    ]
    outcomes = bench.cause([replace(fault, within_s=math.inf) for fault in shrunk], tmp_path)
    code = bench.show(outcomes, colour=True)
    assert [outcome.wrong for outcome in outcomes] == [[]] * 4
    printed = capsys.readouterr().out
    assert code == 0 and "\x1b" not in printed and max(map(len, printed.splitlines())) <= bench.WIDTH
    assert "4 faults, 0 of them wrong: 0 records lost, 0 cells measured twice, 0 processes" in printed
    (killed,) = (line for line in printed.splitlines() if "failed: failed: rank 0 was killed" in line)
    lost, twice, _, left = killed.split()[-4:]
    assert lost == twice == left == "0"


@pytest.fixture
def outcome(tmp_path: Path) -> Callable[..., Outcome]:
    """The outcome of a fault whose command is a script."""

    def take(script: str, **options: object) -> Outcome:
        path = tmp_path / "script.py"
        path.write_text(script)
        return observe.take(replace(SCRIPT, name="fault", program=(str(path),), **options), tmp_path)

    return take


def test_a_process_that_is_left_turns_the_line_red(
    outcome: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("benchmarks.faults.fault.GONE_WITHIN_S", 0.0)
    leaves = outcome(LEAVES)
    assert (leaves.left, leaves.lost, leaves.twice) == (1, 0, 0) and "sleep 600" in leaves.wrong[0]
    assert bench.show([leaves, Outcome("other")], colour=True) == 1
    red, plain = capsys.readouterr().out.splitlines()[2:4]
    assert red.startswith("\x1b[31m!  fault") and "\x1b" not in plain
    assert not [process for process in psutil.process_iter() if process.name() == "sleep" and of_a_trial(process)]


def of_a_trial(process: psutil.Process) -> bool:
    try:
        return TOKEN in process.environ()
    except psutil.Error:
        return False


def test_a_record_that_is_lost_or_measured_again_is_counted(outcome: Callable[..., Outcome], tmp_path: Path):
    lost = outcome("", statuses=("oom",))
    assert (lost.lost, lost.twice, len(lost.wrong)) == (1, 0, 1)
    writes = WRITES.format(sweep=str(tmp_path / "fault" / "sweep"))
    twice = outcome(writes, statuses=("oom",), ends=("oom",))
    assert (twice.lost, twice.twice) == (0, 1)
    assert any("measured" in problem for problem in twice.wrong)


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"code": 3}, "exit code 0, not 3"),
        ({"says": "never"}, "0 lines say 'never', not one"),
        ({"lines": 1}, "2 lines are printed, not 1"),
        ({"statuses": ("ok",)}, "the records are (), not ('ok',)"),
        ({"check": lambda _: "a file is there"}, "a file is there"),
    ],
)
def test_what_is_not_as_it_should_be_is_said(outcome: Callable[..., Outcome], options: dict, wrong: str):
    assert outcome("print('a'); print('b')", **options).wrong == [wrong]


def test_a_record_is_whole_with_every_step_of_every_epoch_and_rank(tmp_path: Path):
    record = {"status": "ok", "config": {"epochs": 2}}
    rows = [(epoch, rank, step) for epoch in range(2) for rank in range(2) for step in range(3)]
    for taken, whole in ((rows, True), (rows[:-1], False), (rows + rows[:1], False), (rows[:6], False)):
        columns = {
            key: np.array(column)
            for key, column in zip(("epoch", "rank", "step"), zip(*taken, strict=True), strict=True)
        }
        run_folder.write_parquet(tmp_path / "steps.parquet", columns)
        assert observe.is_whole(tmp_path, record) is whole
