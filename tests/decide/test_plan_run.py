"""Plans that are carried out, with jobs that are tiny scripts: their order, their ends, and what is planned again."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from multicard.decide.plan import command, compared, planning
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.places import Start, ThisMachine
from multicard.decide.plan.schedule import Option
from multicard.decide.plan.state import State
from multicard.machine import leases
from multicard.records.schema_parts import Interval
from multicard.sweep import shares
from tests.conftest import ROOT, SMALL, assert_gone, awaited
from tests.helpers.plan_world import GPUS, World, in_folder, statuses


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return in_folder(tmp_path, monkeypatch)


def test_jobs_run_in_order_on_the_gpus_of_the_plan(world: World, capsys: pytest.CaptureFixture[str]):
    world.add("wide", {2: 3})
    world.add("left", {1: 2}, 0)
    world.add("right", {1: 2}, 0)
    world.add("last", {1: 1}, 1, 2)
    carried = world.run()
    assert statuses(carried) == dict.fromkeys(("wide", "left", "right", "last"), "ok")
    began = world.started()
    assert [began[0][0], began[-1][0]] == ["wide", "last"] and len(began) == 4
    assert {name: gpus for name, _, gpus, _ in began} == {
        "wide": "GPU-a,GPU-b",
        "left": "GPU-a",
        "right": "GPU-b",
        "last": "GPU-a",
    }
    spans = {each.task.name: (each.start_s or 0.0, each.end_s or 0.0) for each in carried.progress}
    assert spans["wide"][1] <= min(spans["left"][0], spans["right"][0])
    assert max(spans["left"][1], spans["right"][1]) <= spans["last"][0]
    table = compared.lines(carried)
    assert max(map(len, table)) <= 120 and table[1].split()[:2] == ["job", "GPUs"] and len(table) >= 8
    result = compared.as_dict(carried)
    assert result["planned_makespan_s"] == pytest.approx(6, abs=0.5)
    assert result["makespan_s"] == max(end for _, end in spans.values())
    assert not compared.failures(carried) and "wide: started on GPUs 0-1, planned 0:00:00 to 0:00:03" in (
        capsys.readouterr().out
    )
    again = world.run()  # nothing is done twice
    assert statuses(again) == statuses(carried) and len(world.started()) == 4
    assert compared.as_dict(again)["jobs"] == result["jobs"]


def test_what_comes_after_a_job_that_fails_is_skipped(world: World, capsys: pytest.CaptureFixture[str]):
    world.add("bad", {1: 1}, on1="exit")
    world.add("ill", {1: 1}, on1="diverged")
    world.add("next", {1: 1}, 0)
    world.add("after", {1: 1}, 2)
    world.add("good", {1: 1})
    carried = world.run()
    assert statuses(carried) == {
        "bad": "failed",
        "ill": "diverged",
        "next": "skipped",
        "after": "skipped",
        "good": "ok",
    }
    failed = compared.failures(carried)
    assert failed[0].startswith("bad: failed: exit code 3 without a record; see ")
    assert failed[1:] == [
        "ill: diverged: it was made to end diverged",
        "next: skipped: comes after bad, which is failed",
        "after: skipped: comes after next, which is skipped",
    ]
    assert "planned again, as" in capsys.readouterr().out
    world.starts["bad", 1] = world.starts["good", 1]  # mended
    carried = world.run()
    assert statuses(carried) | {"ill": "ok"} == dict.fromkeys(("bad", "ill", "next", "after", "good"), "ok")


def test_a_job_that_runs_out_of_memory_is_tried_on_more_gpus_alone(world: World):
    world.add("big#1", {1: 2, 2: 2.5}, job="big", on1="oom")
    world.add("big#2", {1: 2, 2: 2.5}, 0, job="big", on1="oom")
    world.add("small", {1: 1}, on1="oom")
    world.add("later", {1: 1}, 2)
    carried = world.run()
    assert statuses(carried) == {"big#1": "ok", "big#2": "ok", "small": "oom", "later": "skipped"}
    began = [(name, gpus.count("GPU")) for name, _, gpus, _ in world.started() if name != "small"]
    assert began == [("big#1", 1), ("big#1", 2), ("big#2", 2)]
    assert compared.failures(carried)[0].startswith("small: oom: ")


def test_a_run_out_of_memory_leaves_another_run_of_its_job_that_runs(world: World):
    world.add("big#1", {1: 2}, job="big", on1="oom")
    world.add("big#2", {1: 2}, job="big", waits_for="big#1/on1.json")
    world.add("big#3", {1: 2}, 1, job="big")
    assert statuses(world.run()) == {"big#1": "oom", "big#2": "ok", "big#3": "oom"}


def test_a_job_that_takes_longer_has_the_rest_planned_again(world: World, capsys: pytest.CaptureFixture[str]):
    world.add("slow#1", {1: 0.5}, job="slow", lasts_s=3.0)
    world.add("slow#2", {1: 0.5, 2: 0.4}, 0, job="slow")
    carried = world.run()
    assert statuses(carried) == {"slow#1": "ok", "slow#2": "ok"}
    printed = capsys.readouterr().out
    assert "planned again, as slow#1 still runs after " in printed and "planned again, as slow#1 took " in printed
    (second,) = [each for each in carried.progress if each.task.name == "slow#2"]
    assert second.option is not None and second.option.interval.value > 2.5 * 0.4  # learned from the first
    assert compared.as_dict(carried)["jobs"][0]["ratio"] > 4


PLANNER = """
import sys
from pathlib import Path
import pytest
from multicard.decide.plan.places import ThisMachine
from multicard.sweep import shares
from tests.helpers import plan_world as tests
folder, name, waits_for = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
shares.machine = lambda: shares.Pool([*tests.GPUS], [])
world = tests.World(folder)
for number in range(3):
    world.add(f"{name}{number}", {1: 1}, waits_for=waits_for)
world.run(name, gpus=1)
"""


def planner(folder: Path, name: str, waits_for: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", PLANNER, str(folder), name, waits_for]
    return subprocess.Popen(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdout=subprocess.DEVNULL)


def test_two_planners_share_no_gpu(world: World):
    """Each plan is of one GPU, and there are two. A third plan waits until one of them is free."""
    planners = [planner(world.folder, name, "go") for name in "ab"]
    first = awaited(lambda: began if len(began := world.started()) == 2 else None)
    assert {gpus for _, _, gpus, _ in first} == {*GPUS}
    third = planner(world.folder, "c", "go")
    awaited((world.folder / "c" / ".plan" / "events.jsonl").exists)
    (world.folder / "go").touch()
    assert [each.wait() for each in (*planners, third)] == [0, 0, 0]
    events = [json.loads(line) for path in world.folder.glob("*/.plan/events.jsonl") for line in path.open()]
    assert len(world.started()) == 9 and sum(event.get("status") == "ok" for event in events) == 9


def test_a_planner_that_is_killed_leaves_nothing_and_goes_on(world: World):
    first = planner(world.folder, "a", "go")
    ((_, process, _, _),) = awaited(world.started)
    child = psutil.Process(process)
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert_gone([child])
    (world.folder / "go").touch()
    for number in range(3):
        world.add(f"a{number}", {1: 1})
    carried = world.run("a", gpus=1)
    assert statuses(carried) == {"a0": "ok", "a1": "ok", "a2": "ok"}
    names = [name for name, _, _, _ in world.started()]
    assert sorted(names) == sorted([names[0], "a0", "a1", "a2"])
    assert compared.as_dict(carried)["idle_s"] > 0


def test_an_interrupted_plan_ends_its_jobs_and_goes_on(world: World):
    running = planner(world.folder, "a", "go")
    ((_, process, _, _),) = awaited(world.started)
    child = psutil.Process(process)
    running.send_signal(signal.SIGINT)
    assert running.wait() != 0
    assert_gone([child])
    events = [json.loads(line) for line in (world.folder / "a" / ".plan" / "events.jsonl").open()]
    assert events[-1]["status"] == "interrupted"
    (world.folder / "busy-GPU-a").unlink(missing_ok=True)  # which the job that was ended has left
    (world.folder / "go").touch()
    for _ in range(2):  # the third command has nothing left to do
        assert planner(world.folder, "a", "go").wait() == 0
        assert sorted(name for name, *_ in world.started()) == ["a0", "a0", "a1", "a2"]


def test_a_job_has_its_cores_and_a_plan_one_command(world: World):
    core = min(os.sched_getaffinity(0))
    world.add("one", {1: 1})
    world.starts["one", 1] = Start(world.starts["one", 1].words, 1, 1, False, world.starts["one", 1].record)
    carried = world.carrying()
    with pytest.raises(ValueError, match="--name plan: another command carries it out"):
        State(world.folder / "plan")
    carried.state.close()
    world.run()
    ((_, _, gpus, cores),) = world.started()
    assert (gpus, cores) == (os.environ.get("CUDA_VISIBLE_DEVICES", ""), [core])


@pytest.mark.parametrize("together", [True, False])
def test_where_there_are_fewer_cores_than_gpus_each_job_gets_one_in_turn(
    world: World, monkeypatch: pytest.MonkeyPatch, together: bool
):
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(shares, "machine", lambda: shares.Pool([*GPUS], [core]))
    place, log = ThisMachine(2), world.folder / "log"
    world.add("one", {1: 1})
    start = replace(world.starts["one", 1], cores=1)
    if together:
        processes = place.start_together([start, start], log)
        assert [process.share.cpus for process in processes if process.share] == [(core,), ()]
    else:
        process = place.start(start, (1,), log)
        assert process is not None and process.share is not None
        assert (process.share.gpus, process.share.cpus) == ((GPUS[1],), (core,))
        assert place.start(start, (0,), log) is None  # while the core is taken
        processes = [process]
    for process in processes:
        process.popen.wait()


def test_other_jobs_are_planned_by_what_records_tell_by_now(world: World):
    world.add("first#1", {1: 4}, job="first")
    world.add("first#2", {1: 4}, 0, job="first")
    world.add("other", {1: 4}, 0)
    longer = (Option(1, 9, Interval(9, 9, 9), 9),)
    carried = world.carrying(gpus=1)
    carried.learn = lambda: {"first#2": longer, "other": longer}
    carried.run(planning.make(carried.rest(), 1, Goal.makespan, 1.0).schedule)
    carried.state.close()
    by_name = {each.task.name: each.options[0].interval.value for each in carried.progress}
    assert by_name["other"] == 9 and by_name["first#2"] < 4  # of which the first run tells more than its record


# ---- the command

RUN = f"train_vision.py {' '.join(SMALL)} dataset=digits"


def test_two_real_runs_are_carried_out_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setenv(leases.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.chdir(tmp_path)
    text = f"{{slowdown: 1.0, jobs: {{small: {{run: {RUN}, seconds: {{1: [20, 5, 600]}}, gpus: [1], repeat: 2}}}}}}"
    (tmp_path / "jobs.yaml").write_text(text)
    words = ["jobs.yaml", "--run", "--name", "mine", "--json", "plan.json"]
    assert command.main(words) == 0, capsys.readouterr()
    content = json.loads((tmp_path / "plan.json").read_text())
    assert [job["status"] for job in content["carried_out"]["jobs"]] == ["ok", "ok"]
    assert content["makespan_s"] == pytest.approx(content["carried_out"]["planned_makespan_s"], abs=0.5)
    records = [json.loads(path.read_text()) for path in (tmp_path / "multirun" / "mine").glob("*/result.json")]
    assert sorted(record["repetition"] for record in records) == [1, 2]
    assert {record["status"] for record in records} == {"ok"} and {record["cores"] for record in records} == {1}
    assert "planned, and what became of it:" in capsys.readouterr().out
    assert command.main(words) == 0
    printed = capsys.readouterr().out
    assert "small#1: done before\nsmall#2: done before\n" in printed and "started on" not in printed


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("a: {seconds: {1: 5}}", "jobs.a: has times alone, and nothing to run; give it a run beside its seconds"),
        ("a: {run: train_vision.py, seconds: {1: 5}}, b: {run: train_vision.py, seconds: {1: 5}}",
         "jobs.b.run: is the same run as jobs.a; write repeat: for several runs of a job, or another seed"),
        ("a: {run: train_vision.py name=x, seconds: {1: 5}}", "jobs.a.run: name=x: --name names all runs of the plan"),
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
