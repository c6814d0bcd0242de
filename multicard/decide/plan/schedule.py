"""Tasks with their choices of GPUs, schedules of them, and bounds that no schedule beats. No solver."""

import math
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from multicard.records.schema_parts import Interval

SAME_S = 1e-6  # seconds by which sums of the same times may differ


@dataclass(frozen=True)
class Option:
    """A number of GPUs that a task may run on.

    Fields:
        alone_s: what is planned with: an upper quantile of the time while nothing else runs.
        planned_s: the same beside other tasks all the time, where GPUs are left for them.
        interval: the time alone, with its 90 % interval.
    """

    gpus: int
    planned_s: float
    alone_s: float
    interval: Interval
    joules: float | None = None
    basis: str = "given"


@dataclass(frozen=True)
class Task:
    """One run of a job.

    after: places of the tasks that end before it begins. deadline_s: from the start on; below 0 where it has passed.
    """

    name: str
    options: tuple[Option, ...]
    after: tuple[int, ...] = ()
    deadline_s: float | None = None
    job: str = ""


@dataclass(frozen=True)
class Placed:
    """A task in a schedule."""

    option: Option
    start_s: float
    end_s: float
    gpu_ids: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """Where and when each task runs, in the order of the tasks."""

    placed: tuple[Placed, ...]

    @property
    def makespan_s(self) -> float:
        return max((each.end_s for each in self.placed), default=0.0)

    def order(self) -> list[int]:
        """Places of the tasks by their start."""
        return sorted(range(len(self.placed)), key=lambda place: (self.placed[place].start_s, place))

    def late_s(self, tasks: Sequence[Task]) -> dict[int, float]:
        """By how much tasks end after their deadline, of those that do."""
        late = {}
        for place, (task, each) in enumerate(zip(tasks, self.placed, strict=True)):
            if task.deadline_s is not None and each.end_s > task.deadline_s + SAME_S:
                late[place] = each.end_s - task.deadline_s
        return late

    def joules(self) -> float | None:
        """Of all tasks; None where one is not known."""
        known = [each.option.joules for each in self.placed if each.option.joules is not None]
        return math.fsum(known) if len(known) == len(self.placed) else None


def earliest(
    tasks: Sequence[Task], chosen: Sequence[Option], order: Iterable[int], gpus: int, alone: bool = False
) -> Schedule:
    """The schedule in which each task, in this order, begins as soon as GPUs are free for all of it.

    Where the order is by the starts of another schedule, none begins later than there.

    Args:
        order: places of all tasks, each after those that it waits for.
        alone: one task at a time, in this order.
    """
    spans: dict[int, tuple[float, float]] = {}
    for place in order:
        option = chosen[place]
        lasting = option.alone_s if alone else option.planned_s
        ready = max((spans[other][1] for other in tasks[place].after), default=0.0)
        if alone:
            start = max((end for _, end in spans.values()), default=0.0)
        else:
            start = _first_gap(spans, chosen, ready, lasting, option.gpus, gpus)
        spans[place] = start, start + lasting
    return numbered(chosen, [spans[place] for place in range(len(tasks))], gpus)


def _first_gap(
    spans: Mapping[int, tuple[float, float]],
    chosen: Sequence[Option],
    ready: float,
    lasting: float,
    wanted: int,
    gpus: int,
) -> float:
    """The first time from `ready` on at which so many GPUs stay free for so long."""
    changes = [(start, chosen[place].gpus) for place, (start, _) in spans.items()]
    changes += [(end, -chosen[place].gpus) for place, (_, end) in spans.items()]
    busy = sum(change for moment, change in changes if moment <= ready)
    begin = ready if busy + wanted <= gpus else None
    later = sorted(change for change in changes if change[0] > ready)
    for moment, together in groupby(later, key=lambda change: change[0]):
        if begin is not None and moment >= begin + lasting - SAME_S:
            break
        busy += sum(change for _, change in together)
        if busy + wanted > gpus:
            begin = None
        elif begin is None:
            begin = moment
    assert begin is not None, "a task that wants more GPUs than there are"
    return begin


def numbered(chosen: Sequence[Option], spans: Sequence[tuple[float, float]], gpus: int) -> Schedule:
    """The schedule of these starts and ends, each task on the first GPUs that are free then."""
    free = list(range(gpus))
    running: list[tuple[float, tuple[int, ...]]] = []
    ids: dict[int, tuple[int, ...]] = {}
    for place in sorted(range(len(spans)), key=lambda place: (spans[place][0], place)):
        start, end = spans[place]
        while running and running[0][0] <= start + SAME_S:
            free = sorted([*free, *running.pop(0)[1]])
        ids[place] = tuple(free[: chosen[place].gpus])
        assert len(ids[place]) == chosen[place].gpus, "more GPUs at once than there are"
        del free[: chosen[place].gpus]
        insort(running, (end, ids[place]))
    return Schedule(tuple(Placed(chosen[place], *spans[place], ids[place]) for place in range(len(spans))))


def by_need(tasks: Sequence[Task], chosen: Sequence[Option]) -> list[int]:
    """Places of the tasks, each after those that it waits for: the longest way to the end first."""
    followers = followers_of(tasks)
    need: dict[int, float] = {}
    for place in reversed(topological(tasks)):
        tail = max((need[other] for other in followers[place]), default=0.0)
        need[place] = chosen[place].planned_s + tail
    return ready_first(tasks, lambda place: (-need[place], -chosen[place].gpus, place))


def followers_of(tasks: Sequence[Task]) -> list[list[int]]:
    """Of each task, those that wait for it."""
    followers: list[list[int]] = [[] for _ in tasks]
    for place, task in enumerate(tasks):
        for other in task.after:
            followers[other].append(place)
    return followers


def topological(tasks: Sequence[Task]) -> list[int]:
    return ready_first(tasks, lambda place: (place,))


def ready_first(tasks: Sequence[Task], key: Callable[[int], Any]) -> list[int]:
    """Places of the tasks by a key, each after those that it waits for."""
    left, order = set(range(len(tasks))), list[int]()
    while left:
        place = min((place for place in left if not left & {*tasks[place].after}), key=key)
        order.append(place)
        left.remove(place)
    return order


def lower_bound_s(tasks: Sequence[Task], gpus: int) -> float:
    """A makespan that no schedule beats: that of the longest chain of tasks, each at its fastest and alone, and the
    least T at which the GPUs have room for all tasks, each in the least GPU seconds that it can do with within T."""
    return max(_critical_path_s(tasks), _area_s(tasks, gpus))


def area_s(option: Option, gpus: int) -> float:
    """The least GPU seconds that a task takes from others, of so many GPUs: beside others it is slower, and while it is
    alone, those GPUs idle that it leaves."""
    return min(option.gpus * option.planned_s, gpus * option.alone_s)


def _critical_path_s(tasks: Sequence[Task]) -> float:
    ends: dict[int, float] = {}
    for place in topological(tasks):
        task = tasks[place]
        ready = max((ends[other] for other in task.after), default=0.0)
        ends[place] = ready + min(option.alone_s for option in task.options)
    return max(ends.values(), default=0.0)


def _area_s(tasks: Sequence[Task], gpus: int) -> float:
    """Each longer T allows more options, so the bound is the first T that is not below its own area."""
    limits = sorted({option.alone_s for task in tasks for option in task.options})
    least = max((min(option.alone_s for option in task.options) for task in tasks), default=0.0)
    for limit, following in zip(limits, [*limits[1:], math.inf], strict=True):
        if limit < least:
            continue
        areas = (min(area_s(option, gpus) for option in task.options if option.alone_s <= limit) for task in tasks)
        bound = max(limit, math.fsum(areas) / gpus)
        if bound < following:
            return bound
    return least
