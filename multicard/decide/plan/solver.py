"""The least makespan by constraint programming (OR-Tools' CP-SAT): of each task its number of GPUs and its start.

A task that leaves GPUs for others is as slow all the time as it is beside them (`planned_s`). Times are whole ticks,
rounded up, so that every solution is a schedule. The bound allows for both. Goals come one after the other, each with
what the ones before have reached as a limit: the least delay where there are deadlines, then the goal, then the
makespan where it was not the goal, then the sum of all ends.
"""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.schedule import Option, Schedule, Task, earliest, followers_of, lower_bound_s
from multicard.measure.timing import clock_s

TICKS = 100_000  # of the makespan that is to be beaten
JOULE_STEPS = 1_000_000  # of the most that the tasks may take together
LIMIT_S, WORKERS = 10.0, 8  # a few more than cores: they search in different ways, some for the bound alone
LAST_S = 1.0  # for the sum of ends, which changes no figure but where the plan has slack
GAP = 1e-4  # relative, at which a goal is reached
Variables = Sequence[Mapping[int, Any]]


@dataclass(frozen=True)
class Solution:
    """A schedule, and a makespan that none beats; without deadlines, none that takes no more energy where that is the
    goal.

    proven: the goals (of `_stages`) of which CP-SAT knows that nothing is better, by its times.
    """

    schedule: Schedule
    bound_s: float
    proven: frozenset[str]


@dataclass(frozen=True)
class _Model:
    """chosen: of each task, by place of its option, whether it is taken."""

    model: Any
    starts: Sequence[Any]
    ends: Sequence[Any]
    chosen: Variables
    makespan: Any
    tick_s: float


def without_worse(task: Task) -> Task:
    """The task without options that another one beats in GPUs, time and energy alike."""
    kept: list[Option] = []
    for option in sorted(task.options, key=lambda option: (option.gpus, option.planned_s)):
        others = [o for o in kept if o.planned_s <= option.planned_s and _joules(o) <= _joules(option)]
        if not others:
            kept.append(option)
    return Task(task.name, tuple(kept), task.after, task.deadline_s, task.job)


def _joules(option: Option) -> float:
    return math.inf if option.joules is None else option.joules


def solve(
    tasks: Sequence[Task],
    gpus: int,
    goal: Goal,
    known: Schedule,
    limit_s: float = LIMIT_S,
    seed: int = 0,
    workers: int = WORKERS,
) -> Solution:
    """The best schedule that is found within a time.

    Args:
        known: a schedule to begin with.

    Raises:
        ValueError: OR-Tools is not installed.
    """
    cp_model = _cp_model()
    began_s = clock_s()
    tasks = [without_worse(task) for task in tasks]
    built = _model(cp_model, tasks, gpus, known, is_bounded=goal is Goal.makespan and not _has_deadlines(tasks))
    stages = _stages(built, tasks, goal)
    least_s, proven, found = lower_bound_s(tasks, gpus), set[str](), None
    for number, (name, objective) in enumerate(stages):
        is_last = number == len(stages) - 1
        rest_s = limit_s - (clock_s() - began_s)
        share_s = min(rest_s, LAST_S) if is_last else (rest_s - LAST_S) / (len(stages) - 1 - number)
        status, solver = _minimised(cp_model, built, objective, share_s, seed, workers)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            break
        if name == "makespan" and not _has_deadlines(tasks):
            least_s = max(least_s, _least_s(solver, built, tasks, gpus))
        if status == cp_model.OPTIMAL:
            proven.add(name)
        found = [
            (solver.value(start), next(o for o, taken in own.items() if solver.value(taken)))
            for start, own in zip(built.starts, built.chosen, strict=True)
        ]
        built.model.add(objective <= round(solver.objective_value))
        _hint(built, found)
    if found is None:
        return Solution(known, least_s, frozenset())
    order = sorted(range(len(tasks)), key=lambda place: (found[place][0], place))
    chosen = [task.options[option] for task, (_, option) in zip(tasks, found, strict=True)]
    return Solution(earliest(tasks, chosen, order, gpus), least_s, frozenset(proven))


def _solved(solver: Any, model: Any) -> Any:
    """The status of a search, in a thread of its own: Ctrl-C ends it at once.

    Raises:
        KeyboardInterrupt: on Ctrl-C.
    """
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(solver.solve, model)
        try:
            return search.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise


def bound_s(
    tasks: Sequence[Task], gpus: int, plan: Schedule, limit_s: float, seed: int = 0, workers: int = WORKERS
) -> float:
    """A makespan that no schedule beats which keeps all deadlines; none at all, where this plan does not keep them."""
    cp_model = _cp_model()
    tasks = [without_worse(task) for task in tasks]
    built = _model(cp_model, tasks, gpus, plan, is_bounded=False)
    if not plan.late_s(tasks):
        stretched = _Stretched(tasks, gpus)
        for task, end in zip(tasks, built.ends, strict=True):
            if task.deadline_s is not None:
                latest_s = stretched.latest_s(task.deadline_s, plan.makespan_s)
                built.model.add(end <= math.ceil(latest_s / built.tick_s) + len(tasks))
    status, solver = _minimised(cp_model, built, built.makespan, limit_s, seed, workers)
    return _least_s(solver, built, tasks, gpus) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else 0.0


def _least_s(solver: Any, built: _Model, tasks: Sequence[Task], gpus: int) -> float:
    """`bound_s` by a search for the least makespan. In whole ticks, a chain takes at most one more for each task."""
    beside_s = (solver.best_objective_bound - len(tasks)) * built.tick_s
    return _Stretched(tasks, gpus).least_s(beside_s)


class _Stretched:
    """How schedules in which tasks are slower only while others run compare with those of the solver, in which tasks
    that leave GPUs are slow all the time.

    Take a schedule of T seconds, in t of which a single task runs, and leaves GPUs. Stretch those times s-fold, where s
    is the slowdown: then it is one of the solver's. No end becomes later by more than (s - 1) t. And t is short where
    the GPUs have much to do: of their G T seconds, (G - g) t at least are idle, where g are the most GPUs of such a
    task, and what runs takes no less than A - (s - 1) g t, where A are the least GPU seconds of all tasks when they are
    slow all the time. So (G - s g) t <= G T - A.
    """

    def __init__(self, tasks: Sequence[Task], gpus: int) -> None:
        slowed = [option for task in tasks for option in task.options if option.planned_s > option.alone_s]
        self.gpus, self.slowest = gpus, max((option.planned_s / option.alone_s for option in slowed), default=1.0)
        self.area = math.fsum(min(option.gpus * option.planned_s for option in task.options) for task in tasks)
        idle = gpus - self.slowest * max((option.gpus for option in slowed), default=0)
        self.pace = (self.slowest - 1) / idle if idle > 0 else math.inf

    def latest_s(self, end_s: float, makespan_s: float) -> float:
        """The latest that an end of a schedule of so many seconds, or fewer, becomes."""
        latest_s = self.slowest * end_s
        if self.pace < math.inf:
            latest_s = min(latest_s, end_s + self.pace * max(self.gpus * makespan_s - self.area, 0.0))
        return latest_s

    def least_s(self, beside_s: float) -> float:
        """The least makespan of such a schedule, where no stretched one takes less than `beside_s`."""
        least_s = beside_s / self.slowest
        if self.pace < math.inf:  # T + pace * (G T - A) >= beside_s
            least_s = max(least_s, (beside_s + self.pace * self.area) / (1 + self.pace * self.gpus))
        return least_s


def _minimised(
    cp_model: Any, built: _Model, objective: Any, limit_s: float, seed: int, workers: int
) -> tuple[Any, Any]:
    """The status of a search, and its solver."""
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(limit_s, 0.1)
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.relative_gap_limit = GAP
    solver.parameters.catch_sigint_signal = False  # else Ctrl-C ends the search alone, and the plan is carried out
    built.model.minimize(objective)
    return _solved(solver, built.model), solver


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise ValueError("a plan needs OR-Tools, which is not installed: pip install ortools") from None
    return cp_model


def _has_deadlines(tasks: Sequence[Task]) -> bool:
    return any(task.deadline_s is not None for task in tasks)


def _model(cp_model: Any, tasks: Sequence[Task], gpus: int, known: Schedule, is_bounded: bool) -> _Model:
    """Starts and options as variables, GPUs and order as constraints, with the known schedule as a hint.

    Args:
        is_bounded: whether no schedule that takes longer than the known one is of use.
    """
    tick_s = max(known.makespan_s, 1e-9) / TICKS
    sizes = [[max(math.ceil(option.planned_s / tick_s), 1) for option in task.options] for task in tasks]
    hint = _in_ticks(tasks, sizes, gpus, known)
    sized = zip(hint, sizes, strict=True)
    longest = max(start + own[option] for (start, option), own in sized)
    horizon = longest if is_bounded else max(sum(map(max, sizes)), longest)
    model = cp_model.CpModel()
    makespan = model.new_int_var(0, horizon, "makespan")
    starts, ends, chosen, intervals, demands = [], [], [], [], []
    for place, (task, own) in enumerate(zip(tasks, sizes, strict=True)):
        start = model.new_int_var(0, horizon, f"start {place}")
        taken = {option: model.new_bool_var(f"option {place} {option}") for option in range(len(own))}
        model.add_exactly_one(taken.values())
        for option, is_taken in taken.items():
            name = f"interval {place} {option}"
            intervals.append(model.new_optional_fixed_size_interval_var(start, own[option], is_taken, name))
            demands.append(task.options[option].gpus)
        starts.append(start)
        chosen.append(taken)
        ends.append(start + sum(own[option] * is_taken for option, is_taken in taken.items()))
        model.add(ends[-1] <= makespan)
    model.add_cumulative(intervals, demands, gpus)
    areas = [
        task.options[option].gpus * own[option] * is_taken
        for task, own, taken in zip(tasks, sizes, chosen, strict=True)
        for option, is_taken in taken.items()
    ]
    model.add(sum(areas) <= gpus * makespan)  # follows from the intervals, but not soon
    for place, task in enumerate(tasks):
        for other in task.after:
            model.add(starts[place] >= ends[other])
    _tell_of_whole_node(model, tasks, sizes, chosen, makespan, horizon, gpus)
    for alike in _alike(tasks):
        for first, second in pairwise(alike):
            model.add(starts[first] <= starts[second])
    built = _Model(model, starts, ends, chosen, makespan, tick_s)
    _hint(built, _in_order(hint, _alike(tasks)))
    return built


def _tell_of_whole_node(
    model: Any,
    tasks: Sequence[Task],
    sizes: Sequence[Sequence[int]],
    chosen: Variables,
    makespan: Any,
    horizon: int,
    gpus: int,
) -> None:
    """What follows from the intervals, but not soon: nothing runs beside tasks that take all GPUs, so that any chain of
    the others has to end within the rest of the makespan."""

    def lasting(place: int, is_whole: bool) -> Any:
        each = zip(tasks[place].options, sizes[place], chosen[place].values(), strict=True)
        return sum(size * is_taken for option, size, is_taken in each if (option.gpus == gpus) is is_whole)

    places = range(len(tasks))
    whole = sum(lasting(place, True) for place in places)
    begins = [model.new_int_var(0, horizon, f"begin {place}") for place in places]  # without the time of those
    for place in places:
        model.add(begins[place] + lasting(place, False) + whole <= makespan)
        for other in tasks[place].after:
            model.add(begins[place] >= begins[other] + lasting(other, False))


def _in_ticks(
    tasks: Sequence[Task], sizes: Sequence[Sequence[int]], gpus: int, known: Schedule
) -> list[tuple[int, int]]:
    """Start and option of each task of the known schedule, in ticks."""
    options = [
        min(range(len(task.options)), key=lambda o, own=task, was=placed: _distance(own.options[o], was.option))
        for task, placed in zip(tasks, known.placed, strict=True)
    ]
    in_ticks = [
        Option(task.options[option].gpus, own[option], own[option], task.options[option].interval)
        for task, own, option in zip(tasks, sizes, options, strict=True)
    ]
    schedule = earliest(tasks, in_ticks, known.order(), gpus)
    return [(round(placed.start_s), option) for placed, option in zip(schedule.placed, options, strict=True)]


def _distance(option: Option, wanted: Option) -> tuple[bool, float]:
    """How far an option is from one that may have been left out: one of no more GPUs is at least as fast."""
    return option.gpus > wanted.gpus, abs(option.gpus - wanted.gpus)


def _alike(tasks: Sequence[Task]) -> list[list[int]]:
    """Places of tasks that can be exchanged for one another."""
    followers = followers_of(tasks)
    groups: dict[Any, list[int]] = {}
    for place, task in enumerate(tasks):
        options = tuple((option.gpus, option.planned_s, option.joules) for option in task.options)
        key = options, frozenset(task.after), task.deadline_s, frozenset(followers[place])
        groups.setdefault(key, []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def _in_order(hint: Sequence[tuple[int, int]], groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The same with tasks that are alike in the order of their starts."""
    ordered = list(hint)
    for group in groups:
        for place, own in zip(group, sorted(hint[place] for place in group), strict=True):
            ordered[place] = own
    return ordered


def _hint(built: _Model, found: Sequence[tuple[int, int]]) -> None:
    built.model.clear_hints()
    for start, taken, (value, option) in zip(built.starts, built.chosen, found, strict=True):
        built.model.add_hint(start, value)
        for number, is_taken in taken.items():
            built.model.add_hint(is_taken, number == option)


def _stages(built: _Model, tasks: Sequence[Task], goal: Goal) -> list[tuple[str, Any]]:
    """What is minimised, one after the other."""
    stages: list[tuple[str, Any]] = []
    limits = {place: task.deadline_s for place, task in enumerate(tasks) if task.deadline_s is not None}
    ticks = {place: math.floor(limit / built.tick_s) for place, limit in limits.items()}
    most = sum(max(math.ceil(option.planned_s / built.tick_s) for option in task.options) for task in tasks)
    if limits:
        delays = []
        for place, limit in ticks.items():
            delay = built.model.new_int_var(0, most + max(-limit, 0), f"delay {place}")
            built.model.add(delay >= built.ends[place] - limit)
            delays.append(delay)
        stages.append(("delay", sum(delays)))
    if goal is Goal.energy:
        stages.append(("energy", _energy(built.chosen, tasks)))
    if goal is Goal.deadline and ticks:  # else those that have one are done
        nearest = built.model.new_int_var(-max(ticks.values()), most + max(-min(ticks.values()), 0), "nearest")
        for place, limit in ticks.items():
            built.model.add(nearest >= built.ends[place] - limit)
        stages.append(("nearest", nearest))
    return [*stages, ("makespan", built.makespan), ("ends", sum(built.ends))]


def _energy(chosen: Variables, tasks: Sequence[Task]) -> Any:
    """In whole steps of which JOULE_STEPS are the most that all tasks can take."""
    known = [[option.joules or 0.0 for option in task.options] for task in tasks]
    step = max(math.fsum(map(max, known)), 1e-9) / JOULE_STEPS
    return sum(
        round(own[option] / step) * is_taken
        for own, taken in zip(known, chosen, strict=True)
        for option, is_taken in taken.items()
    )
