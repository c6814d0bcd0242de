"""Sweeps on a real SLURM: what jobs ask for, how they end, and what is measured again."""

import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from multicard.machine import private
from multicard.records import run_folder
from multicard.sweep.job import STARTS_JOBS
from tests.conftest import PATIENCE_S, ROOT, awaited
from tests.faults.work import IS_KILLED, RAISES, RUNS_OUT, SLEEPS
from tests.helpers.messages import find, says
from tests.slurm.conftest import Sweep, ask


def by_axis(sweep: Sweep, axis: str) -> dict:
    return {result["axes"][axis]: result for result in sweep.results()}


def losses(folder: Path) -> list[float]:
    return run_folder.read_steps(folder)["loss"].to_pylist()


def controller(**variables: str) -> psutil.Process | None:
    """The controller of a job with these variables in its environment, once its ranks are there."""
    wanted = {"SUBMITIT_EXECUTOR": "slurm", **variables}
    for process in psutil.process_iter():
        try:
            starts = process.cmdline()[:3] == shlex.split(STARTS_JOBS)
            if starts and wanted.items() <= process.environ().items():
                return process if len(process.children()) > 1 else None
        except psutil.Error:
            continue
    return None


@contextmanager
def lost(node: str, controller: psutil.Process) -> Iterator[None]:
    """Kill all that SLURM runs on a node, as a power cut would; within it the node is gone."""
    daemon = psutil.Process(
        int((Path(os.environ["SLURM_CONF"]).parent / f"run/slurmd-{node}.pid").read_text())
    )
    step = controller.parent()
    assert step is not None and "slurmstepd" in step.name()
    for process in (daemon, step, controller):
        process.kill()
    try:
        yield
    finally:
        ask("scancel", "--user", ask("id", "-un"))
        ask("slurmd", "-N", node)
        awaited(
            lambda: ask("sinfo", "-h", "-N", "-p", "main", "-o", "%T").split() == ["idle", "idle"]
        )


def test_each_job_gets_its_own_resources_and_is_not_measured_twice(sweep: Sweep):
    words = ("precision=fp32,bf16", "gpus=1,2,4")
    planned = sweep.run(*words, "dry_run=true")
    assert planned.returncode == 0, planned.stderr
    assert [line.split()[:5] for line in planned.stdout.splitlines() if " GPU" in line] == [
        ["2", "1", "node,", str(gpus), "GPU," if gpus == 1 else "GPUs,"] for gpus in (1, 2, 4)
    ]
    assert not sweep.folder.exists()

    done = sweep.run(*words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [result["status"] for result in sweep.results()] == ["ok"] * 6
    asked = ask(
        "sacct",
        "-X",
        "-n",
        "-P",
        "-o",
        "JobID,AllocTRES,Start,End",
        "-j",
        ",".join(sweep.submissions()),
    )
    jobs = {line.split("|")[0]: line.split("|")[1:] for line in asked.splitlines()}
    for result in sweep.results():
        gpus = result["axes"]["gpus"]
        assert f"gres/gpu={gpus}" in jobs[result["job"]][0].split(",")
        assert f"cpu={gpus}" in jobs[result["job"]][0].split(",")
    spans = sorted((start, end) for _, start, end in jobs.values())
    assert any(later[0] < earlier[1] for earlier, later in pairwise(spans))

    submitted = sweep.submissions()
    again = sweep.run(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert again.stdout.count("measured before: ok") == 6
    assert sweep.submissions() == submitted
    table = done.stdout[done.stdout.index("precision  gpus") :]
    assert again.stdout.endswith(table)


def test_two_nodes_train_as_one_does(sweep: Sweep, measured):
    words = ("epochs=2", "dataset.train_limit=96")
    done = sweep.run("nodes=2", "gpus=2", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = sweep.results()
    machine = run_folder.read_json(result["folder"] / "environment.json")
    assert machine is not None
    assert [rank["host"] for rank in machine["ranks"]] == ["n1", "n1", "n2", "n2"]
    assert (result["segments"][0]["hosts"], result["segments"][0]["end"]) == (["n1", "n2"], "ok")
    together = measured("gpus=4", *words)
    assert losses(result["folder"]) == pytest.approx(losses(Path(together["folder"])), rel=1e-5)
    assert result["test_accuracy"] == together["test_accuracy"]


def test_a_lost_node_is_recorded_by_its_name_before_slurm_notices(sweep: Sweep):
    running = sweep.start("nodes=2", "gpus=1", f"seed={SLEEPS}")
    with lost("n2", awaited(lambda: controller(SLURMD_NODENAME="n2"))):
        output, _ = running.communicate(timeout=PATIENCE_S)
        assert running.returncode == 1, output
        (result,) = sweep.results()
        assert (result["status"], result["cause"]["host"]) == ("failed", "n2")
        assert says(output, "node.lost", host="n2")
        assert ask("squeue", "-h", "-o", "%T %N") == "RUNNING n[1-2]"
        assert "down" not in ask("sinfo", "-h", "-N", "-n", "n2", "-o", "%T")


def test_a_job_of_two_nodes_is_closed_to_other_users(sweep: Sweep):
    with private.umask(0):
        running = sweep.start("nodes=2", "gpus=1", f"seed={SLEEPS}")
    nodes = [awaited(lambda name=name: controller(SLURMD_NODENAME=name)) for name in ("n1", "n2")]

    def addresses() -> list[str]:
        """At which the ranks' store and gloo listen, once there are ranks."""
        processes = [
            process for node in nodes for process in (node, *node.children(recursive=True))
        ]
        sockets = [socket for process in processes for socket in process.net_connections("tcp")]
        listening = [socket.laddr.ip for socket in sockets if socket.status == psutil.CONN_LISTEN]
        return listening if len(listening) >= 3 else []

    assert not [address for address in awaited(addresses) if ip_address(address).is_unspecified]
    folder = sweep.folder / ".submitit"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.glob("*.pkl")} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    ask("scancel", "--user", ask("id", "-un"))
    running.communicate(timeout=PATIENCE_S)


def test_every_end_is_recorded_and_stops_no_other(sweep: Sweep):
    late = Sweep(sweep.folder.with_name("late"))
    limits = ("max_requeues=0", "time_min=2", "hydra.launcher.signal_delay_s=60")
    sleeping = late.start(f"seed={SLEEPS}", "gpus=2", *limits)
    done = sweep.run(f"seed=0,{RAISES},{RUNS_OUT},{IS_KILLED}", "gpus=2", timeout=600)
    assert done.returncode == 1, done.stdout + done.stderr
    ends = by_axis(sweep, "seed")
    statuses = {0: "ok", RAISES: "failed", RUNS_OUT: "oom", IS_KILLED: "failed"}
    assert {seed: ends[seed]["status"] for seed in ends} == statuses
    raised, killed = ends[RAISES]["cause"], ends[IS_KILLED]["cause"]
    assert (raised["kind"], raised["rank"], raised["host"][0]) == ("exception", 1, "n")
    assert "KeyError: 'no such weight'" in raised["message"]
    assert any("no such weight" in line for line in raised["log_tail"])
    assert (killed["kind"], killed["code"]) == ("signal", "rank.killed")
    assert killed["facts"] == {"rank": 1, "signal": "SIGKILL"}
    for seed, status in statuses.items():  # each has its line
        assert re.search(rf"^\[./4\] seed={seed} +{status}", done.stdout, re.MULTILINE), done.stdout

    output, _ = sleeping.communicate(timeout=PATIENCE_S)
    assert sleeping.returncode == 1, output
    (result,) = late.results()
    assert (result["status"], result["cause"]["code"]) == ("timeout", "job.time-limit")


def test_a_killed_job_is_recorded_from_accounting_and_a_cancelled_one_by_itself(sweep: Sweep):
    running = sweep.start(f"seed={SLEEPS}", "precision=fp32,bf16")
    tasks = [awaited(lambda task=task: controller(SLURM_ARRAY_TASK_ID=task)) for task in ("0", "1")]
    # of a rank: its controller answers signals
    awaited(lambda: len(list(sweep.folder.glob("*/logs/r00.log"))) == 2)
    job = tasks[0].environ()["SLURM_ARRAY_JOB_ID"]
    node = ask("squeue", "-h", "-j", f"{job}_0", "-o", "%N")
    tasks[0].kill()
    ask("scancel", f"{job}_1")
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1, output
    ends = by_axis(sweep, "precision")
    assert (ends["fp32"]["status"], ends["fp32"]["cause"]["kind"]) == ("failed", "slurm")
    assert says(output, "job.ended", job=f"{job}_0", host=node, state="FAILED")
    assert (ends["bf16"]["status"], ends["bf16"]["cause"]["kind"]) == ("interrupted", "interrupt")
    assert says(output, "job.cancelled")


def preempt(_: str, __: Path) -> None:
    line = [
        "-p",
        "urgent",
        "-w",
        "n1",
        "--gpus-per-node=4",
        "-o",
        "/dev/null",
        "--parsable",
        "--wrap",
        "sleep 3",
    ]
    ask("sbatch", *line)


def fail_node(job: str, folder: Path) -> None:
    """Have SLURM take the node for failed: it puts the job back into the queue,
    and ends what runs of it.
    """
    ask("scontrol", "update", "nodename=n1", "state=down", "reason=test")

    def has_begun_again() -> bool:
        for words in (["update", "nodename=n1", "state=resume"], ["release", job]):
            # needed if SLURM met the old processes on the node
            subprocess.run(["scontrol", *words], check=False)
        return len(run_folder.read_segments(folder)) > 1

    awaited(has_begun_again)


@pytest.mark.parametrize(("stop", "end"), [(preempt, "preempted"), (fail_node, "requeued")])
def test_a_run_that_slurm_stops_goes_on_to_the_same_result(
    sweep: Sweep, stop: Callable[[str, Path], None], end: str
):
    words = ("epochs=6", "dataset.train_limit=800", "seed=5", "hydra.launcher.signal_delay_s=20")
    undisturbed = Sweep(sweep.folder.with_name("undisturbed"))
    other_running = undisturbed.start(*words, "hydra.launcher.nodelist=n2")
    running = sweep.start(*words, "hydra.launcher.nodelist=n1")
    (job,) = awaited(sweep.submissions)

    def trained() -> list[Path]:
        return list(sweep.folder.glob("*/steps/r00_e000.parquet"))

    (steps,) = awaited(trained)
    stop(job, steps.parent.parent)
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 0, output
    (result,) = sweep.results()
    assert result["status"] == "ok"
    first, second = result["segments"]
    # after a failure SLURM leaves little time to save
    ends = (end, None) if stop is fail_node else (end,)
    assert first["end"] in ends and second["end"] == "ok" and first["job"] == second["job"] == job
    assert (first["first_step"], second["first_step"]) == (0, first["steps"])
    assert not (result["folder"] / "checkpoint").exists()
    assert other_running.wait(timeout=PATIENCE_S) == 0
    (other,) = undisturbed.results()
    assert losses(result["folder"]) == losses(other["folder"])
    assert result["total_s"] == pytest.approx((first["trained_s"] or 0) + second["trained_s"])


def test_jobs_outlive_an_interrupted_and_a_killed_launcher_and_the_same_command_waits_for_them(
    sweep: Sweep,
):
    words = ("seed=1,2,3", "epochs=4")
    first = sweep.start(*words)
    awaited(lambda: list(sweep.folder.glob(".*.running")))
    first.send_signal(signal.SIGINT)
    output, _ = first.communicate(timeout=PATIENCE_S)
    assert first.returncode == 1, output
    # accounting lags
    jobs = awaited(lambda: listed if len(listed := sweep.submissions()) == 3 else None)
    base = jobs[0].partition("_")[0]
    (names,) = find(output, "job.left-in-queue").facts["names"]
    assert re.fullmatch(rf"{base}_\[[0-2,]+\]", names)
    assert "hydra.sweep.dir=" in find(output, "job.wait-again").facts["command"]

    second = sweep.start(*words)
    assert second.stdout is not None
    next(
        line
        for line in second.stdout
        if says(line, "job.submitted-before") or "measured before" in line
    )
    second.kill()
    second.wait()

    again = sweep.run(*words)
    assert again.returncode == 0, again.stdout + again.stderr
    assert [result["status"] for result in sweep.results()] == ["ok"] * 3
    assert sweep.submissions() == jobs


def test_changed_code_is_noticed(sweep: Sweep, tmp_path: Path):
    copy = tmp_path / "copy"
    files = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in files.stdout.splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    for line in ("init -q", "add -A", "-c user.name=a -c user.email=a@b commit -qm a"):
        subprocess.run(["git", *line.split()], cwd=copy, check=True)
    sweep.root = copy
    other = Sweep(tmp_path / "latest", copy)
    on_hold = "hydra.launcher.additional_parameters={hold: true}"
    running, latest = sweep.start(on_hold), other.start(on_hold, "code=latest")
    jobs = awaited(
        lambda: (
            held if len(held := ask("squeue", "-h", "-t", "PD", "-o", "%F").split()) == 2 else None
        )
    )
    with (copy / "multicard" / "cli" / "command.py").open("a") as file:
        file.write("# edited while the job waits\n")
    ask("scontrol", "release", *jobs)
    output, _ = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 1, output
    assert latest.wait(timeout=PATIENCE_S) == 0
    assert [result["status"] for result in sweep.results()] == ["refused"]
    assert [result["status"] for result in other.results()] == ["ok"]
    code = find(output, "job.other-code", key="code").facts
    assert re.fullmatch(r"commit \w{9}", code["submitted"])
    assert re.fullmatch(r"commit \w{9} with changes \w{8}", code["found"])


def test_a_job_without_the_users_variables_runs_and_one_without_an_answer_is_waited_for(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """sbatch submits it, and says that it timed out. No second job is submitted."""
    program = tmp_path / "bin" / "sbatch"
    program.parent.mkdir()
    failed = (
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv"
        " operation' >&2"
    )
    program.write_text(f'#!/bin/sh\n{shutil.which("sbatch")} "$@" >/dev/null\n{failed}\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    site = "{export: NONE,no_requeue: true,p: main,gpus_per_node: 1}"
    done = sweep.run("seed=1,2", f"hydra.launcher.additional_parameters={site}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [result["status"] for result in sweep.results()] == ["ok"] * 2
    (job,) = {name.partition("_")[0] for name in awaited(sweep.submissions)}
    asked = ask("sacct", "-X", "-n", "-P", "-o", "JobID,AllocTRES", "-j", job).splitlines()
    assert len(asked) == 2 and all("gres/gpu=1" in line for line in asked)
