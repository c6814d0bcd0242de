"""A plan: the best schedule that the solver and the simple plans find, with what it is compared with."""

from collections.abc import Sequence
from dataclasses import dataclass

from multicard.decide.plan import simple_plans, solver
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.schedule import Option, Schedule, Task, earliest
from multicard.records.schema_parts import Interval


@dataclass(frozen=True)
class Plan:
    """A schedule of tasks on a node.

    Fields:
        bound_s: a makespan that no schedule beats; none that keeps the deadlines too, where this one does.
        likely: the median makespan with its 90 % interval; `schedule` has upper quantiles.
        in_turn, one_gpu_each: the simple plans.
        is_proven: it is known that no schedule is better.
    """

    tasks: tuple[Task, ...]
    gpus: int
    goal: Goal
    schedule: Schedule
    bound_s: float
    likely: Interval
    in_turn: Schedule
    one_gpu_each: Schedule
    is_proven: bool = False

    @property
    def gap(self) -> float:
        """How much longer the makespan is than its bound, relative to the makespan."""
        makespan_s = self.schedule.makespan_s
        return max(1 - self.bound_s / makespan_s, 0.0) if makespan_s else 0.0


def make(
    tasks: Sequence[Task],
    gpus: int,
    goal: Goal,
    limit_s: float = solver.LIMIT_S,
    seed: int = 0,
    workers: int = solver.WORKERS,
    before: Sequence[tuple[int, Option]] = (),
) -> Plan:
    """The plan of these tasks, around those that run already; never worse than the simple plans, nor than the plan so
    far.

    Args:
        before: place and option of each task in the order of the plan so far; empty where there is none.

    Raises:
        ValueError: OR-Tools is not installed.
    """
    in_turn, one_gpu_each = simple_plans.in_turn(tasks, gpus), simple_plans.one_gpu_each(tasks, gpus)
    known = [one_gpu_each, simple_plans.balanced(tasks, gpus)]
    if before:
        chosen = dict(before)
        options = [chosen[place] for place in range(len(tasks))]
        known.append(earliest(tasks, options, [place for place, _ in before], gpus))
    hint = min(known, key=lambda schedule: solver.cost(schedule, tasks, goal))
    solution = solver.solve(tasks, gpus, goal, hint, limit_s, seed, workers)
    found = (in_turn, *known, solution.schedule)
    best = min(found, key=lambda schedule: float(f"{solver.cost(schedule, tasks, goal):.9g}"))  # the first of several
    bound_s = min(solution.bound_s, best.makespan_s)  # which differ by rounding where the plan is the best there is
    likely = best.likely(tasks, seed)
    return Plan(tuple(tasks), gpus, goal, best, bound_s, likely, in_turn, one_gpu_each, solution.is_proven)
