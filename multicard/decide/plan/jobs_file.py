"""The file of a plan: the node, and the jobs with their runs or times, their order and their deadlines.

node: {gpus: 4}              # left out: this machine; {gpus: 8, gpu: h100-80gb}: another
goal: makespan               # or energy, deadline
slowdown: 1.05               # of jobs that run side by side; or [value, low, high]
jobs:
  big:   {run: train_vision.py precision=bf16 epochs=20, gpus: [1, 2, 4], repeat: 2}
  table: {seconds: {1: 6266, 2: [3339, 3200, 3500], 4: 1937}, after: [big], deadline: 2h}
"""

import re
import reprlib
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from multicard import workloads
from multicard.config.keys import require
from multicard.decide.plan import jobs_yaml
from multicard.estimate import gpus as known_gpus
from multicard.records.schema_parts import Interval

# Jobs that run side by side share cores, memory bandwidth and PCIe. Until a pair of them was measured a few percent are
# assumed, and that it may be none or a tenth.
SLOWDOWN = Interval(1.03, 1.0, 1.1)
MOST_GPUS, MOST_RUNS = 1024, 200
MOST_S = 1e9
UNITS_S = {"": 1.0, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Keys that a plan sets itself, and why they stand in no `run`
PLANNED = {
    "gpus": "the job's gpus: [1, 2] says which numbers are allowed",
    "nodes": "a plan is of one node",
    "cpus_per_gpu": "node: {cpus_per_gpu: N} sets it for all jobs",
    "exclusive": "jobs of a plan run side by side",
    "race": "has the whole machine; write the run that it found",
    "repeat": "the job's repeat: N says how often it runs",
    "repetition": "the job's repeat: N says how often it runs",
    "experiment": "an experiment is a sweep; name its cells as jobs",
    "predict": "a plan predicts all jobs",
    "probe": "--probe probes what has to be probed",
    "dry_run": "a plan starts nothing",
    "hydra": "a plan has its own launcher",
    "name": "--name names all runs of the plan",
    "rerun": "--name of another plan runs all anew",
}


class Goal(StrEnum):
    makespan = "makespan"
    energy = "energy"
    deadline = "deadline"


@dataclass(frozen=True)
class Node:
    """A node. gpus: None is as many as this machine has; gpu: of `multicard.estimate.gpus`, None is this machine's.

    slurm: whether it is one of SLURM's, of this partition; None is the site's default.
    """

    gpus: int | None = None
    gpu: str | None = None
    cpus_per_gpu: int | None = None
    slurm: bool = False
    partition: str | None = None


@dataclass(frozen=True)
class Job:
    """A job of the file.

    run: the entry and its words; empty where only times are known. seconds: by number of GPUs, with a 90 % interval;
    empty where they are to be predicted of the run.
    gpus: the numbers that are allowed; None where the file does not say. deadline_s: from the plan's start on.
    """

    name: str
    run: tuple[str, ...] = ()
    seconds: Mapping[int, Interval] = field(default_factory=dict)
    joules: Mapping[int, float] = field(default_factory=dict)
    gpus: tuple[int, ...] | None = None
    repeat: int = 1
    after: tuple[str, ...] = ()
    deadline_s: float | None = None

    @property
    def is_predicted(self) -> bool:
        """Whether its times are to be predicted."""
        return not self.seconds


@dataclass(frozen=True)
class JobsFile:
    jobs: tuple[Job, ...]
    node: Node = Node()
    goal: Goal = Goal.makespan
    slowdown: Interval = SLOWDOWN
    is_slowdown_known: bool = False
    slowdown_source: str = ""  # in words; empty where it is assumed


def read(path: Path) -> JobsFile:
    """The jobs of a file.

    Raises:
        ValueError: what cannot be read or planned, with the file, the key and the remedy.
    """
    content = jobs_yaml.load(path)
    try:
        return parsed(content)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def parsed(content: Any) -> JobsFile:
    """The same of what the file holds.

    Raises:
        ValueError: with the key and the remedy.
    """
    values = _mapping(content, "the file", ("node", "goal", "slowdown", "jobs"))
    goal = Goal.makespan if values.get("goal") is None else values["goal"]
    require(goal in [*Goal], f"goal={goal}: must be {' or '.join(Goal)}")
    require(bool(values.get("jobs")), "jobs: names no job; write jobs: {name: {run: train_vision.py}}")
    jobs = _mapping(values["jobs"], "jobs")
    slowdown, source = SLOWDOWN, ""
    if values.get("slowdown") is not None:
        slowdown, source = _interval(values["slowdown"], "slowdown"), "as the file says"
        require(1 <= slowdown.low, f"slowdown={slowdown.low:g}: must be 1 or more")
    parsed_jobs = tuple(_job(_name(name), job) for name, job in jobs.items())
    runs = sum(job.repeat for job in parsed_jobs)
    require(runs <= MOST_RUNS, f"jobs: are {runs} runs; plan {MOST_RUNS} at a time")
    _check_order(parsed_jobs)
    _check_goal(Goal(goal), parsed_jobs)
    return JobsFile(parsed_jobs, _node(values.get("node")), Goal(goal), slowdown, bool(source), source)


def with_goal(file: JobsFile, goal: str) -> JobsFile:
    """The file with another goal.

    Raises:
        ValueError: its jobs do not have what the goal needs.
    """
    _check_goal(Goal(goal), file.jobs)
    return replace(file, goal=Goal(goal))


def _check_goal(goal: Goal, jobs: Collection[Job]) -> None:
    has_deadline = any(job.deadline_s is not None for job in jobs)
    require(goal is not Goal.deadline or has_deadline, "goal=deadline: no job has a deadline; write deadline: 2h")
    if goal is Goal.energy:
        unknown = [job.name for job in jobs if job.seconds and not job.joules]
        require(not unknown, f"goal=energy: jobs.{unknown[0] if unknown else ''} has no joules: {{1: J, 2: J}}")


def _node(content: Any) -> Node:
    if content is None:
        return Node()
    content = {"slurm": True} if content == "slurm" else content
    values = _mapping(content, "node", ("gpus", "gpu", "cpus_per_gpu", "slurm", "partition"))
    slurm, partition = values.get("slurm", False), values.get("partition")
    require(isinstance(slurm, bool), f"node.slurm={slurm}: must be true or false")
    require(partition is None or slurm, "node.partition: is SLURM's; write slurm: true beside it")
    is_name = isinstance(partition, str) and bool(re.fullmatch(r"[\w.,+-]+", partition))
    require(partition is None or is_name, f"node.partition={partition}: must be a name; `sinfo -s` lists them")
    gpus, gpu, cores = (values.get(name) for name in ("gpus", "gpu", "cpus_per_gpu"))
    if gpu is not None:
        gpu = known_gpus.named(str(gpu), "node.gpu").name
        require(gpus is not None or slurm, "node.gpu: needs node.gpus, how many of them there are")
    return Node(
        None if gpus is None else _whole(gpus, "node.gpus", MOST_GPUS),
        gpu,
        None if cores is None else _whole(cores, "node.cpus_per_gpu", MOST_GPUS),
        slurm,
        partition,
    )


def _name(name: Any) -> str:
    require(isinstance(name, str), f"jobs.{name}: is not text; put the name in quotation marks")
    require(bool(re.fullmatch(r"[\w.+-]+", name)), f"jobs.{name}: a name has letters, digits, and . _ + - alone")
    return name


def _job(name: str, content: Any) -> Job:
    key = f"jobs.{name}"
    values = _mapping(content, key, ("run", "seconds", "joules", "gpus", "repeat", "after", "deadline"))
    has_run, has_seconds = values.get("run") is not None, values.get("seconds") is not None
    require(has_run or has_seconds, f"{key}: needs run or seconds")
    predicted = has_run and not has_seconds
    require(not predicted or values.get("joules") is None, f"{key}.joules: are predicted for a run; leave them out")
    seconds = {
        gpus: _interval(value, where) for gpus, value, where in _by_gpus(values.get("seconds"), f"{key}.seconds")
    }
    joules = {gpus: _number(value, where) for gpus, value, where in _by_gpus(values.get("joules"), f"{key}.joules")}
    deadline = values.get("deadline")
    after = values.get("after")
    return Job(
        name,
        _run(values["run"], f"{key}.run") if has_run else (),
        seconds,
        joules,
        _counts(values.get("gpus"), f"{key}.gpus"),
        _whole(values.get("repeat", 1), f"{key}.repeat", MOST_RUNS),
        tuple(dict.fromkeys(map(str, _listed(after)))),
        None if deadline is None else duration_s(deadline, f"{key}.deadline"),
    )


def _run(text: Any, key: str) -> tuple[str, ...]:
    """The words of a command, of which the first is the entry."""
    try:
        words = shlex.split(text) if isinstance(text, str) else []
    except ValueError as error:
        raise ValueError(f"{key}: {str(error).lower()}") from None
    words = words[1:] if words[:1] == ["python"] else words
    entries = [workload.entry for workload in workloads.WORKLOADS]
    require(words[:1] != [] and words[0] in entries, f"{key}: begins with {' or '.join(entries)}")
    for word in words[1:]:
        require(not word.startswith("-"), f"{key}: {word}: a job is one run, of words key=value alone")
        name = word.lstrip("+~").partition("=")[0]
        group = re.split(r"[./@]", name)[0]
        reason = PLANNED.get(group) if name == group or group in ("predict", "probe", "race", "hydra") else None
        require(reason is None, f"{key}: {word}: {reason}")
    return tuple(words)


def duration_s(value: Any, key: str) -> float:
    """ "2h", "90min", "1.5d" or a number of seconds.

    Raises:
        ValueError: it is none, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d|)", str(value).strip())
    seconds = float(match[1]) * UNITS_S[match[2]] if match else 0.0
    require(0 < seconds < MOST_S, f"{key}={value}: must be a time above 0, as 90s, 30min or 2h")
    return seconds


def _counts(value: Any, key: str) -> tuple[int, ...] | None:
    if value is None:
        return None
    counts = tuple(sorted({_whole(each, key, MOST_GPUS) for each in _listed(value)}))
    require(bool(counts), f"{key}: names no number of GPUs; write gpus: [1, 2]")
    return counts


def _by_gpus(content: Any, key: str) -> list[tuple[int, Any, str]]:
    """Number of GPUs, value and key of each."""
    if content is None:
        return []
    items = content.items() if isinstance(content, dict) else ()
    require(bool(items), f"{key}: must be values by number of GPUs, as {{1: 600, 2: 320}}")
    return [(_whole(gpus, f"{key}: number of GPUs", MOST_GPUS), value, f"{key}.{gpus}") for gpus, value in items]


def _interval(value: Any, key: str) -> Interval:
    """A number, or [value, low, high]."""
    parts = value if isinstance(value, list) else [value]
    require(len(parts) in (1, 3), f"{key}: must be a number, or [value, low, high]")
    middle, low, high = (_number(part, key) for part in (parts if len(parts) == 3 else parts * 3))
    require(low <= middle <= high, f"{key}: must be [value, low, high] with low <= value <= high")
    return Interval(middle, low, high)


def _number(value: Any, key: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    require(is_number and 0 < value < MOST_S, f"{key}={_short(value)}: must be a number above 0, and below {MOST_S:g}")
    return float(value)


def _whole(value: Any, key: str, most: int) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= most
    require(is_whole, f"{key}={_short(value)}: must be a whole number from 1 to {most}")
    return int(value)


def _short(value: Any) -> str:
    """A value as it is named in a message; text has its quotation marks."""
    return reprlib.repr(value)


def _listed(value: Any) -> list[Any]:
    return [] if value is None else value if isinstance(value, list) else [value]


def _mapping(content: Any, key: str, names: Collection[str] = ()) -> dict[Any, Any]:
    """The content as a mapping, of these keys alone."""
    require(isinstance(content, dict), f"{key}: must have keys" + (f": {', '.join(names)}" if names else ""))
    unknown = [str(name) for name in content if names and name not in names]
    prefix = "" if key == "the file" else f"{key}."
    is_part = any(name not in names and value is None for name, value in content.items())  # {run: a.py b=1,2}
    quotes = "; a value with a comma needs quotation marks" if is_part else ""
    require(not unknown, f"{prefix}{unknown[0] if unknown else ''}: no such key; there are {', '.join(names)}{quotes}")
    return content


def _check_order(jobs: Collection[Job]) -> None:
    """Refuse jobs that wait for themselves, or for others that are not there."""
    after = {job.name: job.after for job in jobs}
    for job in jobs:
        for other in job.after:
            require(other in after, f"jobs.{job.name}.after: {other}: no such job; there are {', '.join(after)}")
    left = set(after)
    while ready := [name for name in left if not left & {*after[name]}]:
        left -= {*ready}
    require(not left, f"jobs.{min(left, default='')}.after: waits for itself, by way of {', '.join(sorted(left))}")
