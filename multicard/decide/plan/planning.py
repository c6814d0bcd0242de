"""A plan: the best schedule that the solver and the simple plans find, with what it is compared with."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from multicard.decide.plan import outcomes, simple_plans, solver
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.schedule import Schedule, Task, by_need, earliest
from multicard.records.schema_parts import Interval

EVEN = 1e-9  # relative, below which a schedule is no better than another
BOUND_SHARE = 0.1  # of the time, for the bound of plans with deadlines, which the search itself does not tell


@dataclass(frozen=True)
class Plan:
    """A schedule of tasks on a node.

    Fields:
        bound_s: a makespan that no schedule beats. Without deadlines, none that takes no more energy where that is the
            goal; with deadlines that this schedule keeps, none that keeps them too.
        expected: the median makespan with its 90 % interval; `schedule` has upper quantiles.
        in_turn, one_gpu_each: the simple plans. proven: the goals of which it is known that no schedule is better.
    """

    tasks: tuple[Task, ...]
    gpus: int
    goal: Goal
    schedule: Schedule
    bound_s: float
    expected: Interval
    in_turn: Schedule
    one_gpu_each: Schedule
    proven: frozenset[str] = frozenset()

    @property
    def gap(self) -> float:
        """How much longer the makespan is than its bound, relative to the makespan."""
        makespan_s = self.schedule.makespan_s
        return max(1 - self.bound_s / makespan_s, 0.0) if makespan_s else 0.0


def make(
    tasks: Sequence[Task],
    gpus: int,
    goal: Goal,
    slowdown: Interval,
    limit_s: float = solver.LIMIT_S,
    seed: int = 0,
    workers: int = solver.WORKERS,
) -> Plan:
    """The plan of these tasks; never worse than the simple plans.

    The solver takes each task that leaves GPUs for others to be slower all the time. Which plan is the best is judged
    by what becomes of each where tasks are slower only while others run (`outcomes.timed`).

    Raises:
        ValueError: OR-Tools is not installed.
    """
    known = [simple(tasks, gpus) for simple in (simple_plans.in_turn, simple_plans.one_gpu_each, simple_plans.balanced)]
    if goal is Goal.energy:
        known.append(_least_energy(tasks, gpus))
    hint = min(known[1:], key=lambda schedule: cost(schedule, tasks, goal))
    has_deadlines = any(task.deadline_s is not None for task in tasks)
    search_s = limit_s * (1 - BOUND_SHARE if has_deadlines else 1)
    solution = solver.solve(tasks, gpus, goal, hint, search_s, seed, workers)
    timed = [outcomes.timed(tasks, schedule, slowdown.value) for schedule in (*known, solution.schedule)]
    best = min(timed, key=lambda schedule: cost(schedule, tasks, goal))  # the first, where the solver's is no better
    bound_s = solution.bound_s
    if has_deadlines:
        bound_s = max(bound_s, solver.bound_s(tasks, gpus, best, limit_s * BOUND_SHARE, seed, workers))
    bound_s = min(bound_s, best.makespan_s)  # which differ by rounding where the plan is the best there is
    expected = outcomes.makespan(tasks, best, slowdown, seed)
    is_slowed = any(option.planned_s > option.alone_s for task in tasks for option in task.options)
    proven = frozenset[str]() if is_slowed else solution.proven  # which is so by the solver's times
    return Plan(tuple(tasks), gpus, goal, best, bound_s, expected, timed[0], timed[1], proven)


def cost(schedule: Schedule, tasks: Sequence[Task], goal: Goal) -> tuple[float, ...]:
    """What a goal makes least, in this order: first of all the delay."""
    late_s = math.fsum(schedule.late_s(tasks).values())
    own: tuple[float, ...] = ()
    if goal is Goal.energy:
        own = (schedule.joules() or math.inf,)
    if goal is Goal.deadline:
        own = (least_slack_s(schedule, tasks),)
    ends = math.fsum(placed.end_s for placed in schedule.placed)
    return tuple(float(f"{figure:.9g}") for figure in (late_s, *own, schedule.makespan_s, ends))


def least_slack_s(schedule: Schedule, tasks: Sequence[Task]) -> float:
    """How near any task comes to its deadline, in seconds after it; 0 where those that have one are done."""
    pairs = zip(tasks, schedule.placed, strict=True)
    return max((placed.end_s - task.deadline_s for task, placed in pairs if task.deadline_s is not None), default=0.0)


def _least_energy(tasks: Sequence[Task], gpus: int) -> Schedule:
    chosen = [min(task.options, key=lambda option: option.joules or math.inf) for task in tasks]
    return earliest(tasks, chosen, by_need(tasks, chosen), gpus)
