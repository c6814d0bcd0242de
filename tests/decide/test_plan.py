"""Plans of jobs: their times, bounds, simple plans and what is shown."""

import json
import math
import random
import re
import sys
from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from multicard.decide.plan import command, durations, gantt, schedule, show, simple_plans
from multicard.decide.plan.jobs_file import Job, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.runs import JobRun
from multicard.decide.plan.schedule import Option, Schedule, Task, quantile
from multicard.records.schema_parts import Interval
from tests.conftest import ROOT

FOUR = PlannedNode(4, True, name="4 GPUs")
EXACT = Interval(1.0, 1.0, 1.0)


def exact(seconds: float) -> Interval:
    return Interval(seconds, seconds, seconds)


def task(
    seconds: Mapping[int, float], *after: int, deadline_s: float | None = None, held: tuple[int, ...] = ()
) -> Task:
    """A task whose times are known."""
    options = tuple(Option(gpus, s, exact(s), s) for gpus, s in seconds.items())
    return Task("task", options, after, deadline_s, "task", held)


def random_tasks(seed: int, number: int, gpus: int) -> list[Task]:
    """Tasks with one to three choices of GPUs, some of which wait for earlier ones."""
    generator = random.Random(seed)
    tasks = []
    for place in range(number):
        allowed = sorted(generator.sample(range(1, gpus + 1), min(generator.randint(1, 3), gpus)))
        serial, single_s = generator.uniform(0, 0.5), generator.randint(10, 100)
        after = [other for other in range(place) if generator.random() < 0.2]
        tasks.append(task({n: single_s * (serial + (1 - serial) / n) for n in allowed}, *after))
    return tasks


def check(tasks: list[Task], planned: Schedule, gpus: int) -> None:
    """Every task has its GPUs to itself, as many as its option says, after those that it waits for; what runs already
    keeps its own."""
    for own, placed in zip(tasks, planned.placed, strict=True):
        assert len({*placed.gpu_ids}) == placed.option.gpus and {*placed.gpu_ids} <= {*range(gpus)}
        assert placed.option in own.options and placed.end_s > placed.start_s >= 0
        assert all(planned.placed[other].end_s <= placed.start_s + schedule.SAME_S for other in own.after)
        assert not own.held or (placed.start_s, placed.gpu_ids) == (0, own.held)
    for one, other in combinations(planned.placed, 2):
        apart = one.end_s <= other.start_s + schedule.SAME_S or other.end_s <= one.start_s + schedule.SAME_S
        assert apart or not {*one.gpu_ids} & {*other.gpu_ids}


# ---- times


def test_a_run_is_planned_with_its_upper_quantile_and_slower_beside_others():
    lognormal = Interval(100.0, 100 / math.exp(1.645 * 0.1), 100 * math.exp(1.645 * 0.1))
    assert quantile(lognormal, 0.8416) == pytest.approx(100 * math.exp(0.08416))
    assert quantile(lognormal, -1.645) == pytest.approx(lognormal.low)
    file = JobsFile((Job("a", seconds={1: lognormal, 4: exact(30)}),), slowdown=Interval(1.1, 1, 1.2))
    (one,) = durations.tasks(file, FOUR).tasks
    first, last = one.options
    assert first.planned_s == pytest.approx(1.1 * 100 * math.exp(0.08416), rel=1e-6) and first.alone_s == 100
    assert first.interval.value == pytest.approx(110) and first.interval.low < 110 / math.exp(0.1645)
    assert first.interval.high == pytest.approx(110 * math.exp(math.hypot(0.1645, math.log(1.2 / 1.1))))
    assert (last.planned_s, last.interval, last.gpus) == (30, exact(30), 4)  # alone on all GPUs


def test_times_between_and_beyond_those_of_the_file():
    job = Job("a", seconds={1: exact(800), 2: exact(400), 8: exact(200)})
    assert durations.between(job, 4).value == pytest.approx(math.sqrt(400 * 200))
    perfect = Job("a", seconds={1: exact(800), 2: exact(400)})
    beyond = durations.between(perfect, 4)
    assert beyond.value == pytest.approx(200) and beyond.low < 200 < beyond.high
    wide = Interval(100, 100 / math.e**0.3, 100 * math.e**0.4)
    half = 1.644854 * durations.BETWEEN_SD
    middle = durations.between(Job("a", seconds={1: wide, 4: wide}), 2)
    assert middle.value == pytest.approx(100)  # both weigh a half
    assert math.log(100 / middle.low) == pytest.approx(math.hypot(half, 0.15, 0.15), rel=1e-4)
    assert math.log(middle.high / 100) == pytest.approx(math.hypot(half, 0.2, 0.2), rel=1e-4)
    on_four = durations.between(Job("a", seconds={1: wide, 2: exact(60)}), 4)
    assert on_four.high / on_four.value > math.e**0.4 > beyond.high / beyond.value
    with pytest.raises(ValueError, match=r"jobs\.a\.gpus: no time on 8 follows from its seconds"):
        durations.between(Job("a", seconds={1: exact(800), 4: exact(300)}), 8)


def test_repetitions_are_tasks_and_wait_as_their_job_does():
    jobs = (
        Job("a", seconds={1: exact(10)}, repeat=2),
        Job("b", seconds={1: exact(5)}, after=("a",), repeat=2, deadline_s=9.0),
    )
    tasks = durations.tasks(JobsFile(jobs), FOUR).tasks
    found = [(each.name, each.after, each.job, each.deadline_s) for each in tasks]
    assert found[:2] == [("a#1", (), "a", None), ("a#2", (), "a", None)]
    assert found[2:] == [("b#1", (0, 1), "b", 9.0), ("b#2", (0, 1), "b", 9.0)]


def test_a_job_that_fits_no_gpus_is_refused_with_the_reasons():
    job = Job("big", ("train_vision.py",), gpus=(1, 2))
    problem = "does not fit into the memory of a GPU"
    runs = [JobRun(job, gpus, problem=problem) for gpus in (1, 2)]
    message = rf"jobs\.big: can run on no allowed number of GPUs \(1 GPU: {problem}; 2 GPUs"
    with pytest.raises(ValueError, match=message):
        durations.tasks(JobsFile((job,)), FOUR, runs)
    wide = Job("wide", seconds={8: exact(3)})
    with pytest.raises(ValueError, match=r"jobs\.wide\.seconds: needs 8 GPUs or more; the node has 4"):
        durations.tasks(JobsFile((wide,)), FOUR)
    some = Job("some", seconds={2: exact(9), 8: exact(3)})
    tasks = durations.tasks(JobsFile((some,)), FOUR)
    assert [option.gpus for option in tasks.tasks[0].options] == [2]
    assert tasks.notes == ("some: not on 8 GPUs: the node has 4",)


# ---- schedules without a solver


@pytest.mark.parametrize("seed", range(20))
def test_simple_plans_are_schedules_that_the_bound_allows(seed: int):
    tasks, gpus = random_tasks(seed, 9, 4), 4
    bound_s = schedule.lower_bound_s(tasks, gpus)
    for plan in (simple_plans.in_turn, simple_plans.one_gpu_each, simple_plans.balanced):
        planned = plan(tasks, gpus)
        check(tasks, planned, gpus)
        assert planned.makespan_s >= bound_s - 1e-9
        held = [task({1: 30}, held=(2,)), task({2: 500}, held=(0, 3)), *random_tasks(seed, 5, 2)]
        held[2:] = [Task(t.name, t.options, tuple(o + 2 for o in t.after)) for t in held[2:]]
        check(held, plan(held, gpus), gpus)
    in_turn = simple_plans.in_turn(tasks, gpus)
    assert in_turn.makespan_s == pytest.approx(sum(min(o.planned_s for o in each.options) for each in tasks))


def test_bounds_in_closed_form():
    assert schedule.lower_bound_s([task({1: 10})] * 3, 2) == 15  # 30 GPU seconds on two
    assert schedule.lower_bound_s([task({1: 10}), task({1: 10}, 0), task({1: 10}, 1)], 8) == 30  # a chain
    # Within 10 s a task takes two GPUs for 10 s; where it may take 15 s, one for 15 s
    both = task({1: 15, 2: 10})
    assert schedule.lower_bound_s([both] * 2, 2) == 15 and schedule.lower_bound_s([both] * 2, 4) == 10
    assert schedule.lower_bound_s([both] * 3, 4) == 15


def test_in_turn_the_nearest_deadline_comes_first():
    planned = simple_plans.in_turn([task({1: 10}), task({1: 10}, deadline_s=30), task({1: 10}, deadline_s=20)], 1)
    assert [each.start_s for each in planned.placed] == [20, 10, 0]


def test_a_plan_becomes_longer_or_shorter_with_its_tasks():
    wide = Interval(20, 10, 40)
    tasks = [task({1: 10}), Task("t", (Option(1, 30, wide, 20),)), task({2: 5})]
    planned = schedule.earliest(tasks, [each.options[0] for each in tasks], [0, 1, 2], 2)
    assert planned.waits(tasks) == [set(), set(), {0, 1}]
    likely = planned.likely(tasks)
    assert likely.value == pytest.approx(25, abs=1) and likely.low < 18 and 40 < likely.high < 50
    assert planned.makespan_s == 35


# ---- what is shown


def planned_pair() -> tuple[list[Task], Schedule]:
    tasks = [
        Task("wide", (Option(2, 40, exact(40), 40),), job="wide"),
        Task("<late>", (Option(1, 40, exact(40), 40),), (), 50.0, "late"),
    ]
    return tasks, schedule.earliest(tasks, [each.options[0] for each in tasks], [0, 1], 2)


def test_the_chart_has_a_row_for_each_gpu():
    tasks, planned = planned_pair()
    first, second, axis = gantt.text(tasks, planned, 2, 46)
    assert first == "GPU 0 [wide==============][<late>============]"
    assert second == "GPU 1 [wide==============]"
    assert axis.split() == ["0:00:00", "0:00:40", "0:01:20"] and len(axis) == 46
    many = [task({1: 1})] * 200
    narrow = gantt.text(many, schedule.earliest(many, [each.options[0] for each in many], range(200), 1), 1, 46)
    assert max(map(len, narrow)) <= 46


def test_the_chart_is_a_file_in_which_names_are_no_markup():
    tasks, planned = planned_pair()
    root = ElementTree.fromstring(gantt.svg(tasks, planned, 2, "a & b"))
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}path") if each.get("role") == "graphics-symbol"]
    labels = [each.get("aria-label") for each in bars]
    assert labels == ["wide: 0:00:00 to 0:00:40"] * 2 + ["<late>: 0:00:40 to 0:01:20"]
    assert [each.get("stroke") for each in bars] == ["white", "white", "#c00"]  # it ends after its deadline
    shown = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"GPU 0", "GPU 1", "0:00:00", "0:00:40", "0:01:20", "wide", "<late>", "a & b"} <= {*shown}


def test_ranges_and_efficiency():
    assert [show.ranges(ids) for ids in ((0,), (0, 1, 2), (0, 2))] == ["0", "0-2", "0 2"]
    one = task({1: 100, 4: 50})
    assert [show.efficiency(one, option) for option in one.options] == [1.0, 0.5]
    assert show.efficiency(task({1: 100}), task({1: 100}).options[0]) is None


# ---- with the solver

Main = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Main:
    """The command, with what it prints and writes."""

    def call(text: str, *words: str) -> tuple[int, str, dict[str, Any]]:
        jobs, out = tmp_path / "jobs.yaml", tmp_path / "plan.json"
        jobs.write_text(text)
        code = command.main([str(jobs), "--json", str(out), "--seconds", "120", *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err, json.loads(out.read_text()) if out.exists() else {}

    return call


def test_the_papers_table_2_is_planned_side_by_side(planned: Main, tmp_path: Path):
    text = """
node: {gpus: 4}
slowdown: 1.0
jobs: {fp64: {seconds: {1: 6266, 2: 3339, 3: 2318, 4: 1937}, repeat: 4}}
"""
    code, printed, content = planned(text, "--svg", str(tmp_path / "plan.svg"))
    assert code == 0 and max(map(len, printed.splitlines())) <= 120 and "deadline" not in printed
    assert content["makespan_s"] == pytest.approx(6266) and content["bound_s"] == pytest.approx(6266, rel=1e-3)
    assert content["in_turn_s"] == pytest.approx(7748) and content["fewest_gpus_each_s"] == pytest.approx(6266)
    assert sorted(each["gpu_ids"] for each in content["jobs"]) == [[0], [1], [2], [3]]
    assert "one after the other on all: 2:09:08; the plan takes 19% less" in printed
    assert "scale badly (speed of each GPU, by that on the fewest): fp64 81% (1:44:26 on 1, 0:32:17 on 4)" in printed
    ElementTree.parse(tmp_path / "plan.svg")
    _, printed, content = planned(text.replace("slowdown: 1.0\n", ""))
    assert content["makespan_s"] == pytest.approx(6266 * 1.03)
    assert "slowdown: 1.03 of runs that leave GPUs for others is assumed (1 to 1.1)" in printed


def test_a_deadline_that_cannot_be_kept_is_said_with_the_least_delay(planned: Main):
    text = """
node: {gpus: 1}
jobs:
  x: {seconds: {1: 600}, deadline: 15min}
  y: {seconds: {1: 600}, deadline: 12min}
"""
    code, printed, content = planned(text)
    assert code == 0 and content["late_s"] == pytest.approx(300)
    assert "deadlines that cannot be kept: x by 0:05:00; 0:05:00 in all, the least there is" in printed
    code, printed, content = planned(text.replace("15min", "20min"))
    assert content["late_s"] == 0 and "cannot be kept" not in printed


def test_goals(planned: Main):
    text = """
node: {gpus: 2}
slowdown: 1.0
jobs:
  a: {seconds: {1: 100, 2: 60}, deadline: 1h}
  b: {seconds: {1: 100, 2: 60}, deadline: 110s}
  c: {seconds: {1: 30}, after: [a]}
"""
    _, _, content = planned(text)
    assert content["makespan_s"] == pytest.approx(130)
    _, _, content = planned(text, "--goal", "deadline")  # b ends 50 s before its deadline, not 10
    assert {each["name"]: each["end_s"] for each in content["jobs"]}["b"] == pytest.approx(60)
    assert content["makespan_s"] == pytest.approx(150)


def test_the_file_of_the_page_is_planned_as_it_says(planned: Main):
    page = (ROOT / "docs" / "plan.md").read_text()
    yaml, shown = re.findall(r"^```(?:yaml)?\n((?:# docs/jobs|plan of).*?)^```", page, re.MULTILINE | re.DOTALL)
    file = (ROOT / "docs" / "jobs.yaml").read_text()  # which `make demo` plans
    assert yaml.splitlines()[1:] == file.splitlines()[1:]
    code, printed, content = planned(yaml)
    assert code == 0 and content["makespan_s"] == pytest.approx(8452, abs=1)
    lasting = [line for line in shown.splitlines() if line.startswith(("one after ", "each on "))]
    assert len(lasting) == 2 and {*lasting} <= {*printed.splitlines()}  # of several best plans any may be found
    assert "bound: no plan that keeps the deadlines ends before 2:20:5" in shown
    assert content["bound_s"] == pytest.approx(8452, rel=1e-3)


def test_without_the_solver_the_remedy_is_said(planned: Main, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    code, printed, content = planned("{node: {gpus: 2}, jobs: {a: {seconds: {1: 10}}}}")
    assert code == 1 and not content
    assert printed == "refused: a plan needs OR-Tools, which is not installed: pip install ortools\n"
