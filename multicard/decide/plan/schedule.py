"""Tasks with their options of GPUs, simple schedules without a solver, and a lower bound."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from multicard.estimate.observations import NORMAL_90
from multicard.estimate.totals import exact, product
from multicard.records.schema_parts import PredictedInterval

SAME_S = 1e-6  # Sums of the same times may differ by this many seconds.
# The 0.8 quantile of a standard normal variable: four of five jobs end no later.
PLANNED_NORMAL = 0.8416
# A time that is derived from another run of the job is uncertain by this factor in each direction.
SCALED_FACTOR = 1.1
DRAWS = 400
MOST_LENGTHS = 50  # `balanced` tries at most this many limits, spread evenly over the options.
# The share of the variance of a logarithm that all tasks have in common: the cause of one wrong
# prediction makes others wrong in the same direction.
SHARED_VARIANCE = 0.5


@dataclass(frozen=True)
class GpusOption:
    """A number of GPUs that a task may run on, with its time.

    Fields:
        planned_s: upper quantile of its time, including slowdown by other jobs.
        interval: median of the same time, with its 90 % interval.
        alone: its time while nothing else runs.
        as_busy: like `interval`, if other programs stay as busy as during the runs behind it;
            None if that is not known.
    """

    gpus: int
    planned_s: float
    interval: PredictedInterval
    alone: PredictedInterval
    basis: str = "given"
    as_busy: PredictedInterval | None = None

    @property
    def undisturbed(self) -> "GpusOption":
        """The same option while nothing else runs."""
        faster = self.alone.value / self.interval.value
        as_busy = None if self.as_busy is None else product(self.as_busy, exact(faster))
        return replace(
            self, planned_s=self.planned_s * faster, interval=self.alone, as_busy=as_busy
        )

    def times(self, ratio: float) -> "GpusOption":
        """Return the option with times scaled by `ratio`, as another run of the job suggests."""
        slowed_s = self.interval.value * ratio
        alone_s = self.alone.value * ratio
        interval, alone = (
            PredictedInterval(seconds, seconds / SCALED_FACTOR, seconds * SCALED_FACTOR)
            for seconds in (slowed_s, alone_s)
        )
        return replace(self, planned_s=slowed_s, interval=interval, alone=alone, as_busy=None)


def timed_option(
    gpus: int,
    seconds: PredictedInterval,
    node_gpus: int,
    slowdown: PredictedInterval,
    basis: str = "given",
    as_busy: PredictedInterval | None = None,
) -> GpusOption:
    """Return the option for a time alone, planned with its upper quantile.

    If it leaves GPUs for other jobs, the slowdown applies.
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
        after: places of the tasks that must end before it begins.
        deadline_s: seconds from the start; negative once it has passed.
        held: GPUs of a task that runs already. Its single option has the time that it has left.
    """

    name: str
    options: tuple[GpusOption, ...]
    after: tuple[int, ...] = ()
    deadline_s: float | None = None
    job: str = ""
    held: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlacedTask:
    """The place of a task in a schedule."""

    option: GpusOption
    start_s: float
    end_s: float
    gpu_ids: tuple[int, ...]


@dataclass(frozen=True)
class Schedule:
    """The GPUs, start and end of each task, in the order of the tasks."""

    placed: tuple[PlacedTask, ...]

    @property
    def makespan_s(self) -> float:
        return max((placed.end_s for placed in self.placed), default=0.0)

    def order(self) -> list[int]:
        """Return the places of the tasks, sorted by their start."""
        return sorted(
            range(len(self.placed)), key=lambda place: (self.placed[place].start_s, place)
        )

    def late_s(self, tasks: Sequence[PlanTask]) -> dict[int, float]:
        """Return the delays of the tasks that end after their deadline."""
        return {
            place: placed.end_s - task.deadline_s
            for place, (task, placed) in enumerate(zip(tasks, self.placed, strict=True))
            if task.deadline_s is not None and placed.end_s > task.deadline_s + SAME_S
        }

    def waits(self, tasks: Sequence[PlanTask]) -> list[set[int]]:
        """Return the tasks that each task waits for.

        These are the tasks in its `after`, and the last task before it on each of its GPUs.
        """
        predecessors = [{*task.after} for task in tasks]
        last_on_gpu: dict[int, int] = {}
        for place in self.order():
            predecessors[place] |= {
                last_on_gpu[gpu] for gpu in self.placed[place].gpu_ids if gpu in last_on_gpu
            }
            last_on_gpu |= dict.fromkeys(self.placed[place].gpu_ids, place)
        return predecessors

    def likely_as_busy(self, tasks: Sequence[PlanTask]) -> PredictedInterval | None:
        """Return the same as `likely` if other programs stay as busy.

        None if no task's time is known for that case.
        """
        if all(placed.option.as_busy is None for placed in self.placed):
            return None
        options = [
            replace(placed.option, interval=placed.option.as_busy or placed.option.interval)
            for placed in self.placed
        ]
        placed_tasks = [
            replace(placed, option=option)
            for placed, option in zip(self.placed, options, strict=True)
        ]
        return Schedule(tuple(placed_tasks)).likely(tasks)

    def likely(self, tasks: Sequence[PlanTask]) -> PredictedInterval:
        """Return the median makespan and its 90 % interval, from random draws of the times.

        Tasks keep their GPUs and their order.
        """
        generator = np.random.default_rng(0)
        shared = generator.standard_normal((DRAWS, 1))
        independent = generator.standard_normal((DRAWS, len(tasks)))
        normal = math.sqrt(SHARED_VARIANCE) * shared + math.sqrt(1 - SHARED_VARIANCE) * independent
        predecessors = self.waits(tasks)
        ends_s = np.zeros((DRAWS, len(tasks)))
        for place in self.order():
            ready_s = ends_s[:, [*predecessors[place]]].max(axis=1, initial=0.0)
            ends_s[:, place] = ready_s + quantile(
                self.placed[place].option.interval, normal[:, place]
            )
        low, value, high = np.quantile(ends_s.max(axis=1, initial=0.0), [0.05, 0.5, 0.95]).tolist()
        return PredictedInterval(value, low, high)


def quantile(interval: PredictedInterval, normal: Any) -> Any:
    """Return quantiles of a time, given standard normal quantiles (a number or an array).

    The logarithm of the time is normal on each side of its median.
    """
    below, above = (
        math.log(end / interval.value) / NORMAL_90 for end in (interval.low, interval.high)
    )
    return interval.value * np.exp(
        np.where(np.asarray(normal) > 0, normal * above, -normal * below)
    )


def earliest_schedule(
    tasks: Sequence[PlanTask], chosen: Sequence[GpusOption], order: Iterable[int], gpus: int
) -> Schedule:
    """Schedule each task in turn as soon as enough GPUs are free for all of its time.

    Tasks that run already go on. In `order`, each task comes after the tasks that it waits for. If
    the order is by the starts of another schedule, no task begins later than there.
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
    return assign_gpu_ids(tasks, chosen, [spans[place] for place in range(len(tasks))], gpus)


def _first_gap(
    changes: Sequence[tuple[float, int]], ready_s: float, duration_s: float, most_busy: int
) -> float:
    """Return the first time from `ready_s` on at which few enough GPUs are busy.

    Args:
        changes: times at which the number of busy GPUs changes, ascending, and by how much.
        ready_s: earliest time, in seconds.
        duration_s: the GPUs must stay free for this many seconds.
        most_busy: at most this many GPUs may be busy.
    """
    begin_s = ready_s if most_busy >= 0 else None
    busy = 0
    for change_s, change in changes:
        if begin_s is not None and change_s >= begin_s + duration_s - SAME_S:
            break
        busy += change
        if busy > most_busy:
            begin_s = None
        elif begin_s is None:
            begin_s = max(change_s, ready_s)
    assert begin_s is not None, "a task that wants more GPUs than there are"
    return begin_s


def assign_gpu_ids(
    tasks: Sequence[PlanTask],
    chosen: Sequence[GpusOption],
    spans: Sequence[tuple[float, float]],
    gpus: int,
) -> Schedule:
    """Give each task of known start and end the first GPUs that are free then.

    Idle GPUs come before GPUs of tasks that run already, because the end of those is uncertain.
    """
    gpu_ids = {place: task.held for place, task in enumerate(tasks) if task.held}
    held_gpus = set(chain.from_iterable(gpu_ids.values()))
    free = [gpu for gpu in range(gpus) if gpu not in held_gpus]
    running = [(spans[place][1], held) for place, held in gpu_ids.items()]
    for place in sorted(
        {*range(len(tasks))} - {*gpu_ids}, key=lambda place: (spans[place][0], place)
    ):
        start_s, end_s = spans[place]
        for until_s, held in running:
            if until_s <= start_s + SAME_S:
                free.extend(held)
        running = [entry for entry in running if entry[0] > start_s + SAME_S]
        free.sort(key=lambda gpu: (gpu in held_gpus, gpu))
        needed_gpus = chosen[place].gpus
        # always: a start is only chosen if enough GPUs are free.
        assert len(free) >= needed_gpus, "more GPUs at once than there are"
        gpu_ids[place], free = tuple(sorted(free[:needed_gpus])), free[needed_gpus:]
        running.append((end_s, gpu_ids[place]))
    return Schedule(
        tuple(
            PlacedTask(chosen[place], *spans[place], gpu_ids[place]) for place in range(len(tasks))
        )
    )


def by_need(tasks: Sequence[PlanTask], chosen: Sequence[GpusOption]) -> list[int]:
    """Order tasks by the first deadline among a task and the tasks that wait for it.

    Ties are broken by the longest chain from the task to the end.
    """
    chain_s = [option.planned_s for option in chosen]
    due_s = [math.inf if task.deadline_s is None else task.deadline_s for task in tasks]
    for place in reversed(ready_first(tasks, lambda place: place)):
        for other in tasks[place].after:
            chain_s[other] = max(chain_s[other], chosen[other].planned_s + chain_s[place])
            due_s[other] = min(due_s[other], due_s[place])
    return ready_first(
        tasks, lambda place: (due_s[place], -chain_s[place], -chosen[place].gpus, place)
    )


def ready_first(tasks: Sequence[PlanTask], key: Callable[[int], Any]) -> list[int]:
    """Order tasks by a key, but each after the tasks that it waits for."""
    remaining = set(range(len(tasks)))
    order = list[int]()
    while remaining:
        order.append(
            min((place for place in remaining if not remaining & {*tasks[place].after}), key=key)
        )
        remaining.remove(order[-1])
    return order


def in_turn(tasks: Sequence[PlanTask], gpus: int) -> Schedule:
    """Schedule one task after the other, each on the GPUs that make it fastest.

    The earliest deadline comes first.
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
    return assign_gpu_ids(tasks, chosen, spans, gpus)


def one_gpu_each(tasks: Sequence[PlanTask], gpus: int) -> Schedule:
    """Schedule each task on the fewest GPUs that it may have, the longest task first."""
    chosen = [min(task.options, key=lambda option: option.gpus) for task in tasks]
    return earliest_schedule(tasks, chosen, by_need(tasks, chosen), gpus)


def balanced_schedules(tasks: Sequence[PlanTask], gpus: int) -> list[Schedule]:
    """Schedule every task with the fewest GPU seconds within a time limit, for several limits.

    Each limit is the time of an option (Turek et al., SPAA '92, for moldable tasks). If there are
    deadlines, tasks with a deadline are also tried on the GPUs that make them fastest.
    """
    options = chain.from_iterable(task.options for task in tasks)
    lengths = sorted({option.planned_s for option in options})
    limits = lengths[:: -(-len(lengths) // MOST_LENGTHS)]
    chosen = [[option_within(task, limit) for task in tasks] for limit in limits]
    if any(task.deadline_s is not None for task in tasks):
        chosen += [
            [option_within(task, limit if task.deadline_s is None else 0.0) for task in tasks]
            for limit in limits
        ]
    return [
        earliest_schedule(tasks, options_of_tasks, by_need(tasks, options_of_tasks), gpus)
        for options_of_tasks in chosen
    ]


def option_within(task: PlanTask, limit_s: float) -> GpusOption:
    """Return the option with the fewest GPU seconds within a limit, or else the fastest one."""
    fast_enough = [option for option in task.options if option.planned_s <= limit_s]
    if not fast_enough:
        return min(task.options, key=lambda option: option.planned_s)
    return min(fast_enough, key=lambda option: option.gpus * option.planned_s)


def lower_bound_s(tasks: Sequence[PlanTask], gpus: int) -> float:
    """Return a makespan that no schedule beats.

    It is the time of the longest task, or of all work spread over all GPUs, each at its least.
    """
    longest_s = max(
        (min(option.planned_s for option in task.options) for task in tasks), default=0.0
    )
    work_s = math.fsum(
        min(option.gpus * option.planned_s for option in task.options) for task in tasks
    )
    return max(longest_s, work_s / gpus)
