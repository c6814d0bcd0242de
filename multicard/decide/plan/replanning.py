"""A plan of what is left, around tasks that run: they keep their GPUs until they are expected to end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from multicard.decide.plan import outcomes, planning
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.schedule import SAME_S, Option, Schedule, Task, earliest
from multicard.records.schema_parts import Interval

LEARNED = 1.1  # to either side of a time that follows from that of another run of the job
LEAST_LEFT_S = 1.0  # of a task that runs, however long it was expected to


@dataclass(frozen=True)
class Occupied:
    """GPUs of a task that runs, and for how long yet, beside others where it leaves GPUs for them."""

    gpu_ids: tuple[int, ...]
    left_s: float


def make(
    tasks: Sequence[Task],
    running: Mapping[int, Occupied],
    before: Sequence[tuple[int, Option]],
    gpus: int,
    goal: Goal,
    slowdown: Interval,
    limit_s: float,
    seed: int = 0,
) -> Schedule:
    """The best schedule that is found from now on.

    The solver and the simple plans know no task that runs: their options and order, and those of the plan so far, are
    laid around it, and the best of these is taken.

    Args:
        tasks: what has not ended.
        running: those that run, by their place in `tasks`.
        before: place and option of those that wait, in the order of the plan so far; not all need to be there.
    """
    tasks = [
        _fixed(task, running[place], slowdown.value if len(running[place].gpu_ids) < gpus else 1.0)
        if place in running
        else task
        for place, task in enumerate(tasks)
    ]
    plan = planning.make(tasks, gpus, goal, slowdown, limit_s, seed)
    if not running:
        return plan.schedule
    found = (plan.schedule, plan.one_gpu_each, plan.in_turn)
    ways = [[(place, known.placed[place].option) for place in known.order()] for known in found]
    waiting = {*range(len(tasks))} - {*running}
    if {place for place, _ in before} == waiting and all(option in tasks[place].options for place, option in before):
        ways.append([*before])
    schedules = [outcomes.timed(tasks, _around(tasks, running, way, gpus), slowdown.value) for way in ways]
    return min(schedules, key=lambda schedule: planning.cost(schedule, tasks, goal))


def _fixed(task: Task, occupied: Occupied, slowdown: float) -> Task:
    """A task that runs: what is left of it, on its GPUs."""
    left_s = max(occupied.left_s, LEAST_LEFT_S)
    alone_s = left_s / slowdown
    same = Interval(alone_s, alone_s, alone_s)
    joules = None if task.options[0].joules is None else 1e-9  # is spent, however the rest is planned
    return replace(task, options=(Option(len(occupied.gpu_ids), left_s, alone_s, same, joules),), after=())


def _around(
    tasks: Sequence[Task], running: Mapping[int, Occupied], way: Sequence[tuple[int, Option]], gpus: int
) -> Schedule:
    """The tasks that run, from now on, and the others in this order, each as soon as GPUs are free for it: first those
    on which nothing runs now, as nobody knows when it ends."""
    chosen = {place: tasks[place].options[0] for place in running} | {
        place: option for place, option in way if place not in running
    }
    order = [*running, *(place for place, _ in way if place not in running)]
    options = [chosen[place] for place in range(len(tasks))]
    spans = earliest(tasks, options, order, gpus).placed
    taken = {gpu for each in running.values() for gpu in each.gpu_ids}
    free = [gpu for gpu in range(gpus) if gpu not in taken]
    ids = {place: each.gpu_ids for place, each in running.items()}
    busy = [(spans[place].end_s, ids[place]) for place in running]
    for place in sorted(order[len(running) :], key=lambda place: spans[place].start_s):
        for ending in [each for each in busy if each[0] <= spans[place].start_s + SAME_S]:
            busy.remove(ending)
            free = sorted([*free, *ending[1]], key=lambda gpu: (gpu in taken, gpu))
        ids[place], free = tuple(sorted(free[: options[place].gpus])), free[options[place].gpus :]
        busy.append((spans[place].end_s, ids[place]))
    return Schedule(tuple(replace(placed, gpu_ids=ids[place]) for place, placed in enumerate(spans)))


def scaled(option: Option, ratio: float) -> Option:
    """An option whose times are so much longer, as another run of the job showed."""
    pace = option.planned_s / option.alone_s
    value = option.interval.value * ratio
    interval = Interval(value, value / LEARNED, value * LEARNED)
    return replace(option, interval=interval, alone_s=value, planned_s=value * pace)
