"""Plans that are carried out, in a time of their own: their order, their ends, what is planned again, and what goes on;
and two real runs, which are interrupted, killed and finished."""

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

from multicard.decide.plan import command, planning, show
from multicard.decide.plan.journal import PlanJournal
from multicard.decide.plan.places import ThisMachine
from multicard.decide.plan.schedule import Schedule
from multicard.machine import leases, shares
from multicard.machine.shares import Pool
from multicard.records import run_folder
from tests.conftest import PATIENCE_S, ROOT, SMALL, assert_gone, awaited, typed
from tests.helpers.plan_world import AGO_S, BEGAN_S, World, in_own_time, statuses

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return in_own_time(tmp_path / "plan", monkeypatch)


def started(name: str, at_s: float, gpus: int = 1) -> dict[str, Any]:
    return {"started": name, "at_s": at_s, "gpu_ids": [*range(gpus)]}


def test_jobs_run_in_order_on_the_gpus_of_the_plan(world: World, capsys: pytest.CaptureFixture[str]):
    world.add("wide", {2: 3})
    world.add("left", {1: 2}, 0)
    world.add("right", {1: 2}, 0)
    world.add("last", {1: 1}, 1, 2)
    carried = world.run()
    assert statuses(carried) == dict.fromkeys(("wide", "left", "right", "last"), "ok")
    placed = {name: gpus for name, gpus, _ in world.started}
    assert placed == {"wide": (0, 1), "left": (0,), "right": (1,), "last": (0,)}
    spans = {each.task.name: (each.start_s or 0.0, each.end_s or 0.0) for each in carried.progress}
    assert spans["wide"][1] <= min(spans["left"][0], spans["right"][0])
    assert max(spans["left"][1], spans["right"][1]) <= spans["last"][0]
    result = carried.result()
    table = show.result_lines(result)
    assert max(map(len, table)) <= 120 and table[1].split()[:2] == ["job", "GPUs"] and len(table) >= 8
    assert result["planned_makespan_s"] == pytest.approx(6)
    assert result["makespan_s"] == max(end for _, end in spans.values()) == pytest.approx(6, abs=1)
    printed = capsys.readouterr().out
    assert not carried.failures() and "wide: started on GPUs 0-1, planned 0:00:00 to 0:00:03; log: " in printed
    again = world.run()  # nothing is done twice
    assert statuses(again) == statuses(carried) and len(world.started) == 4
    assert again.result()["jobs"] == result["jobs"]


def test_what_comes_after_a_job_that_fails_is_skipped(world: World, capsys: pytest.CaptureFixture[str]):
    world.add("bad", {1: 1}, on1="failed")
    world.add("ill", {1: 1}, on1="diverged")
    world.add("next", {1: 1}, 0)
    world.add("after", {1: 1}, 2)
    world.add("good", {1: 1})
    carried = world.run()
    lost = {"bad": "failed", "ill": "diverged", "next": "skipped", "after": "skipped"}
    assert statuses(carried) == lost | {"good": "ok"}
    assert carried.failures() == [
        "bad: failed: it was made to end failed",
        "ill: diverged: it was made to end diverged",
        "next: skipped: comes after bad, which is failed",
        "after: skipped: comes after next, which is skipped",
    ]
    assert "planned again, as" in capsys.readouterr().out
    world.cells["bad", 1].ends = "ok"  # mended
    carried = world.run()
    assert statuses(carried) | {"ill": "ok"} == dict.fromkeys(("bad", "ill", "next", "after", "good"), "ok")


def test_a_job_that_runs_out_of_memory_is_tried_on_more_gpus_alone(world: World):
    world.add("big#1", {1: 2, 2: 2.5}, job="big", on1="oom")
    world.add("big#2", {1: 2, 2: 2.5}, 0, job="big", on1="oom")
    world.add("small", {1: 1}, on1="oom")
    world.add("later", {1: 1}, 2)
    carried = world.run()
    assert statuses(carried) == {"big#1": "ok", "big#2": "ok", "small": "oom", "later": "skipped"}
    tries = [(name, len(gpus)) for name, gpus, _ in world.started if name != "small"]
    assert tries == [("big#1", 1), ("big#1", 2), ("big#2", 2)]
    assert carried.failures()[0].startswith("small: oom: ")


def test_a_run_out_of_memory_leaves_another_run_of_its_job_that_runs(world: World):
    world.add("big#1", {1: 2}, job="big", on1="oom")
    world.add("big#2", {1: 2}, job="big", lasts=2)
    world.add("big#3", {1: 2}, 1, job="big")
    assert statuses(world.run()) == {"big#1": "oom", "big#2": "ok", "big#3": "oom"}


def test_a_job_that_takes_longer_has_the_rest_planned_again(world: World, capsys: pytest.CaptureFixture[str]):
    world.add("slow#1", {1: 50}, job="slow", lasts=6)
    world.add("slow#2", {1: 50, 2: 40}, 0, job="slow")
    carried = world.run()
    assert statuses(carried) == {"slow#1": "ok", "slow#2": "ok"}
    printed = capsys.readouterr().out
    assert "planned again, as slow#1 still runs after " in printed and "planned again, as slow#1 took " in printed
    second = carried.progress[1]
    assert second.option is not None and second.option.interval.value == pytest.approx(6 * 50, rel=0.01)
    assert carried.result()["jobs"][0]["ratio"] == pytest.approx(6, rel=0.01)


# ---- in a queue, and from command to command


def test_a_job_that_runs_in_slurm_is_timed_from_its_own_start(world: World, capsys: pytest.CaptureFixture[str]):
    world.keeps_jobs = True
    world.add("job#1", {1: 450, 2: 300}, job="job", queued_s=1000, wide=True)
    world.add("job#2", {1: 450, 2: 300}, 0, job="job", wide=True)
    world.began(started("job#1", 500))  # with one GPU, by a command before
    first, _ = (carried := world.run()).progress
    assert statuses(carried) == {"job#1": "ok", "job#2": "ok"} and first.gpu_ids == (0,)
    assert (first.start_s, first.end_s) == pytest.approx((AGO_S + 1000, AGO_S + 1450), abs=1.2)
    assert "job#1 took" not in capsys.readouterr().out


def test_a_job_that_waits_in_a_queue_has_all_of_its_time_left(world: World, monkeypatch: pytest.MonkeyPatch):
    world.keeps_jobs = True
    world.add("queued", {1: 100}, queued_s=300)
    world.add("bad", {1: 150}, on1="failed")
    world.add("later", {1: 1}, 0)
    left: list[float] = []
    make = planning.make

    def planned(tasks: Any, *rest: Any, **more: Any) -> Any:
        left.extend(task.options[0].planned_s for task in tasks if task.held)
        return make(tasks, *rest, **more)

    monkeypatch.setattr(planning, "make", planned)
    assert statuses(world.run()) == {"queued": "ok", "bad": "failed", "later": "ok"}
    assert left[0] == pytest.approx(100)


def test_what_ended_unseen_has_its_times_from_its_record(world: World):
    world.keeps_jobs = True
    for name in ("unseen", "interrupted", "before"):
        world.add(name, {1: 40})
    world.add("quick", {1: 40}, wide=True, lasts=0.0, queued_s=0.1)  # it begins and ends between two looks
    interrupted = {"ended": "interrupted", "at_s": 90, "status": "interrupted"}
    world.began(started("unseen", 10), started("interrupted", 50), interrupted)
    world.cells["unseen", 1].leave(BEGAN_S, 20, 60)
    requeued = {"segments": [{"started_at": "2023-11-14T22:14:15Z"}, {}]}
    world.cells["interrupted", 1].leave(BEGAN_S, 70, 95, **requeued)
    world.cells["before", 1].leave(BEGAN_S, -60, -20)  # by another sweep
    carried = world.run()
    times = {each.task.name: (each.start_s, each.end_s) for each in carried.progress}
    assert times["unseen"] == pytest.approx((20, 60), abs=1.1)
    assert times["interrupted"] == pytest.approx((55, 95), abs=1.1) and times["before"] == (None, None)
    assert times["quick"] == pytest.approx((AGO_S, AGO_S), abs=1.1)
    assert carried.result()["makespan_s"] == times["quick"][1]


def test_jobs_of_an_earlier_command_that_end_before_they_are_looked_at(world: World):
    """Their records come after the plan was made: nothing is started by what it says of them."""
    for name, seconds, after in (("big", {1: 2, 2: 2}, ()), ("small", {1: 2}, ()), ("after", {1: 1}, (1,)),
                                 ("ill", {1: 2}, ()), ("done", {1: 2}, ()), ("last", {1: 1}, (4,))):  # fmt: skip
        world.add(name, seconds, *after)
    carried = world.carrying()
    plan = planning.make(carried.rest(), 2, 0.5).schedule
    for name, status in {"big": "oom", "small": "oom", "ill": "diverged", "done": "ok"}.items():
        world.cells[name, 1].leave(BEGAN_S, 0, 1, status=status)
    carried.run(plan)
    carried.journal.close()
    ends = {"big": "ok", "small": "oom", "after": "skipped", "ill": "diverged", "done": "ok", "last": "ok"}
    assert statuses(carried) == ends
    assert {(name, len(gpus)) for name, gpus, _ in world.started} == {("big", 2), ("last", 1)}


def test_a_command_that_fails_ends_its_jobs_and_notes_them(world: World, monkeypatch: pytest.MonkeyPatch):
    world.add("quick", {1: 1})
    world.add("long", {1: 9})
    add: Callable[..., None] = PlanJournal.add

    def full(journal: PlanJournal, **values: Any) -> None:
        if values.get("ended") == "quick":
            raise OSError(28, "No space left on device")
        add(journal, **values)

    monkeypatch.setattr(PlanJournal, "add", full)
    with pytest.raises(OSError, match="No space left"):
        world.run()
    assert not world.running and (world.events()[-1]["ended"], world.events()[-1]["status"]) == ("long", "interrupted")
    monkeypatch.undo()


def test_an_interrupted_plan_ends_its_jobs_and_goes_on(world: World, monkeypatch: pytest.MonkeyPatch):
    world.add("a", {1: 10}, on1="interrupted")  # as a terminal's Ctrl-C reaches it
    world.add("b", {1: 20})
    with pytest.raises(KeyboardInterrupt):
        world.run()
    assert [event.get("status") for event in world.events()[-2:]] == ["interrupted"] * 2 and not world.running
    world.cells["a", 1].ends = "ok"
    assert statuses(world.run()) == {"a": "ok", "b": "ok"}


def test_jobs_that_the_file_no_longer_names_do_not_count(world: World):
    world.add("a", {1: 0.1})
    world.add("b", {1: 50})
    world.began({"planned": {"b": {"gpus": 1, "gpu_ids": [0], "start_s": 0.0, "end_s": 5e4}}, "at_s": 0.0})
    world.tasks.pop()
    carried = world.run()
    planned_s = carried.result()["planned_makespan_s"]
    assert statuses(carried) == {"a": "ok"} and planned_s == pytest.approx(AGO_S, abs=1)


def test_a_deadline_counts_from_the_first_command(world: World):
    world.add("late", {1: 50})
    world.tasks = [replace(task, deadline_s=400.0) for task in world.tasks]
    world.began()
    carried = world.carrying(gpus=1)
    (left,) = carried.rest()
    assert left.deadline_s == pytest.approx(400 - AGO_S)
    carried.journal.close()


def test_a_task_that_gets_other_gpus_gives_its_turn_in_the_queue_up(world: World):
    world.add("a", {1: 50})
    carried = world.carrying()
    plan = planning.make(carried.rest(), 2, 0.5).schedule
    for gpu, turns in ((0, 0), (0, 0), (1, 1)):
        carried._follow(Schedule((replace(plan.placed[0], gpu_ids=(gpu,)),)))
        assert world.given_up == turns
    with pytest.raises(ValueError, match="--name plan: another command has it now"):
        PlanJournal(world.folder)
    carried.journal.close()


# ---- this machine, and SLURM


def test_a_cell_gets_the_gpus_and_cores_of_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(leases.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(shares, "machine", lambda: Pool(["GPU-a", "GPU-b", "GPU-c"], [0, 1]))
    place, other = ThisMachine(tmp_path / "a", 2), ThisMachine(tmp_path / "b", 3)
    shared: list[Any] = []
    monkeypatch.setattr(place.executor, "start", lambda _, share, *__, **___: shared.append(share) or share)
    monkeypatch.setattr(other.executor, "start", place.executor.start)
    monkeypatch.setattr(shares.MachineShare, "pid", 1, raising=False)
    cell: Any = type("Cell", (), {"config": typed("exclusive=false", "cpus_per_gpu=1", "device=auto")})
    monkeypatch.setattr(shares, "demand", lambda *_: (1, 1))
    assert place.start(cell, (1,)) and (shared[-1].gpus, shared[-1].cpus) == (("GPU-b",), (1,))
    assert other.start(cell, (1,)) is None  # which another plan has leased
    other.wait_no_more()
    assert place.start(cell, (0,)) and (shared[-1].gpus, shared[-1].cpus) == (("GPU-a",), (0,))
    assert place.start(cell, (0,)) is None  # no core is left, though GPU-c is
    for share in shared:
        place.machine.give_back(share)


# ---- the command

RUN = f"train_vision.py {' '.join(SMALL)} dataset=digits"
WORDS = ("jobs.yaml", "--run", "--name", "mine", "--json", "plan.json", "--seconds", "1")


def test_a_plan_survives_an_interruption_and_a_kill(tmp_path: Path):
    """Of real runs: nothing goes on without the command, and what is done is not done again."""
    jobs = {"small": f"{{run: {RUN}, seconds: {{1: [20, 5, 600]}}, gpus: [1], repeat: 2}}",
            "long": f"{{run: {RUN} epochs=1000, seconds: {{1: 900}}, gpus: [1], after: [small]}}"}  # fmt: skip
    text = "{slowdown: 1.0, jobs: {" + ", ".join(f"{name}: {job}" for name, job in jobs.items()) + "}}"
    (tmp_path / "jobs.yaml").write_text(text)
    variables = os.environ | {leases.VARIABLE: str(tmp_path / "leases"), "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "multicard", "plan", *WORDS]
    folder = tmp_path / "multirun" / "mine"
    done: dict[Path, int] = {}
    for number in (signal.SIGINT, signal.SIGKILL):
        plan = subprocess.Popen(line, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        marker = awaited(lambda: next(folder.glob("*epochs=1000*/.running.json"), None))
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
    events = [json.loads(line) for line in (folder / ".plan" / "events.jsonl").open()]
    assert [event["status"] for event in events if event.get("ended") == "long"] == ["interrupted"]
    (tmp_path / "jobs.yaml").write_text(text.replace(f", long: {jobs['long']}", ""))
    plan = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert plan.returncode == 0 and "small#1: done before\nsmall#2: done before\n" in plan.stdout, plan.stderr
    content = json.loads((tmp_path / "plan.json").read_text())
    assert [job["status"] for job in content["carried_out"]["jobs"]] == ["ok", "ok"]
    records = [json.loads(path.read_text()) for path in done]
    assert sorted(record["repetition"] for record in records) == [1, 2] and {r["cores"] for r in records} == {1}


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("a: {seconds: {1: 5}}", "jobs.a: has times alone, and nothing to run; give it a run beside its seconds"),
        ("a: {run: train_vision.py, seconds: {1: 5}}, b: {run: train_vision.py, seconds: {1: 5}}",
         "jobs.b.run: is the same run as jobs.a; write repeat: for several runs of a job, or another seed"),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_out_is_refused_in_a_line(
    jobs: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.yaml").write_text(f"jobs: {{{jobs}}}")
    assert command.main(["jobs.yaml", "--run"]) == 1
    printed = capsys.readouterr()
    assert message in printed.err and printed.err.count("\n") == 1 and not (tmp_path / "multirun").exists()


def test_a_name_of_a_plan_of_other_jobs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "multirun" / "jobs" / ".plan"
    folder.mkdir(parents=True)
    planned = {name: {"gpus": 1, "gpu_ids": [0], "start_s": 0.0, "end_s": 9.0} for name in "abcd"}
    (folder / "events.jsonl").write_text(json.dumps({"planned": planned, "at_s": 0.0}) + "\n")
    (tmp_path / "jobs.yaml").write_text("jobs: {e: {run: train_vision.py, seconds: {1: 5}}}")
    for _ in range(2):  # the lock was given back
        assert command.main(["jobs.yaml", "--run"]) == 1
        assert "--name jobs: is a plan of other jobs (a, b, c ...); choose another name" in capsys.readouterr().err
