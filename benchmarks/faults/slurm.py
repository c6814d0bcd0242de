"""Faults of jobs and of SLURM itself: see `cluster.py` for the one that they are caused to."""

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import psutil

from benchmarks.common import ROOT
from benchmarks.faults import cluster, work
from benchmarks.faults.disk import empty, fill, mount
from benchmarks.faults.fault import SWEEP, Act, Fault, Trial
from benchmarks.faults.network import listens_elsewhere, stranger
from benchmarks.faults.points import both, held, kill_command, kill_holder, root, said, then_release
from multicard.measure.timing import pause
from multicard.records import run_folder
from multicard.records.progress import Board

SLURM = (*SWEEP, "gpus=1", "cpus_per_gpu=1", "hydra/launcher=submitit_slurm")
# SLURM warns of the limit up to a minute before `signal_delay_s`
SHORT = (*SLURM, "time_min=2", "max_requeues=0", "hydra.launcher.signal_delay_s=10")
TWO_NODES = (*(word for word in SLURM if not word.startswith("seed=")), "seed=1", "nodes=2")
LATE_S = 5.0
COPIED = ("benchmarks", "conf", "hydra_plugins", "multicard", "papers", "train_vision.py", "tune_llm.py", ".gitignore")


def claim(trial: Trial) -> dict:
    """Who measures the first cell: the controller's process and its job."""
    folder = next(trial.sweep.glob(f"*seed={work.SEED}*"))
    return json.loads((folder / run_folder.RUNNING).read_text())


def job(trial: Trial) -> str:
    return claim(trial)["job"]


def kill_controller(trial: Trial) -> None:
    os.kill(claim(trial)["pid"], signal.SIGKILL)


def kill_step(trial: Trial) -> None:
    """Kill SLURM's own process around the controller, and then the controller."""
    kill_with_step(psutil.Process(claim(trial)["pid"]))


def kill_with_step(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        for each in (*steps_of(process), process):
            each.kill()


def steps_of(process: psutil.Process) -> list[psutil.Process]:
    """SLURM's own processes around a controller."""
    return [parent for parent in process.parents() if "slurmstepd" in parent.name()]


def with_job(*words: str) -> Act:
    """A command of SLURM about the job of the first cell."""
    return lambda trial: cluster.ask(*(word.replace("JOB", job(trial)) for word in words))


def node_down(trial: Trial) -> None:
    """The node is taken down, which ends and requeues its jobs, and comes back."""
    node, controller = cluster.node_of(job(trial)), psutil.Process(claim(trial)["pid"])
    trial.after.callback(cluster.resume)
    running = [controller, *steps_of(controller)]
    cluster.update(node, "down")
    while any(
        process.is_running() for process in running
    ):  # SLURM drains a node that still has the job's earlier start
        pause(0.2)
    trial.release()
    cluster.resume()


def node_drained(trial: Trial) -> None:
    trial.after.callback(cluster.resume)
    cluster.update(cluster.node_of(job(trial)), "drain")


def restart(name: Callable[[Trial], str]) -> Act:
    """A daemon is killed, and started again once the first cell has gone on."""

    def act(trial: Trial) -> None:
        daemon = name(trial)
        trial.after.callback(cluster.wait_until_idle)
        cluster.kill(daemon)
        trial.release()
        pause(3.0)  # nobody answers meanwhile
        cluster.start(daemon)

    return act


def node_lost(trial: Trial) -> None:
    """All that SLURM runs on the second node is killed, as by a power cut; the first one's ranks hold."""
    cluster.kill("slurmd-n2")
    for process in trial.family():
        if process.environ().get("SLURMD_NODENAME") == "n2":
            kill_with_step(process)

    def back() -> None:
        cluster.cancel_all()
        cluster.start("slurmd-n2")
        cluster.resume()

    trial.after.callback(back)


def preempt(trial: Trial) -> None:
    """A job of a more urgent partition takes the node; the ranks go on once they were asked to save."""
    node, folder = cluster.node_of(job(trial)), next(trial.sweep.glob(f"*seed={work.SEED}*"))
    board = Board(folder, 1, node=0)
    wanted = ["-p", "urgent", "-w", node, "--exclusive", "-o", "/dev/null", "--parsable", "--wrap", "sleep 3"]
    trial.after.callback(cluster.ask, "scancel", cluster.ask("sbatch", *wanted))
    while not board.stop_at:
        pause(0.1)
    trial.release()


def resumed(trial: Trial) -> str | None:
    """Whether the run went on from what it had saved."""
    record = run_folder.read_json(next(trial.sweep.glob(f"*seed={work.SEED}*")) / run_folder.RESULT) or {}
    segments = record.get("segments", [])
    return None if len(segments) == 2 and segments[1]["first_step"] else f"it did not resume: {len(segments)} segments"


def jobs(trial: Trial) -> list[str]:
    """All jobs that were ever submitted for this sweep."""
    names = [path.stem for path in (trial.sweep / ".submitit").glob("*.json")]
    return cluster.ask("sacct", "-X", "-n", "-P", "-o", "JobID", "--name", ",".join(names)).split() if names else []


def submitted_once(trial: Trial) -> str | None:
    number = len(jobs(trial))
    return None if number == 2 else f"{number} jobs were submitted for two cells"


def edit_code(trial: Trial) -> None:
    """The code changes while the jobs wait, in a copy of the repository."""
    with (trial.folder / "copy" / "multicard" / "cli.py").open("a") as file:
        file.write("# edited while the jobs wait\n")
    held_jobs = sorted({line.partition("_")[0] for line in cluster.ask("squeue", "-h", "-o", "%F").split()})
    cluster.ask("scontrol", "release", *held_jobs)


def copy_code(trial: Trial) -> None:
    folder = trial.folder / "copy"
    folder.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy2
        copy(ROOT / name, folder / name)
    identity = ("-c", "user.name=faults", "-c", "user.email=faults@example.org")
    for words in (("init", "-q"), ("add", "-A"), (*identity, "commit", "-q", "-m", "copy")):
        subprocess.run(["git", *words], cwd=folder, check=True)
    trial.root = folder


def hide_record(trial: Trial) -> None:
    """The record is seen late, as on a shared file system: after its job has left the queue."""
    name, record = job(trial), next(trial.sweep.glob(f"*seed={work.SEED}*")) / run_folder.RESULT
    trial.release()
    while not record.exists():
        pause(0.01)
    record.rename(record.with_name("late"))
    while cluster.ask("squeue", "-h", "-r", "-o", "%i").split().count(name):
        pause(0.5)
    pause(LATE_S)
    record.with_name("late").rename(record)


def open_to_others(trial: Trial) -> str | None:
    """Whether others may read or write what SLURM's jobs unpickle."""
    folder = trial.sweep / ".submitit"
    open_ = [path.name for path in (folder, *folder.glob("*.pkl")) if path.stat().st_mode & 0o077]
    return f"open to others: {', '.join(open_)}" if open_ else None


def left_by_refusal(trial: Trial) -> str | None:
    """Whether sbatch's own lines are printed, or pickles of the jobs are left."""
    if any(line.startswith("sbatch:") for _, line in trial.command.lines):
        return "sbatch's own lines are printed"
    return "pickles are left" if list(trial.sweep.rglob("*.pkl")) else None


def back_to_code(trial: Trial) -> None:
    trial.root = ROOT


def beside(trial: Trial) -> None:
    """Type the same command once the first has submitted; both wait for the same jobs."""
    second = trial.start(again=True)
    trial.wait_for(said(r"was submitted before"))
    trial.release()
    second.wait()


_HELD = Fault("", "", SLURM, inside="hold@step3", at=held, undo=cluster.clean, needs=cluster.problem)
_FAILED = replace(_HELD, statuses=("failed", "ok"))
_GOES_ON = replace(_HELD, code=0, statuses=("ok", "ok"), check=submitted_once, within_s=240.0)
_LEFT = replace(_HELD, leaves_jobs=True, check=submitted_once)

FAULTS = (
    replace(
        _FAILED,
        name="slurm-exception",
        what="a step of a job raises KeyError",
        inside="raise@step3",
        at=None,
        says=r"^\[1/2\] .*failed: rank 0: KeyError",
    ),
    replace(
        _FAILED,
        name="slurm-rank",
        what="SIGKILL of a job's rank",
        act=kill_holder(),
        says=r"^\[1/2\] .*failed: rank 0 was killed by SIGKILL",
    ),
    replace(
        _FAILED,
        name="slurm-controller",
        what="SIGKILL of a job's controller",
        act=kill_controller,
        says=r"^\[1/2\] .*failed: SLURM ended job \S+ on n\d as FAILED",
        within_s=120.0,
    ),
    replace(
        _FAILED,
        name="slurm-recording",
        what="SIGKILL of a job's controller as it records",
        inside="hold@record",
        act=kill_holder(),
        says=r"^\[1/2\] .*failed: SLURM ended job \S+ on n\d as FAILED",
        within_s=120.0,
    ),
    replace(
        _FAILED,
        name="slurm-step",
        what="SIGKILL of SLURM's own process around a controller, which SLURM notices at the job's time limit",
        words=SHORT,
        act=kill_step,
        says=r"^\[1/2\] .*timeout: SLURM ended job \S+ on n\d as TIMEOUT",
        statuses=("ok", "timeout"),
        within_s=240.0,
    ),
    replace(
        _FAILED,
        name="slurm-full-disk",
        what="the disk of the sweep is full in training",
        prepare=mount("sweep", "size=4m"),
        act=then_release(fill),
        mend=empty,
        says=r"^\[1/2\] .*failed: .*(No space left|disk|without leaving a record|no controller was left)",
        statuses=None,
        within_s=180.0,
        needs=lambda: root() or cluster.problem(),
    ),
    replace(
        _HELD,
        name="slurm-cancelled",
        what="scancel of a job",
        act=with_job("scancel", "JOB"),
        says=r"^\[1/2\] .*interrupted: the job was cancelled",
        statuses=("interrupted", "ok"),
    ),
    replace(
        _HELD,
        name="slurm-time-limit",
        what="a job reaches its time limit, and its ranks do not save",
        words=SHORT,
        says=r"^\[1/2\] .*timeout: the job reached its time limit",
        statuses=("ok", "timeout"),
        within_s=240.0,
    ),
    replace(
        _GOES_ON,
        name="slurm-preempted",
        what="an urgent job takes the node",
        words=(*SLURM, "epochs=4", "hydra.launcher.signal_delay_s=30"),
        act=preempt,
        check=lambda trial: submitted_once(trial) or resumed(trial),
    ),
    replace(
        _GOES_ON,
        name="slurm-requeued",
        what="scontrol requeue of a job",
        act=then_release(with_job("scontrol", "requeue", "JOB")),
    ),
    replace(_GOES_ON, name="slurm-node-down", what="the node goes down in training", act=node_down),
    replace(
        _GOES_ON,
        name="slurm-node-down-recording",
        what="the node goes down as is recorded",
        inside="hold@record",
        act=node_down,
    ),
    replace(_GOES_ON, name="slurm-drained", what="the node is drained", act=then_release(node_drained)),
    replace(
        _GOES_ON,
        name="slurm-slurmd",
        what="slurmd is killed in training, and started again",
        act=restart(lambda trial: f"slurmd-{cluster.node_of(job(trial))}"),
    ),
    replace(
        _GOES_ON,
        name="slurm-slurmctld",
        what="slurmctld is killed in training, and started again",
        act=restart(lambda _: "slurmctld"),
    ),
    replace(
        _GOES_ON,
        name="slurm-slurmdbd",
        what="slurmdbd is killed in training, and started again",
        act=restart(lambda _: "slurmdbd"),
    ),
    replace(
        _HELD,
        name="slurm-node-lost",
        what="the second of two nodes loses its power",
        words=TWO_NODES,
        act=node_lost,
        says=r"^\[1/1\] .*failed: node n2 was lost",
        statuses=("failed",),
        ends=None,
        leaves_jobs=True,  # SLURM keeps the job until it notices
        within_s=90.0,
    ),
    replace(
        _GOES_ON,
        name="slurm-strangers",
        what="somebody sends nonsense to every open port of a job of two nodes",
        words=TWO_NODES,
        act=then_release(stranger),
        statuses=("ok",),
        ends=("ok",),
        check=listens_elsewhere,
    ),
    replace(
        _GOES_ON,
        name="slurm-late-record",
        what="a record is seen only after its job has left the queue",
        inside="hold@record",
        act=hide_record,
    ),
    replace(
        _GOES_ON,
        name="slurm-open-umask",
        what="the umask leaves files open to others",
        inside="",
        prefix=("sh", "-c", 'umask 0; exec "$@"', "sh"),
        at=None,
        check=open_to_others,
    ),
    replace(
        _LEFT,
        name="slurm-launcher-killed",
        what="SIGKILL of the command: its jobs go on",
        act=kill_command(),
        code=-signal.SIGKILL,
    ),
    replace(
        _LEFT,
        name="slurm-ctrl-c",
        what="Ctrl-C of the command: its jobs go on",
        act=kill_command(signal.SIGINT),
        says=r"^left in the queue: \d jobs",
    ),
    replace(
        _LEFT,
        name="slurm-terminal-closed",
        what="SIGHUP of the command: its jobs go on",
        act=kill_command(signal.SIGHUP),
        code=None,
    ),
    replace(_GOES_ON, name="slurm-two-commands", what="the same sweep is typed twice at once", act=beside),
    replace(
        _HELD,
        name="slurm-code-changed",
        what="the code changes while the jobs wait",
        words=(*SLURM, "hydra.launcher.additional_parameters={hold: true}"),
        inside="",
        prepare=copy_code,
        at=said(r"^submitted job"),
        act=both(edit_code, back_to_code),
        says=r"^\[1/2\] .*refused: code=submitted: submitted on commit",
        statuses=("refused", "refused"),
        ends=None,
    ),
    *(
        replace(
            _HELD,
            name=f"slurm-{name}",
            what=f"{word} is typed",
            words=(*SLURM, word),
            inside="",
            at=None,
            says=rf"^(\[1/2\] )?refused: ({re.escape(word)}|gpus, cpus_per_gpu, .*): ",
            lines=9,
            ends=None,
            check=left_by_refusal,
        )
        for name, word in (("no-partition", "hydra.launcher.partition=nowhere"), ("too-large", "cpus_per_gpu=9"))
    ),
)
