"""Find the best schedule by constraint programming (OR-Tools' CP-SAT) and by simple rules.

The plan has a bound on the makespan. Times are whole ticks, rounded up, so that every solution is a
valid schedule.
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

TICKS = 100_000  # The makespan that is to be beaten has this many ticks.
LIMIT_S = 10.0
# A few more workers than cores: they search in different ways, and some only improve the bound.
WORKERS = 8
GAP = 1e-4  # The search ends at this gap, as a share of the makespan.
LATE = 1000  # A second of delay counts as much as this many seconds of makespan.


@dataclass(frozen=True)
class Plan:
    """A schedule of tasks on a node.

    Fields:
        bound_s: a makespan that no schedule beats. If this schedule keeps all deadlines, then no
            schedule that keeps them beats it.
        likely: median makespan with its 90 % interval. `schedule` uses upper quantiles instead.
        likely_as_busy: the same if other programs stay as busy as during the runs behind the times;
            None if that is not known.
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
    """Plan tasks around the tasks that run already.

    The plan is never worse than the simple schedules (see `solve`).
    """
    in_turn = schedule.in_turn(tasks, gpus)
    one_gpu_each = schedule.one_gpu_each(tasks, gpus)
    simple_schedules = [one_gpu_each, *schedule.balanced_schedules(tasks, gpus)]
    found_schedule, bound_s = solve(
        tasks, gpus, min(simple_schedules, key=lambda candidate: cost(candidate, tasks)), limit_s
    )
    # Rounding makes equal schedules tie, and `min` then takes the first.
    best = min(
        (in_turn, *simple_schedules, found_schedule),
        key=lambda candidate: float(f"{cost(candidate, tasks):.9g}"),
    )
    # The bound may be above the makespan by rounding, or because it includes the slowdown, which
    # `in_turn` does not have.
    bound_s = min(bound_s, best.makespan_s)
    likely = best.likely(tasks)
    likely_as_busy = best.likely_as_busy(tasks)
    return Plan(tuple(tasks), gpus, best, bound_s, likely, in_turn, one_gpu_each, likely_as_busy)


def cost(candidate: Schedule, tasks: Sequence[PlanTask]) -> float:
    """Return the number that a plan minimizes, in seconds.

    It is the makespan, and 1,000 s for each second of delay.
    """
    return LATE * math.fsum(candidate.late_s(tasks).values()) + candidate.makespan_s


def _precedences(tasks: Sequence[PlanTask]) -> Iterator[tuple[int, int]]:
    """Yield each task's place with the place of a task that must end before it."""
    for place, task in enumerate(tasks):
        for other in task.after:
            yield place, other


def solve(
    tasks: Sequence[PlanTask], gpus: int, known: Schedule, limit_s: float
) -> tuple[Schedule, float]:
    """Search for the best schedule, starting from a known one.

    Returns:
        The schedule, and a makespan that no schedule beats.

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
        [max(math.ceil(option.planned_s / tick_s), 1) for option in task.options] for task in tasks
    ]
    deadlines_s = {
        place: task.deadline_s for place, task in enumerate(tasks) if task.deadline_s is not None
    }
    limits = {place: math.floor(deadline_s / tick_s) for place, deadline_s in deadlines_s.items()}
    horizon = TICKS + len(tasks)
    if limits:  # With deadlines, a longer schedule may be the better one.
        horizon = max(sum(map(max, sizes)), horizon)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")
    starts = []
    ends = []
    task_option_vars = []
    intervals = []
    demands = []
    for place, (task, task_sizes) in enumerate(zip(tasks, sizes, strict=True)):
        start = model.new_int_var(0, 0 if task.held else horizon, f"start {place}")
        option_vars = [
            model.new_bool_var(f"option {place} {number}") for number in range(len(task_sizes))
        ]
        model.add_exactly_one(option_vars)
        for option, size, option_var in zip(task.options, task_sizes, option_vars, strict=True):
            name = f"interval {place} {option.gpus}"
            intervals.append(
                model.new_optional_fixed_size_interval_var(start, size, option_var, name)
            )
            demands.append(option.gpus)
        starts.append(start)
        task_option_vars.append(option_vars)
        ends.append(
            start
            + sum(
                size * option_var for size, option_var in zip(task_sizes, option_vars, strict=True)
            )
        )
        model.add(ends[-1] <= makespan)
    model.add_cumulative(intervals, demands, gpus)
    for place, other in _precedences(tasks):
        model.add(starts[place] >= ends[other])
    _add_redundant(model, tasks, sizes, task_option_vars, makespan, horizon, gpus)
    for place, (task, other) in enumerate(pairwise(tasks)):
        # Runs of a job are interchangeable, so the solver need not try both orders.
        if replace(task, name="") == replace(other, name=""):
            model.add(starts[place] <= starts[place + 1])
    delays = {
        place: model.new_int_var(0, horizon + max(-limit, 0), "delay")
        for place, limit in limits.items()
    }
    for place, delay in delays.items():
        model.add(delay >= ends[place] - limits[place])
    model.minimize(LATE * sum(delays.values()) + makespan)
    for task, placed, start, option_vars in zip(
        tasks, known.placed, starts, task_option_vars, strict=True
    ):
        model.add_hint(start, round(placed.start_s / tick_s))
        for option, option_var in zip(task.options, option_vars, strict=True):
            model.add_hint(option_var, option.gpus == placed.option.gpus)

    solver, status = _search(model, limit_s)
    bound_s = schedule.lower_bound_s(tasks, gpus)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return known, bound_s
    start_ticks = [solver.value(start) for start in starts]
    options = [
        task.options[[*map(solver.value, option_vars)].index(1)]
        for task, option_vars in zip(tasks, task_option_vars, strict=True)
    ]
    order = sorted(range(len(tasks)), key=lambda place: (start_ticks[place], place))
    found_schedule = schedule.earliest_schedule(tasks, options, order, gpus)
    if not found_schedule.late_s(tasks):  # In ticks, a chain takes at most one more for each task.
        bound_s = max(bound_s, (solver.best_objective_bound - len(tasks)) * tick_s)
    return found_schedule, bound_s


def _add_redundant(
    model: Any,
    tasks: Sequence[PlanTask],
    sizes: Sequence[Sequence[int]],
    task_option_vars: Sequence[Sequence[Any]],
    makespan: Any,
    horizon: int,
    gpus: int,
) -> None:
    """Add redundant constraints, which the solver would derive too late from the intervals.

    All tasks fit on the GPUs. Nothing runs beside tasks that take all GPUs, so any chain of the
    other tasks ends within the rest of the makespan.
    """
    areas = []
    full_node_ticks = []
    partial_node_ticks = []
    for task, task_sizes, option_vars in zip(tasks, sizes, task_option_vars, strict=True):
        task_options = [*zip(task.options, task_sizes, option_vars, strict=True)]
        areas += [option.gpus * size * option_var for option, size, option_var in task_options]
        full_node_ticks += [
            size * option_var for option, size, option_var in task_options if option.gpus == gpus
        ]
        partial_node_ticks.append(
            sum(
                size * option_var for option, size, option_var in task_options if option.gpus < gpus
            )
        )
    model.add(sum(areas) <= gpus * makespan)
    begins = [model.new_int_var(0, horizon, f"begin {place}") for place in range(len(tasks))]
    for place, task in enumerate(tasks):
        model.add(begins[place] + partial_node_ticks[place] + sum(full_node_ticks) <= makespan)
        for other in task.after:
            model.add(begins[place] >= begins[other] + partial_node_ticks[other])


def _search(model: Any, limit_s: float) -> tuple[Any, Any]:
    """Run the search, which Ctrl-C ends at once. Return the solver and its status."""
    from ortools.sat.python import cp_model

    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(limit_s, 0.1)
    solver.parameters.num_workers = WORKERS
    solver.parameters.random_seed = 0
    solver.parameters.absolute_gap_limit = GAP * TICKS
    # Otherwise Ctrl-C would end only the search, and the plan would be carried out.
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        try:
            return solver, pool.submit(solver.solve, model).result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise
