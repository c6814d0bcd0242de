"""Faults of jobs and of SLURM's daemons."""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random

import psutil
import pytest

from multicard.measure.timing import clock_s, pause
from multicard.records import ownership, run_folder
from tests.conftest import awaited
from tests.faults import harness
from tests.faults.acts import (
    empty,
    fill,
    held,
    is_unpickled,
    kill_holder,
    mount,
    root,
    send_nonsense,
    then_release,
)
from tests.faults.harness import SWEEP, Fault, Trial
from tests.slurm.conftest import ask, submissions

SLURM = (*SWEEP, "gpus=1", "cpus_per_gpu=1", "hydra/launcher=submitit_slurm")
# SLURM warns of the limit up to a minute before `signal_delay_s`
SHORT = (*SLURM, "time_min=2", "max_requeues=0", "hydra.launcher.signal_delay_s=10")
TWO_NODES = (*(word for word in SLURM if not word.startswith("seed=")), "seed=1", "nodes=2")
LATE_S = 5.0


def wait_until_idle() -> None:
    """Wait until SLURM answers and every node can take jobs."""

    def is_idle() -> bool:
        with suppress(AssertionError, subprocess.SubprocessError):
            states = ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split()
            return bool(states) and all(
                re.fullmatch("idle|mixed|allocated", state) for state in states
            )
        return False

    awaited(is_idle)


def resume() -> None:
    """Have every node take jobs again."""
    for node in ("n1", "n2"):
        with suppress(AssertionError):  # it was not drained
            ask("scontrol", "update", f"nodename={node}", "state=resume")
    wait_until_idle()


def claim(trial: Trial) -> dict:
    """Who measures the first cell: the controller's process and its job."""
    return json.loads(ownership.claims(trial.first_run())[0].read_text())


def node(trial: Trial) -> str:
    return ask("squeue", "-h", "-j", claim(trial)["job"], "-o", "%N")


def restart(name: Callable[[Trial], str]) -> Callable[[Trial], None]:
    """A daemon is killed, and started again once the first cell has gone on."""

    def act(trial: Trial) -> None:
        daemon, home = name(trial), Path(os.environ["SLURM_CONF"]).parent
        trial.after.callback(wait_until_idle)
        os.kill(int((home / "run" / f"{daemon}.pid").read_text()), signal.SIGKILL)
        trial.release()
        pause(3.0)  # nobody answers meanwhile
        program, _, node = daemon.partition("-")
        variables = os.environ | {"MYSQL_UNIX_PORT": str(home / "db" / "sock")}
        subprocess.run(
            [program, *(("-N", node) if node else ())], check=True, env=variables, timeout=60
        )
        wait_until_idle()

    return act


def drain(trial: Trial) -> None:
    """The node of the first cell takes no further jobs; what runs there goes on."""
    ask("scontrol", "update", f"nodename={node(trial)}", "state=drain", "reason=test")


def requeue(trial: Trial) -> None:
    """SLURM ends the job, as where its node fails, and starts it again."""
    controller = psutil.Process(claim(trial)["pid"])
    ask("scontrol", "requeue", claim(trial)["job"])
    awaited(lambda: not controller.is_running())


def kill_step(trial: Trial) -> None:
    """SLURM's own process around the controller, and then the controller."""
    controller = psutil.Process(claim(trial)["pid"])
    for process in (
        *(each for each in controller.parents() if "slurmstepd" in each.name()),
        controller,
    ):
        process.kill()


def own_sbatch(trial: Trial) -> None:
    """One that kills the command once it has submitted, and holds the jobs."""
    path = trial.folder / "bin" / "sbatch"
    path.parent.mkdir()
    path.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} --hold "$@"\nkill -9 $PPID\n')
    path.chmod(0o755)


def release_jobs(_: Trial) -> None:
    ask("scontrol", "release", *{*ask("squeue", "-h", "-o", "%F").split()})


def submitted_once(trial: Trial) -> str | None:
    """Whether each cell was submitted once, by SLURM's accounting."""
    number = len(submissions(trial.sweep))
    return None if number == 2 else f"{number} jobs were submitted for two cells"


def left_by_refusal(trial: Trial) -> str | None:
    """Whether sbatch's own lines are printed, or pickles of the jobs are left."""
    return (
        "sbatch's lines, or pickles"
        if trial.command.said("^sbatch:") or [*trial.sweep.rglob("*.pkl")]
        else None
    )


def hide_record(trial: Trial) -> None:
    """The record is seen late, as on a shared file system: after its job has left the queue."""
    job, record = claim(trial)["job"], trial.first_run() / run_folder.RESULT
    trial.release()
    while not record.exists():
        pause(0.01)
    record.rename(record.with_name("late"))
    while ask("squeue", "-h", "-r", "-o", "%i").split().count(job):
        pause(0.5)
    pause(LATE_S)
    record.with_name("late").rename(record)


HELD = Fault("", SLURM, inside="hold@step3", at=held)
FAILED = replace(HELD, statuses=("failed", "ok"))
GOES_ON = replace(HELD, code=0, statuses=("ok", "ok"), check=submitted_once)
FAULTS = (
    replace(GOES_ON, name="node-drained", act=then_release(drain)),
    replace(GOES_ON, name="slurmd-killed", act=restart(lambda trial: f"slurmd-{node(trial)}")),
    replace(GOES_ON, name="slurmctld-killed", act=restart(lambda _: "slurmctld")),
    replace(GOES_ON, name="slurmdbd-killed", act=restart(lambda _: "slurmdbd")),
    replace(GOES_ON, name="requeued", act=then_release(requeue)),
    replace(GOES_ON, name="requeued-in-recording", inside="hold@record", act=then_release(requeue)),
    replace(FAILED, name="rank-killed", act=kill_holder(),
        says=r'^\[1/2\] .*failed: \[\[rank\.killed rank=0 signal="SIGKILL"\]\]'),
    replace(FAILED, name="recording-killed", inside="hold@record", act=kill_holder(),
        says=r'^\[1/2\] .*failed: \[\[job\.ended .*host="n\d" state="FAILED"'),
    replace(FAILED, name="slurmstepd-killed", words=SHORT, act=kill_step, statuses=("ok", "timeout"),
        says=r'^\[1/2\] .*timeout: \[\[job\.ended .*host="n\d" state="TIMEOUT"'),
    replace(FAILED, name="cancelled", act=lambda trial: ask("scancel", claim(trial)["job"]),
        statuses=("interrupted", "ok"), says=r"^\[1/2\] .*interrupted: \[\[job\.cancelled\]\]"),
    replace(FAILED, name="full-disk", prepare=mount("sweep", "size=4m"), act=then_release(fill), mend=empty,
        statuses=None, needs=root,
        says=r"^\[1/2\] .*failed: .*(No space left|\[\[(disk\.full|folder\.|job\.no-record|job\.ended))"),
    replace(HELD, name="strangers", words=TWO_NODES, act=then_release(send_nonsense), code=0, statuses=("ok",),
        ends=("ok",), check=is_unpickled),
    *(Fault(f"refused-{key}", (*SLURM, f"{key}={value}"), says=rf"^(\[1/2\] .*)?refused: .*{key}", lines=10, ends=None,
        check=left_by_refusal) for key, value in (("hydra.launcher.partition", "nowhere"), ("cpus_per_gpu", 9))),
    replace(GOES_ON, name="late-record", inside="hold@record", act=hide_record),
    replace(GOES_ON, name="killed-in-submission", inside="", at=None, prepare=own_sbatch,
        prefix=("sh", "-c", 'PATH="$0:$PATH"; exec "$@"', "{trial}/bin"), code=-signal.SIGKILL, statuses=(),
        mend=release_jobs),
)  # fmt: skip


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    """Leave no job, and every node as it was: SLURM drains one that cannot start a job,
    on a full disk say.
    """
    yield
    ask("scancel", "--user", ask("id", "-un"))
    resume()


@pytest.mark.usefixtures("processes")
@pytest.mark.faults
@pytest.mark.nightly
@pytest.mark.parametrize("fault", [pytest.param(fault, id=fault.name) for fault in FAULTS])
def test_a_fault_of_slurm_loses_nothing_and_leaves_nothing(fault: Fault, tmp_path: Path):
    if problem := fault.needs():
        pytest.skip(problem)
    assert harness.wrong(fault, tmp_path) == []


SOAK_S = float(os.environ.get("MULTICARD_SOAK_S", "600"))
SOAK_SEED = int(os.environ.get("MULTICARD_SOAK_SEED", secrets.randbelow(2**32)))
USERS = {  # variables of users, and values that would change answers, or jobs
    "SQUEUE_STATES": ("COMPLETED", "RUNNING"),
    "SQUEUE_PARTITION": ("urgent",),
    "SQUEUE_NAMES": ("other",),
    "SQUEUE_FORMAT": ("%j",),
    "SACCT_FORMAT": ("User",),
    "SACCT_FEDERATION": ("1",),
    "SBATCH_JOB_NAME": ("other",),
    "SBATCH_TIMELIMIT": ("1",),
    "SLURM_CLUSTERS": ("elsewhere",),
    "SLURM_TIME_FORMAT": ("relative",),
}
KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, None)
COMMAND_S = 25.0  # within which a command has submitted, and its jobs have begun


@pytest.mark.usefixtures("processes")
@pytest.mark.faults
@pytest.mark.nightly
@pytest.mark.timeout(SOAK_S + 1200)
def test_two_commands_at_once_that_are_killed_at_random_lose_nothing_and_measure_nothing_twice(
    tmp_path: Path,
):
    """For MULTICARD_SOAK_S seconds; MULTICARD_SOAK_SEED
    repeats the choices of a soak that failed.
    """
    random, ends_s, cells, kills = Random(SOAK_SEED), clock_s() + SOAK_S, 0, Counter[str]()
    for number in count():
        if clock_s() > ends_s:
            break
        with Trial(Fault("", SLURM), tmp_path / str(number)) as trial:
            for _ in range(2):
                users = {
                    name: random.choice(values)
                    for name, values in USERS.items()
                    if random.random() < 0.5
                }
                trial.fault = replace(trial.fault, variables=users)
                trial.start()
                pause(random.uniform(0.0, 1.0))
            for command in random.sample(trial.commands, 2):
                pause(random.uniform(0.0, COMMAND_S / 2))
                kill = random.choice(KILLS)
                kills[kill.name if kill else "none"] += 1
                if kill is not None and command.process.poll() is None:
                    command.process.send_signal(kill)
            said = [f"{command.wait()}: {command.output}" for command in trial.commands]
            again = trial.start()
            assert again.wait() == 0, (
                f"seed {SOAK_SEED}, round {number}: {again.output} after {said}"
            )
            found = harness.records(trial.sweep)
            whole = [
                record["status"] == "ok" and harness.is_whole(run, record)
                for run, record in found.items()
            ]
            twice = harness.again_measured({}, found, trial.starts())
            left = trial.left(files=True)
            assert (whole, twice, left, submitted_once(trial)) == (
                [True] * 2,
                0,
                [],
                None,
            ), f"seed {SOAK_SEED}: {said}"
            cells += len(found)
    print(
        f"soak of {SOAK_S:.0f} s, seed {SOAK_SEED}: {cells} cells, 0 lost, 0 twice, 0 left; kills"
        f" {dict(kills)}"
    )
