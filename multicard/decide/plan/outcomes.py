"""What becomes of a plan in which tasks are slower while others run: when each begins and ends as planned, and the
makespan with an interval, from durations drawn at random."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from multicard.decide.plan.schedule import Placed, Schedule, Task
from multicard.estimate.time.estimate import NORMAL_90
from multicard.records.schema_parts import Interval

DRAWS = 400
SHARED = 0.5  # of the variance of a logarithm: what makes one prediction wrong makes others wrong in its direction
ENDED = 1e-9  # of a second, below which no work is left


def quantile(interval: Interval, normal: float) -> float:
    """A quantile of a time, of which the logarithm is normal to each side of its value.

    Args:
        normal: the same quantile of a standard normal variable.
    """
    end = interval.high if normal > 0 else interval.low
    return interval.value * math.exp(abs(normal) / NORMAL_90 * math.log(end / interval.value))


def makespan(tasks: Sequence[Task], schedule: Schedule, slowdown: Interval, seed: int = 0) -> Interval:
    """The median makespan and its 90 % interval, where tasks take their GPUs and their order from the schedule.

    Args:
        slowdown: of tasks while others run, with its 90 % interval.
    """
    generator = np.random.default_rng(seed)
    shared, slow = generator.standard_normal((2, DRAWS, 1))
    normal = math.sqrt(SHARED) * shared + math.sqrt(1 - SHARED) * generator.standard_normal((DRAWS, len(tasks)))
    before = waits(tasks, schedule)
    ends = [
        run(
            [quantile(placed.option.interval, z) for placed, z in zip(schedule.placed, own, strict=True)],
            before,
            max(quantile(slowdown, one[0]), 1.0),
        )
        for own, one in zip(normal.tolist(), slow.tolist(), strict=True)
    ]
    low, value, high = np.quantile(ends, [0.05, 0.5, 0.95]).tolist()
    return Interval(value, low, high)


def timed(tasks: Sequence[Task], schedule: Schedule, slowdown: float) -> Schedule:
    """The schedule with the same GPUs and the same order on them, in which tasks are slower only while others run."""
    alone_s = [placed.option.alone_s for placed in schedule.placed]
    times = zip(schedule.placed, spans(alone_s, waits(tasks, schedule), slowdown), strict=True)
    return Schedule(tuple(Placed(placed.option, *span, placed.gpu_ids) for placed, span in times))


def waits(tasks: Sequence[Task], schedule: Schedule) -> dict[int, set[int]]:
    """Of each task, those that end before it begins: the ones that it comes after, and the last on each of its GPUs."""
    before: dict[int, set[int]] = {place: {*task.after} for place, task in enumerate(tasks)}
    last: dict[int, int] = {}
    for place in schedule.order():
        for gpu in schedule.placed[place].gpu_ids:
            if gpu in last:
                before[place].add(last[gpu])
            last[gpu] = place
    return before


def run(alone_s: Sequence[float], before: Mapping[int, set[int]], slowdown: float) -> float:
    """The makespan of `spans`."""
    return max((end for _, end in spans(alone_s, before, slowdown)), default=0.0)


def spans(alone_s: Sequence[float], before: Mapping[int, set[int]], slowdown: float) -> list[tuple[float, float]]:
    """Start and end of tasks that begin as soon as those before them have ended.

    Args:
        alone_s: seconds of each task while nothing else runs.
        slowdown: of each, while others run.
    """
    left = dict(enumerate(alone_s))
    waiting = {place: {*others} for place, others in before.items()}
    running: set[int] = set()
    starts, ends = dict[int, float](), dict[int, float]()
    now_s = 0.0
    while left:
        ready = {place for place, others in waiting.items() if not others}
        starts |= dict.fromkeys(ready, now_s)
        running |= ready
        waiting = {place: others for place, others in waiting.items() if others}
        pace = slowdown if len(running) > 1 else 1.0
        step = min(left[place] for place in running)
        now_s += step * pace
        for place in running:
            left[place] -= step
        ended = {place for place in running if left[place] <= ENDED}
        running -= ended
        ends |= dict.fromkeys(ended, now_s)
        for place in ended:
            del left[place]
        waiting = {place: others - ended for place, others in waiting.items()}
    return [(starts[place], ends[place]) for place in range(len(alone_s))]
