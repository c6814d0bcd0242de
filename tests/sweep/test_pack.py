"""Cells that share one machine, and sweeps whose cells fail for one cause."""

import errno
import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from omegaconf import DictConfig
from submitit.core.utils import DelayedSubmission

from multicard.machine import private
from multicard.machine.shares import MachineShare, MachineShares, Pool
from multicard.messages import Message
from multicard.ranks import failures
from multicard.ranks.failures import Failure
from multicard.records import run_folder
from multicard.run import outcome, prepare
from multicard.sweep import executor
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.executor import Executor, Running
from multicard.sweep.job import STARTS_JOBS, CellJob
from multicard.sweep.streak import SameFailureError, Streak, cause_of
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, Called, command, composed, typed, warm_up
from tests.helpers import cells, records
from tests.helpers.cells import cell, sweep
from tests.helpers.messages import codes, find, says, told


def cells_of(folder: Path, number: int, *words: str) -> Sweep:
    """Cells that differ in nothing, in folders of their own."""
    cfg, config = composed(*SMALL, *words), typed(*SMALL, *words)
    env = DictConfig({"hydra": {"job": {"env_set": {}}}})
    made = {"composed": env, "cfg": cfg, "config": config}
    return sweep(*(cell(index, folder / f"{index}", **made) for index in range(1, number + 1)))


def ends(monkeypatch: pytest.MonkeyPatch, failure: Failure, polls: int = 1) -> list[int]:
    """Jobs end at the `polls`th look, with a failure.
    Returns how many there were beside each at its start.
    """
    beside: list[int] = []

    def started(self: Executor, cell: Cell, job: CellJob, share: MachineShare) -> None:
        looks = iter([*[False] * (polls - 1), True])
        outcome.fail(outcome.begin(WORKLOAD, job.cfg, job.folder), failure)
        self.running.append(
            Running(cell, SimpleNamespace(done=lambda: next(looks), job_id="0"), share)
        )
        beside.append(len(self.running))

    monkeypatch.setattr(Executor, "submit_process", started)
    monkeypatch.setattr(executor, "POLL_S", 0.0)
    return beside


def test_max_jobs_bounds_the_cells_at_a_time_and_a_full_disk_ends_them(
    on: Callable[[Pool], MachineShares], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    on(Pool([], [0, 1, 2, 3]))
    for words, most in ((["max_jobs=2"], 2), ([], 4)):
        beside = ends(monkeypatch, Failure("exception", "no"), polls=3)
        executor.run_all(
            cells_of(tmp_path / f"sweep{most}", 6, "exclusive=false", "cpus_per_gpu=1", *words)
        )
        assert (len(beside), max(beside)) == (6, most)
    ends(monkeypatch, Failure("disk", failures.unwritable(Path("/x"))))
    cells = cells_of(tmp_path / "full", 6, "exclusive=false", "max_jobs=1")
    with pytest.raises(SameFailureError) as stopped:
        executor.run_all(cells)
    assert says(
        str(stopped.value),
        "sweep.same-failure",
        cells=3,
        cause="folder.unwritable",
        key="hydra.run.dir",
    )
    assert [cell.result is None for cell in cells.cells] == [False] * 3 + [True] * 3


def test_an_interrupted_cell_ends_the_sweep(
    on: Callable[[Pool], MachineShares], tmp_path: Path, monkeypatch
):
    """Also where the signal did not reach this process."""
    on(Pool([], [0]))
    ends(monkeypatch, Failure("interrupt", "SIGINT"))
    cells = cells_of(tmp_path / "sweep", 2)
    with pytest.raises(KeyboardInterrupt):
        executor.run_all(cells)
    first, second = cells.cells
    assert first.result is not None and first.result.status == "interrupted"
    assert second.result is None and not second.folder.exists()


@pytest.mark.usefixtures("processes")
@pytest.mark.slow
def test_a_sweep_is_packed_and_each_cell_keeps_to_its_cores(tmp_path):
    words = [
        "-m",
        *SMALL,
        "hydra/launcher=submitit_local",
        f"hydra.sweep.dir={tmp_path}",
        "cpus_per_gpu=1",
    ]
    (tmp_path / "multirun.yaml").symlink_to("victim")  # planted: what is written follows no link
    done = command(*words, "exclusive=false", "seed=1,2", "precision=fp32,tf32", umask=0)
    assert done.returncode == 1, done.stdout + done.stderr
    results = [json.loads(path.read_text()) for path in tmp_path.glob("*/result.json")]
    assert sorted(result["status"] for result in results) == ["ok", "ok", "refused", "refused"]
    beside = int(len(os.sched_getaffinity(0)) > 1)  # both at once, where there is a core for each
    assert [result["beside"] for result in results if result["status"] == "ok"] == [beside] * 2
    machines = [json.loads(path.read_text()) for path in tmp_path.glob("*/environment.json")]
    assert len(machines) == 2
    assert not (tmp_path / "victim").exists()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert (modes[".submitit"], modes["multirun.yaml"]) == (0o700, 0o600)
    assert modes["result.json"] == 0o666  # records are for others, unless the umask is
    jobs = [path.name for path in (tmp_path / ".submitit").iterdir()]
    assert jobs and {modes[name] for name in jobs} == {0o600}  # pickled: they hold code
    assert all(re.fullmatch(r"\d+", machine["ranks"][0]["cpus"]) for machine in machines)
    again = command(*words, "exclusive=false", "seed=1,2")
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("measured before: ok") == 2


@pytest.mark.parametrize("launcher", ["local", "submitit_local"])
def test_several_nodes_are_refused_before_anything_starts(
    launcher: str, called: Called, tmp_path: Path, monkeypatch
):
    warm_up()
    started: list[Any] = []
    monkeypatch.setattr(subprocess.Popen, "__init__", lambda _, words, **__: started.append(words))
    words = [
        "-m",
        *SMALL,
        "nodes=2,3",
        "order=typed",
        f"hydra/launcher={launcher}",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
    ]
    code, printed = called(*words)
    assert (code, started) == (1, [])
    assert "[1/2] nodes=2   refused: " in printed and "[2/2] nodes=3   refused: " in printed
    assert codes(printed).count("placement.nodes") == 2 and says(
        printed, "placement.nodes", key="nodes"
    )
    assert not (tmp_path / "sweep" / ".submitit").exists()


@pytest.mark.usefixtures("processes")
def test_a_job_that_another_user_put_there_is_not_run(tmp_path: Path):
    """What stands in for another user's folder is one that is open to others."""
    # a pickle that runs a command
    (tmp_path / "1_submitted.pkl").write_bytes(b"cos\nsystem\n(S'echo run'\ntR.")
    tmp_path.chmod(0o755)
    variables = os.environ | {"SUBMITIT_EXECUTOR": "local", "SUBMITIT_LOCAL_JOB_ID": "1"}
    line = [*shlex.split(STARTS_JOBS), "-u", "-m", "submitit.core._submit", str(tmp_path)]
    for mode, runs in ((0o755, False), (0o700, True)):
        tmp_path.chmod(mode)
        done = subprocess.run(
            line, env=variables, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 1 and ("DelayedSub" in done.stderr) is runs
        assert says(done.stderr, "private.open-to-others") is not runs
        assert ("run" in done.stdout.split()) is runs


@dataclass
class Says:
    """A job that says the name of its folder."""

    key: str
    folder: Path

    def __call__(self) -> None:
        print(f"ran {self.folder.name}")


@pytest.mark.usefixtures("processes")
def test_a_job_finds_its_work_where_the_command_was_killed_before_it_could_name_it(tmp_path: Path):
    """And no other's: of the cell before, of an earlier submission of the cell,
    of one that was cut off.
    """
    folder = private.folder(tmp_path / ".submitit", "")
    run_folder.write_json(folder / "sweep-1.json", {"cells": ["a", "b"], "key": "new", "job": None})
    for number, (key, name) in enumerate((("new", "a"), ("old", "b"), ("new", "b"))):
        DelayedSubmission(Says(key, Path(name))).dump(folder / f"{number:032x}.pkl")
    (folder / f"{9:032x}.pkl").write_bytes(b"cut")
    slurm = {
        "SLURM_JOB_NAME": "sweep-1",
        "SLURM_ARRAY_JOB_ID": "7",
        "SLURM_ARRAY_TASK_ID": "1",
        "SLURM_JOB_ID": "8",
    }
    line = [*shlex.split(STARTS_JOBS), "-u", "-m", "submitit.core._submit", str(folder)]
    variables = os.environ | slurm | {"SUBMITIT_EXECUTOR": "slurm"}
    done = subprocess.run(
        line, env=variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0 and [
        row for row in done.stdout.splitlines() if row.startswith("ran")
    ] == ["ran b"]


NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/dev/shm/multicard/x.u8")
DISK = Failure("disk", failures.unwritable(Path("/x/seed=1"), NO_SPACE))
FULL = Failure("refused", failures.unwritable(Path("/x/seed=2"), NO_SPACE))
GONE = Failure("refused", Message("data.gone", "no such folder", key="dataset.root"))
OOM = Failure("oom", "CUDA out of memory")
MODEL = Failure("exception", "RuntimeError: expected scalar type Float but found Half")


def failed_cell(cause: Failure | None = None, **dataset: Any) -> Cell:
    result = {
        "status": "ok" if cause is None else "failed",
        "cause": cause and msgspec.to_builtins(cause),
    }
    return cells.cell(
        cfg=DictConfig({"dataset": {"name": "images", **dataset}}), result=records.as_run(result)
    )


def stops(*causes: Failure | None, left: int = 1, **dataset: Any) -> bool:
    streak = Streak()
    for cause in causes:
        streak.add(failed_cell(cause))
    return streak.ends([failed_cell(**dataset)] * left)


OTHER_CODE = Failure("refused", Message("job.other-code", "the code was changed", key="code"))
WITHOUT_CODE = Failure("refused", "dataset.root=/data: no such folder")  # begins with its key


@pytest.mark.parametrize("cause", [DISK, GONE, WITHOUT_CODE, OTHER_CODE])
def test_three_in_a_row_end_it(cause: Failure):
    assert stops(cause, cause, cause) and stops(None, cause, cause, cause, cause)
    assert (
        not stops(cause, cause)
        and not stops(cause, None, cause, cause)
        and not stops(cause, OOM, cause, cause)
    )
    assert not stops(cause, cause, cause, left=0)


def test_failures_of_several_causes_do_not():
    assert not stops(DISK, GONE, DISK) and not stops(DISK, DISK, GONE, GONE)
    assert stops(DISK, GONE, GONE, GONE)


def test_a_full_disk_is_one_cause_whether_a_run_ended_or_could_not_begin():
    assert stops(DISK, FULL, FULL)
    assert not stops(
        FULL, FULL, Failure("refused", Message("run.other", "another run", key="hydra.run.dir"))
    )


@pytest.mark.parametrize(
    "cause",
    [
        OOM,
        MODEL,
        Failure("diverged", "the loss is not finite"),
        Failure("signal", "rank 0 was killed"),
        Failure("exception", "OSError: [Errno 24] Too many open files"),  # gpus, num_workers
        Failure("disk", failures.no_space(NO_SPACE, Path("x")) or ""),
        Failure("refused", Message("data.too-short", "less than a step", key="dataset.rows")),
        # gpus, image_size
        Failure("refused", Message("data.memory", "too little memory", key="dataset.cache")),
        Failure("refused", "dataset.rows=8: is less than one step"),
    ],
)
def test_what_the_settings_may_have_caused_does_not(cause: Failure):
    assert cause_of(failed_cell(cause)) == "" and not stops(cause, cause, cause, cause)


def test_where_data_is_gone_cells_that_read_other_data_are_measured():
    assert not stops(GONE, GONE, GONE, name="mnist") and not stops(
        GONE, GONE, GONE, root="/elsewhere"
    )
    assert stops(DISK, DISK, DISK, name="mnist") and stops(GONE, GONE, GONE, image_size=7)
    fetched = Failure(
        "refused", Message("data.fetch", "could not fetch MNIST", key="dataset.download")
    )
    assert stops(fetched, fetched, fetched) and not stops(fetched, fetched, fetched, download=True)


# the third fails within a batch, or stops one
@pytest.mark.parametrize(("size", "left", "of"), [(2, 1, 2), (3, 3, 3)])
def test_batches_of_a_sweep_are_one_row(
    called: Called,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    left: int,
    of: int,
):
    # this machine does not foresee that the cells left are refused too
    monkeypatch.setattr(prepare, "problem_of", lambda *_: None)
    words = [
        "dataset=mnist",
        f"dataset.root={tmp_path}",
        "seed=1,2,3,4,5,6",
        f"hydra.sweep.dir={tmp_path / 'sweep'}",
    ]
    code, printed = called("-m", *SMALL, *words, f"hydra.sweeper.max_batch_size={size}")
    assert code == 1 and printed.count("refused: ") == 3 and says(printed, "sweep.resume")
    (stopped,) = (said for said in told(printed) if said.code == "sweep.left")
    assert stopped.has({"left": left, "cells": of})
    failure = find(printed, "sweep.same-failure", cells=3)
    assert "dataset.root" in (failure.key or failure.facts["reason"])


def test_data_that_no_cell_can_read_are_refused_once(called: Called, tmp_path: Path):
    words = ["dataset=mnist", f"dataset.root={tmp_path}", f"hydra.sweep.dir={tmp_path / 'sweep'}"]
    code, printed = called("-m", *SMALL, *words, "seed=1,2,3,4")
    assert code == 1 and printed.count("refused: ") == 1 and says(printed, "sweep.resume")
    (stopped,) = (said for said in told(printed) if said.code == "sweep.left")
    assert stopped.has({"left": 3, "cells": 4}) and find(printed, "sweep.same-failure", cells=1)
    assert "Records:" not in printed  # there are no figures for a table
