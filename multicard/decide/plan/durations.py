"""The tasks of a jobs file: each run of a job with its options, of times that were given or are predicted."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from multicard.config.job import count
from multicard.decide.plan.jobs_file import Job, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.runs import JobRun, unknown_reason
from multicard.decide.plan.schedule import Option, Task, quantile
from multicard.estimate.time import scaling
from multicard.estimate.time.known import NORMAL_90
from multicard.estimate.totals import product
from multicard.records.schema_parts import Interval

PLANNED_NORMAL = 0.8416  # the quantile of 0.8 of a standard normal variable: four of five jobs end no later
BETWEEN_SD = 0.05  # of the logarithm of a time between two that are known
LEARNED = 1.1  # to either side of a time that follows from that of another run of the job


@dataclass(frozen=True)
class Tasks:
    """The tasks of a file.

    notes: numbers of GPUs that were left out, and why. unknown: jobs whose time is not known.
    """

    tasks: tuple[Task, ...]
    notes: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def tasks(file: JobsFile, node: PlannedNode, runs: Sequence[JobRun] = ()) -> Tasks:
    """The tasks of a file's jobs, a job that repeats as several.

    Args:
        runs: predictions of the jobs that have a `run`.

    Raises:
        ValueError: a job can run on no number of GPUs; with the key and the reason.
    """
    options: dict[str, tuple[Option, ...]] = {}
    notes: list[str] = []
    unknown: list[str] = []
    for job in file.jobs:
        own = [run for run in runs if run.job is job]
        known = {run.gpus: (run.seconds, run.basis) for run in own if run.seconds is not None and not run.problem}
        times = known if job.is_predicted else _given(job, node)
        options[job.name] = tuple(option(gpus, seconds, node.gpus, file.slowdown, basis)
                                  for gpus, (seconds, basis) in times.items())  # fmt: skip
        notes += _left_out(job, own, node)
        if not times:
            _refuse_impossible(job, own, node)
            unknown.append(f"{job.name}: {unknown_reason(own)}")
    names = [(job, name) for job in file.jobs for name in job.task_names()]
    places = {job.name: tuple(place for place, (other, _) in enumerate(names) if other is job) for job in file.jobs}
    made = (
        Task(
            name,
            options[job.name],
            tuple(place for other in job.after for place in places[other]),
            job.deadline_s,
            job.name,
        )
        for job, name in names
    )
    return Tasks(tuple(made), tuple(notes), tuple(unknown))


def _refuse_impossible(job: Job, runs: Sequence[JobRun], node: PlannedNode) -> None:
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


def _left_out(job: Job, runs: Sequence[JobRun], node: PlannedNode) -> list[str]:
    notes = [f"{job.name}: not on {count(run.gpus, 'GPU')}: {run.problem}" for run in runs if run.problem]
    unknown = [str(run.gpus) for run in runs if run.is_unknown]
    if unknown and len(unknown) < len(runs):
        notes.append(f"{job.name}: not planned on {', '.join(unknown)} GPUs, whose time is not known")
    many = [str(gpus) for gpus in job.gpus or job.seconds if gpus > node.gpus]
    if many:
        notes.append(f"{job.name}: not on {', '.join(many)} GPUs: the node has {node.gpus}")
    return notes


def _given(job: Job, node: PlannedNode) -> dict[int, tuple[Interval, str]]:
    """Times that stand in the file, and their basis; those on other numbers of GPUs follow from them.

    Raises:
        ValueError: a number of GPUs that the times tell nothing of.
    """
    return {
        gpus: (job.seconds[gpus], "given") if gpus in job.seconds else (between(job, gpus), "scaled")
        for gpus in job.gpus or sorted(job.seconds)
        if gpus <= node.gpus
    }


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


def option(gpus: int, seconds: Interval, node_gpus: int, slowdown: Interval, basis: str = "given") -> Option:
    """A choice, planned with an upper quantile of its time; slower where it leaves GPUs for others.

    Args:
        seconds: while nothing else runs.
    """
    planned_s = float(quantile(seconds, PLANNED_NORMAL))
    if gpus == node_gpus:
        return Option(gpus, planned_s, seconds, seconds.value, basis)
    return Option(gpus, planned_s * slowdown.value, product(seconds, slowdown), seconds.value, basis)


def scaled(option: Option, ratio: float) -> Option:
    """An option whose times are longer by a factor, as another run of the job showed."""
    value = option.interval.value * ratio
    return Option(
        option.gpus, value, Interval(value, value / LEARNED, value * LEARNED), option.alone_s * ratio, option.basis
    )
