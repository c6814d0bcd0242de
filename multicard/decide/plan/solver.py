"""The best schedule by constraint programming (OR-Tools' CP-SAT): the number of GPUs and the start of each task.

Times are whole ticks, rounded up, so that every solution is a schedule. One number is minimised (`cost`).
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.schedule import Schedule, Task, earliest, followers_of, lower_bound_s

TICKS = 100_000  # of the makespan that is to be beaten
LIMIT_S, WORKERS = 10.0, 8  # a few more than cores: they search in different ways, some for the bound alone
GAP = 1e-4  # of the makespan, at which the search ends
LATE = 1000  # seconds of makespan that a second of delay counts as much as
FOREMOST = 1000  # with goal=deadline, the same of a second nearer to the nearest deadline


@dataclass(frozen=True)
class Solution:
    """A schedule, and a makespan that none beats; that none beats which keeps all deadlines, where this one does.

    is_proven: it is known that no schedule costs less.
    """

    schedule: Schedule
    bound_s: float
    is_proven: bool


def cost(schedule: Schedule, tasks: Sequence[Task], goal: Goal) -> float:
    """What a plan makes least: delays, which count most, and the makespan; with goal=deadline, first how near a task
    comes to its deadline."""
    late_s = math.fsum(schedule.late_s(tasks).values())
    pairs = zip(tasks, schedule.placed, strict=True)
    slack_s = [placed.end_s - task.deadline_s for task, placed in pairs if task.deadline_s is not None]
    if goal is Goal.deadline and slack_s:  # else those that have one are done
        return FOREMOST * (LATE * late_s + max(slack_s)) + schedule.makespan_s
    return LATE * late_s + schedule.makespan_s


def solve(
    tasks: Sequence[Task], gpus: int, goal: Goal, known: Schedule, limit_s: float, seed: int, workers: int
) -> Solution:
    """The best schedule that is found within a time.

    Args:
        known: a schedule to begin with.

    Raises:
        ValueError: OR-Tools is not installed.
        KeyboardInterrupt: on Ctrl-C, once the search has ended.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ValueError("a plan needs OR-Tools, which is not installed: pip install ortools") from None
    tasks = [without_worse(task) for task in tasks]
    tick_s = max(known.makespan_s, 1e-9) / TICKS
    sizes = [[max(math.ceil(option.planned_s / tick_s), 1) for option in task.options] for task in tasks]
    limits = {
        place: math.floor(task.deadline_s / tick_s) for place, task in enumerate(tasks) if task.deadline_s is not None
    }
    horizon = TICKS + len(tasks)
    if limits:  # a longer schedule may be the better one
        horizon = max(sum(map(max, sizes)), horizon)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")
    starts, ends, chosen = [], [], []
    intervals, demands = [], []
    for place, (task, own) in enumerate(zip(tasks, sizes, strict=True)):
        start = model.new_int_var(0, 0 if task.held else horizon, f"start {place}")
        taken = [model.new_bool_var(f"option {place} {option}") for option in range(len(own))]
        model.add_exactly_one(taken)
        for option, size, is_taken in zip(task.options, own, taken, strict=True):
            name = f"interval {place} {option.gpus}"
            intervals.append(model.new_optional_fixed_size_interval_var(start, size, is_taken, name))
            demands.append(option.gpus)
        starts.append(start)
        chosen.append(taken)
        ends.append(start + sum(size * is_taken for size, is_taken in zip(own, taken, strict=True)))
        model.add(ends[-1] <= makespan)
    model.add_cumulative(intervals, demands, gpus)
    for place, task in enumerate(tasks):
        for other in task.after:
            model.add(starts[place] >= ends[other])
    _tell_what_follows(model, tasks, sizes, chosen, makespan, horizon, gpus)
    for alike in _alike(tasks):
        for first, second in pairwise(alike):
            model.add(starts[first] <= starts[second])
    model.minimize(_cost(model, limits, ends, makespan, horizon, goal))
    for task, placed, start, taken in zip(tasks, known.placed, starts, chosen, strict=True):
        model.add_hint(start, round(placed.start_s / tick_s))
        for option, is_taken in zip(task.options, taken, strict=True):
            model.add_hint(is_taken, option.gpus == placed.option.gpus)

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(limit_s, 0.1)
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.absolute_gap_limit = GAP * TICKS
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C ends the search alone, and the plan is carried out
    status = _solved(solver, model)
    bound_s = lower_bound_s(tasks, gpus)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Solution(known, bound_s, is_proven=False)
    begun = [solver.value(start) for start in starts]
    options = [task.options[[*map(solver.value, taken)].index(1)] for task, taken in zip(tasks, chosen, strict=True)]
    schedule = earliest(tasks, options, sorted(range(len(tasks)), key=lambda place: (begun[place], place)), gpus)
    if not schedule.late_s(tasks) and not (goal is Goal.deadline and limits):
        # In whole ticks, a chain takes at most one more for each task
        bound_s = max(bound_s, (solver.best_objective_bound - len(tasks)) * tick_s)
    return Solution(schedule, bound_s, status == cp_model.OPTIMAL)


def without_worse(task: Task) -> Task:
    """The task without options that another one beats in GPUs and time alike."""
    ordered = sorted(task.options, key=lambda option: (option.gpus, option.planned_s))
    kept = [
        option
        for place, option in enumerate(ordered)
        if all(option.planned_s < other.planned_s for other in ordered[:place])
    ]
    return replace(task, options=tuple(kept))


def _cost(model: Any, limits: dict[int, int], ends: Sequence[Any], makespan: Any, horizon: int, goal: Goal) -> Any:
    """`cost` in ticks."""
    delays = []
    for place, limit in limits.items():
        delays.append(model.new_int_var(0, horizon + max(-limit, 0), f"delay {place}"))
        model.add(delays[-1] >= ends[place] - limit)
    if goal is not Goal.deadline or not limits:
        return LATE * sum(delays) + makespan
    nearest = model.new_int_var(-max(limits.values()), horizon - min(limits.values()), "nearest")
    for place, limit in limits.items():
        model.add(nearest >= ends[place] - limit)
    return FOREMOST * (LATE * sum(delays) + nearest) + makespan


def _tell_what_follows(
    model: Any,
    tasks: Sequence[Task],
    sizes: Sequence[Sequence[int]],
    chosen: Sequence[Sequence[Any]],
    makespan: Any,
    horizon: int,
    gpus: int,
) -> None:
    """Add what follows from the intervals, but not soon: all tasks have room on the GPUs; and nothing runs beside tasks
    that take all GPUs, so that any chain of the others ends within the rest of the makespan."""
    areas, wholes, lasting = [], [], []
    for task, own, taken in zip(tasks, sizes, chosen, strict=True):
        each = [*zip(task.options, own, taken, strict=True)]
        areas += [option.gpus * size * is_taken for option, size, is_taken in each]
        wholes += [size * is_taken for option, size, is_taken in each if option.gpus == gpus]
        lasting.append(sum(size * is_taken for option, size, is_taken in each if option.gpus < gpus))
    model.add(sum(areas) <= gpus * makespan)
    begins = [model.new_int_var(0, horizon, f"begin {place}") for place in range(len(tasks))]
    for place, task in enumerate(tasks):
        model.add(begins[place] + lasting[place] + sum(wholes) <= makespan)
        for other in task.after:
            model.add(begins[place] >= begins[other] + lasting[other])


def _alike(tasks: Sequence[Task]) -> list[list[int]]:
    """Places of tasks that can be exchanged for one another."""
    followers = followers_of(tasks)
    groups: dict[Any, list[int]] = {}
    for place, task in enumerate(tasks):
        options = tuple((option.gpus, option.planned_s) for option in task.options)
        key = options, frozenset(task.after), task.deadline_s, task.held, frozenset(followers[place])
        groups.setdefault(key, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def _solved(solver: Any, model: Any) -> Any:
    """The status of a search, in a thread of its own: Ctrl-C ends it at once."""
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(solver.solve, model)
        try:
            return search.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
