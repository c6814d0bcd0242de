"""The numbers of GPUs with which the cells of a packed sweep end soonest, for `gpus=auto`."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence

from multicard.decide.plan import durations, planning
from multicard.decide.plan.jobs_file import SLOWDOWN, Goal
from multicard.decide.plan.runs import START
from multicard.decide.plan.schedule import Option, Task
from multicard.decide.plan.simple_plans import within
from multicard.estimate.totals import summed
from multicard.records.schema_parts import Interval

LIMIT_S = 5.0
MOST_PLANNED = 100  # runs; simple plans of more take longer than the search for a better one
PLANNED = "the least time for all, by predictions"
WORK = f"the least work that ends in time with the others, by predictions; above {MOST_PLANNED} runs none is planned"


def pick(cells: Sequence[tuple[Mapping[int, Interval], int]], gpus: int) -> tuple[list[int], str]:
    """The number of each cell, of those that its runs have in the plan the most frequent one, and why.

    Args:
        cells: the predicted seconds of each, by number of GPUs, and how many runs it stands for. gpus: that there are.

    Raises:
        ValueError: OR-Tools is not installed.
    """
    tasks: list[Task] = []
    for place, (seconds, runs) in enumerate(cells):
        timed = {number: summed([own, START]) for number, own in seconds.items()}
        options = tuple(durations.option(number, own, gpus, SLOWDOWN) for number, own in timed.items())
        tasks += [Task(f"{place}#{run}", options, job=str(place)) for run in range(runs)]
    chosen, why = least_work(tasks, gpus), WORK
    if len(tasks) <= MOST_PLANNED:
        plan, why = planning.make(tasks, gpus, Goal.makespan, LIMIT_S), PLANNED
        chosen = [placed.option for placed in plan.schedule.placed]
    numbers: list[list[int]] = [[] for _ in cells]
    for task, option in zip(tasks, chosen, strict=True):
        numbers[int(task.job)].append(option.gpus)
    return [max(sorted(own), key=own.count) for own in numbers], why  # of several the least: it leaves most to others


def least_work(tasks: Sequence[Task], gpus: int) -> list[Option]:
    """Each task in the fewest GPU seconds that are no longer than all of them take the GPUs.

    Args:
        tasks: that wait for no others.
    """

    def fits(limit_s: float) -> bool:
        work_s = math.fsum(option.gpus * option.planned_s for option in (within(task, limit_s) for task in tasks))
        return work_s <= gpus * limit_s

    least_s = max(min(option.planned_s for option in task.options) for task in tasks)
    limits = sorted({option.planned_s for task in tasks for option in task.options if option.planned_s >= least_s})
    limit_s = limits[min(bisect_left(limits, True, key=fits), len(limits) - 1)]  # the longer, the less work
    return [within(task, limit_s) for task in tasks]
