"""Cells that share one machine."""

import json
import os
import random
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import DictConfig

from multicard.machine import leases
from multicard.ranks.failures import Failure
from multicard.run import outcome
from multicard.sweep import executor, shares, streak
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.executor import Executor, Running
from multicard.sweep.job import STARTS_JOBS, CellJob
from multicard.sweep.shares import Machine, MachineShare, Pool, demand
from multicard.vision.workload import WORKLOAD
from tests.conftest import ROOT, SMALL, command, composed, typed, warm_up
from tests.helpers.cells import cell, sweep


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Pool], Machine]:
    """A command on a machine with so much, whose leases are those of this test."""
    monkeypatch.setenv(leases.VARIABLE, str(tmp_path / "leases"))

    def command_on(pool: Pool) -> Machine:
        monkeypatch.setattr(shares, "machine", lambda: Pool([*pool.gpus], [*pool.cpus]))
        return Machine()

    return command_on


def test_each_gpu_is_used_by_one_cell_with_its_part_of_the_cores(on: Callable[[Pool], Machine]):
    machine = on(Pool(["a", "b", "c", "d"], list(range(16))))
    one, two = typed("gpus=1", "exclusive=false"), typed("gpus=2", "exclusive=false")
    first, second, third = (machine.take(config) for config in (two, one, two))
    assert first == MachineShare(("a", "b"), tuple(range(8)))
    assert second == MachineShare(("c",), tuple(range(8, 12)))
    assert third is None
    machine.give_back(first)
    assert machine.take(two) == first


def test_cpu_ranks_take_cores_each(on: Callable[[Pool], Machine]):
    machine = on(Pool([], [0, 1, 2, 3]))
    config = typed("gpus=1", "cpus_per_gpu=2", "exclusive=false")
    assert [machine.take(config) for _ in range(3)] == [MachineShare(None, (0, 1)), MachineShare(None, (2, 3)), None]


def test_a_cell_is_alone_unless_it_is_not_exclusive_and_one_that_wants_too_much_gets_everything():
    whole = Pool(["a", "b"], [0, 1])
    assert demand(typed("gpus=1"), whole) == demand(typed("gpus=9", "exclusive=false"), whole) == (2, 2)


def test_two_commands_never_share_a_gpu_or_a_core(
    on: Callable[[Pool], Machine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What they take and give back, by turns of chance: a cell gets all that it wants, or nothing."""
    monkeypatch.setattr(shares, "LEASES_POLL_S", 0.0)
    words = (["gpus=1"], ["gpus=2"], ["gpus=3"], ["device=cpu", "gpus=5"], ["gpus=1", "exclusive=true"])
    configs = [typed("exclusive=false", "cpus_per_gpu=1", *own) for own in words]
    chance, held, waited = random.Random(3), list[tuple[Machine, MachineShare]](), 0
    commands = [on(Pool(["a", "b", "c", "d"], list(range(8)))) for _ in range(3)]
    for _ in range(400):
        if held and chance.random() < 0.5:
            machine, share = held.pop(chance.randrange(len(held)))
            machine.give_back(share)
        machine, config = chance.choice(commands), chance.choice(configs)
        share = machine.take(config)
        waited += share is None
        if share is not None:
            assert (None if share.gpus is None else len(share.gpus), len(share.cpus)) == demand(config, machine.whole)
            held.append((machine, share))
        names = [name for _, share in held for name in share.names]
        assert len(names) == len({*names})
    assert 0 < waited < 400
    assert re.search(r"^waiting for .*: leased by ", capsys.readouterr().out, re.MULTILINE)


def test_without_a_folder_for_leases_cells_run_all_the_same(
    on: Callable[[Pool], Machine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")  # as another user may have put it there
    machine = on(Pool([], [0, 1]))
    assert [machine.take(typed("exclusive=false", "cpus_per_gpu=1")) is None for _ in range(3)] == [False, False, True]
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith(f"no leases in {tmp_path / 'leases'} (")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_does_not_wait_keeps_packed_cells_off(on: Callable[[Pool], Machine]):
    machine = on(Pool(["a", "b"], [0, 1, 2, 3]))
    packed = typed("gpus=1", "exclusive=false")
    with shares.announced([packed]), shares.announced([packed]):  # two runs on the first GPU
        assert machine.take(packed) == MachineShare(("b",), (2, 3))
    with shares.announced([typed("gpus=1")]):
        waits = on(Pool(["a", "b"], [0, 1, 2, 3]))
        assert waits.take(packed) is None
        waits.wait_no_more()
    assert on(Pool(["a", "b"], [0, 1, 2, 3])).take(packed) == MachineShare(("a",), (0, 1))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands look at every call."""
    monkeypatch.setattr(shares, "LEASES_POLL_S", -1.0)


@pytest.mark.usefixtures("impatient")
def test_a_cell_that_wants_the_machine_is_not_overtaken_for_ever(on: Callable[[Pool], Machine]):
    pool = Pool([], [0, 1, 2, 3])
    small, whole = typed("exclusive=false", "cpus_per_gpu=1"), typed()
    first, second, third = on(pool), on(pool), on(pool)
    held = [first.take(small), first.take(small)]
    assert second.take(whole) is None  # from now on it is the next
    assert first.take(small) is None and third.take(small) is None
    for share in held:
        assert share is not None
        assert second.take(whole) is None and third.take(small) is None
        first.give_back(share)
    assert third.take(small) is None  # also where it looks before
    everything = second.take(whole)
    assert everything == MachineShare(None, (0, 1, 2, 3))
    assert third.take(small) is None and first.take(small) is None
    second.give_back(everything)
    taken = [machine.take(small) for machine in (first, third, second)]
    assert None not in taken


@pytest.mark.usefixtures("impatient")
def test_what_nobody_before_waits_for_is_free_to_all(on: Callable[[Pool], Machine]):
    pool, busy = Pool(["a", "b", "c"], list(range(6))), on(Pool(["a", "b"], [0, 1, 2, 3]))
    one, two = typed("gpus=1", "exclusive=false"), typed("gpus=2", "exclusive=false")
    assert busy.take(one) == MachineShare(("a",), (0, 1))
    waits = on(Pool(["a", "b"], [0, 1, 2, 3]))
    assert waits.take(two) is None
    assert on(pool).take(one) == MachineShare(("c",), (4, 5))
    cores = typed("device=cpu", "gpus=1", "cpus_per_gpu=1", "exclusive=false")
    later = on(pool)
    assert later.take(cores) is None  # the other cores come with the GPUs that are waited for
    waits.wait_no_more()
    assert later.take(cores) == MachineShare(None, (2,))


@pytest.mark.usefixtures("impatient")
def test_who_is_waited_for_is_said_once(on: Callable[[Pool], Machine], capsys: pytest.CaptureFixture[str]):
    holds, waits, small = on(Pool([], [0, 1])), on(Pool([], [0, 1])), typed("exclusive=false", "cpus_per_gpu=1")
    shares_held = [holds.take(small), holds.take(small)]
    for share in shares_held:
        assert share is not None
        assert [waits.take(typed()) for _ in range(3)] == [None] * 3
        holds.give_back(share)
    with shares.announced([small]):
        assert waits.take(typed()) is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("waiting for 2 cores: leased by pid ")


def cells_of(folder: Path, number: int, *words: str) -> Sweep:
    """Cells that differ in nothing, in folders of their own."""
    cfg, config = composed(*SMALL, *words), typed(*SMALL, *words)
    env = DictConfig({"hydra": {"job": {"env_set": {}}}})
    made = {"composed": env, "cfg": cfg, "config": config}
    return sweep(*(cell(index, folder / f"{index}", **made) for index in range(1, number + 1)))


def ends(monkeypatch: pytest.MonkeyPatch, failure: Failure, polls: int = 1) -> list[int]:
    """Jobs end at the `polls`th look, with a failure. Returns how many there were beside each at its start."""
    beside: list[int] = []

    def started(self: Executor, cell: Cell, job: CellJob, share: MachineShare) -> None:
        looks = iter([*[False] * (polls - 1), True])
        outcome.fail(outcome.begin(WORKLOAD, job.cfg, job.folder), failure)
        self.running.append(Running(cell, SimpleNamespace(done=lambda: next(looks), job_id="0"), share))
        beside.append(len(self.running))

    monkeypatch.setattr(Executor, "submit_process", started)
    monkeypatch.setattr(executor, "POLL_S", 0.0)
    return beside


def test_max_jobs_bounds_the_cells_at_a_time(
    on: Callable[[Pool], Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    on(Pool([], [0, 1, 2, 3]))
    for words, most in ((["max_jobs=2"], 2), ([], 4)):
        beside = ends(monkeypatch, Failure("exception", "no"), polls=3)
        executor.run_all(cells_of(tmp_path / f"sweep{most}", 6, "exclusive=false", "cpus_per_gpu=1", *words))
        assert (len(beside), max(beside)) == (6, most)
    with pytest.raises(ValueError, match="max_jobs=0: must be 1 or more, or null"):
        typed("max_jobs=0")


def test_a_packed_sweep_stops_at_a_full_disk(
    on: Callable[[Pool], Machine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    on(Pool([], [0]))
    ends(monkeypatch, Failure("disk", "hydra.run.dir: cannot write to /x; free some space"))
    cells = cells_of(tmp_path / "sweep", 6)
    with pytest.raises(streak.SameFailureError, match=r"3 cells in a row failed for one cause: hydra\.run\.dir"):
        executor.run_all(cells)
    assert [cell.result is None for cell in cells.cells] == [False] * 3 + [True] * 3


def test_an_interrupted_cell_ends_the_sweep(
    on: Callable[[Pool], Machine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Also where the signal did not reach this process."""
    on(Pool([], [0]))
    ends(monkeypatch, Failure("interrupt", "interrupted by SIGINT"))
    cells = cells_of(tmp_path / "sweep", 2)
    with pytest.raises(KeyboardInterrupt):
        executor.run_all(cells)
    first, second = cells.cells
    assert first.result is not None and first.result.status == "interrupted"
    assert second.result is None and not second.folder.exists()


@pytest.mark.usefixtures("processes")
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


@pytest.mark.usefixtures("processes")
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


PACKS = """
import os, sys, time
from types import SimpleNamespace
import multicard.machine.devices as devices
from multicard.config.job import Device
from multicard.sweep import shares
folder, number = sys.argv[1:]
devices.named_gpus = lambda: ["GPU-a", "GPU-b", "GPU-c"]
os.sched_getaffinity = lambda _: {0, 1, 2, 3, 4, 5}
shares.LEASES_POLL_S = 0.0
def cell(gpus, exclusive, device=Device.auto):
    return SimpleNamespace(gpus=gpus, exclusive=exclusive, device=device, cpus_per_gpu=1)
os.close(os.open(f"{folder}/ready-{number}", os.O_CREAT))
while sum(name.startswith("ready") for name in os.listdir(folder)) < 2:
    time.sleep(0.01)
waiting = [cell(1, False), cell(2, False), cell(3, None), cell(2, False, Device.cpu)] * 8
machine, running, together = shares.Machine(), [], 0
while waiting or running:
    for each in list(waiting):
        share = machine.take(each)
        if share is not None:
            waiting.remove(each)
            for name in share.names:
                os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL))  # fails where another has it
            running.append(share)
    together = max(together, len(running))
    time.sleep(0.001)
    if running:
        share = running.pop(0)
        for name in share.names:
            os.unlink(f"{folder}/{name}")
        machine.give_back(share)
print("done", together)
"""


@pytest.mark.usefixtures("processes")
def test_two_packing_commands_at_once_never_share_a_gpu_or_a_core(tmp_path: Path):
    """Processes with the kernel's locks, each with cells that want one, several or all of the same machine."""
    variables = os.environ | {leases.VARIABLE: str(tmp_path / "leases")}
    words = [sys.executable, "-c", PACKS, str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*words, number], cwd=ROOT, env=variables, **pipes) for number in "12"]
    answers = [process.communicate(timeout=300) for process in processes]
    assert all(printed.splitlines()[-1].startswith("done ") for printed, _ in answers), answers
    assert [said for _, said in answers] == ["", ""]
    assert not [path for path in (tmp_path / "leases").iterdir() if path.name.startswith("waiting")]
