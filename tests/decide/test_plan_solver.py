"""The solver of plans, against known optima and against every schedule there is."""

from dataclasses import replace
from itertools import permutations, product

import pytest

from multicard.decide.plan import planning, schedule, show, simple_plans, solver
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import Option, Schedule, Task
from tests.decide.test_plan import EXACT, check, exact, random_tasks, task

LIMIT_S = 120.0  # these are solved in well under a second; a machine that is busy has time


def plan(tasks: list[Task], gpus: int, goal: Goal = Goal.makespan) -> Plan:
    found = planning.make(tasks, gpus, goal, LIMIT_S)
    check(tasks, found.schedule, gpus)
    return found


def schedules(tasks: list[Task], gpus: int) -> list[Schedule]:
    """Those of all choices and orders: one is a best one, as each task begins as soon as it can."""
    orders = [
        order
        for order in permutations(range(len(tasks)))
        if all(order.index(other) < order.index(place) for place in order for other in tasks[place].after)
    ]
    return [
        schedule.earliest(tasks, chosen, order, gpus)
        for chosen in product(*(each.options for each in tasks))
        for order in orders
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_is_better(seed: int):
    tasks = random_tasks(seed, 4, 3)
    found = plan(tasks, 3)
    assert found.schedule.makespan_s == pytest.approx(min(s.makespan_s for s in schedules(tasks, 3)), rel=1e-3)
    assert found.gap < 0.005 and found.bound_s <= found.schedule.makespan_s


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("goal", [*Goal])
def test_no_schedule_with_deadlines_costs_less(seed: int, goal: Goal):
    tasks = random_tasks(seed, 4, 3)
    ends = [placed.end_s for placed in min(schedules(tasks, 3), key=lambda each: each.makespan_s).placed]
    for factor in (1.001, 0.7):  # which can be kept, and not all of them
        tasks = [replace(each, deadline_s=ends[n] * factor if n < 2 else None) for n, each in enumerate(tasks)]
        found, every = plan(tasks, 3, goal), schedules(tasks, 3)
        least = min(solver.cost(each, tasks, goal) for each in every)
        assert solver.cost(found.schedule, tasks, goal) == pytest.approx(least, rel=2e-3, abs=1)
        others = [each for each in every if found.schedule.late_s(tasks) or not each.late_s(tasks)]
        assert found.bound_s <= min(each.makespan_s for each in others) * (1 + 1e-9)


def test_the_bound_is_of_plans_that_keep_the_deadlines_where_this_one_does():
    tasks = [task({1: 10, 2: 6}, deadline_s=6), task({1: 10})]
    found = plan(tasks, 2)
    assert found.schedule.makespan_s == 16 and not found.schedule.late_s(tasks)
    assert found.bound_s == pytest.approx(16, rel=1e-3)
    said = show.lines(found, "2 GPUs", EXACT)
    assert "bound: no plan that keeps the deadlines ends before 0:00:16: gap 0.0%" in said
    tasks = [task({1: 10, 2: 6}, deadline_s=5), task({1: 10})]  # which none keeps
    found = plan(tasks, 2)
    assert found.schedule.makespan_s == 16 and found.bound_s == pytest.approx(10, rel=1e-3)  # both at once
    assert "bound: no plan ends before 0:00:10: gap 37.5%" in show.lines(found, "2 GPUs", EXACT)


@pytest.mark.parametrize("goal", [*Goal])
def test_a_plan_is_never_worse_than_the_simple_ones(goal: Goal):
    for seed in range(3):
        tasks = [replace(each, deadline_s=60.0 + place) for place, each in enumerate(random_tasks(seed, 7, 4))]
        found = planning.make(tasks, 4, goal, 2.0)
        for simple in (simple_plans.in_turn(tasks, 4), simple_plans.one_gpu_each(tasks, 4)):
            assert solver.cost(found.schedule, tasks, goal) <= solver.cost(simple, tasks, goal) * (1 + 1e-9)


def test_in_turn_is_taken_where_running_side_by_side_costs_more():
    slow = Task("slow", (Option(1, 21.0, exact(21.0), 10.0),))  # more than twice as long beside another
    found = planning.make([slow, slow], 2, Goal.makespan, LIMIT_S)
    assert found.schedule.makespan_s == 20 == found.in_turn.makespan_s == found.bound_s


def test_an_option_that_another_beats_is_not_asked_for():
    kept = solver.without_worse(task({1: 10, 2: 12, 4: 5, 8: 5}))
    assert [option.gpus for option in kept.options] == [1, 4]


@pytest.mark.parametrize("goal", [*Goal])
def test_deadlines_that_have_passed_count_with_all_of_their_delay(goal: Goal):
    tasks = [task({1: 10}, deadline_s=-500), task({1: 10}, deadline_s=12)]
    found = plan(tasks, 1, goal)
    assert found.schedule.late_s(tasks) == {0: pytest.approx(510), 1: pytest.approx(8)}  # 25 more the other way round


def test_the_rest_of_a_plan_for_deadlines_may_have_none():
    """What had one is done, say, when the rest is planned again."""
    found = plan([task({1: 10}), task({1: 10, 2: 4})], 2, Goal.deadline)
    assert found.schedule.makespan_s == 10


# ---- around tasks that run


def test_what_is_left_is_planned_around_what_runs():
    tasks = [
        task({1: 20, 2: 12}), task({2: 100}, held=(2, 3)), task({1: 10}, held=(0,)), task({1: 30}), task({2: 5}, 0)
    ]  # fmt: skip
    found = plan(tasks, 4)
    assert found.schedule.makespan_s == 100  # the rest has room on the two other GPUs
    assert {*found.schedule.placed[0].gpu_ids} <= {0, 1}


def test_what_waits_takes_a_gpu_that_is_idle_not_one_whose_task_is_overdue():
    runs, waits = task({1: 1}, held=(0,)), task({1: 30})
    for tasks in ([runs, waits], [waits, runs]):
        found = plan(tasks, 2).schedule
        waiting = found.placed[tasks.index(waits)]
        assert (waiting.gpu_ids, waiting.start_s) == ((1,), 0) and not any(found.waits(tasks))
    held = [task({1: 30}, held=(0,)), task({1: 30}, held=(1,))]
    found = plan([*held, task({1: 30}), task({1: 30})], 3).schedule
    assert found.makespan_s == 60 and (2,) in [placed.gpu_ids for placed in found.placed[2:]]


def test_a_plan_is_never_worse_than_the_plan_so_far(monkeypatch: pytest.MonkeyPatch):
    """With no time to search, an order that no simple plan finds is kept."""
    tasks = [task({1: 4}), task({1: 2, 2: 1.9}), task({2: 3})]
    order = [(2, tasks[2].options[0]), (0, tasks[0].options[0]), (1, tasks[1].options[0])]
    monkeypatch.setattr(planning.solver, "solve", lambda *a: solver.Solution(a[3], 0.0, is_proven=False))
    slow = Option(1, 9.0, exact(9.0), 9.0)
    tasks = [replace(each, options=(*each.options, slow)) for each in tasks]
    without, found = planning.make(tasks, 2, Goal.makespan), planning.make(tasks, 2, Goal.makespan, before=order)
    assert found.schedule.makespan_s == 7 <= without.schedule.makespan_s
