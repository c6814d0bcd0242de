"""Read the file of a plan: the node, and the jobs with their runs or times, order and deadlines.

Example:

node: {gpus: 4}              # left out: this machine; {gpus: 8, gpu: h100-80gb}: another
slowdown: 1.05               # of jobs that run side by side; or [value, low, high]
jobs:
  big:   {run: train_vision.py precision=bf16 epochs=20, gpus: [1, 2, 4], repeat: 2}
  table: {seconds: {1: 6266, 2: [3339, 3200, 3500], 4: 1937}, after: [big], deadline: 2h}
"""

import re
import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from multicard import workloads
from multicard.config import schema, strict_yaml
from multicard.config.job import AUTO
from multicard.estimate import target
from multicard.messages import Refusal
from multicard.records.schema_parts import PredictedInterval

# Jobs that run side by side share cores, memory bandwidth and PCIe. If the file has no slowdown, a
# few percent are assumed.
SLOWDOWN = PredictedInterval(1.03, 1.0, 1.1)
MOST_RUNS = 200
MOST_S = 1e9
ASCENDING_FORM = "a number, or [value, low, high] with low <= value <= high"
UNITS_S = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
# Keys that a plan sets itself (Role.planned), so a job cannot set them. The value is the remedy.
PLANNED = {  # no roles: sentences, by key
    "gpus": "the job's gpus: [1, 2] says which numbers are allowed",
    "nodes": "a plan is for one node",
    "cpus_per_gpu": "node: {cpus_per_gpu: N} sets it for all jobs",
    "exclusive": "jobs of a plan run side by side",
    "race": "a race has the whole machine; write the run that it found",
    "repeat": "the job's repeat: N says how often it runs",
    "repetition": "the job's repeat: N says how often it runs",
    "experiment": "an experiment is a sweep; name its cells as jobs",
    "predict": "a plan predicts all jobs",
    "probe": "a plan names the probes that it needs",
    "dry_run": "a plan starts nothing",
    "hydra": "a plan has its own launcher",
    "name": "--name names all runs of the plan",
    "rerun": "--name with the name of another plan runs all anew",
}
# Examples for messages, by key.
# no roles: the keys of a jobs file
EXAMPLES = {
    "jobs": "{name: {run: train_vision.py}}",
    "run": "train_vision.py precision=bf16",
    "seconds": "{1: 600, 2: [320, 300, 350]}, by number of GPUs, as value or [value, low, high]",
    "gpus": "[1, 2]",
    "repeat": "3",
    "after": "[other]",
    "deadline": "90s, 30min or 2h",
    "slowdown": "1.05 or [1.05, 1.0, 1.1]",
}

Count = Annotated[int, Meta(ge=1, le=1024)]
Number = Annotated[float, Meta(gt=0, lt=MOST_S)]
Figure = Number | Annotated[list[Number], Meta(min_length=3, max_length=3)]
Converted = TypeVar("Converted", bound=Struct)


class Node(Struct, forbid_unknown_fields=True, frozen=True):
    """The node of a jobs file.

    Fields:
        gpus: the number of GPUs; None for as many as there are.
        gpu: a name of `machine/gpus.csv`; None for this machine's GPU.
    """

    gpus: Count | None = None
    gpu: str | None = None
    cpus_per_gpu: Count | None = None


class PlannedJob(Struct, forbid_unknown_fields=True, frozen=True):
    """A job as the file has it. The properties interpret its values.

    Fields:
        name: its key under `jobs`.
        gpus: the allowed numbers; None if the file has none.
        deadline: a time with a unit, because YAML reads 1:30 as the number 90.
    """

    name: str
    run: str | None = None
    seconds: Annotated[Mapping[Count, Figure], Meta(min_length=1)] | None = None
    gpus: Count | Annotated[list[Count], Meta(min_length=1)] | None = None
    repeat: Annotated[int, Meta(ge=1, le=MOST_RUNS)] = 1
    after: str | list[str] | None = None
    deadline: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The entry and its words; empty if only times are known."""
        words = shlex.split(self.run or "")
        return tuple(words[1:] if words[:1] == ["python"] else words)

    @property
    def times(self) -> dict[int, PredictedInterval]:
        """Seconds by number of GPUs, with a 90 % interval; empty if they must be predicted."""
        return {gpus: _interval(figure) for gpus, figure in (self.seconds or {}).items()}

    @property
    def allowed(self) -> tuple[int, ...]:
        """The allowed numbers of GPUs; empty if the file has none."""
        if isinstance(self.gpus, list):
            return tuple(sorted({*self.gpus}))
        return (self.gpus,) if self.gpus else ()

    @property
    def predecessors(self) -> tuple[str, ...]:
        """The jobs that must end before this one begins, each once."""
        return (
            (self.after,) if isinstance(self.after, str) else tuple(dict.fromkeys(self.after or ()))
        )

    @property
    def deadline_s(self) -> float | None:
        """Seconds from the start of the plan to the deadline."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|h|d)", (self.deadline or "").strip())
        return float(match[1]) * UNITS_S[match[2]] if match else None

    @property
    def task_names(self) -> list[str]:
        """The names of the job's runs."""
        return (
            [self.name]
            if self.repeat == 1
            else [f"{self.name}#{number}" for number in range(1, self.repeat + 1)]
        )


@dataclass(frozen=True)
class JobsFile:
    """The checked content of a jobs file."""

    jobs: tuple[PlannedJob, ...]
    node: Node = Node()
    slowdown: PredictedInterval = SLOWDOWN


class _FileKeys(Struct, forbid_unknown_fields=True):
    jobs: Annotated[dict[str, dict[Any, Any]], Meta(min_length=1)]
    node: dict[Any, Any] | None = None
    slowdown: Figure | None = None


def read_jobs_file(path: Path) -> JobsFile:
    """Read a jobs file. A Refusal names the file, the key and the remedy."""
    try:
        return parse_jobs(strict_yaml.read_yaml(path))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise Refusal(
            "plan.unreadable", f"{path}: {reason}", path=str(path), reason=reason
        ) from None
    except ValueError as error:
        key = error.key if isinstance(error, Refusal) else None
        raise Refusal(
            "plan.file", f"{path}: {error}", key=key, path=str(path), reason=str(error)
        ) from None


def parse_jobs(content: Any) -> JobsFile:
    """Check the content of a jobs file. A Refusal names the key and the remedy."""
    keys = _convert(content, _FileKeys, "")
    jobs = tuple(_job(name, job) for name, job in keys.jobs.items())
    runs = sum(job.repeat for job in jobs)
    if runs > MOST_RUNS:
        raise Refusal(
            "plan.too-many-runs",
            f"jobs: there are {runs} runs; plan at most {MOST_RUNS} at a time",
            key="jobs",
            runs=runs,
        )
    _check_order(jobs)
    slowdown = SLOWDOWN if keys.slowdown is None else _interval(keys.slowdown)
    if slowdown.low < 1 or not _ascends(slowdown):
        raise Refusal(
            "plan.slowdown-range", f"slowdown: must be 1 or more, {ASCENDING_FORM}", key="slowdown"
        )
    node = _convert(keys.node or {}, Node, "node")
    if node.gpu is not None:
        node = msgspec.structs.replace(node, gpu=target.find_gpu(node.gpu, "node.gpu").name)
        if node.gpus is None:
            raise Refusal(
                "plan.no-node-gpus",
                "node.gpu: needs node.gpus, the number of its GPUs",
                key="node.gpu",
            )
    return JobsFile(jobs, node, slowdown)


def _convert(content: Any, kind: type[Converted], key: str) -> Converted:
    """Return the content below a key as a struct. A Refusal has the key and an example."""
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        problem, _, path = str(error).partition(" - at ")
    if unknown := re.match(r"Object contains unknown field `(.*)`", problem):
        raise _no_such_key(content, kind, key, unknown[1])
    problem = problem.lower().replace("object", "keys").replace("array", "list").replace("`", "")
    name = (re.findall(r"\$\.(\w+)", path) or [""])[0]
    where = ".".join(filter(None, (key, name))) or "the file"
    example = EXAMPLES.get(name)
    remedy = f"; write {example}" if example else ""
    raise Refusal(
        "plan.value", f"{where}: {problem}{remedy}", key=where, problem=problem, example=example
    )


def _no_such_key(content: Any, kind: type[Struct], key: str, name: str) -> Refusal:
    names = [name_or_field.name for name_or_field in msgspec.structs.fields(kind)]
    known_keys = [name_or_field for name_or_field in names if name_or_field != "name"]
    # YAML reads {run: a.py b=1,2} as two keys, the second one without a value.
    is_cut = any(other not in names and content[other] is None for other in content)
    remedy = "; a value with a comma needs quotation marks" if is_cut else ""
    where = f"{key}.{name}" if key else name
    sentence = f"{where}: no such key; there are {', '.join(known_keys)}{remedy}"
    return Refusal("plan.unknown-key", sentence, key=where, known=known_keys, is_cut=is_cut)


def _job(name: str, content: dict[Any, Any]) -> PlannedJob:
    key = f"jobs.{name}"
    if not re.fullmatch(r"[\w.+-]+", name):
        raise Refusal(
            "plan.job-name", f"{key}: use only letters, digits and . _ + - in a name", key=key
        )
    if "name" in content:
        raise Refusal(
            "plan.name-twice",
            f"{key}.name: no such key; the job's name is {name}",
            key=f"{key}.name",
        )
    job = _convert(content | {"name": name}, PlannedJob, key)
    if job.run is None and job.seconds is None:
        raise Refusal("plan.empty-job", f"{key}: needs run or seconds", key=key)
    for gpus, interval in job.times.items():
        if not _ascends(interval):
            where = f"{key}.seconds.{gpus}"
            raise Refusal("plan.seconds-order", f"{where}: must be {ASCENDING_FORM}", key=where)
    untimed = [number for number in job.allowed if job.times and number not in job.times]
    if untimed:
        sentence = f"{key}.gpus: {untimed} have no time in seconds; add it, or leave them out"
        raise Refusal("plan.untimed", sentence, key=f"{key}.gpus", gpus=untimed)
    if job.deadline is not None and not 0 < (job.deadline_s or 0) < MOST_S:
        where = f"{key}.deadline"
        sentence = f"{where}={job.deadline}: must be a time above 0, as {EXAMPLES['deadline']}"
        raise Refusal("plan.deadline", sentence, key=where, value=job.deadline)
    if job.run is not None:
        _check_words(job, f"{key}.run")
    return job


def _check_words(job: PlannedJob, key: str) -> None:
    """Refuse a run that is not a command of an entry, and keys that a plan sets itself."""
    try:
        entry, *words = job.words or ("",)
    except ValueError as error:
        reason = str(error).lower()
        raise Refusal("plan.quotation", f"{key}: {reason}", key=key, reason=reason) from None
    entries = [workload.entry for workload in workloads.WORKLOADS]
    if entry not in entries:
        raise Refusal(
            "plan.entry", f"{key}: must begin with {' or '.join(entries)}", key=key, value=entry
        )
    for word in words:
        _check_word(word, key)


def _check_word(word: str, key: str) -> None:
    if word.startswith("-"):
        sentence = f"{key}: {word}: a job is one run; write words key=value only"
        raise Refusal("plan.flag", sentence, key=key, word=word)
    name = word.lstrip("+~").partition("=")[0]
    group = re.split(r"[./@]", name)[0]
    groups = {"hydra"}.union(*map(schema.switches, schema.SCHEMAS))
    if group in PLANNED and (name == group or group in groups):
        raise Refusal(
            "plan.planned-key", f"{key}: {word}: {PLANNED[group]}", key=key, word=word, group=group
        )
    if word in AUTO:
        raise Refusal(
            "plan.auto",
            f"{key}: {word}: a plan needs given sizes; write the number",
            key=key,
            word=word,
        )
    if "${" in word:
        sentence = f"{key}: {word}: a plan does not resolve interpolations; write the value"
        raise Refusal("plan.interpolation", sentence, key=key, word=word)


def _interval(figure: float | list[float]) -> PredictedInterval:
    return PredictedInterval(*(figure if isinstance(figure, list) else [figure] * 3))


def _ascends(interval: PredictedInterval) -> bool:
    return interval.low <= interval.value <= interval.high


def _check_order(jobs: Collection[PlannedJob]) -> None:
    """Refuse jobs that wait for themselves, or for jobs that do not exist."""
    after = {job.name: job.predecessors for job in jobs}
    for name, others in after.items():
        for other in others:
            if other not in after:
                key = f"jobs.{name}.after"
                sentence = f"{key}: {other}: no such job; there are {', '.join(after)}"
                raise Refusal("plan.no-such-job", sentence, key=key, job=other, known=[*after])
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        first, *others = error.args[1][::-1]
        key = f"jobs.{first}.after"
        sentence = f"{key}: waits for itself through {', '.join(others)}"
        raise Refusal("plan.cycle", sentence, key=key, through=others) from None
