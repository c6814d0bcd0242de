"""Cells that share one machine."""

import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from multicard.controller import outcome
from multicard.controller.session import SESSION
from multicard.ranks.failures import Failure
from multicard.sweep import local
from multicard.sweep.job import CellJob
from multicard.sweep.local import MachineShare, Pool
from multicard.sweep.plan import Cell
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, command, composed, typed


def test_each_gpu_is_used_by_one_cell_with_its_part_of_the_cores():
    whole = Pool(["a", "b", "c", "d"], list(range(16)))
    free = Pool(list(whole.gpus), list(whole.cpus))
    one, two = typed("gpus=1", "exclusive=false"), typed("gpus=2", "exclusive=false")
    first, second, third = (local.allocate(config, free, whole) for config in (two, one, two))
    assert first == MachineShare(("a", "b"), tuple(range(8)))
    assert second == MachineShare(("c",), tuple(range(8, 12)))
    assert third is None
    local.give_back(first, free)
    assert local.allocate(two, free, whole) == first


def test_cpu_ranks_take_cores_each():
    whole = Pool([], [0, 1, 2, 3])
    free = Pool([], [0, 1, 2, 3])
    config = typed("gpus=1", "cpus_per_gpu=2", "exclusive=false")
    assert [local.allocate(config, free, whole) for _ in range(3)] == [
        MachineShare(None, (0, 1)),
        MachineShare(None, (2, 3)),
        None,
    ]


def test_a_cell_is_alone_unless_it_is_not_exclusive_and_one_that_wants_too_much_gets_everything():
    whole = Pool(["a", "b"], [0, 1])
    free = Pool(["a", "b"], [0, 1])
    assert local.allocate(typed("gpus=1"), free, whole) == MachineShare(("a", "b"), (0, 1))
    assert local.allocate(typed("gpus=1"), free, whole) is None
    too_much = typed("gpus=9", "exclusive=false")
    assert local.allocate(too_much, Pool(["a", "b"], [0, 1]), whole) == MachineShare(("a", "b"), (0, 1))


def test_an_interrupted_cell_ends_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Also where the signal did not reach this process."""

    def ended(_: Any, job: CellJob) -> Any:
        record = outcome.begin(WORKLOAD, job.cfg, job.folder)
        outcome.fail(record, Failure("interrupt", "interrupted by SIGINT"))
        return SimpleNamespace(done=lambda: True, job_id="0")

    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # what a sweep changes for its jobs
    monkeypatch.setattr(SESSION, "workload", WORKLOAD)
    monkeypatch.setattr(local, "_submit", ended)
    words = [*SMALL, "device=cpu"]
    cells = [
        Cell(
            number,
            "",
            DictConfig({"hydra": {"job": {"env_set": {}}}}),
            composed(*words),
            tmp_path / "sweep" / f"{number}",
            typed(*words),
        )
        for number in (1, 2)
    ]
    with pytest.raises(KeyboardInterrupt):
        local.run_all(cells)
    assert cells[0].result is not None and cells[0].result["status"] == "interrupted"
    assert cells[1].result is None and not cells[1].folder.exists()


def test_a_sweep_is_packed_and_each_cell_keeps_to_its_cores(tmp_path):
    words = ["-m", *SMALL, "hydra/launcher=submitit_local", f"hydra.sweep.dir={tmp_path}", "cpus_per_gpu=1"]
    done = command(*words, "exclusive=false", "seed=1,2", "precision=fp32,tf32")
    assert done.returncode == 1, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert sorted(result["status"] for result in results) == ["ok", "ok", "refused", "refused"]
    beside = int(len(os.sched_getaffinity(0)) > 1)  # both at once, where there is a core for each
    assert [result["beside"] for result in results if result["status"] == "ok"] == [beside] * 2
    machines = [json.loads(path.read_text()) for path in tmp_path.glob("*/environment.json")]
    assert len(machines) == 2
    assert all(re.fullmatch(r"\d+", machine["ranks"][0]["cpus"]) for machine in machines)
    again = command(*words, "exclusive=false", "seed=1,2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("measured before (ok)") == 2
