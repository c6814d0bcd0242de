"""Requests to SLURM, the meaning of its answers, and how the end of a job is judged;
without a SLURM.
"""

import os
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from omegaconf import DictConfig

from multicard.config.job import Resources, resources
from multicard.machine import slurm
from multicard.machine.slurm import Allocation, State
from multicard.ranks.failures import Failure
from multicard.records import ownership, run_folder
from multicard.run import attempts, controller, preemption
from multicard.sweep import slurm_submit, slurm_wait
from multicard.sweep.drive import Drive
from multicard.sweep.grid import Grid, Pace
from multicard.sweep.job import SlurmJob
from multicard.sweep.streak import SameFailureError, Streak
from multicard.vision.workload import WORKLOAD
from tests.conftest import Called, composed, typed
from tests.helpers import cells, records
from tests.helpers.messages import Told, says, told, within

ONE = Resources(nodes=1, gpus=2, cpus=4, memory_gb=None, time_min=60, exclusive=False)
SITE = {
    "_target_": "x",
    "mode": "MULTIRUN",
    "on_slurm": True,
    "packs": False,
    "partition": "long",
    "account": None,
    "setup": ["module load cuda"],
    "array_parallelism": 8,
    "signal_delay_s": 30,
    "additional_parameters": {"reservation": "mine"},
}

ASKED = [
    (["gpus=4"], Resources(1, 4, 8, None, 60, False)),
    (["gpus=4", "device=cpu"], Resources(1, 0, 8, None, 60, False)),
    (
        ["gpus=2", "nodes=3", "cpus_per_gpu=6", "memory_gb=64", "exclusive=true"],
        Resources(3, 2, 12, 64, 60, True),
    ),
]


def drive(queue: slurm_wait.Queue) -> None:
    Drive(Grid(queue.waiting(), Pace(len(queue.jobs))), queue, Streak()).run()


@pytest.mark.parametrize(("words", "expected"), ASKED)
def test_a_job_asks_for_what_its_configuration_says(words: list[str], expected: Resources):
    assert resources(typed(*words)) == expected


def test_parameters_are_those_of_the_job_and_the_site():
    assert slurm_submit.parameters("sweep-1", ONE, SITE) == {
        "name": "sweep-1",
        "nodes": 1,
        "tasks_per_node": 1,
        "cpus_per_task": 4,
        "timeout_min": 60,
        "slurm_setup": ["module load cuda"],
        "slurm_signal_delay_s": 30,
        "slurm_array_parallelism": 8,
        "slurm_additional_parameters": {
            "requeue": True,
            "gpus-per-node": "2",
            "partition": "long",
            "reservation": "mine",
        },
        "slurm_srun_args": ["--cpus-per-task=4", "--export=ALL"],
    }
    several = slurm_submit.parameters("x", Resources(2, 0, 4, 8, 5, True), SITE)
    flags = several["slurm_additional_parameters"]
    assert (several["nodes"], flags["mem"], flags["exclusive"], flags["no-kill"]) == (
        2,
        "8GB",
        True,
        True,
    )
    assert "gpus-per-node" not in flags
    assert "--kill-on-bad-exit=0" in several["slurm_srun_args"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {
                "JobState": "RUNNING",
                "PreemptTime": "None",
                "RunTime": "00:00:10",
                "TimeLimit": "01:00:00",
            },
            "timeout",
        ),
        ({"JobState": "RUNNING", "PreemptTime": "2026-01-01T00:00:00"}, "preempted"),
        ({"JobState": "COMPLETING", "RunTime": "00:59:59", "TimeLimit": "1-00:00:00"}, "cancelled"),
        ({"JobState": "COMPLETING", "RunTime": "00:01:01", "TimeLimit": "00:01:00"}, "timeout"),
        ({"JobState": "COMPLETING", "RunTime": "00:01:01", "TimeLimit": "UNLIMITED"}, "cancelled"),
        ({}, "timeout"),
        # of a job whose node failed, and of one that `scontrol requeue` stopped
        (
            {
                "JobState": "PENDING",
                "Restarts": "2",
                "RunTime": "00:00:00",
                "TimeLimit": "01:00:00",
            },
            "requeued",
        ),
        (
            {
                "JobState": "COMPLETING",
                "Restarts": "2",
                "RunTime": "00:00:00",
                "TimeLimit": "01:00:00",
            },
            "requeued",
        ),
        (
            {
                "JobState": "RUNNING",
                "Restarts": "1",
                "RunTime": "00:59:00",
                "TimeLimit": "01:00:00",
            },
            "timeout",
        ),
    ],
)
def test_why_slurm_warns(fields: dict[str, str], reason: str):
    assert slurm.reason_of_warning(fields, restarts=1) == reason


@pytest.mark.parametrize(
    ("restarts", "refuses", "kind", "expected"),
    [
        (1, True, "exception", False),
        (1, True, "timeout", False),
        (1, False, "preempted", True),
        (2, True, "preempted", True),  # "Job is pending execution": SLURM has requeued it by itself
        (2, True, "signal", True),
        (2, True, "interrupt", True),
    ],
)
def test_a_job_that_slurm_has_requeued_goes_on_whatever_ended_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    restarts: int,
    refuses: bool,
    kind: str,
    expected: bool,
):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")

    def ask(*words: str, **_: float) -> str | None:
        return f"JobId=7 Restarts={restarts} " if words[1] == "show" else None if refuses else ""

    monkeypatch.setattr(slurm, "ask", ask)
    job = SlurmJob(WORKLOAD, DictConfig({"max_requeues": 3}), tmp_path, None)
    assert job.requeue(Failure(kind, "")) is expected


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_job_is_put_back_as_often_as_max_requeues_says(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Each start that is stopped notes its end before it asks."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setattr(
        slurm, "ask", lambda *words, **_: "JobId=7 Restarts=0 " if words[1] == "show" else ""
    )
    job = SlurmJob(WORKLOAD, DictConfig({"max_requeues": most}), tmp_path, None)
    answers = []
    for _ in range(4):
        attempts.begin(tmp_path, Allocation(job="7"))
        attempts.end(tmp_path, Failure("preempted", ""))
        answers.append(job.requeue(Failure("preempted", "")))
    assert answers == [number <= most for number in (1, 2, 3, 4)]


def test_a_job_that_was_requeued_after_its_record_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """SLURM may requeue it for a node that fails in the moment
    between the record and the end of the job.
    """
    monkeypatch.setattr(preemption, "hold_warnings", lambda: None)
    monkeypatch.setattr(slurm, "allocation", lambda *_: Allocation(job="7"))
    folder = tmp_path / "cell"
    ownership.claim(folder, "7")
    records.put_whole(folder, records.vision(job="7"))
    run_folder.write_json(folder / "checkpoint" / "latest.json", {"steps": 5, "world_size": 1})
    assert SlurmJob(WORKLOAD, DictConfig({"code": "latest"}), folder, None)() == "ok"
    assert {path.name for path in folder.iterdir()} == {"result.json", "steps.parquet"}


@pytest.mark.parametrize(("node", "task"), [(0, 0), (0, 1), (1, 0)])
def test_a_job_of_several_tasks_a_node_measures_nothing(
    node: int, task: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(preemption, "hold_warnings", lambda: None)
    monkeypatch.setattr(slurm, "allocation", lambda *_: Allocation(("a", "b"), node, "7"))
    monkeypatch.setattr(controller, "measure", lambda *_, **__: pytest.fail("it is measured"))
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "4")
    monkeypatch.setenv("SLURM_LOCALID", str(task))
    assert SlurmJob(WORKLOAD, composed("device=cpu"), tmp_path / "cell", None)() == "refused"
    record = run_folder.read_run(tmp_path / "cell")
    assert (record is not None) is (node == task == 0)
    if record is not None:
        cause = record.record.cause
        assert cause is not None and (cause.code, cause.key) == (
            "slurm.several-tasks",
            "hydra.launcher",
        )
        assert (cause.facts["tasks"], cause.facts["nodes"]) == (4, 2)


Answers = Callable[..., list[tuple[str, ...]]]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """Have SLURM's commands print these texts; one without a text fails, with `error`.
    Returns the commands.
    """

    def set_up(error: str = "", **texts: str) -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []

        def call(*words: str, **_: float) -> tuple[int, str, str]:
            asked.append(words)
            return (0, texts[words[0]], "") if words[0] in texts else (1, "", error)

        monkeypatch.setattr(slurm, "_call", call)
        return asked

    return set_up


def test_all_jobs_are_asked_about_in_one_call(answers: Answers):
    asked = answers(squeue="7_0|RUNNING|n1|None\n7_1|PENDING||Priority\n9|COMPLETED|n2|None\n")
    states = slurm.queued(["7_0", "7_1", "7_2", "9"])
    expected = {
        "7_0": State("RUNNING", "n1", reason="None"),
        "7_1": State("PENDING", "", reason="Priority"),
    }
    assert states == expected and len(asked) == 1


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ({"sacct": "7_2|CANCELLED by 0|n1|0:15\n"}, State("CANCELLED", "n1", "0:15")),
        ({"sacct": "7_2|RUNNING|n1|0:0\n"}, None),
        ({"sacct": "", "scontrol": "JobId=7 JobState=FAILED ExitCode=1:0 ReqNodeList=(null) NodeList=n1 A=b"},
         State("FAILED", "n1", "1:0")),
        ({"sacct": "", "scontrol": "JobId=7 ArrayTaskId=2 JobState=RUNNING Reason=None"}, None),
        ({"error": "slurm_load_jobs error: Invalid job id specified"}, State("")),
        ({"sacct": "7_2|RUNNING|n1|0:0\n", "error": "slurm_load_jobs error: Invalid job id specified"}, State("")),
        ({"sacct": "", "scontrol": "Job 7_2 not found\n"}, State("")),
        ({"error": "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"}, None),
        ({"sacct": "?", "scontrol": "?"}, None),
    ],
)  # fmt: skip
def test_a_job_has_ended_where_the_queue_and_a_second_source_say_so(
    answers: Answers, said: dict[str, str], state: State | None
):
    answers(squeue="", **said)
    assert slurm.ended(["7_2"]) == ({} if state is None else {"7_2": state})
    assert slurm.is_alive("7_2") is (state is None)
    answers(squeue="7_2|RUNNING|n1|None\n", **said)
    assert slurm.unended(["7_2"]) == {"7_2"}


def test_of_a_cell_that_was_submitted_twice_the_queued_job_counts(tmp_path: Path, answers: Answers):
    for name, job, names in (("b", "5", ["x", "y"]), ("a", "7", ["y", "gone"]), ("c", "4", ["y"])):
        run_folder.write_json(tmp_path / ".submitit" / f"{name}.json", {"cells": names, "job": job})
    (tmp_path / ".submitit" / "cut.json").write_text('{"cells":')
    left = [cells.cell(number, tmp_path / name) for number, name in ((1, "x"), (2, "y"))]
    ended = "5_1|FAILED|n1|1:0\n4|FAILED|n1|1:0\n"
    answers(squeue="5_0|RUNNING|n1|None\n7_0|PENDING||None\n7_1|PENDING||None\n", sacct=ended)
    assert slurm_submit.queued_jobs(left) == {1: "5_0", 2: "7_0"}


@pytest.mark.parametrize(
    "said", [{}, {"squeue": "CLUSTER: other\n7|RUNNING|n1|None\n"}], ids=["none", "garbage"]
)
def test_no_answer_of_slurm_is_not_an_empty_queue(answers: Answers, said: dict[str, str]):
    answers(**said, sacct="7|FAILED|n1|1:0\n")
    with pytest.raises(slurm.SilentError) as silent:
        slurm.queued(["7"])
    assert (silent.value.code, silent.value.key) == ("slurm.silent", "hydra/launcher")
    assert slurm.is_alive("7")
    answers(sacct="7|FAILED|n1|1:0\n")
    # else a job of a command that was killed as it submitted comes twice
    with pytest.raises(slurm.SilentError):
        slurm.job_named("sweep-1")


def test_variables_of_the_user_change_neither_answers_nor_what_a_job_asks_for(
    tmp_path: Path, monkeypatch
):
    (tmp_path / "squeue").write_text("#!/bin/sh\nenv\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    variables = (
        "SQUEUE_STATES",
        "SACCT_FEDERATION",
        "SLURM_CLUSTERS",
        "SLURM_CONF",
        "SLURM_CPUS_PER_TASK",
    )
    for name in (*variables, "SBATCH_JOB_NAME", "SBATCH_PARTITION", "SBATCH_WCKEY"):
        monkeypatch.setenv(name, "x")
    asked = {line.partition("=")[0] for line in (slurm.ask("squeue") or "").splitlines()}
    assert (
        "SLURM_CONF" in asked
        and not {"SQUEUE_STATES", "SACCT_FEDERATION", "SLURM_CLUSTERS"} & asked
    )
    before = dict(os.environ)
    with slurm.submitting({"partition"}):
        left = {name for name in os.environ if name.startswith(("SLURM", "SBATCH"))}
    assert left == {"SLURM_CONF", "SBATCH_WCKEY"} and dict(os.environ) == before


AWAY, NEVER = "job.nodes-away", "job.never-begins"
REASONS = {  # of a job that is pending, and what is said
    "ReqNodeNotAvail, UnavailableNodes:n[1-2]": AWAY,  # as a drained node is told
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions": (
        AWAY
    ),
    "PartitionNodeLimit": AWAY,
    "PartitionDown": AWAY,
    "DependencyNeverSatisfied": NEVER,
    "PartitionTimeLimit": NEVER,
    "QOSMaxWallDurationPerJobLimit": NEVER,
    "Priority": "",
    "Resources": "",
    "Dependency": "",
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_a_job_does_not_begin_is_said_once_where_waiting_alone_does_not_help(
    reason: str, tmp_path, monkeypatch, capsys
):
    """By what the program `squeue` prints."""
    program = tmp_path / "bin" / "squeue"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '7|PENDING||{reason}'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    looks = count()
    monkeypatch.setattr(
        slurm_wait, "pause", lambda _: pytest.fail("waits on") if next(looks) == 3 else None
    )
    with pytest.raises(pytest.fail.Exception, match="waits on"):
        drive(slurm_wait.Queue([cells.cell(0, tmp_path / "cell")], {0: "7"}))
    said = Told(REASONS[reason], facts={"job": "7", "reason": reason})
    assert told(capsys.readouterr().err) == ([said] if REASONS[reason] else [])


@pytest.mark.parametrize("has_left", ["its folder", "the queue"])
def test_a_cell_has_ended_once_its_job_has_tidied_up_or_is_gone(
    tmp_path: Path, monkeypatch, has_left: str
):
    """A launcher that returns on the record alone leaves a checkpoint that is about to go,
    and a folder in use.
    """
    queued = {"4_0": State("RUNNING", "", "", "")}
    monkeypatch.setattr(slurm, "queued", lambda _: dict(queued))
    cell = cells.cell(0, tmp_path)
    queue = slurm_wait.Queue([cell], {0: "4_0"})
    ownership.claim(tmp_path, "4_0")
    records.put(tmp_path, records.vision(job="4_0"))
    assert queue.poll() == []
    if has_left == "its folder":
        ownership.release(tmp_path)
    else:
        queued.clear()
    assert queue.poll() == [cell]
    assert cell.result is not None and cell.result.status == "ok"


def test_jobs_that_slurm_holds_are_named_once_with_what_releases_them(
    monkeypatch, capsys: pytest.CaptureFixture[str]
):
    """A user, an administrator or a launch that failed holds a job; it would wait for ever."""
    held, waits = (
        ("PENDING", "", "", "launch failed requeued held"),
        (
            "PENDING",
            "",
            "",
            "Resources",
        ),
    )
    looks = iter([(waits, held), (held, held), (waits, held), (held, held)])

    def look(jobs: list[str]) -> dict[str, State]:
        try:
            return {job: State(*words) for job, words in zip(jobs, next(looks), strict=True)}
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(slurm, "queued", look)
    monkeypatch.setattr(slurm_wait, "pause", lambda _: None)
    monkeypatch.setattr(run_folder, "read_run", lambda _: None)
    held_cells = [cells.cell(number) for number in range(2)]
    with pytest.raises(KeyboardInterrupt):
        drive(slurm_wait.Queue(held_cells, {0: "4_0", 1: "4_1"}))
    said = [message for message in told(capsys.readouterr().err) if message.code == "job.held"]
    assert [message.facts["job"] for message in said] == ["4_[1]", "4_[0]", "4_[0]"]
    assert {message.facts["reason"] for message in said} == {"launch failed requeued held"}


def test_a_job_of_whose_end_nobody_knows_is_named_once(
    monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(slurm, "queued", lambda _: {})
    monkeypatch.setattr(slurm, "ended", lambda _: {})
    monkeypatch.setattr(run_folder, "read_run", lambda _: None)
    queue = slurm_wait.Queue([cells.cell(0)], {0: "4_0"})
    for now_s in (0.0, 30.0, 61.0, 122.0):
        monkeypatch.setattr(slurm_wait, "clock_s", lambda now_s=now_s: now_s)
        assert queue.poll() == []
    said = [
        message for message in told(capsys.readouterr().err) if message.code == "job.end-unknown"
    ]
    assert [message.facts for message in said] == [{"job": "4_[0]"}]


def test_what_has_not_begun_is_cancelled_after_three_failures_of_one_cause(
    tmp_path: Path, monkeypatch, capsys
):
    """Two jobs run: one of them began as it was to be cancelled."""
    states = {f"4_{number}": "RUNNING" if number < 4 else "PENDING" for number in range(7)}
    sweep = cells.sweep(*(cells.cell(number, tmp_path / str(number)) for number in range(7)))
    cancelled: list[tuple[str, ...]] = []

    def end(job: str) -> None:
        del states[job]
        cause = {
            "kind": "disk",
            "message": "no space",
            "code": "disk.full",
            "facts": {"path": "/x"},
            "host": "n1",
        }
        result = records.vision(job=job, status="failed", cause=cause)
        run_folder.write_json(tmp_path / job.removeprefix("4_") / "result.json", result)

    def ask(*words: str, **_: float) -> str:
        cancelled.append(words)
        states["4_4"] = "RUNNING"
        for job in [job for job, name in states.items() if name == "PENDING"]:
            del states[job]
        return ""

    # before each look; the third follows scancel
    ends = iter([[], ["4_0", "4_1", "4_2"], [], ["4_3"], ["4_4"]])

    def look(jobs: list[str]) -> dict[str, State]:
        for job in next(ends):
            end(job)
        return {job: State(states[job]) for job in jobs if job in states}

    monkeypatch.setattr(slurm, "ask", ask)
    monkeypatch.setattr(slurm, "queued", look)
    monkeypatch.setattr(slurm, "ended", lambda jobs: {job: State("CANCELLED") for job in jobs})
    monkeypatch.setattr(slurm_wait, "pause", lambda _: None)
    with pytest.raises(SameFailureError) as stopped:
        slurm_wait.wait(sweep, {number: f"4_{number}" for number in range(7)}, Streak())
    assert says(
        str(stopped.value), "sweep.same-failure", cells=3, cause="disk.full", reason="no space"
    )
    assert cancelled == [("scancel", "--state=PENDING", "4_[4,5,6]")]
    assert [cell.result is None for cell in sweep.cells] == [False] * 5 + [True] * 2
    assert not (tmp_path / "5").exists()
    printed = capsys.readouterr().err
    assert says(printed, "job.cancelled-rest", cancelled=2, queued=3) and says(
        printed, "sweep.same-failure"
    )


@pytest.mark.parametrize(
    ("state", "status", "code"),
    [
        (State("TIMEOUT", "n1", "0:0"), "timeout", "job.ended"),
        (State("PREEMPTED", "n1", "0:15"), "preempted", "job.ended"),
        (State("OUT_OF_MEMORY", "n1", "0:125"), "oom", "job.ended"),
        (State("NODE_FAIL", "n[1-2]", "1:0"), "failed", "job.ended"),
        (State("FAILED", "n1", "0:53"), "refused", "job.log-unwritable"),
        (State("COMPLETED", "n1", "0:0"), "failed", "job.no-record"),
        (State("CANCELLED", "None assigned", "0:0"), "interrupted", "job.cancelled-early"),
        (State(""), "failed", "job.forgotten"),
    ],
)
def test_the_end_of_a_job_without_a_record_is_judged_by_accounting(
    tmp_path, state: State, status: str, code: str
):
    (tmp_path / ".submitit").mkdir()
    (tmp_path / ".submitit" / "4_1_0_log.err").write_text("a\nslurmstepd: error: the end\n")
    judged, failure = slurm_wait.judge("4_1", state, tmp_path / "cell")
    assert (judged, failure.code) == (status, code)
    if code == "job.ended":
        known = {
            "job": "4_1",
            "host": state.nodes,
            "state": state.name,
            "exit_code": state.exit_code,
        }
        assert failure.facts == known
    if code == "job.log-unwritable":
        assert (failure.key, failure.facts["host"]) == ("hydra.sweep.dir", "n1")
    if failure.log:
        assert failure.log_tail == ("a", "slurmstepd: error: the end")


@pytest.mark.parametrize(
    ("reason", "gpus", "key"),
    [
        (
            "Invalid account or account/partition combination specified",
            "1,2",
            "hydra.launcher.account",
        ),
        ("Requested node configuration is not available", "1", "gpus"),
    ],
)
def test_a_refused_submission_is_a_line_and_leaves_no_job(
    reason: str,
    gpus: str,
    key: str,
    called: Called,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    for program in ("sbatch", "srun"):
        path = tmp_path / "bin" / program
        path.parent.mkdir(exist_ok=True)
        said = (
            f"sbatch: error: {line}" for line in (reason, f"Batch job submission failed: {reason}")
        )
        path.write_text("#!/bin/sh\n" + "".join(f"echo '{row}' >&2\n" for row in said) + "exit 1\n")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    sweep = tmp_path / "sweep"
    words = ["-m", f"gpus={gpus}", "seed=1,2", "device=cpu", "hydra/launcher=submitit_slurm"]
    code, printed = called(*words, f"hydra.sweep.dir={sweep}")
    refusals = [
        said
        for message in told(printed)
        for said in within(message)
        if said.code.startswith("slurm.")
    ]
    assert code == 1 and "sbatch:" not in printed
    assert refusals and all(
        refusal.key == key and refusal.facts["reason"] == reason for refusal in refusals
    )
    left = {path.name for path in sweep.rglob("*") if path.is_file()}
    assert left <= {"multirun.yaml", "result.json", "lock"}
    # what holds for all cells leaves nothing
    assert sweep.exists() == (not key.startswith("hydra"))


def test_without_sbatch_the_launcher_says_so(called: Called, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slurm_submit.shutil, "which", lambda _: None)
    code, printed = called(
        "-m", "gpus=1", "device=cpu", "hydra/launcher=submitit_slurm", "name=never"
    )
    assert code == 1 and says(printed, "slurm.absent", key="hydra/launcher", program="sbatch")
