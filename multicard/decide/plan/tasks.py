"""The tasks of a jobs file: each run of a job with its options,
by times that were given or are predicted.
"""

import shlex
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from multicard import workloads
from multicard.cli import command_line
from multicard.config.job import count
from multicard.config.placement import place
from multicard.decide.plan.jobs_file import JobsFile, PlannedJob
from multicard.decide.plan.schedule import PlanTask, timed_option
from multicard.estimate.estimates import Effort, Estimate, estimate
from multicard.estimate.target import targets
from multicard.estimate.totals import summed
from multicard.machine import environment
from multicard.messages import Message, Refusal
from multicard.records.schema_parts import PredictedInterval
from multicard.sweep import auto
from multicard.sweep.cells import Cell, RefusedCell, cell_of
from multicard.sweep.compositions import task_of

# Seconds from a command to the start of its training, where no run of the machine tells: imports,
# data, the ranks
START = PredictedInterval(15.0, 5.0, 40.0)
# From the end of training to that of the command: its record, W&B, the ends of ranks;
# 2.0 to 2.4 s in eight runs on CPU
END = PredictedInterval(2.2, 1.0, 6.0)
BESIDE = "exclusive=false"  # jobs run beside others
# A probe runs on a share of the machine, as a job does: its times are then those of the job's cores
ON_SHARE = ("hydra/launcher=submitit_local", BESIDE, "max_jobs=1")
SWEEPS = Path("multirun")  # folder of sweeps: that of a plan's runs has the plan's name


# ---- the node


@dataclass(frozen=True)
class PlannedNode:
    """A node with its GPUs; where it has none, CPU ranks with cores of their own stand in for them.

    Fields:
        words: what the command of each run has besides those of the file.
    """

    gpus: int
    name: str = ""
    words: tuple[str, ...] = ()
    on_gpus: bool = True

    @property
    def noun(self) -> str:
        return "GPU" if self.on_gpus else "rank"


def resolve(file: JobsFile, is_here: bool = False) -> PlannedNode:
    """The node of a file; with `is_here` it has to be this machine, also where all times are known.
    Refuses a node that is not there.
    """
    node = file.node
    is_predicted = any(not job.times for job in file.jobs)
    if node.gpu is not None and node.gpus is not None:
        if is_here:
            sentence = (
                "node.gpu: names another node, and --run starts jobs on this machine; leave it out"
            )
            raise Refusal("plan.other-node", sentence, key="node.gpu")
        return PlannedNode(
            node.gpus, f"{count(node.gpus, 'GPU')} {node.gpu}", (f"predict.gpu={node.gpu}",)
        )
    here = environment.gpus()
    if here:
        gpus = node.gpus or len(here)
        if is_here and gpus > len(here):
            sentence = f"node.gpus={gpus}: this machine has {count(len(here), 'GPU')}"
            raise Refusal(
                "plan.too-few-gpus", sentence, key="node.gpus", value=gpus, gpus=len(here)
            )
        return PlannedNode(gpus, f"{count(gpus, 'GPU')} {here[0].get('name') or ''}".strip())
    if not is_here and not is_predicted and node.gpus is not None:
        return PlannedNode(node.gpus, count(node.gpus, "GPU"))
    cores = environment.cores()
    each = node.cpus_per_gpu or max(cores // (node.gpus or cores), 1)
    ranks = node.gpus or max(cores // each, 1)
    if ranks * each > cores:
        raise Refusal(
            "plan.too-few-cores",
            f"node.gpus={ranks}: this machine has no GPU, and {count(cores, 'core')} for CPU ranks"
            f" of {count(each, 'core')}; name the node's GPUs with node.gpu",
            key="node.gpus",
            value=ranks,
            cores=cores,
            cores_each=each,
        )
    name = f"{count(ranks, 'CPU rank')} of {count(each, 'core')}"
    return PlannedNode(ranks, name, (f"cpus_per_gpu={each}",), on_gpus=False)


# ---- jobs on a number of GPUs


@dataclass(frozen=True)
class JobRun:
    """A job on a number of GPUs.

    Fields:
        problem: why it cannot run, with the remedy.
        cell: None for a job without a command, and where there is a problem.
        estimate: None for given times.
    """

    job: PlannedJob
    gpus: int
    problem: str = ""
    cell: Cell | None = None
    estimate: Estimate | None = None

    @property
    def seconds(self) -> PredictedInterval | None:
        """From the command to its end; None where the time is not known."""
        if self.problem:
            return None
        if self.job.times:
            return self.job.times[self.gpus]
        if self.estimate is None or not self.estimate.basis.is_measured:
            return None  # a plan rests on no roofline
        if self.estimate.prediction.total_s is None:
            return None
        return summed([self.estimate.prediction.total_s, self.estimate.start_s or START, END])

    @property
    def seconds_as_busy(self) -> PredictedInterval | None:
        """The same if others stay as busy as during the runs behind the estimate;
        None where that is not known.
        """
        told = None if self.estimate is None else self.estimate.prediction.as_busy
        if self.seconds is None or self.estimate is None or told is None or told.total_s is None:
            return None
        return summed([told.total_s, self.estimate.start_s or START, END])

    @property
    def basis(self) -> str:
        """The basis of its time, with the marks of the runs behind it."""
        told = None if self.estimate is None else self.estimate.prediction
        return "given" if told is None else f"{told.basis} {told.marks}".strip()

    @property
    def why_not(self) -> str:
        """Why it is not planned on this number; empty where it is."""
        about = "" if self.estimate is None else self.estimate.prediction.about
        if self.problem or self.seconds is not None:
            return self.problem
        return about or Message("plan.time-unknown", "its time is not known")


def runs(file: JobsFile, node: PlannedNode, sweep: Path) -> list[JobRun]:
    """The jobs on each number of GPUs that they may have (`composed`),
    with estimates where the file has no times.

    Args:
        sweep: folder of the plan's runs.
    """
    found = list(chain.from_iterable(composed(job, node, sweep) for job in file.jobs))
    asked = {
        number: run.cell.config
        for number, run in enumerate(found)
        if run.cell and not run.job.times
    }
    if asked:
        estimates = estimate(
            [*asked.values()], sweep / "run", targets([*asked.values()]), Effort.gpus
        )
        for number, own in zip(asked, estimates, strict=True):
            found[number] = replace(found[number], estimate=own)
            if own.prediction.fits == "no":
                problem = Message("plan.needs-more-memory", "does not fit into the memory of a GPU")
                found[number] = replace(found[number], problem=problem)
    return found


def tasks(file: JobsFile, node: PlannedNode, runs: Sequence[JobRun]) -> list[PlanTask]:
    """The tasks of a file's jobs; a job that repeats has several."""
    options = {
        job.name: tuple(
            timed_option(
                run.gpus, run.seconds, node.gpus, file.slowdown, run.basis, run.seconds_as_busy
            )
            for run in runs
            if run.job is job and run.seconds is not None
        )
        for job in file.jobs
    }
    named = []
    for job in file.jobs:
        named.extend((job, name) for name in job.task_names)
    places = {
        job.name: [place for place, (other, _) in enumerate(named) if other is job]
        for job in file.jobs
    }
    after = {}
    for job in file.jobs:
        before = chain.from_iterable(places[name] for name in job.predecessors)
        after[job.name] = tuple(sorted(before))
    return [
        PlanTask(name, options[job.name], after[job.name], job.deadline_s, job.name)
        for job, name in named
    ]


def notes(file: JobsFile, runs: Sequence[JobRun]) -> tuple[list[str], list[str]]:
    """The numbers of GPUs that are left out, and the jobs whose time is not known at all; both with
    the reasons. A job that can run on no number of GPUs is refused.
    """
    left_out = list[str]()
    unknown = list[str]()
    for job in file.jobs:
        own = [run for run in runs if run.job is job]
        reasons = _reasons(own)
        if all(run.problem for run in own):
            key = f"jobs.{job.name}"
            raise Refusal(
                "plan.cannot-run", f"{key}: cannot run ({reasons})", key=key, reasons=reasons
            )
        if all(run.why_not for run in own):
            unknown.append(f"{job.name}: {reasons}")
        elif reasons:
            sentence = f"{job.name}: not planned with {reasons}"
            left_out.append(Message("plan.left-out", sentence, job=job.name, reasons=reasons))
    return left_out, unknown


def _reasons(runs: Sequence[JobRun]) -> str:
    """The numbers of GPUs on which a job is not planned, by reason."""
    numbers: dict[str, list[int]] = {}
    for run in runs:
        if run.why_not:
            numbers.setdefault(run.why_not, []).append(run.gpus)
    return "; ".join(
        Message("plan.not-on", f"gpus={','.join(map(str, gpus))}: {why}", gpus=gpus, reason=why)
        for why, gpus in numbers.items()
    )


def probes(known: Sequence[JobRun], node: PlannedNode, sweep: Path) -> list[str]:
    """Commands of probes, one for each run whose time is unknown.
    An earlier probe of it said nothing of its time.
    """
    commands = []
    for run in (run for run in known if run.why_not and not run.problem):
        entry, *words = run.job.words
        words += [*ON_SHARE, *(word for word in node.words if not word.startswith("predict."))]
        words += [f"gpus={run.gpus}", "probe=true", f"name={sweep.name}", "rerun=true"]
        commands.append(shlex.join(["python", entry, "-m", *words]))
    return commands


# ---- runs as cells


def cells(file: JobsFile, node: PlannedNode, sweep: Path) -> dict[tuple[str, int], Cell]:
    """The cell of each task on each number of GPUs, by the task's name and that number. Refused are
    jobs that have nothing to run, and tasks that are the same run.
    """
    found: dict[tuple[str, int], Cell] = {}
    owners: dict[tuple[str, int], str] = {}
    for job in file.jobs:
        if not job.run:
            key = f"jobs.{job.name}"
            sentence = (
                f"{key}: has times, but nothing to run; give it a run beside its seconds, or leave"
                " --run out"
            )
            raise Refusal("plan.nothing-to-run", sentence, key=key)
        for repetition, name in enumerate(job.task_names, 1):
            for run in composed(job, node, sweep, repetition):
                if run.cell is None:
                    continue
                owner = owners.setdefault((run.cell.config.identity(), repetition), job.name)
                if owner != job.name:
                    key = f"jobs.{job.name}.run"
                    sentence = (
                        f"{key}: is the same run as jobs.{owner}; use repeat for several runs, or"
                        " another seed"
                    )
                    raise Refusal("plan.same-run", sentence, key=key, job=owner)
                found[name, run.gpus] = run.cell
                run.cell.number = len(found)
    return found


def composed(job: PlannedJob, node: PlannedNode, sweep: Path, repetition: int = 1) -> list[JobRun]:
    """The job on each number of GPUs that it may have: 1, 2, 4 ... and all, where the file does not
    say. A Refusal says why its words cannot be composed.
    """
    cfg = None
    if job.run:
        try:
            cfg = _composed(job.words[0], (*job.words[1:], BESIDE, *node.words))
        except ValueError as error:
            key = f"jobs.{job.name}.run"
            raise Refusal("plan.run", f"{key}: {error}", key=key, reason=str(error)) from None
    found = []
    for gpus in job.allowed or sorted(job.times) or auto.counts(node.gpus):
        run = JobRun(job, gpus)
        if gpus > node.gpus:
            run = replace(
                run,
                problem=Message("plan.node-has-fewer", f"the node has {node.gpus}", gpus=node.gpus),
            )
        elif cfg is not None:
            run = _with_cell(run, cfg, node, sweep, repetition)
        found.append(run)
    return found


def _with_cell(
    run: JobRun, composed: DictConfig, node: PlannedNode, sweep: Path, repetition: int
) -> JobRun:
    composed, entry, *words = deepcopy(composed), *run.job.words
    workload = workloads.of_entry(entry)
    with open_dict(composed):
        composed.gpus = run.gpus
        composed.repetition = repetition
        composed.name = sweep.name
    cell = cell_of(
        workload, composed, task_of(composed), sweep.absolute(), [*words, f"gpus={run.gpus}"]
    )
    if isinstance(cell, RefusedCell):
        return replace(run, problem=cell.reason)
    try:
        placement = place(cell.config, node.gpus if node.on_gpus else 0)
        workload.fits(cell.config, placement)
        if placement.device == "cpu" and node.on_gpus:
            raise Refusal(
                "plan.cpu-job", "device=cpu: the plan is for GPUs; leave it out", key="device"
            )
    except ValueError as error:
        return replace(run, problem=str(error))
    return replace(run, cell=cell)


@cache
def _composed(entry: str, words: tuple[str, ...]) -> DictConfig:
    """The configuration as the entry gets it from these words, with Hydra's own part,
    or a ValueError of one line.
    """
    workload = workloads.of_entry(entry)
    own = command_line.switched([*words], workload)
    command_line.check(overrides := command_line.overrides(own), workload)
    for override in overrides:
        if override.is_sweep_override():
            word = str(override.input_line)
            raise Refusal(
                "plan.sweep", f"{word}: is a sweep; write a job for each value", word=word
            )
    workloads.register()
    try:
        return workloads.composed(entry, own)
    except (HydraException, OmegaConfBaseException) as error:
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        raise ValueError(command_line.explain("\n".join(causes), workload)) from None
