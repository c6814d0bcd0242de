"""Plans that go on: what earlier commands began, what ends between two looks, and a command that fails itself."""

import argparse
import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from multicard.decide.plan import compared, jobs_file, planning, predicted_runs, running, show, starts
from multicard.decide.plan.durations import Tasks
from multicard.decide.plan.jobs_file import Goal, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.places import Slurm
from multicard.decide.plan.schedule import Option, Schedule, Task
from multicard.decide.plan.state import State
from multicard.measure.timing import since_epoch_s
from multicard.records import run_folder
from multicard.records.schema_parts import Interval
from tests.conftest import assert_gone, awaited
from tests.helpers.plan_world import World, in_folder, statuses

AGO_S = 1000.0  # since the first command began


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return in_folder(tmp_path, monkeypatch)


def began(world: World, *events: dict[str, Any], name: str = "plan") -> float:
    """Leave what an earlier command noted. Returns when that began."""
    at_s = since_epoch_s() - AGO_S
    folder = world.folder / name / ".plan"
    folder.mkdir(parents=True)
    lines = [json.dumps(event) + "\n" for event in ({"began": at_s}, *events)]
    (folder / "events.jsonl").write_text("".join(lines))
    return at_s


def started(name: str, at_s: float, gpus: int = 1) -> dict[str, Any]:
    return {"started": name, "at_s": at_s, "gpu_ids": [*range(gpus)]}


def record(began_s: float, start_s: float, end_s: float, **more: Any) -> dict[str, Any]:
    """Of a run, at seconds since the plan began."""
    moments = [datetime.fromtimestamp(began_s + each, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for each in (start_s, end_s)]
    return {"status": "ok", "started_at": moments[0], "ended_at": moments[1]} | more


def leave(world: World, name: str, content: dict[str, Any]) -> None:
    (world.folder / name).mkdir(exist_ok=True)
    (world.folder / name / "on1.json").write_text(json.dumps(content))


def uncertain(world: World, *names: str) -> None:
    """Have the times of tasks be anything from half to ten times what is planned."""
    for place, task in enumerate(world.tasks):
        if task.name in names:
            options = [replace(o, interval=Interval(o.alone_s, o.alone_s / 2, o.alone_s * 10)) for o in task.options]
            world.tasks[place] = replace(task, options=tuple(options))


def with_start(world: World, name: str, **more: Any) -> None:
    world.starts[name, 1] = replace(world.starts[name, 1], **more)


def test_a_job_that_runs_in_slurm_is_timed_from_its_own_start(world: World, capsys: pytest.CaptureFixture[str]):
    world.place = Slurm()
    world.add("job#1", {1: 450}, job="job", lasts_s=0.5)
    world.add("job#2", {1: 450}, 0, job="job", lasts_s=0.5)
    uncertain(world, "job#1", "job#2")
    began_s = began(world, started("job#1", 500), started("job#1", 600))  # by two commands before
    with_start(world, "job#1", age_s=lambda: since_epoch_s() - began_s - 540)
    carried = world.run()
    first, second = carried.progress
    assert statuses(carried) == {"job#1": "ok", "job#2": "ok"}
    assert first.start_s == pytest.approx(540, abs=5) and first.end_s is not None and first.end_s >= AGO_S
    assert second.options[0].interval.value == 450 and "job#1 took" not in capsys.readouterr().out


def test_a_job_in_slurm_runs_since_it_marked_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = jobs_file.parsed({"jobs": {"a": {"run": "train_vision.py", "seconds": {1: 5}}}})
    node = PlannedNode(1, True, launcher=("hydra/launcher=submitit_slurm",), on_slurm=True)
    (start,) = starts.of_jobs(file, node, "mine").values()
    assert start.age_s() is None
    (run,) = predicted_runs.configured(file.jobs[0], node)
    assert run.config is not None
    folder = tmp_path / "multirun" / "mine" / f"cell-{run.config.identity()}"
    folder.mkdir(parents=True)
    assert start.age_s() is None  # it waits
    marker = folder / run_folder.RUNNING
    marker.touch()
    os.utime(marker, (since_epoch_s() - 500,) * 2)
    assert start.age_s() == pytest.approx(500, abs=60)


def test_a_job_that_waits_in_a_queue_has_all_of_its_time_left(world: World, monkeypatch: pytest.MonkeyPatch):
    world.place = Slurm()
    world.add("queued", {1: 100}, waits_for="go")
    world.add("bad", {1: 1}, on1="exit")
    world.add("later", {1: 1}, 0)
    began(world, started("queued", 0))
    with_start(world, "queued", age_s=lambda: None)
    left: list[float] = []
    make = planning.make

    def planned(tasks: Any, *rest: Any, **more: Any) -> Any:
        left.extend(task.options[0].planned_s for task in tasks if task.held)
        if left:
            (world.folder / "go").touch()
        return make(tasks, *rest, **more)

    monkeypatch.setattr(planning, "make", planned)
    assert statuses(world.run()) == {"queued": "ok", "bad": "failed", "later": "ok"}
    assert left[0] == pytest.approx(100)


def test_what_ended_unseen_has_its_times_from_its_record(world: World):
    world.place = Slurm()
    for name in ("unseen", "interrupted", "before"):
        world.add(name, {1: 40})
    world.add("quick", {1: 40})
    uncertain(world, "quick")
    interrupted = {"ended": "interrupted", "at_s": 90, "status": "interrupted"}
    began_s = began(world, started("unseen", 10), started("interrupted", 50), interrupted)
    leave(world, "unseen", record(began_s, 20, 60))
    requeued = {"segments": [{"started_at": record(began_s, 55, 0)["started_at"]}, {}]}
    leave(world, "interrupted", record(began_s, 70, 95) | requeued)
    leave(world, "before", record(began_s, -60, -20))  # by another sweep
    quick = record(began_s, AGO_S + 300, AGO_S + 340)  # it waits, begins and ends between two looks
    world.script.write_text(world.script.read_text().replace('{"status": status, "cause": cause}', repr(quick)))
    with_start(world, "quick", age_s=lambda: None)
    carried = world.run()
    times = {each.task.name: (each.start_s, each.end_s) for each in carried.progress}
    assert times["unseen"] == pytest.approx((20, 60), abs=1.1)
    assert times["interrupted"] == pytest.approx((55, 95), abs=1.1) and times["before"] == (None, None)
    assert times["quick"] == pytest.approx((AGO_S + 300, AGO_S + 340), abs=1.1)
    assert compared.as_dict(carried)["makespan_s"] == times["quick"][1]


def test_jobs_of_an_earlier_command_that_end_before_they_are_looked_at(world: World):
    """Their records come after the plan was made: nothing is started by what it says of them."""
    world.add("big", {1: 2, 2: 2})
    world.add("small", {1: 2})
    world.add("after", {1: 1}, 1)
    world.add("ill", {1: 2})
    world.add("done", {1: 2})
    world.add("last", {1: 1}, 4)
    carried = world.carrying()
    plan = planning.make(carried.rest(), 2, Goal.makespan, 1.0).schedule
    for name, status in {"big": "oom", "small": "oom", "ill": "diverged", "done": "ok"}.items():
        leave(world, name, {"status": status})
    carried.run(plan)
    carried.state.close()
    assert statuses(carried) == {
        "big": "ok",
        "small": "oom",
        "after": "skipped",
        "ill": "diverged",
        "done": "ok",
        "last": "ok",
    }
    assert {(name, gpus.count("GPU")) for name, _, gpus, _ in world.started()} == {("big", 2), ("last", 1)}


@pytest.mark.parametrize("looks", [1, 2])
def test_a_record_that_comes_as_its_job_is_started_again_counts(world: World, looks: int):
    """The first look is for what is done, the second for what lies there at the start; the command finds it done."""
    world.add("job#1", {1: 40}, job="job")
    world.add("job#2", {1: 40}, 0, job="job")
    uncertain(world, "job#1", "job#2")
    began_s = began(world, started("job#1", 900))
    world.script.write_text("")
    answers = [None] * (1 + looks)  # the very first as the plan is made
    left = record(began_s, 900, 945)
    with_start(world, "job#1", record=lambda: answers.pop() if answers else left)
    with_start(world, "job#2", record=lambda: left)
    carried = world.carrying()
    carried.progress[1].status = ""
    carried.run(planning.make(carried.rest(), 2, Goal.makespan, 1.0).schedule)
    carried.state.close()
    first = carried.progress[0]
    assert first.status == "ok" and (first.start_s, first.end_s) == pytest.approx((900, 945), abs=1.1)
    assert carried.progress[1].options[0].interval.value == 40  # learned nothing from a command that did nothing


def test_a_command_that_fails_ends_its_jobs_and_notes_them(world: World, monkeypatch: pytest.MonkeyPatch):
    world.add("quick", {1: 1})
    world.add("long", {1: 9}, waits_for="never")
    add: Callable[..., None] = State.add

    def full(state: State, **values: Any) -> None:
        if values.get("ended") == "quick":
            awaited(lambda: len(world.started()) == 2)
            raise OSError(28, "No space left on device")
        add(state, **values)

    monkeypatch.setattr(State, "add", full)
    with pytest.raises(OSError, match="No space left"):
        world.run()
    (process,) = [process for name, process, _, _ in world.started() if name == "long"]
    if psutil.pid_exists(process):
        assert_gone([psutil.Process(process)])
    events = [json.loads(line) for line in (world.folder / "plan" / ".plan" / "events.jsonl").open()]
    assert (events[-1]["ended"], events[-1]["status"]) == ("long", "interrupted")


def test_jobs_that_the_file_no_longer_names_do_not_count(world: World):
    world.add("a", {1: 0.1})
    world.add("b", {1: 50})
    began(world, {"planned": {"b": {"gpus": 1, "gpu_ids": [0], "start_s": 0.0, "end_s": 5e4}}, "at_s": 0.0})
    world.tasks.pop()
    carried = world.run()
    planned_s = compared.as_dict(carried)["planned_makespan_s"]
    assert statuses(carried) == {"a": "ok"} and planned_s == pytest.approx(AGO_S, abs=60)


def test_the_chart_of_a_plan_that_goes_on_has_what_was_done_and_a_deadline_that_has_passed_counts(world: World):
    world.add("done", {1: 50})
    world.add("late", {1: 50})
    world.tasks = [replace(task, deadline_s=400.0) for task in world.tasks]
    began_s = began(world, started("done", 10))
    leave(world, "done", record(began_s, 10, 60))
    carried = world.carrying(gpus=1)
    (left,) = carried.rest()
    assert left.deadline_s is not None and left.deadline_s == pytest.approx(400 - AGO_S, abs=60)
    plan = planning.make([left], 1, Goal.deadline, 1.0)
    assert plan.schedule.late_s([left])[0] == pytest.approx(50 - left.deadline_s)
    assert " ago (0:1" in "\n".join(show.lines(plan, "here", Interval(1.0, 1.0, 1.0)))
    tasks, whole = carried.whole(plan.schedule)
    carried.state.close()
    assert [task.name for task in tasks] == ["done", "late"]
    assert (whole.placed[0].start_s, whole.placed[0].end_s) == pytest.approx((10, 60), abs=1.1)
    assert whole.placed[1].start_s == pytest.approx(AGO_S, abs=60) and [*whole.late_s(tasks)] == [1]
    options = argparse.Namespace(svg=world.folder / "chart.svg", jobs=Path("jobs.yaml"))
    running.draw(options, PlannedNode(1, True), tasks, whole)
    chart = options.svg.read_text()
    done = re.search(
        r"<title>done: 0:00:(09|10|11) to (0:00:59|0:01:00|0:01:01)</title>", chart
    )  # records have seconds
    assert done is not None and chart.count("#c00") == 1


def test_a_task_that_gets_other_gpus_gives_its_turn_in_the_queue_up(world: World):
    given_up: list[bool] = []
    world.place = SimpleNamespace(keeps_jobs=False, wait_no_more=lambda: given_up.append(True))  # type: ignore[assignment]
    world.add("a", {1: 50})
    carried = world.carrying()
    plan = planning.make(carried.rest(), 2, Goal.makespan, 1.0).schedule
    for gpu, turns in ((0, 0), (0, 0), (1, 1)):
        carried._follow(Schedule((replace(plan.placed[0], gpu_ids=(gpu,)),)))
        assert len(given_up) == turns
    carried.state.close()


def test_a_name_of_a_plan_of_other_jobs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "multirun" / "jobs" / ".plan"
    folder.mkdir(parents=True)
    names = ("a", "b", "c", "d")
    planned = {name: {"gpus": 1, "gpu_ids": [0], "start_s": 0.0, "end_s": 9.0} for name in names}
    (folder / "events.jsonl").write_text(json.dumps({"planned": planned, "at_s": 0.0}) + "\n")
    monkeypatch.setattr(running.starts, "of_jobs", lambda *_: {})
    options = argparse.Namespace(name=None, jobs=Path("jobs.yaml"), run=True, probe=False, seed=0)
    task = Task("e", (Option(1, 1.0, Interval(1.0, 1.0, 1.0), 1.0),), (), None, "e")
    with pytest.raises(ValueError, match=r"--name jobs: is a plan of other jobs \(a, b, c \.\.\.\); choose"):
        running.run(options, JobsFile(()), PlannedNode(1, True), Tasks((task,)))
    with pytest.raises(ValueError, match="is a plan of other jobs"):  # the lock was given back
        running.run(options, JobsFile(()), PlannedNode(1, True), Tasks((task,)))
