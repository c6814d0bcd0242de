"""Cells that share one machine."""

import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable
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
from multicard.sweep.plan import STARTS_JOBS, Cell
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, command, composed, typed, warm_up


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

    def ended(_: Any, job: CellJob, cell: Cell, share: MachineShare, running: list[local.Running]) -> None:
        record = outcome.begin(WORKLOAD, job.cfg, job.folder)
        outcome.fail(record, Failure("interrupt", "interrupted by SIGINT"))
        running.append(local.Running(cell, SimpleNamespace(done=lambda: True, job_id="0"), share))

    monkeypatch.setattr(SESSION, "workload", WORKLOAD)
    monkeypatch.setattr(local, "start_job", ended)
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


@pytest.mark.slow
def test_a_sweep_is_packed_and_each_cell_keeps_to_its_cores(tmp_path):
    words = ["-m", *SMALL, "hydra/launcher=submitit_local", f"hydra.sweep.dir={tmp_path}", "cpus_per_gpu=1"]
    done = command(*words, "exclusive=false", "seed=1,2", "precision=fp32,tf32", umask=0)
    assert done.returncode == 1, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert sorted(result["status"] for result in results) == ["ok", "ok", "refused", "refused"]
    beside = int(len(os.sched_getaffinity(0)) > 1)  # both at once, where there is a core for each
    assert [result["beside"] for result in results if result["status"] == "ok"] == [beside] * 2
    machines = [json.loads(path.read_text()) for path in tmp_path.glob("*/environment.json")]
    assert len(machines) == 2
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert (modes[".submitit"], modes["result.json"]) == (0o700, 0o666)  # records are for others, unless the umask is
    jobs = [path.name for path in (tmp_path / ".submitit").iterdir()]
    assert jobs and {modes[name] for name in jobs} == {0o600}  # pickled: they hold code
    assert all(re.fullmatch(r"\d+", machine["ranks"][0]["cpus"]) for machine in machines)
    again = command(*words, "exclusive=false", "seed=1,2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("measured before (ok)") == 2


@pytest.mark.parametrize("launcher", ["local", "submitit_local"])
def test_several_nodes_are_refused_before_anything_starts(
    launcher: str, called: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    warm_up()
    started: list[Any] = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda _, words, **__: started.append(words))
    words = ["-m", *SMALL, "nodes=2,3", f"hydra/launcher={launcher}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    code, printed = called(*words)
    assert (code, started) == (1, [])
    assert "[1/2] refused: nodes=2: the run has 1; submit it with hydra/launcher=submitit_slurm" in printed
    assert "[2/2] refused: nodes=3: the run has 1" in printed
    assert not (tmp_path / "sweep" / ".submitit").exists()


def test_a_job_that_another_user_put_there_is_not_run(tmp_path: Path):
    """What stands in for another user's folder is one that is open to others."""
    (tmp_path / "1_submitted.pkl").write_bytes(b"cos\nsystem\n(S'echo run'\ntR.")  # a pickle that runs a command
    tmp_path.chmod(0o755)
    variables = os.environ | {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "1"}
    line = [*shlex.split(STARTS_JOBS), "-u", "-m", "submitit.core._submit", str(tmp_path)]
    for mode, says, runs in ((0o755, "open to others: nothing in it is run", False), (0o700, "DelayedSub", True)):
        tmp_path.chmod(mode)
        done = subprocess.run(line, env=variables, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 1 and says in done.stderr
        assert ("run" in done.stdout.split()) is runs
