"""A plan: the best schedule by constraint programming (OR-Tools' CP-SAT) and by simple rules,
with a bound.

Times are whole ticks, rounded up, so that every solution is a schedule.
"""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from multicard.decide.plan import schedule
from multicard.decide.plan.schedule import PlanTask, Schedule
from multicard.messages import Refusal
from multicard.records.schema_parts import PredictedInterval

TICKS = 100_000  # of the makespan that is to be beaten
# a few more than cores: they search in different ways, some for the bound alone
LIMIT_S = 10.0
WORKERS = 8
GAP = 1e-4  # of the makespan, at which the search ends
LATE = 1000  # seconds of makespan that count as much as a second of delay


@dataclass(frozen=True)
class Plan:
    """A schedule of tasks on a node.

    Fields:
        bound_s: a makespan that no schedule beats; where this one keeps all deadlines, none that
            keeps them.
        likely: median makespan with its 90 % interval; `schedule` has upper quantiles.
        likely_as_busy: the same if others stay as busy as during the runs behind the times; None:
            not known.
        in_turn, one_gpu_each: the schedules that people make by hand.
    """

    tasks: tuple[PlanTask, ...]
    gpus: int
    schedule: Schedule
    bound_s: float
    likely: PredictedInterval
    in_turn: Schedule
    one_gpu_each: Schedule
    likely_as_busy: PredictedInterval | None = None

    @property
    def gap(self) -> float:
        """Difference between makespan and bound, relative to the makespan."""
        makespan_s = self.schedule.makespan_s
        return max(1 - self.bound_s / makespan_s, 0.0) if makespan_s else 0.0


def make(tasks: Sequence[PlanTask], gpus: int, limit_s: float = LIMIT_S) -> Plan:
    """Plan tasks, around those that run already;
    never worse than the simple schedules (see `solve`).
    """
    in_turn = schedule.in_turn(tasks, gpus)
    one_gpu_each = schedule.one_gpu_each(tasks, gpus)
    known = [one_gpu_each, *schedule.balanced(tasks, gpus)]
    found, bound_s = solve(tasks, gpus, min(known, key=lambda each: cost(each, tasks)), limit_s)
    # the first of several
    best = min((in_turn, *known, found), key=lambda each: float(f"{cost(each, tasks):.9g}"))
    # above it by rounding, or as it has the slowdown that `in_turn` has not
    bound_s = min(bound_s, best.makespan_s)
    likely = best.likely(tasks)
    likely_as_busy = best.likely_as_busy(tasks)
    return Plan(tuple(tasks), gpus, best, bound_s, likely, in_turn, one_gpu_each, likely_as_busy)


def cost(each: Schedule, tasks: Sequence[PlanTask]) -> float:
    """The number that a plan minimises, in seconds: the makespan,
    and 1,000 s for each second of delay.
    """
    return LATE * math.fsum(each.late_s(tasks).values()) + each.makespan_s


def _precedences(tasks: Sequence[PlanTask]) -> Iterator[tuple[int, int]]:
    """Each task's place, with that of a task that has to end before it."""
    for place, task in enumerate(tasks):
        for other in task.after:
            yield place, other


def solve(
    tasks: Sequence[PlanTask], gpus: int, known: Schedule, limit_s: float
) -> tuple[Schedule, float]:
    """The best schedule that a search finds, begun with a known one,
    and a makespan that none beats.

    Raises:
        Refusal: OR-Tools is not installed.
        KeyboardInterrupt: on Ctrl-C, once the search has ended.
    """
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        sentence = (
            "a plan needs OR-Tools, which is not installed; install it with `pip install ortools`"
        )
        raise Refusal("plan.no-ortools", sentence) from None
    tick_s = max(known.makespan_s, 1e-9) / TICKS
    sizes = [
        [max(math.ceil(each.planned_s / tick_s), 1) for each in task.options] for task in tasks
    ]
    deadlines_s = {
        place: task.deadline_s for place, task in enumerate(tasks) if task.deadline_s is not None
    }
    limits = {place: math.floor(deadline_s / tick_s) for place, deadline_s in deadlines_s.items()}
    horizon = TICKS + len(tasks)
    if limits:  # a longer schedule may be the better one
        horizon = max(sum(map(max, sizes)), horizon)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")
    starts = []
    ends = []
    chosen = []
    intervals = []
    demands = []
    for place, (task, own) in enumerate(zip(tasks, sizes, strict=True)):
        start = model.new_int_var(0, 0 if task.held else horizon, f"start {place}")
        taken = [model.new_bool_var(f"option {place} {number}") for number in range(len(own))]
        model.add_exactly_one(taken)
        for each, size, is_taken in zip(task.options, own, taken, strict=True):
            name = f"interval {place} {each.gpus}"
            intervals.append(
                model.new_optional_fixed_size_interval_var(start, size, is_taken, name)
            )
            demands.append(each.gpus)
        starts.append(start)
        chosen.append(taken)
        ends.append(start + sum(size * is_taken for size, is_taken in zip(own, taken, strict=True)))
        model.add(ends[-1] <= makespan)
    model.add_cumulative(intervals, demands, gpus)
    for place, other in _precedences(tasks):
        model.add(starts[place] >= ends[other])
    _add_redundant(model, tasks, sizes, chosen, makespan, horizon, gpus)
    for place, (one, other) in enumerate(pairwise(tasks)):
        # runs of a job: the solver need not try both orders
        if replace(one, name="") == replace(other, name=""):
            model.add(starts[place] <= starts[place + 1])
    delays = {
        place: model.new_int_var(0, horizon + max(-limit, 0), "delay")
        for place, limit in limits.items()
    }
    for place, delay in delays.items():
        model.add(delay >= ends[place] - limits[place])
    model.minimize(LATE * sum(delays.values()) + makespan)
    for task, placed, start, taken in zip(tasks, known.placed, starts, chosen, strict=True):
        model.add_hint(start, round(placed.start_s / tick_s))
        for each, is_taken in zip(task.options, taken, strict=True):
            model.add_hint(is_taken, each.gpus == placed.option.gpus)

    solver, status = _searched(model, limit_s)
    bound_s = schedule.lower_bound_s(tasks, gpus)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return known, bound_s
    begun = [solver.value(start) for start in starts]
    options = [
        task.options[[*map(solver.value, taken)].index(1)]
        for task, taken in zip(tasks, chosen, strict=True)
    ]
    order = sorted(range(len(tasks)), key=lambda place: (begun[place], place))
    found = schedule.earliest(tasks, options, order, gpus)
    if not found.late_s(tasks):  # in whole ticks, a chain takes at most one more for each task
        bound_s = max(bound_s, (solver.best_objective_bound - len(tasks)) * tick_s)
    return found, bound_s


def _add_redundant(
    model: Any,
    tasks: Sequence[PlanTask],
    sizes: Sequence[Sequence[int]],
    chosen: Sequence[Sequence[Any]],
    makespan: Any,
    horizon: int,
    gpus: int,
) -> None:
    """Add what follows from the intervals, but not soon: all tasks fit on the GPUs; and nothing
    runs beside tasks that take all GPUs, so that any chain of the
    others ends within the rest of the makespan.
    """
    areas = []
    wholes = []
    lasting = []
    for task, own, taken in zip(tasks, sizes, chosen, strict=True):
        each = [*zip(task.options, own, taken, strict=True)]
        areas += [option.gpus * size * is_taken for option, size, is_taken in each]
        wholes += [size * is_taken for option, size, is_taken in each if option.gpus == gpus]
        lasting.append(
            sum(size * is_taken for option, size, is_taken in each if option.gpus < gpus)
        )
    model.add(sum(areas) <= gpus * makespan)
    begins = [model.new_int_var(0, horizon, f"begin {place}") for place in range(len(tasks))]
    for place, task in enumerate(tasks):
        model.add(begins[place] + lasting[place] + sum(wholes) <= makespan)
        for other in task.after:
            model.add(begins[place] >= begins[other] + lasting[other])


def _searched(model: Any, limit_s: float) -> tuple[Any, Any]:
    """The solver after its search, which Ctrl-C ends at once, and its status."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(limit_s, 0.1)
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = 0
    solver.parameters.absolute_gap_limit = GAP * TICKS
    # else Ctrl-C ends the search alone, and the plan is carried out
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        try:
            return solver, pool.submit(solver.solve, model).result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
