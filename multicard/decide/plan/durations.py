"""The tasks of a jobs file: each run of a job with its options, of times that were given or are predicted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multicard.config.job import count
from multicard.config.keys import require
from multicard.decide.plan.jobs_file import Goal, Job, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.outcomes import quantile
from multicard.decide.plan.predicted_runs import PredictedRun, unknown_reason
from multicard.decide.plan.schedule import Option, Task
from multicard.estimate.time import scaling
from multicard.estimate.time.estimate import NORMAL_90
from multicard.records.schema_parts import Interval

PLANNED_NORMAL = 0.8416  # the quantile of 0.8 of a standard normal variable: four of five jobs end no later
BETWEEN_SD = 0.05  # of the logarithm of a time between two that are known


@dataclass(frozen=True)
class Tasks:
    """The tasks of a file. notes: which numbers of GPUs were left out, and why."""

    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = field(default=())  # jobs of which no time is known


def tasks(file: JobsFile, node: PlannedNode, runs: Sequence[PredictedRun] = ()) -> Tasks:
    """The tasks of a file's jobs, a job that repeats as several.

    Args:
        runs: predictions of the jobs that have a `run`.

    Raises:
        ValueError: a job can run on no number of GPUs; with the key and the reason.
    """
    made: list[Task] = []
    places: dict[str, list[int]] = {}
    notes: list[str] = []
    unknown: list[str] = []
    for job in file.jobs:
        own = [run for run in runs if run.job is job]
        options = _predicted(job, own, node, file) if job.is_predicted else _given(job, node, file)
        notes += _left_out(job, own, node)
        if file.goal is Goal.energy:
            options, left_out = _of_known_energy(job, options)
            notes += left_out
        if not options:
            _refuse_impossible(job, own, node)
            unknown.append(f"{job.name}: {unknown_reason(own)}")
        places[job.name] = list(range(len(made), len(made) + job.repeat))
        names = [job.name] if job.repeat == 1 else [f"{job.name}#{number + 1}" for number in range(job.repeat)]
        made += [Task(name, tuple(options), (), job.deadline_s, job.name) for name in names]
    after = {job.name: tuple(place for other in job.after for place in places[other]) for job in file.jobs}
    ordered = (Task(task.name, task.options, after[task.job], task.deadline_s, task.job) for task in made)
    return Tasks(tuple(ordered), tuple(notes), tuple(unknown))


def _refuse_impossible(job: Job, runs: Sequence[PredictedRun], node: PlannedNode) -> None:
    """Refuse a job that no number of GPUs lets run, whatever a probe would tell.

    Raises:
        ValueError: with the reasons.
    """
    allowed = job.gpus or tuple(job.seconds)
    if allowed and min(allowed) > node.gpus:
        key = "gpus" if job.gpus else "seconds"
        raise ValueError(f"jobs.{job.name}.{key}: needs {min(allowed)} GPUs or more; the node has {node.gpus}")
    if runs and all(run.problem for run in runs):
        reasons = "; ".join(f"{count(run.gpus, 'GPU')}: {run.problem}" for run in runs)
        raise ValueError(f"jobs.{job.name}: can run on no allowed number of GPUs ({reasons})")


def _left_out(job: Job, runs: Sequence[PredictedRun], node: PlannedNode) -> list[str]:
    notes = [f"{job.name}: not on {count(run.gpus, 'GPU')}: {run.problem}" for run in runs if run.problem]
    unknown = [str(run.gpus) for run in runs if run.is_unknown]
    if unknown and len(unknown) < len(runs):
        notes.append(f"{job.name}: not planned on {', '.join(unknown)} GPUs, whose time is not known")
    many = [str(gpus) for gpus in job.gpus or job.seconds if gpus > node.gpus]
    if many:
        notes.append(f"{job.name}: not on {', '.join(many)} GPUs: the node has {node.gpus}")
    return notes


def _of_known_energy(job: Job, options: Sequence[Option]) -> tuple[list[Option], list[str]]:
    """The options of which the energy is known, and a note of the others.

    Raises:
        ValueError: there is none.
    """
    known = [option for option in options if option.joules is not None]
    unknown = ", ".join(str(option.gpus) for option in options if option.joules is None)
    reason = "no run like it counted any" if job.is_predicted else f"write joules for {unknown} too"
    require(bool(known) or not unknown, f"jobs.{job.name}: goal=energy: its energy is not known: {reason}")
    return known, [f"{job.name}: not planned on {unknown} GPUs, whose energy is not known"] if unknown else []


def _predicted(job: Job, runs: Sequence[PredictedRun], node: PlannedNode, file: JobsFile) -> list[Option]:
    options = []
    for run in runs:
        if run.seconds is not None and run.prediction is not None and not run.problem:
            energy = run.prediction.energy_joules
            joules = None if energy is None else energy.value
            options.append(option(run.gpus, run.seconds, node, file.slowdown, joules, run.prediction.basis))
    return options


def _given(job: Job, node: PlannedNode, file: JobsFile) -> list[Option]:
    """Of times that stand in the file; of numbers between and beyond them by their growth.

    Raises:
        ValueError: a number of GPUs that the times tell nothing of.
    """
    options = []
    for gpus in job.gpus or sorted(job.seconds):
        if gpus > node.gpus:
            continue
        seconds, basis = job.seconds.get(gpus), "given"
        if seconds is None:
            seconds, basis = between(job, gpus), "scaled"
        joules = job.joules.get(gpus)
        options.append(option(gpus, seconds, node, file.slowdown, joules, basis))
    return options


def between(job: Job, gpus: int) -> Interval:
    """The time on a number of GPUs, from those on others: between two that are known on the line through them (both as
    logarithms), beyond all by `scaling.whole_run`, where 1 and 2 are known.

    Raises:
        ValueError: neither is so.
    """
    known = {number: seconds.value for number, seconds in job.seconds.items()}
    less, more = [number for number in known if number < gpus], [number for number in known if number > gpus]
    if less and more:
        low, high = max(less), min(more)
        share = math.log(gpus / low) / math.log(high / low)
        seconds = math.exp((1 - share) * math.log(known[low]) + share * math.log(known[high]))
        return _around(seconds, BETWEEN_SD, {low: 1 - share, high: share}, job)
    if {1, 2} <= known.keys():
        return _around(*scaling.whole_run(_decreasing(known), gpus), {1: 1 - math.log2(gpus), 2: math.log2(gpus)}, job)
    raise ValueError(f"jobs.{job.name}.gpus: no time on {gpus} follows from its seconds; give those on 1 and 2 GPUs")


def _decreasing(known: Mapping[int, float]) -> dict[int, float]:
    """Times on 1 and 2 GPUs: the second saves no more than half, and not less than nothing."""
    return {1: known[1], 2: min(max(known[2], known[1] / 2), known[1])}


def _around(value: float, sd: float, weights: Mapping[int, float], job: Job) -> Interval:
    """The 90 % interval of a time whose logarithm has a standard deviation of its own, besides those of the job's
    times that it rests on: each weighs as much as its logarithm does in that of the time. As squares, they add."""
    half = NORMAL_90 * sd
    rests_on = [(weight, job.seconds[gpus]) for gpus, weight in weights.items()]
    below = math.hypot(half, *(weight * math.log(known.value / known.low) for weight, known in rests_on))
    above = math.hypot(half, *(weight * math.log(known.high / known.value) for weight, known in rests_on))
    return Interval(value, value / math.exp(below), value * math.exp(above))


def option(
    gpus: int, seconds: Interval, node: PlannedNode, slowdown: Interval, joules: float | None, basis: str
) -> Option:
    """A choice, planned with an upper quantile of its time; slower where it leaves GPUs for others."""
    alone_s = quantile(seconds, PLANNED_NORMAL)
    beside_s = alone_s * (slowdown.value if gpus < node.gpus else 1.0)
    return Option(gpus, beside_s, alone_s, seconds, joules, basis)
