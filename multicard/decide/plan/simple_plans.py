"""Plans that need no solver: those that people make by hand, and one that is often good."""

import math
from collections.abc import Sequence

from multicard.decide.plan.schedule import Option, Schedule, Task, by_need, earliest, numbered, ready_first

MOST_LENGTHS = 50  # that are tried, evenly among those of the options


def in_turn(tasks: Sequence[Task], gpus: int) -> Schedule:
    """One task after the other, each on as many GPUs as make it fastest, the earliest deadline first; tasks that run
    already go on first."""
    chosen = [min(task.options, key=lambda option: (option.planned_alone_s, option.gpus)) for task in tasks]
    deadlines = [math.inf if task.deadline_s is None else task.deadline_s for task in tasks]
    spans = [(0.0, option.planned_s if task.held else 0.0) for task, option in zip(tasks, chosen, strict=True)]
    now_s = max((end_s for _, end_s in spans), default=0.0)
    for place in ready_first(tasks, lambda place: (deadlines[place], place)):
        if not tasks[place].held:
            spans[place] = now_s, now_s + chosen[place].planned_alone_s
            now_s = spans[place][1]
    return numbered(tasks, chosen, spans, gpus)


def one_gpu_each(tasks: Sequence[Task], gpus: int) -> Schedule:
    """Each task on the fewest GPUs that it may have, the longest first."""
    chosen = [min(task.options, key=lambda option: option.gpus) for task in tasks]
    return earliest(tasks, chosen, by_need(tasks, chosen), gpus)


def balanced(tasks: Sequence[Task], gpus: int) -> Schedule:
    """For each length that a task may have: every task in the fewest GPU seconds that are no longer, the longest first.
    Of these schedules that with the least makespan (Turek et al. 1992, SPAA '92, choose so for moldable tasks)."""
    lengths = sorted({option.planned_s for task in tasks for option in task.options})
    schedules = []
    for limit in lengths[:: -(-len(lengths) // MOST_LENGTHS)]:
        chosen = [within(task, limit) for task in tasks]
        schedules.append(earliest(tasks, chosen, by_need(tasks, chosen), gpus))
    return min(schedules, key=lambda schedule: schedule.makespan_s)


def within(task: Task, limit: float) -> Option:
    """The option of the fewest GPU seconds that is no longer; the fastest where all are."""
    short = [option for option in task.options if option.planned_s <= limit]
    if not short:
        return min(task.options, key=lambda option: option.planned_s)
    return min(short, key=lambda option: option.gpus * option.planned_s)
