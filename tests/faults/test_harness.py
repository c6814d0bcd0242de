"""What the harness of faults sees: each way in which a command can go wrong, shown by a script that does."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicard.records import run_folder
from tests.faults import harness, work
from tests.faults.harness import Fault
from tests.faults.test_faults import LONG, QUICK

MEASURES = """
import json, pathlib, time
folder = pathlib.Path({sweep!r}) / "seed=1-01234567"
folder.mkdir(parents=True, exist_ok=True)
(folder / "result.json").write_text(json.dumps({{"status": "oom", "started_at": time.monotonic(), "identity": "1"}}))
"""
LEAVES = """
import subprocess
subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
"""
PRINTS = "print('a'); print('b')"


def test_every_fault_has_a_name_of_its_own_and_an_act_that_there_is():
    faults = (*QUICK, *LONG)
    assert len({fault.name for fault in faults}) == len(faults) >= 50
    assert {fault.inside.partition("@")[0] for fault in faults} <= {"", *work.ACTS}


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("script", "options", "expected"),
    [
        (PRINTS, {}, []),
        (PRINTS, {"code": 3}, ["exit code 0, not 3: a\nb"]),
        (PRINTS, {"says": "never"}, ["0 lines say 'never', not one: a\nb"]),
        (PRINTS, {"lines": 1}, ["2 lines are printed, not 1"]),
        (PRINTS, {"check": lambda _: "a file is there"}, ["a file is there"]),
        (PRINTS, {"statuses": ("ok",)}, ["the records are (), not ('ok',)"]),
        (MEASURES, {"ends": ("oom",)}, ["cells are measured twice"]),
        (LEAVES, {}, ["left behind: sleep 600"]),
    ],
)
def test_what_is_not_as_it_must_be_is_said(
    script: str, options: dict[str, Any], expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(harness, "GONE_WITHIN_S", 0.5)
    path = tmp_path / "script.py"
    path.write_text(script.format(sweep=str(tmp_path / "sweep")) if script == MEASURES else script)
    fault = Fault("", (), str(path), code=0, ends=None)
    assert harness.wrong(replace(fault, **options), tmp_path) == expected


def test_a_record_is_whole_with_every_step_of_every_epoch_and_rank(tmp_path: Path):
    record = {"status": "ok", "config": {"epochs": 2}, "axes": {"gpus": 2, "nodes": 1}}
    rows = [(epoch, rank, step) for epoch in range(2) for rank in range(2) for step in range(3)]
    one_rank = [row for row in rows if row[1] == 0]
    for taken, whole in (
        (rows, True),
        (rows[:-1], False),
        (rows + rows[:1], False),
        (rows[:6], False),
        (one_rank, False),
    ):
        columns = zip(*taken, strict=True)
        arrays = {key: np.array(column) for key, column in zip(("epoch", "rank", "step"), columns, strict=True)}
        run_folder.write_parquet(tmp_path / "steps.parquet", arrays)
        assert harness.is_whole(tmp_path, record) is whole
