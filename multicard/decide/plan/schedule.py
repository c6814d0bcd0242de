"""Tasks with their choices of GPUs, schedules of them, and a bound that no schedule beats. No solver."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multicard.estimate.time.known import NORMAL_90
from multicard.records.schema_parts import Interval

SAME_S = 1e-6  # seconds by which sums of the same times may differ
DRAWS = 400
SHARED = 0.5  # of the variance of a logarithm: what makes one prediction wrong makes others wrong in its direction


@dataclass(frozen=True)
class Option:
    """A number of GPUs that a task may run on.

    Fields:
        planned_s: an upper quantile of its time, longer where it leaves GPUs for others.
        interval: the same time as it is likely, with its 90 % interval.
        alone_s: the median time while nothing else runs.
    """

    gpus: int
    planned_s: float
    interval: Interval
    alone_s: float
    basis: str = "given"

    @property
    def planned_alone_s(self) -> float:
        """`planned_s` where nothing else runs."""
        return self.planned_s * self.alone_s / self.interval.value


@dataclass(frozen=True)
class Task:
    """One run of a job.

    Fields:
        after: places of the tasks that end before it begins.
        deadline_s: from the start on; below 0 where it has passed.
        held: the GPUs of a task that runs already. It has one option, whose times are what is left of it.
    """

    name: str
    options: tuple[Option, ...]
    after: tuple[int, ...] = ()
    deadline_s: float | None = None
    job: str = ""
    held: tuple[int, ...] = ()


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
        """Delays of the tasks that end after their deadline."""
        late = {}
        for place, (task, each) in enumerate(zip(tasks, self.placed, strict=True)):
            if task.deadline_s is not None and each.end_s > task.deadline_s + SAME_S:
                late[place] = each.end_s - task.deadline_s
        return late

    def waits(self, tasks: Sequence[Task]) -> list[set[int]]:
        """For each task, those that end before it begins: the ones that it comes after, and the last on its GPUs."""
        before = [{*task.after} for task in tasks]
        last: dict[int, int] = {}
        for place in self.order():
            before[place] |= {last[gpu] for gpu in self.placed[place].gpu_ids if gpu in last}
            last |= dict.fromkeys(self.placed[place].gpu_ids, place)
        return before

    def likely(self, tasks: Sequence[Task], seed: int = 0) -> Interval:
        """The median makespan and its 90 % interval, by times drawn at random; tasks keep their GPUs and their order
        on them, and begin as soon as those before them have ended."""
        generator = np.random.default_rng(seed)
        shared, own = generator.standard_normal((DRAWS, 1)), generator.standard_normal((DRAWS, len(tasks)))
        normal = math.sqrt(SHARED) * shared + math.sqrt(1 - SHARED) * own
        before, ends = self.waits(tasks), np.zeros((DRAWS, len(tasks)))
        for place in self.order():
            ready = ends[:, [*before[place]]].max(axis=1, initial=0.0)
            ends[:, place] = ready + quantile(self.placed[place].option.interval, normal[:, place])
        low, value, high = np.quantile(ends.max(axis=1, initial=0.0), [0.05, 0.5, 0.95]).tolist()
        return Interval(value, low, high)


def quantile(interval: Interval, normal: Any) -> Any:
    """Quantiles of a time whose logarithm is normal to each side of its value.

    Args:
        normal: the same quantiles of a standard normal variable; a number or an array.
    """
    below, above = (math.log(end / interval.value) / NORMAL_90 for end in (interval.low, interval.high))
    return interval.value * np.exp(np.where(np.asarray(normal) > 0, normal * above, -normal * below))


def earliest(tasks: Sequence[Task], chosen: Sequence[Option], order: Iterable[int], gpus: int) -> Schedule:
    """The schedule in which each task, in this order, begins as soon as GPUs are free for all of it; tasks that run
    already go on at once.

    Where the order is by the starts of another schedule, none begins later than there.

    Args:
        order: places of all tasks, each after those that it waits for.
    """
    spans = {place: (0.0, chosen[place].planned_s) for place, task in enumerate(tasks) if task.held}
    for place in order:
        if place not in spans:
            option = chosen[place]
            changes = [(start, chosen[other].gpus) for other, (start, _) in spans.items()]
            changes += [(end, -chosen[other].gpus) for other, (_, end) in spans.items()]
            ready = max((spans[other][1] for other in tasks[place].after), default=0.0)
            start = _first_gap(sorted(changes), ready, option.planned_s, gpus - option.gpus)
            spans[place] = start, start + option.planned_s
    return numbered(tasks, chosen, [spans[place] for place in range(len(tasks))], gpus)


def _first_gap(changes: Sequence[tuple[float, int]], ready: float, lasting: float, most: int) -> float:
    """The first time from `ready` on at which no more than `most` GPUs are busy for as long as `lasting`.

    Args:
        changes: of the number of busy GPUs, by their time.
    """
    begin, busy = ready if most >= 0 else None, 0
    for moment, change in changes:
        if begin is not None and moment >= begin + lasting - SAME_S:
            break
        busy += change
        if busy > most:
            begin = None
        elif begin is None:
            begin = max(moment, ready)
    assert begin is not None, "a task that wants more GPUs than there are"
    return begin


def numbered(
    tasks: Sequence[Task], chosen: Sequence[Option], spans: Sequence[tuple[float, float]], gpus: int
) -> Schedule:
    """The schedule of these starts and ends, each task on the first GPUs that are free then; those on which nothing
    runs now come first, as nobody knows when what runs will end."""
    ids = {place: task.held for place, task in enumerate(tasks) if task.held}
    taken = {gpu for held in ids.values() for gpu in held}
    free = [gpu for gpu in range(gpus) if gpu not in taken]
    running = [(spans[place][1], held) for place, held in ids.items()]
    for place in sorted({*range(len(tasks))} - {*ids}, key=lambda place: (spans[place][0], place)):
        start, end = spans[place]
        free += [gpu for until, held in running if until <= start + SAME_S for gpu in held]
        running = [each for each in running if each[0] > start + SAME_S]
        free.sort(key=lambda gpu: (gpu in taken, gpu))
        wanted = chosen[place].gpus
        assert len(free) >= wanted, "more GPUs at once than there are"
        ids[place], free = tuple(sorted(free[:wanted])), free[wanted:]
        running.append((end, ids[place]))
    return Schedule(tuple(Placed(chosen[place], *spans[place], ids[place]) for place in range(len(tasks))))


def by_need(tasks: Sequence[Task], chosen: Sequence[Option]) -> list[int]:
    """Places of the tasks, each after those that it waits for: the longest way to the end first."""
    followers = followers_of(tasks)
    need: dict[int, float] = {}
    for place in reversed(ready_first(tasks, lambda place: place)):
        need[place] = chosen[place].planned_s + max((need[other] for other in followers[place]), default=0.0)
    return ready_first(tasks, lambda place: (-need[place], -chosen[place].gpus, place))


def followers_of(tasks: Sequence[Task]) -> list[list[int]]:
    """For each task, those that wait for it."""
    followers: list[list[int]] = [[] for _ in tasks]
    for place, task in enumerate(tasks):
        for other in task.after:
            followers[other].append(place)
    return followers


def ready_first(tasks: Sequence[Task], key: Callable[[int], Any]) -> list[int]:
    """Places of the tasks by a key, each after those that it waits for."""
    left, order = set(range(len(tasks))), list[int]()
    while left:
        order.append(min((place for place in left if not left & {*tasks[place].after}), key=key))
        left.remove(order[-1])
    return order


def lower_bound_s(tasks: Sequence[Task], gpus: int) -> float:
    """A makespan that no schedule beats: that of the longest chain of tasks, each at its fastest, and the least T at
    which the GPUs have room for all tasks, each in the least GPU seconds that it can do with within T."""
    ends: dict[int, float] = {}
    for place in ready_first(tasks, lambda place: place):
        ready = max((ends[other] for other in tasks[place].after), default=0.0)
        ends[place] = ready + min(option.planned_s for option in tasks[place].options)
    chain_s = max(ends.values(), default=0.0)
    limits = sorted({option.planned_s for task in tasks for option in task.options if option.planned_s > chain_s})
    for limit, following in zip([chain_s, *limits], [*limits, math.inf], strict=True):
        areas = (
            min(option.gpus * option.planned_s for option in task.options if option.planned_s <= limit)
            for task in tasks
        )
        bound = max(limit, math.fsum(areas) / gpus)
        if bound < following:  # each longer T allows more options: the first that is not below its own area
            return bound
    return chain_s
