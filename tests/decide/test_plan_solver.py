"""The solver of plans, against known optima and against every schedule there is."""

from dataclasses import replace
from itertools import combinations, permutations, product

import pytest

from multicard.decide.plan import outcomes, planning, schedule, show, simple_plans, solver
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.planning import Plan
from multicard.decide.plan.schedule import Option, Schedule, Task
from multicard.records.schema_parts import Interval
from tests.decide.test_plan import EXACT, check, exact, random_tasks, task

LIMIT_S = 120.0  # these are solved in well under a second; a machine that is busy has time


def plan(tasks: list[Task], gpus: int, goal: Goal = Goal.makespan) -> Plan:
    found = planning.make(tasks, gpus, goal, EXACT, LIMIT_S)
    check(tasks, found.schedule, gpus)
    return found


def interval(slowdown: float) -> Interval:
    return Interval(slowdown, slowdown, slowdown)


def slowed(tasks: list[Task], gpus: int, slowdown: float) -> list[Task]:
    """The tasks, slower beside others by a factor."""

    def beside(option: Option) -> Option:
        return replace(option, planned_s=option.alone_s * (slowdown if option.gpus < gpus else 1))

    return [replace(each, options=tuple(map(beside, each.options))) for each in tasks]


def least_makespan_s(tasks: list[Task], gpus: int, slowdown: float = 1.0) -> float:
    """One of all choices and orders leads to a best schedule, as each task begins as soon as it can."""
    return min(each.makespan_s for each in timed_schedules(tasks, gpus, slowdown))


def timed_schedules(tasks: list[Task], gpus: int, slowdown: float) -> list[Schedule]:
    """Of all choices and orders."""
    orders = [
        order
        for order in permutations(range(len(tasks)))
        if all(order.index(other) < order.index(place) for place in order for other in tasks[place].after)
    ]
    return [
        outcomes.timed(tasks, schedule.earliest(tasks, chosen, order, gpus, alone), slowdown)
        for alone in (False, True)
        for chosen in product(*(each.options for each in tasks))
        for order in orders
    ]


@pytest.mark.parametrize("seed", range(5))
def test_no_schedule_is_better(seed: int):
    tasks = random_tasks(seed, 4, 3)
    found = plan(tasks, 3)
    assert found.schedule.makespan_s == pytest.approx(least_makespan_s(tasks, 3), rel=1e-3)
    assert found.gap < 0.005 and found.bound_s <= found.schedule.makespan_s


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("slowdown", [1.03, 1.4])
def test_the_bound_holds_where_tasks_are_slower_only_beside_others(seed: int, slowdown: float):
    tasks = slowed(random_tasks(seed, 4, 3), 3, slowdown)
    found = planning.make(tasks, 3, Goal.makespan, interval(slowdown), LIMIT_S)
    bound_s = solver.solve(tasks, 3, Goal.makespan, found.one_gpu_each, LIMIT_S).bound_s
    least_s = least_makespan_s(tasks, 3, slowdown)
    assert bound_s <= least_s * (1 + 1e-9) and bound_s >= least_s / slowdown * (1 - 1e-3)
    assert schedule.lower_bound_s(tasks, 3) <= least_s * (1 + 1e-9)
    assert found.schedule.makespan_s <= least_s * slowdown
    for one, other in combinations(found.schedule.placed, 2):
        apart = one.end_s <= other.start_s + schedule.SAME_S or other.end_s <= one.start_s + schedule.SAME_S
        assert apart or not {*one.gpu_ids} & {*other.gpu_ids}


def test_bounds_of_slower_tasks_in_closed_form():
    chain = slowed([task({1: 10}), task({1: 10}, 0)], 2, 1.4)
    assert schedule.lower_bound_s(chain, 2) == 20  # each runs alone
    wide = slowed([task({2: 10})] * 2, 3, 1.6)
    assert schedule.lower_bound_s(wide, 3) == 20  # there is no room for a second: none is slower
    beside = slowed([task({1: 10})] * 4, 2, 1.4)
    assert schedule.lower_bound_s(beside, 2) == 28


def test_a_task_is_slower_only_while_another_runs():
    tasks = slowed([task({1: 1000}), task({1: 20})], 2, 1.03)
    found = planning.make(tasks, 2, Goal.makespan, interval(1.03), LIMIT_S)
    assert found.schedule.makespan_s == pytest.approx(1000.6) and found.in_turn.makespan_s == 1020
    assert [placed.end_s for placed in found.schedule.placed] == pytest.approx([1000.6, 20.6])
    assert found.bound_s == pytest.approx(1000.6, rel=1e-3) and found.bound_s <= found.schedule.makespan_s


def test_the_bound_is_of_plans_that_keep_the_deadlines_where_this_one_does():
    tasks = [task({1: 10, 2: 6}, deadline_s=6), task({1: 10})]
    found = plan(tasks, 2)
    assert found.schedule.makespan_s == 16 and not found.schedule.late_s(tasks)
    assert found.bound_s == pytest.approx(16, rel=1e-3)
    said = show.lines(found, "2 GPUs", EXACT, "measured")
    assert "bound: no plan that keeps the deadlines ends before 0:00:16: gap 0.0%" in said
    tasks = [task({1: 10, 2: 6}, deadline_s=5), task({1: 10})]  # which none keeps
    found = plan(tasks, 2)
    assert found.schedule.makespan_s == 16 and found.bound_s == pytest.approx(10, rel=1e-3)  # both at once
    assert "bound: no plan ends before 0:00:10: gap 37.5%" in show.lines(found, "2 GPUs", EXACT, "measured")


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_holds_with_deadlines(seed: int):
    """Those of the best schedule without deadlines, of which the solver's times keep none."""
    tasks = slowed(random_tasks(seed, 4, 3), 3, 1.2)
    schedules = timed_schedules(tasks, 3, 1.2)
    best = min(schedules, key=lambda each: each.makespan_s)
    ends = [placed.end_s for placed in best.placed]
    tasks = [replace(each, deadline_s=ends[place] if place < 2 else None) for place, each in enumerate(tasks)]
    late = max(schedules, key=lambda each: len(each.late_s(tasks)))
    assert late.late_s(tasks) and not best.late_s(tasks)
    for known in (best, late):
        assert solver.bound_s(tasks, 3, known, LIMIT_S) <= best.makespan_s * (1 + 1e-9)


def test_two_side_by_side_and_the_third_on_both():
    found = plan([task({1: 10, 2: 5.5})] * 3, 2)
    assert found.schedule.makespan_s == pytest.approx(15.5) and found.gap < 0.001
    assert found.in_turn.makespan_s == pytest.approx(16.5) and found.one_gpu_each.makespan_s == pytest.approx(20)
    assert sorted(placed.option.gpus for placed in found.schedule.placed) == [1, 1, 2]


def test_a_chain_takes_all_gpus():
    found = plan([task({1: 10, 2: 6}), task({1: 10, 2: 6}, 0)], 2)
    assert found.schedule.makespan_s == pytest.approx(12) and found.gap < 0.001


def test_a_single_task_takes_the_fastest_number():
    found = plan([task({1: 10, 2: 6, 4: 8})], 4)
    assert found.schedule.placed[0].option.gpus == 2 and found.schedule.makespan_s == 6


def test_in_turn_is_taken_where_running_side_by_side_costs_more():
    slow = Task("slow", (Option(1, 20.0, 10.0, exact(10.0)),), job="slow")  # twice as long beside another
    found = planning.make([slow, slow], 2, Goal.makespan, Interval(2, 2, 2), LIMIT_S)
    assert found.schedule.makespan_s == 20 and found.gap == 0
    longer = Task("slow", (Option(1, 21.0, 10.0, exact(10.0)),), job="slow")
    found = planning.make([longer, longer], 2, Goal.makespan, Interval(2.1, 2.1, 2.1), LIMIT_S)
    assert found.schedule.makespan_s == 20 == found.in_turn.makespan_s and found.bound_s <= 20


@pytest.mark.parametrize("goal", [*Goal])
def test_a_plan_is_never_worse_than_the_simple_ones(goal: Goal):
    for seed in range(3):
        tasks = [
            Task(each.name, tuple(_with_joules(each)), each.after, 60.0 + place, each.job)
            for place, each in enumerate(random_tasks(seed, 7, 4))
        ]
        found = planning.make(tasks, 4, goal, EXACT, 2.0)
        for simple in (simple_plans.in_turn(tasks, 4), simple_plans.one_gpu_each(tasks, 4)):
            assert planning.cost(found.schedule, tasks, goal) <= planning.cost(simple, tasks, goal)


def _with_joules(each: Task) -> list[Option]:
    return [
        Option(option.gpus, option.planned_s, option.alone_s, option.interval, option.gpus**1.2 * option.planned_s)
        for option in each.options
    ]


def test_an_option_that_another_beats_is_not_asked_for():
    kept = solver.without_worse(task({1: 10, 2: 12, 4: 5, 8: 5}))
    assert [option.gpus for option in kept.options] == [1, 4]
    thrifty = solver.without_worse(task({1: 10, 2: 12}, joules={1: 9, 2: 8}))
    assert [option.gpus for option in thrifty.options] == [1, 2]


def test_the_least_delay_comes_before_every_goal():
    tasks = [task({1: 10}, deadline_s=15), task({1: 10}, deadline_s=12), task({1: 1})]
    found = plan(tasks, 1)
    assert sum(found.schedule.late_s(tasks).values()) == pytest.approx(5) and found.schedule.makespan_s == 21


@pytest.mark.parametrize("goal", [Goal.makespan, Goal.deadline])
def test_deadlines_that_have_passed_count_with_all_of_their_delay(goal: Goal):
    tasks = [task({1: 10}, deadline_s=-500), task({1: 10}, deadline_s=12)]
    found = plan(tasks, 1, goal)
    assert found.schedule.late_s(tasks) == {0: pytest.approx(510), 1: pytest.approx(8)}  # 25 more the other way round
    assert planning.least_slack_s(found.schedule, tasks) == pytest.approx(510)


def test_the_rest_of_a_plan_for_deadlines_may_have_none():
    """What had one is done, say, when the rest is planned again."""
    found = plan([task({1: 10}), task({1: 10, 2: 4})], 2, Goal.deadline)
    assert found.schedule.makespan_s == 10
