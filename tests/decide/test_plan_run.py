"""Plans that are carried out, in a time of their own: their order, their ends, what is planned
again, and what goes on; and real runs, which are interrupted, killed and finished.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from multicard.decide.plan import command, outcome, planning
from multicard.machine import shares
from multicard.records import run_folder
from multicard.records.journal import Journal
from multicard.sweep.streak import SameFailureError
from tests.conftest import PATIENCE_S, ROOT, SMALL, assert_gone, awaited
from tests.helpers.messages import Told, codes, find, says, told
from tests.helpers.plan_world import AGO_S, World, in_own_time, statuses

pytestmark = pytest.mark.usefixtures("processes")


def replanned(printed: str) -> list[str]:
    """Codes of the reasons for which plans were made again."""
    again = [message for message in told(printed) if message.code == "plan.again"]
    return [code for message in again for code in codes(message.facts["reasons"])]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return in_own_time(tmp_path / "plan", monkeypatch)


def test_jobs_run_in_order_on_the_gpus_of_the_plan(
    world: World, capsys: pytest.CaptureFixture[str]
):
    world.add("wide", {2: 3})
    world.add("left", {1: 2}, 0)
    world.add("right", {1: 2}, 0)
    world.add("last", {1: 1}, 1, 2)
    carried = world.run()
    assert statuses(carried) == dict.fromkeys(("wide", "left", "right", "last"), "ok")
    placed = {each.task.name: each.gpu_ids for each in carried.progress}
    assert placed == {"wide": (0, 1), "left": (0,), "right": (1,), "last": (0,)}
    spans = {each.task.name: (each.start_s or 0.0, each.end_s or 0.0) for each in carried.progress}
    assert spans["wide"][1] <= min(spans["left"][0], spans["right"][0])
    assert max(spans["left"][1], spans["right"][1]) <= spans["last"][0]
    result = outcome.result(carried)
    table = outcome.lines(result)
    assert (
        max(map(len, table[1:-1])) <= 120
        and table[1].split()[:2] == ["job", "GPUs"]
        and len(table) >= 8
    )
    assert find(table[-1], "plan.took-in-all").facts["planned_s"] == pytest.approx(6)
    assert result["planned_makespan_s"] == pytest.approx(6)
    assert result["makespan_s"] == max(end for _, end in spans.values()) == pytest.approx(6, abs=1)
    printed = capsys.readouterr().out
    started = find(printed, "plan.started", task="wide", gpu_ids=[0, 1])
    assert not outcome.failures(carried) and started.facts["planned_s"] == [
        pytest.approx(0, abs=1),
        pytest.approx(3, abs=1),
    ]
    again = world.run()  # nothing is done twice
    assert statuses(again) == statuses(carried) and len(world.started) == 4
    assert outcome.result(again)["jobs"] == result["jobs"]


def test_what_comes_after_a_job_that_fails_is_skipped(
    world: World, capsys: pytest.CaptureFixture[str]
):
    world.add("bad", {1: 1}, on1="failed")
    world.add("ill", {1: 1}, on1="diverged")
    world.add("next", {1: 1}, 0)
    world.add("after", {1: 1}, 2)
    world.add("good", {1: 1})
    carried = world.run()
    lost = {"bad": "failed", "ill": "diverged", "next": "skipped", "after": "skipped"}
    assert statuses(carried) == lost | {"good": "ok"}
    bad, ill, following, after = (told(line)[0] for line in outcome.failures(carried))
    assert bad.has({"task": "bad", "status": "failed", "cause": "made failed"})
    assert ill.has({"task": "ill", "status": "diverged", "cause": "made diverged"})
    assert following.has({"task": "next", "status": "skipped"}) and after.has(
        {"task": "after", "status": "skipped"}
    )
    assert following.facts["cause"] == Told("plan.after", None, {"task": "bad", "status": "failed"})
    assert after.facts["cause"] == Told("plan.after", None, {"task": "next", "status": "skipped"})
    assert "plan.ended-badly" in replanned(capsys.readouterr().out)
    world.cells["bad", 1].ends = "ok"  # mended
    carried = world.run()
    assert statuses(carried) | {"ill": "ok"} == dict.fromkeys(
        ("bad", "ill", "next", "after", "good"), "ok"
    )


def test_a_job_that_runs_out_of_memory_is_tried_on_more_gpus_alone(world: World):
    world.add("big#1", {1: 2, 2: 2.5}, job="big", on1="oom")
    world.add("big#2", {1: 2, 2: 2.5}, 0, job="big", on1="oom")
    world.add("small", {1: 1}, on1="oom")
    world.add("later", {1: 1}, 2)
    carried = world.run()
    assert statuses(carried) == {"big#1": "ok", "big#2": "ok", "small": "oom", "later": "skipped"}
    tries = [(name, gpus) for name, gpus, _ in world.started if name != "small"]
    assert tries == [("big#1", 1), ("big#1", 2), ("big#2", 2)]
    first = find(outcome.failures(carried)[0], "plan.failed", task="small", status="oom")
    assert first.facts["cause"] == Told("plan.no-more-gpus", None, {"gpus": 1})


def test_a_run_out_of_memory_leaves_another_run_of_its_job_that_runs(world: World):
    world.add("big#1", {1: 2}, job="big", on1="oom")
    world.add("big#2", {1: 2}, job="big", lasts=2)
    world.add("big#3", {1: 2}, 1, job="big")
    assert statuses(world.run()) == {"big#1": "oom", "big#2": "ok", "big#3": "oom"}


def test_a_job_that_takes_longer_has_the_rest_planned_again(
    world: World, capsys: pytest.CaptureFixture[str]
):
    world.add("slow#1", {1: 50}, job="slow", lasts=6)
    world.add("slow#2", {1: 50, 2: 40}, 0, job="slow")
    carried = world.run()
    assert statuses(carried) == {"slow#1": "ok", "slow#2": "ok"}
    reasons = replanned(capsys.readouterr().out)
    assert "plan.overdue" in reasons and "plan.took" in reasons
    second = carried.progress[1].placed
    assert second is not None and second.option.interval.value == pytest.approx(6 * 50, rel=0.01)
    assert outcome.result(carried)["jobs"][0]["ratio"] == pytest.approx(6, rel=0.01)


def test_a_full_disk_ends_a_plan_as_it_ends_a_sweep(
    world: World, capsys: pytest.CaptureFixture[str]
):
    """Three tasks that fail for one cause: the others would, and are run by the next command."""
    for number in range(5):
        world.add(f"run{number}", {2: 2}, on2="failed")
    for cell in world.cells.values():
        cell.cause = {"kind": "disk", "message": "no space left", "code": "disk.full"}
    carried = world.run(SameFailureError)
    assert [*statuses(carried).values()] == ["failed"] * 3 + [""] * 2
    assert [said.code for said in outcome.failures(carried)] == ["plan.failed"] * 5
    assert find(outcome.failures(carried)[-1], "sweep.same-failure", cells=3)
    world.cells = {name: replace(cell, ends="ok") for name, cell in world.cells.items()}
    assert {*statuses(world.run()).values()} == {"ok"}


def test_what_is_left_of_a_job_is_as_planned_and_of_an_overdue_one_by_what_its_siblings_are_scaled_by(
    world: World,
):
    world.add("slow#1", {1: 50}, job="slow", lasts=6)
    world.add("slow#2", {1: 50}, 0, job="slow")
    with world.started_plan() as carried:
        first, second = carried.progress
        world.now_s += 20
        assert first.rest(carried.now_s()).planned_s == pytest.approx(30)
        world.now_s += 40
        assert carried._overdue()
        assert (
            first.rest(carried.now_s()).planned_s == pytest.approx(90 - 60)
            and second.options[0].planned_s == 90
        )


def test_a_plan_waits_for_gpus_that_others_have_leased(world: World):
    world.add("wide", {2: 20})
    world.add("narrow", {1: 10}, 0)
    world.leased = 1
    with world.started_plan() as carried:
        assert not world.started
        world.leased = 0
        world.now_s += 30
        world.start_ready(carried)
    assert [name for name, *_ in world.started] == ["wide"]


# ---- from command to command


def test_a_command_that_fails_ends_its_jobs(world: World, monkeypatch: pytest.MonkeyPatch):
    world.add("quick", {1: 1})
    world.add("long", {1: 9})
    add: Callable[..., None] = Journal.add

    def full(journal: Journal, **values: Any) -> None:
        if values.get("ended") == "quick":
            raise OSError(28, "No space left on device")
        add(journal, **values)

    monkeypatch.setattr(Journal, "add", full)
    with pytest.raises(OSError, match="No space left"):
        world.run()
    assert not world.running


def test_an_interrupted_plan_ends_its_jobs_and_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    world.add("a", {1: 10}, on1="interrupted")  # as a terminal's Ctrl-C reaches it
    world.add("b", {1: 20})
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert not world.running
    world.cells["a", 1].ends = "ok"
    assert statuses(world.run()) == {"a": "ok", "b": "ok"}


def test_jobs_that_the_file_no_longer_names_do_not_count(world: World):
    world.add("a", {1: 0.1})
    ends = {"a": 7.0, "b": 5e4}
    planned = {
        name: {"gpus": 1, "gpu_ids": [0], "start_s": 0.0, "end_s": end}
        for name, end in ends.items()
    }
    world.began({"planned": planned})
    carried = world.run()
    assert statuses(carried) == {"a": "ok"} and outcome.result(carried)["planned_makespan_s"] == 7


def test_what_ended_during_the_search_is_not_trained_again(
    world: World, capsys: pytest.CaptureFixture[str]
):
    """An end that was noted of an earlier run, with another status, says nothing of it."""
    for name in ("done", "ill", "full"):
        world.add(name, {1: 2, 2: 1.5})
    world.add("after", {1: 1}, 0)
    world.add("lost", {1: 1}, 1)
    world.began({"ended": "done", "status": "failed", "gpu_ids": [1], "start_s": 1.0, "end_s": 2.0})
    with world.journal() as journal:
        carried = world.carrying(journal)
        schedule = planning.make(carried.rest(), 2, 0.5).schedule
        for (name, gpus), ends in {
            ("done", 1): "ok",
            ("ill", 1): "diverged",
            ("full", 1): "oom",
        }.items():
            world.cells[name, gpus].ends = ends
            world.cells[name, gpus].leave()
        executor: Any = world
        carried.run(schedule, executor)
    wanted = {"done": "ok", "ill": "diverged", "full": "ok", "after": "ok", "lost": "skipped"}
    assert statuses(carried) == wanted and {name for name, *_ in world.started} == {"full", "after"}
    assert ("full", 1) not in {(name, gpus) for name, gpus, _ in world.started}
    done = carried.progress[0]
    assert (done.gpus, done.gpu_ids, done.start_s, done.end_s) == (1, (), None, None)
    assert "plan.ended-before" in replanned(capsys.readouterr().out)


def test_a_deadline_counts_from_the_first_command(world: World):
    world.add("late", {1: 50})
    world.tasks = [replace(task, deadline_s=400.0) for task in world.tasks]
    world.began({"later": "an event of another version"}, {})
    with world.journal() as journal:
        (left,) = world.carrying(journal).rest()
    assert left.deadline_s == pytest.approx(400 - AGO_S)
    world.now_s -= 2 * AGO_S  # the clock was set back since
    with world.journal() as journal:
        assert world.carrying(journal).now_s() == 0


# ---- the command

RUN = f"train_vision.py {' '.join(SMALL)} dataset=digits"
WORDS = ("jobs.yaml", "--run", "--name", "mine", "--json", "plan.json", "--seconds", "1")


def test_a_plan_survives_an_interruption_and_a_kill(tmp_path: Path):
    """Of real runs: nothing goes on without the command, and what is done is not done again."""
    jobs = {"small": f"{{run: {RUN}, seconds: {{1: [20, 5, 600]}}, gpus: [1], repeat: 2}}",
            "long": f"{{run: {RUN} epochs=1000, seconds: {{1: 900}}, gpus: [1], after: [small]}}"}  # fmt: skip
    text = (
        "{slowdown: 1.0, jobs: {" + ", ".join(f"{name}: {job}" for name, job in jobs.items()) + "}}"
    )
    (tmp_path / "jobs.yaml").write_text(text)
    variables = os.environ | {shares.VARIABLE: str(tmp_path / "leases"), "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "multicard", "plan", *WORDS]
    folder = tmp_path / "multirun" / "mine"
    done: dict[Path, int] = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        plan = subprocess.Popen(
            line, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        marker = awaited(lambda: next(folder.glob(".*epochs=1000*.running"), None))
        child = psutil.Process(awaited(lambda path=marker: run_folder.read_json(path))["pid"])
        plan.send_signal(number)
        printed = plan.communicate(timeout=PATIENCE_S)[0].decode()
        assert plan.returncode == (1 if number is signal.SIGINT else -number), printed
        assert_gone([child])
        marker.unlink(missing_ok=True)
        finished = {path: path.stat().st_mtime_ns for path in folder.glob("*/result.json") if "epochs=1000" not in
                    path.parent.name}  # fmt: skip
        assert len(finished) == 2 and done in ({}, finished)
        done = finished
    ends = [
        json.loads(path.read_text())["status"] for path in folder.glob("*epochs=1000*/result.json")
    ]
    assert ends == ["interrupted"]  # by the first signal
    (tmp_path / "jobs.yaml").write_text(text.replace(f", long: {jobs['long']}", ""))
    plan = subprocess.run(
        line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert plan.returncode == 0, plan.stderr
    before = [message for message in told(plan.stdout) if message.code == "plan.before"]
    assert [(each.facts["task"], each.facts["status"]) for each in before] == [
        ("small#1", "ok"),
        ("small#2", "ok"),
    ]
    content = json.loads((tmp_path / "plan.json").read_text())
    assert [job["status"] for job in content["carried_out"]["jobs"]] == ["ok", "ok"]
    records = [json.loads(path.read_text()) for path in done]
    assert sorted(record["repetition"] for record in records) == [1, 2] and {
        r["cores"] for r in records
    } == {1}


@pytest.mark.parametrize(
    ("jobs", "code", "key"),
    [
        ("a: {seconds: {1: 5}}", "plan.nothing-to-run", "jobs.a"),
        ("a: {run: train_vision.py, seconds: {1: 5}}, b: {run: train_vision.py, seconds: {1: 5}}",
         "plan.same-run", "jobs.b.run"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused_in_a_line(
    jobs: str, code: str, key: str, tmp_path: Path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text(f"jobs: {{{jobs}}}")
    assert command.main(["jobs.yaml", "--run"]) == 1
    printed = capsys.readouterr()
    assert says(printed.err, code, key=key) and printed.err.count("\n") == 1
    assert not (tmp_path / "multirun").exists()


def test_a_name_of_a_plan_of_other_jobs_is_refused(
    tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "multirun" / "jobs" / ".plan"
    folder.mkdir(parents=True)
    planned = {name: {"gpus": 1, "gpu_ids": [0], "start_s": 0.0, "end_s": 9.0} for name in "abcd"}
    (folder / "events.jsonl").write_text(json.dumps({"planned": planned, "at_s": 0.0}) + "\n")
    (tmp_path / "jobs.yaml").write_text("jobs: {e: {run: train_vision.py, seconds: {1: 5}}}")
    for _ in range(2):  # the lock was given back
        assert command.main(["jobs.yaml", "--run"]) == 1
        assert says(capsys.readouterr().err, "plan.other-jobs", key="--name", value="jobs", job="a")
