"""Tasks with their options of GPUs, schedules that need no solver,
and a bound that no schedule beats.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from multicard.estimate.observations import NORMAL_90
from multicard.estimate.totals import exact, product
from multicard.records.schema_parts import PredictedInterval

SAME_S = 1e-6  # seconds by which sums of the same times may differ
# the quantile of 0.8 of a standard normal variable: four of five jobs end no later
PLANNED_NORMAL = 0.8416
SCALED = 1.1  # to either side of a time that follows from that of another run of the job
DRAWS = 400
MOST_LENGTHS = 50  # that `balanced` tries, evenly among those of the options
# of the variance of a logarithm: what makes one prediction
# wrong makes others wrong in its direction
SHARED = 0.5


@dataclass(frozen=True)
class GpusOption:
    """A number of GPUs that a task may run on, with its time.

    Fields:
        planned_s: upper quantile of its time, slowdown by others included.
        interval: median of the same time, with its 90 % interval.
        alone: time while nothing else runs.
        as_busy: the same as `interval` if others stay as busy as during the runs behind it;
            None: not known.
    """

    gpus: int
    planned_s: float
    interval: PredictedInterval
    alone: PredictedInterval
    basis: str = "given"
    as_busy: PredictedInterval | None = None

    @property
    def undisturbed(self) -> "GpusOption":
        """The same while nothing else runs."""
        faster = self.alone.value / self.interval.value
        as_busy = None if self.as_busy is None else product(self.as_busy, exact(faster))
        return replace(
            self, planned_s=self.planned_s * faster, interval=self.alone, as_busy=as_busy
        )

    def times(self, ratio: float) -> "GpusOption":
        """With times that follow from that of another run of the job."""
        beside_s = self.interval.value * ratio
        alone_s = self.alone.value * ratio
        interval, alone = (
            PredictedInterval(each_s, each_s / SCALED, each_s * SCALED)
            for each_s in (beside_s, alone_s)
        )
        return replace(self, planned_s=beside_s, interval=interval, alone=alone, as_busy=None)


def timed_option(
    gpus: int,
    seconds: PredictedInterval,
    node_gpus: int,
    slowdown: PredictedInterval,
    basis: str = "given",
    as_busy: PredictedInterval | None = None,
) -> GpusOption:
    """The option of a time alone, planned with its upper quantile;
    slower where it leaves GPUs for others.
    """
    planned_s = float(quantile(seconds, PLANNED_NORMAL))
    if gpus == node_gpus:
        return GpusOption(gpus, planned_s, seconds, seconds, basis, as_busy)
    slowed = product(seconds, slowdown)
    slowed_as_busy = None if as_busy is None else product(as_busy, slowdown)
    return GpusOption(gpus, planned_s * slowdown.value, slowed, seconds, basis, slowed_as_busy)


@dataclass(frozen=True)
class PlanTask:
    """One run of a job.

    Fields:
        after: places of the tasks that end before it begins.
        deadline_s: from the start on; negative once it has passed.
        held: GPUs of a task that runs already; its one option has the time that is left.
    """

    name: str
    options: tuple[GpusOption, ...]
    after: tuple[int, ...] = ()
    deadline_s: float | None = None
    job: str = ""
    held: tuple[int, ...] = ()


@dataclass(frozen=True)
class Placed:
    """A task in a schedule."""

    option: GpusOption
    start_s: float
    end_s: float
    gpu_ids: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """The GPUs, start and end of each task, in the order of the tasks."""

    placed: tuple[Placed, ...]

    @property
    def makespan_s(self) -> float:
        return max((each.end_s for each in self.placed), default=0.0)

    def order(self) -> list[int]:
        """Places of the tasks by their start."""
        return sorted(
            range(len(self.placed)), key=lambda place: (self.placed[place].start_s, place)
        )

    def late_s(self, tasks: Sequence[PlanTask]) -> dict[int, float]:
        """Delays of the tasks that end after their deadline."""
        return {
            place: each.end_s - task.deadline_s
            for place, (task, each) in enumerate(zip(tasks, self.placed, strict=True))
            if task.deadline_s is not None and each.end_s > task.deadline_s + SAME_S
        }

    def waits(self, tasks: Sequence[PlanTask]) -> list[set[int]]:
        """The tasks that each waits for: those in its `after`,
        and the last before it on its GPUs.
        """
        before = [{*task.after} for task in tasks]
        last: dict[int, int] = {}
        for place in self.order():
            before[place] |= {last[gpu] for gpu in self.placed[place].gpu_ids if gpu in last}
            last |= dict.fromkeys(self.placed[place].gpu_ids, place)
        return before

    def likely_as_busy(self, tasks: Sequence[PlanTask]) -> PredictedInterval | None:
        """The same as `likely` if others stay as busy;
        None where no task's time is known for that.
        """
        if all(each.option.as_busy is None for each in self.placed):
            return None
        options = [
            replace(each.option, interval=each.option.as_busy or each.option.interval)
            for each in self.placed
        ]
        placed = [
            replace(each, option=option) for each, option in zip(self.placed, options, strict=True)
        ]
        return Schedule(tuple(placed)).likely(tasks)

    def likely(self, tasks: Sequence[PlanTask]) -> PredictedInterval:
        """Median makespan and its 90 % interval, by times drawn at random.
        Tasks keep their GPUs and their order.
        """
        generator = np.random.default_rng(0)
        shared = generator.standard_normal((DRAWS, 1))
        own = generator.standard_normal((DRAWS, len(tasks)))
        normal = math.sqrt(SHARED) * shared + math.sqrt(1 - SHARED) * own
        before = self.waits(tasks)
        ends = np.zeros((DRAWS, len(tasks)))
        for place in self.order():
            ready = ends[:, [*before[place]]].max(axis=1, initial=0.0)
            ends[:, place] = ready + quantile(self.placed[place].option.interval, normal[:, place])
        low, value, high = np.quantile(ends.max(axis=1, initial=0.0), [0.05, 0.5, 0.95]).tolist()
        return PredictedInterval(value, low, high)


def quantile(interval: PredictedInterval, normal: Any) -> Any:
    """Quantiles of a time whose logarithm is normal on each side of its median, by those of a
    standard normal variable (a number or an array).
    """
    below, above = (
        math.log(end / interval.value) / NORMAL_90 for end in (interval.low, interval.high)
    )
    return interval.value * np.exp(
        np.where(np.asarray(normal) > 0, normal * above, -normal * below)
    )


def earliest(
    tasks: Sequence[PlanTask], chosen: Sequence[GpusOption], order: Iterable[int], gpus: int
) -> Schedule:
    """Schedule each task in turn as soon as its GPUs are free for all of its time; tasks that run
    already go on. The order has each after those that it waits for; in that of another schedule's
    starts, none begins later than there.
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


def _first_gap(
    changes: Sequence[tuple[float, int]], ready: float, lasting: float, most: int
) -> float:
    """The first time from `ready` on at which at most `most` GPUs are busy for `lasting` seconds,
    by the times at which the number of busy GPUs changes, and by how much, ascending.
    """
    begin = ready if most >= 0 else None
    busy = 0
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
    tasks: Sequence[PlanTask],
    chosen: Sequence[GpusOption],
    spans: Sequence[tuple[float, float]],
    gpus: int,
) -> Schedule:
    """Give each task of known start and end the first GPUs that are free then, idle ones before
    those of tasks that run already, whose end is uncertain.
    """
    ids = {place: task.held for place, task in enumerate(tasks) if task.held}
    taken = set(chain.from_iterable(ids.values()))
    free = [gpu for gpu in range(gpus) if gpu not in taken]
    running = [(spans[place][1], held) for place, held in ids.items()]
    for place in sorted({*range(len(tasks))} - {*ids}, key=lambda place: (spans[place][0], place)):
        start, end = spans[place]
        for until, held in running:
            if until <= start + SAME_S:
                free.extend(held)
        running = [each for each in running if each[0] > start + SAME_S]
        free.sort(key=lambda gpu: (gpu in taken, gpu))
        wanted = chosen[place].gpus
        # always: a start is only chosen where so many are free
        assert len(free) >= wanted, "more GPUs at once than there are"
        ids[place], free = tuple(sorted(free[:wanted])), free[wanted:]
        running.append((end, ids[place]))
    return Schedule(
        tuple(Placed(chosen[place], *spans[place], ids[place]) for place in range(len(tasks)))
    )


def by_need(tasks: Sequence[PlanTask], chosen: Sequence[GpusOption]) -> list[int]:
    """Order tasks by the first deadline of each and what waits for it,
    then by the longest chain from it to the end.
    """
    need = [option.planned_s for option in chosen]
    due_s = [math.inf if task.deadline_s is None else task.deadline_s for task in tasks]
    for place in reversed(ready_first(tasks, lambda place: place)):
        for other in tasks[place].after:
            need[other] = max(need[other], chosen[other].planned_s + need[place])
            due_s[other] = min(due_s[other], due_s[place])
    return ready_first(
        tasks, lambda place: (due_s[place], -need[place], -chosen[place].gpus, place)
    )


def ready_first(tasks: Sequence[PlanTask], key: Callable[[int], Any]) -> list[int]:
    """Order tasks by a key, each after those that it waits for."""
    left = set(range(len(tasks)))
    order = list[int]()
    while left:
        order.append(min((place for place in left if not left & {*tasks[place].after}), key=key))
        left.remove(order[-1])
    return order


def in_turn(tasks: Sequence[PlanTask], gpus: int) -> Schedule:
    """Schedule one task after the other, each on the GPUs that make it fastest,
    the earliest deadline first.
    """
    alone = [[option.undisturbed for option in task.options] for task in tasks]
    chosen = [min(options, key=lambda option: (option.planned_s, option.gpus)) for options in alone]
    spans = [
        (0.0, option.planned_s if task.held else 0.0)
        for task, option in zip(tasks, chosen, strict=True)
    ]
    now_s = max((end_s for _, end_s in spans), default=0.0)
    for place in by_need(tasks, chosen):
        if not tasks[place].held:
            spans[place] = now_s, now_s + chosen[place].planned_s
            now_s = spans[place][1]
    return numbered(tasks, chosen, spans, gpus)


def one_gpu_each(tasks: Sequence[PlanTask], gpus: int) -> Schedule:
    """Schedule each task on the fewest GPUs that it may have, the longest first."""
    chosen = [min(task.options, key=lambda option: option.gpus) for task in tasks]
    return earliest(tasks, chosen, by_need(tasks, chosen), gpus)


def balanced(tasks: Sequence[PlanTask], gpus: int) -> list[Schedule]:
    """Schedule every task in the fewest GPU seconds within a limit, for each limit that the options
    have (Turek et al., SPAA '92, for moldable tasks); also with the tasks that have a deadline on
    the GPUs that make them fastest.
    """
    options = chain.from_iterable(task.options for task in tasks)
    lengths = sorted({option.planned_s for option in options})
    limits = lengths[:: -(-len(lengths) // MOST_LENGTHS)]
    chosen = [[within(task, limit) for task in tasks] for limit in limits]
    if any(task.deadline_s is not None for task in tasks):
        chosen += [
            [within(task, limit if task.deadline_s is None else 0.0) for task in tasks]
            for limit in limits
        ]
    return [earliest(tasks, each, by_need(tasks, each), gpus) for each in chosen]


def within(task: PlanTask, limit: float) -> GpusOption:
    """The option of the fewest GPU seconds within a limit; the fastest where none is."""
    short = [option for option in task.options if option.planned_s <= limit]
    if not short:
        return min(task.options, key=lambda option: option.planned_s)
    return min(short, key=lambda option: option.gpus * option.planned_s)


def lower_bound_s(tasks: Sequence[PlanTask], gpus: int) -> float:
    """A makespan that no schedule beats: that of the longest task, or of all work on all GPUs,
    each at its least.
    """
    longest_s = max(
        (min(option.planned_s for option in task.options) for task in tasks), default=0.0
    )
    work_s = math.fsum(
        min(option.gpus * option.planned_s for option in task.options) for task in tasks
    )
    return max(longest_s, work_s / gpus)
