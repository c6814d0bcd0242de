"""Plans of jobs: their times, bounds, the solver against every schedule there is,
and what is shown.
"""

import csv
import io
import json
import math
import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations, permutations, product
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import command, plan_text, planning, schedule, tasks
from multicard.decide.plan.jobs_file import JobsFile, PlannedJob
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import GpusOption, PlanTask, Schedule, quantile
from multicard.decide.plan.tasks import PlannedNode
from multicard.estimate.totals import exact
from multicard.machine import environment
from multicard.measure.timing import in_hours
from multicard.messages import Refusal
from multicard.records.schema_parts import PredictedInterval
from tests.conftest import ROOT
from tests.helpers.messages import Told, codes, find, refused, remedies, says, told

LIMIT_S = 120.0  # plans here take well under a second; a machine that is busy has time
FOUR = PlannedNode(4, name="4 GPUs")


def task(
    seconds: Mapping[int, float],
    *after: int,
    deadline_s: float | None = None,
    held: tuple[int, ...] = (),
) -> PlanTask:
    """A task whose times are known."""
    options = tuple(GpusOption(gpus, s, exact(s), exact(s)) for gpus, s in seconds.items())
    return PlanTask("task", options, after, deadline_s, "task", held)


def random_tasks(seed: int, number: int, gpus: int) -> list[PlanTask]:
    """Tasks with one to three choices of GPUs, some of which wait for earlier ones."""
    generator = random.Random(seed)
    made = []
    for place in range(number):
        allowed = sorted(generator.sample(range(1, gpus + 1), min(generator.randint(1, 3), gpus)))
        serial, single_s = generator.uniform(0, 0.5), generator.randint(10, 100)
        after = [other for other in range(place) if generator.random() < 0.2]
        made.append(task({n: single_s * (serial + (1 - serial) / n) for n in allowed}, *after))
    return made


def check(wanted: list[PlanTask], planned: Schedule, gpus: int) -> None:
    """Check that every task has its GPUs to itself, as many as its option says, after those that it
    waits for; and that what runs keeps its own.
    """
    for own, placed in zip(wanted, planned.placed, strict=True):
        assert len({*placed.gpu_ids}) == placed.option.gpus and {*placed.gpu_ids} <= {*range(gpus)}
        assert placed.option.undisturbed in [option.undisturbed for option in own.options]
        assert placed.end_s > placed.start_s >= 0
        assert all(
            planned.placed[other].end_s <= placed.start_s + schedule.SAME_S for other in own.after
        )
        assert not own.held or (placed.start_s, placed.gpu_ids) == (0, own.held)
    for one, other in combinations(planned.placed, 2):
        apart = (
            one.end_s <= other.start_s + schedule.SAME_S
            or other.end_s <= one.start_s + schedule.SAME_S
        )
        assert apart or not {*one.gpu_ids} & {*other.gpu_ids}


def plan(wanted: list[PlanTask], gpus: int) -> Plan:
    found = planning.make(wanted, gpus, LIMIT_S)
    check(wanted, found.schedule, gpus)
    return found


def shown(found: Plan) -> str:
    return "\n".join(
        plan_text.plan_lines(found, exact(1), plan_text.as_dict(found, "here", exact(1)))
    )


def one(text: str) -> Told:
    """The only message of a text."""
    (message,) = told(text)
    return message


# ---- times


def test_a_run_is_planned_with_its_upper_quantile_and_slower_beside_others():
    lognormal = PredictedInterval(100.0, 100 / math.exp(1.645 * 0.1), 100 * math.exp(1.645 * 0.1))
    assert quantile(lognormal, 0.8416) == pytest.approx(100 * math.exp(0.08416))
    assert quantile(lognormal, -1.645) == pytest.approx(lognormal.low)
    first = schedule.timed_option(1, lognormal, 4, PredictedInterval(1.1, 1, 1.2))
    assert (
        first.planned_s == pytest.approx(1.1 * 100 * math.exp(0.08416), rel=1e-6)
        and first.alone == lognormal
    )
    assert first.interval.value == pytest.approx(110) and first.interval.low < 110 / math.exp(
        0.1645
    )
    assert first.interval.high == pytest.approx(
        110 * math.exp(math.hypot(0.1645, math.log(1.2 / 1.1)))
    )
    last = schedule.timed_option(
        4, exact(30), 4, PredictedInterval(1.1, 1, 1.2)
    )  # alone on all GPUs
    assert (last.planned_s, last.interval) == (30, exact(30))


def tasks_of(*jobs: PlannedJob) -> tuple[list[PlanTask], list[str]]:
    file = JobsFile(jobs)
    runs = tasks.runs(file, FOUR, Path())
    return tasks.tasks(file, FOUR, runs), tasks.notes(file, runs)[0]


def test_repetitions_are_tasks_and_wait_as_their_job_does():
    first = PlannedJob("a", seconds={1: 10}, repeat=2)
    found, _ = tasks_of(
        first, PlannedJob("b", seconds={1: 5}, after=["a"], repeat=2, deadline="9s")
    )
    described = [(each.name, each.after, each.job, each.deadline_s) for each in found]
    assert described[:2] == [("a#1", (), "a", None), ("a#2", (), "a", None)]
    assert described[2:] == [("b#1", (0, 1), "b", 9.0), ("b#2", (0, 1), "b", 9.0)]


def test_numbers_of_gpus_that_the_node_does_not_have_are_left_out():
    with refused("plan.cannot-run", key="jobs.wide") as caught:
        tasks_of(PlannedJob("wide", seconds={8: 3}))
    too_few = Told("plan.node-has-fewer", None, {"gpus": 4})
    assert told(caught.value.facts["reasons"]) == [
        Told("plan.not-on", None, {"gpus": [8], "reason": too_few})
    ]
    (found,), (note,) = tasks_of(PlannedJob("some", seconds={2: 9, 8: 3}))
    assert [each.gpus for each in found.options] == [2]
    left_out = find(note, "plan.left-out", job="some")
    assert says(left_out.facts["reasons"], "plan.not-on", gpus=[8], reason=too_few)


# ---- schedules without a solver


@pytest.mark.parametrize("seed", range(20))
def test_simple_plans_are_schedules_that_the_bound_allows(seed: int):
    wanted, gpus = random_tasks(seed, 9, 4), 4
    held = [task({1: 30}, held=(2,)), task({2: 500}, held=(0, 3)), *random_tasks(seed, 5, 2)]
    held[2:] = [replace(each, after=tuple(other + 2 for other in each.after)) for each in held[2:]]
    for own in (wanted, held):
        for planned in (
            schedule.in_turn(own, gpus),
            schedule.one_gpu_each(own, gpus),
            *schedule.balanced_schedules(own, gpus),
        ):
            check(own, planned, gpus)
            assert planned.makespan_s >= schedule.lower_bound_s(own, gpus) - 1e-9
    in_turn = schedule.in_turn(wanted, gpus)
    assert in_turn.makespan_s == pytest.approx(
        sum(min(o.planned_s for o in each.options) for each in wanted)
    )


def test_bounds_in_closed_form():
    assert schedule.lower_bound_s([task({1: 10})] * 3, 2) == 15  # 30 GPU seconds on two
    assert schedule.lower_bound_s([task({1: 15, 2: 10})] * 2, 4) == 10  # no task is shorter
    chain = [task({1: 10}), task({1: 10}, 0), task({1: 10}, 1)]
    # Within 10 s a task takes two GPUs for 10 s; where it may take 15 s, one for 15 s
    for wanted, gpus, bound_s in (
        (chain, 8, 30),
        ([task({1: 15, 2: 10})] * 2, 2, 15),
        ([task({1: 15, 2: 10})] * 3, 4, 15),
    ):
        assert plan(wanted, gpus).bound_s == pytest.approx(bound_s, rel=1e-3)


def test_what_has_the_nearest_deadline_comes_first_and_hurries_and_the_rest_is_on_as_few_as_pay():
    planned = schedule.in_turn(
        [task({1: 10}), task({1: 10}, deadline_s=30), task({1: 10}, deadline_s=20)], 1
    )
    assert [each.start_s for each in planned.placed] == [20, 10, 0]
    wanted = [
        *[task({1: 20, 2: 19})] * 4,
        task({1: 100, 2: 60}, deadline_s=60),
        task({1: 10, 2: 6}, deadline_s=66),
    ]
    planned = min(
        schedule.balanced_schedules(wanted, 2), key=lambda each: planning.cost(each, wanted)
    )
    # 142 one after the other
    assert (planned.makespan_s, planned.late_s(wanted)) == (66 + 2 * 20, {})


def test_a_makespan_if_others_stay_as_busy_is_drawn_by_the_times_that_are_known_for_that():
    wide, narrow = PredictedInterval(20, 2, 200), PredictedInterval(20, 15, 30)
    (known,) = wanted = [PlanTask("a", (GpusOption(1, 30, wide, exact(20), as_busy=narrow),))]
    planned = schedule.earliest_schedule(wanted, [known.options[0]], [0], 1)
    alone = [PlanTask("a", (GpusOption(1, 30, narrow, exact(20)),))]
    assert planned.likely_as_busy(wanted) == schedule.earliest_schedule(
        alone, [alone[0].options[0]], [0], 1
    ).likely(alone)
    assert planned.likely(wanted).high > 100
    nobody = [PlanTask("a", (GpusOption(1, 30, wide, exact(20)),))]
    assert (
        schedule.earliest_schedule(nobody, [nobody[0].options[0]], [0], 1).likely_as_busy(nobody)
        is None
    )
    option = schedule.timed_option(1, wide, 4, PredictedInterval(1.1, 1, 1.2), "scaled &", narrow)
    assert option.as_busy and option.as_busy.value == pytest.approx(22)
    assert option.as_busy.high == pytest.approx(
        22 * math.exp(math.hypot(math.log(1.5), math.log(1.2 / 1.1)))
    )
    undisturbed = option.undisturbed.as_busy
    assert undisturbed and undisturbed.value == pytest.approx(20)
    made = planning.make([PlanTask("a", (option,))], 4)
    content = plan_text.as_dict(made, "n", exact(1))
    assert content["jobs"][0]["seconds_as_busy"]["value"] == pytest.approx(20)  # nothing else runs
    likely = content["expected_makespan_as_busy_s"]
    assert likely["value"] == pytest.approx(20, rel=0.05)
    lines = "\n".join(plan_text.plan_lines(made, exact(1), content))
    assert find(lines, "plan.makespan").facts["as_busy"] == pytest.approx(
        [*likely.values()], rel=1e-4
    )


def test_a_plan_becomes_longer_or_shorter_with_its_tasks():
    wanted = [
        task({1: 10}),
        PlanTask("t", (GpusOption(1, 30, PredictedInterval(20, 10, 40), exact(20)),)),
        task({2: 5}),
    ]
    planned = schedule.earliest_schedule(wanted, [each.options[0] for each in wanted], [0, 1, 2], 2)
    assert planned.waits(wanted) == [set(), set(), {0, 1}]
    likely = planned.likely(wanted)
    assert likely.value == pytest.approx(25, abs=1) and likely.low < 18 and 40 < likely.high < 50
    assert planned.makespan_s == 35


# ---- the solver


def schedules(wanted: list[PlanTask], gpus: int) -> list[Schedule]:
    """Those of all choices and orders: one is a best one, as each task begins as soon as it can."""
    orders = [
        order
        for order in permutations(range(len(wanted)))
        if all(
            order.index(other) < order.index(place)
            for place in order
            for other in wanted[place].after
        )
    ]
    return [
        schedule.earliest_schedule(wanted, chosen, order, gpus)
        for chosen in product(*(each.options for each in wanted))
        for order in orders
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_costs_less(seed: int):
    wanted = random_tasks(seed, 4, 3)
    found, every = plan(wanted, 3), schedules(wanted, 3)
    best = min(every, key=lambda each: each.makespan_s)
    assert found.schedule.makespan_s == pytest.approx(best.makespan_s, rel=1e-3)
    assert found.gap < 0.005 and found.bound_s <= found.schedule.makespan_s
    for factor in (1.001, 0.7):  # deadlines that can be kept, and not all of them
        limits = {place: best.placed[place].end_s * factor for place in range(2)}
        wanted = [replace(each, deadline_s=limits.get(place)) for place, each in enumerate(wanted)]
        found = plan(wanted, 3)
        least = min(planning.cost(each, wanted) for each in every)
        assert planning.cost(found.schedule, wanted) == pytest.approx(least, rel=2e-3, abs=1)
        others = [
            each for each in every if found.schedule.late_s(wanted) or not each.late_s(wanted)
        ]
        assert found.bound_s <= min(each.makespan_s for each in others) * (1 + 1e-9)


def test_the_bound_is_of_plans_that_keep_the_deadlines_where_this_one_does():
    kept = plan([task({1: 10, 2: 6}, deadline_s=6), task({1: 10})], 2)
    assert kept.schedule.makespan_s == 16 and not kept.schedule.late_s(kept.tasks)
    bound = find(shown(kept), "plan.bound", keeps_deadlines=True)
    assert bound.facts["seconds"] == pytest.approx(16, rel=1e-3) and bound.facts["gap"] < 5e-4
    late = plan([task({1: 10, 2: 6}, deadline_s=5), task({1: 10})], 2)  # which none keeps
    # both at once
    assert late.schedule.makespan_s == 16 and late.bound_s == pytest.approx(10, rel=1e-3)
    bound = find(shown(late), "plan.bound", keeps_deadlines=False)
    assert (bound.facts["seconds"], bound.facts["gap"]) == (
        pytest.approx(10, rel=1e-3),
        pytest.approx(0.375, rel=1e-3),
    )


def test_a_plan_is_never_worse_than_the_simple_ones():
    for seed in range(3):
        wanted = [
            replace(each, deadline_s=60.0 + place)
            for place, each in enumerate(random_tasks(seed, 7, 4))
        ]
        found = planning.make(wanted, 4, 0.5)
        for simple in (found.in_turn, found.one_gpu_each):
            assert planning.cost(found.schedule, wanted) <= planning.cost(simple, wanted) * (
                1 + 1e-9
            )
    # more than twice as long beside another
    slow = PlanTask("slow", (GpusOption(1, 21.0, exact(21.0), exact(10.0)),))
    found = plan([slow, slow], 2)
    assert (found.schedule.makespan_s, found.in_turn.makespan_s, found.bound_s, found.likely) == (
        20,
        20,
        20,
        exact(20),
    )


def test_deadlines_that_have_passed_count_with_all_of_their_delay():
    found = plan([task({1: 10}, deadline_s=-500), task({1: 10}, deadline_s=12)], 1)
    delays = found.schedule.late_s(found.tasks)
    assert delays == {0: pytest.approx(510), 1: pytest.approx(8)}  # 25 more the other way round
    said = shown(found)
    assert "0:08:20 ago  0:08:30\n" in said
    late = find(said, "plan.late").facts
    assert late["tasks"] == ["task", "task"] and late["total_s"] == pytest.approx(518)
    assert late["seconds"] == [pytest.approx(510), pytest.approx(8)]


def test_what_is_left_is_planned_around_what_runs():
    running = [task({2: 100}, held=(2, 3)), task({1: 10}, held=(0,))]
    found = plan([*running, task({1: 20, 2: 12}), task({1: 30}), task({2: 5}, 2)], 4)
    assert found.schedule.makespan_s == 100  # the rest has room on the two other GPUs
    overdue, waits = task({1: 1}, held=(0,)), task({1: 30})
    # a GPU that is idle comes before one that should be
    for wanted in ([overdue, waits], [waits, overdue]):
        placed = plan(wanted, 2).schedule
        waiting = placed.placed[wanted.index(waits)]
        assert (waiting.gpu_ids, waiting.start_s) == ((1,), 0) and not any(placed.waits(wanted))
    held = [task({1: 30}, held=(0,)), task({1: 30}, held=(1,))]
    placed = plan([*held, task({1: 30}), task({1: 30})], 3).schedule
    assert placed.makespan_s == 60 and (2,) in [each.gpu_ids for each in placed.placed[2:]]


# ---- what is shown


def test_the_chart_has_a_row_for_each_gpu():
    wanted = [
        replace(task({2: 40}), name="wide"),
        replace(task({1: 40}, deadline_s=50), name="<late>"),
    ]
    planned = schedule.earliest_schedule(wanted, [each.options[0] for each in wanted], [0, 1], 2)
    first, second, axis = plan_text.chart(wanted, planned, 2, 46)
    assert first == "GPU 0 [wide==============][<late>============]"
    assert second == "GPU 1 [wide==============]"
    assert axis.split() == ["0:00:00", "0:00:40", "0:01:20"] and len(axis) == 46
    many = [task({1: 1})] * 200
    narrow = plan_text.chart(
        many,
        schedule.earliest_schedule(many, [each.options[0] for each in many], range(200), 1),
        1,
        46,
    )
    assert max(map(len, narrow)) <= 46


def test_ranges_and_efficiency():
    assert [environment.spans(ids) for ids in ((0,), (0, 1, 2), (0, 2), ())] == [
        "0",
        "0-2",
        "0,2",
        "",
    ]
    one = task({1: 100, 4: 50})
    assert [plan_text.efficiency(one, option) for option in one.options] == [1.0, 0.5]
    assert plan_text.efficiency(task({1: 100}), task({1: 100}).options[0]) is None


# ---- the command

Main = Callable[..., tuple[int, str, dict[str, Any]]]


@pytest.fixture
def planned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Main:
    """The command, with what it prints and writes."""

    def call(content: str, *words: str) -> tuple[int, str, dict[str, Any]]:
        jobs, out = tmp_path / "jobs.yaml", tmp_path / "plan.json"
        jobs.write_text(content)
        code = command.main([str(jobs), "--json", str(out), "--seconds", "120", *words])
        printed = capsys.readouterr()
        return code, printed.out + printed.err, json.loads(out.read_text()) if out.exists() else {}

    return call


def test_the_papers_table_2_is_planned_side_by_side(planned: Main):
    file = """
node: {gpus: 4}
slowdown: 1.0
jobs: {fp64: {seconds: {1: 6266, 2: 3339, 3: 2318, 4: 1937}, repeat: 4}}
"""
    code, printed, content = planned(file)
    table, _, _ = printed.partition("\n\n")
    assert code == 0 and max(map(len, table.splitlines()[1:])) <= 120 and "deadline" not in table
    assert content["makespan_s"] == pytest.approx(6266) and content["bound_s"] == pytest.approx(
        6266, rel=1e-3
    )
    assert content["in_turn_s"] == pytest.approx(7748) and content[
        "fewest_gpus_each_s"
    ] == pytest.approx(6266)
    assert sorted(each["gpu_ids"] for each in content["jobs"]) == [[0], [1], [2], [3]]
    in_turn = find(printed, "plan.against-simple", simple="in turn").facts
    assert (in_turn["seconds"], in_turn["saved"]) == (
        pytest.approx(7748),
        pytest.approx(0.19, abs=0.005),
    )
    assert says(printed, "plan.slowdown", value=1.0)
    _, printed, content = planned(file.replace("slowdown: 1.0\n", ""))
    assert content["makespan_s"] == pytest.approx(6266 * 1.03)
    assert says(printed, "plan.slowdown-assumed", value=1.03, ends=[1.0, 1.1])


def test_a_plan_is_written_in_every_form(planned: Main, tmp_path: Path):
    jobs = "a: {seconds: {1: [9, 8, 10]}, gpus: [1]}, b: {seconds: {2: 5}, after: [a]}"
    file = f"{{node: {{gpus: 2}}, slowdown: 1.0, jobs: {{{jobs}}}}}"
    code, printed, content = planned(file, "--csv", "-", "--markdown", str(tmp_path / "plan.md"))
    table, _, written = printed.partition("[[")  # the files that were written go to stderr
    assert says(f"[[{written}", "output.written", form="markdown")
    rows = [*csv.DictReader(io.StringIO(table))]
    assert code == 0 and [row["name"] for row in rows] == ["a", "b"] == [
        job["name"] for job in content["jobs"]
    ]
    shown = ("gpus", "gpu_ids", "seconds", "seconds_low", "seconds_high", "after", "deadline_s")
    assert [rows[0][key] for key in shown] == ["1", "0", "9.0", "8.0", "10.0", "", ""]
    assert [rows[1][key] for key in shown] == ["2", "0-1", "5.0", "5.0", "5.0", "a", ""]
    title, _, table = (tmp_path / "plan.md").read_text().partition("\n\n")
    assert title.startswith("**") and table.startswith("| job ")
    code, printed, _ = planned(file, "--run", "--latex", "-")
    assert code == 1 and codes(printed) == ["plan.stdout"] and printed.count("\n") == 1


def test_the_file_of_the_page_is_planned_as_it_says(planned: Main):
    page = (ROOT / "docs" / "plan.md").read_text()
    blocks = re.findall(r"^```(?:yaml)?\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (yaml,) = [block for block in blocks if block.startswith("# docs/jobs")]
    shown = blocks[blocks.index(yaml) + 1]
    file = (ROOT / "docs" / "jobs.yaml").read_text()  # which docs/plan.md shows
    assert yaml.splitlines()[1:] == file.splitlines()[1:]
    code, printed, content = planned(yaml)
    assert code == 0 and content["makespan_s"] == pytest.approx(8452, abs=1)
    assert content["bound_s"] == pytest.approx(8452, rel=1e-3)
    # of several best plans any may be found
    for key in ("makespan_s", "in_turn_s", "fewest_gpus_each_s"):
        assert in_hours(content[key]) in shown, key
    bound = find(printed, "plan.bound", keeps_deadlines=True)
    assert in_hours(bound.facts["seconds"])[:-1] in shown


def test_without_the_solver_the_remedy_is_said(planned: Main, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    code, printed, content = planned("{node: {gpus: 2}, jobs: {a: {seconds: {1: 10}}}}")
    assert (
        code == 1
        and not content
        and one(printed).code == "plan.no-ortools"
        and printed.count("\n") == 1
    )
    with pytest.raises(Refusal) as caught:
        plan([task({1: 10})], 1)
    assert remedies(caught.value) == ["pip install ortools"]
