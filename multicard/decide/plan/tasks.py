"""Turn the jobs of a jobs file into tasks: each run of a job with its options of GPUs.

Times are given in the file, or predicted.
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
from multicard.sweep import auto_search
from multicard.sweep.cells import Cell, RefusedCell, cell_of
from multicard.sweep.compositions import task_of

# Seconds from a command to the start of its training (imports, data, ranks), if no run of the
# machine shows them.
START = PredictedInterval(15.0, 5.0, 40.0)
# Seconds from the end of training to the end of the command (record, W&B, ends of ranks). Eight
# runs on CPU took 2.0 to 2.4 s.
END = PredictedInterval(2.2, 1.0, 6.0)
BESIDE = "exclusive=false"  # Jobs run beside others.
# A probe runs on a share of the machine, as a job does, so that it is timed on the job's cores.
ON_SHARE = ("hydra/launcher=submitit_local", BESIDE, "max_jobs=1")
SWEEPS = Path("multirun")  # The folder of sweeps. The runs of a plan lie in one with its name.


# ---- the node


@dataclass(frozen=True)
class PlannedNode:
    """A node with its GPUs. If it has none, CPU ranks, each with its cores, stand in for them.

    Fields:
        words: words that are added to the command of each run.
    """

    gpus: int
    name: str = ""
    words: tuple[str, ...] = ()
    on_gpus: bool = True

    @property
    def noun(self) -> str:
        return "GPU" if self.on_gpus else "rank"


def resolve(file: JobsFile, is_here: bool = False) -> PlannedNode:
    """Return the node of a file, or refuse a node that does not exist.

    With `is_here`, it must be this machine even if all times are known.
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
    local_gpus = environment.gpus()
    if local_gpus:
        gpus = node.gpus or len(local_gpus)
        if is_here and gpus > len(local_gpus):
            sentence = f"node.gpus={gpus}: this machine has {count(len(local_gpus), 'GPU')}"
            raise Refusal(
                "plan.too-few-gpus", sentence, key="node.gpus", value=gpus, gpus=len(local_gpus)
            )
        return PlannedNode(gpus, f"{count(gpus, 'GPU')} {local_gpus[0].get('name') or ''}".strip())
    if not is_here and not is_predicted and node.gpus is not None:
        return PlannedNode(node.gpus, count(node.gpus, "GPU"))
    cores = environment.cores()
    cores_each = node.cpus_per_gpu or max(cores // (node.gpus or cores), 1)
    ranks = node.gpus or max(cores // cores_each, 1)
    if ranks * cores_each > cores:
        raise Refusal(
            "plan.too-few-cores",
            f"node.gpus={ranks}: this machine has no GPU, and {count(cores, 'core')} for CPU ranks"
            f" of {count(cores_each, 'core')}; name the node's GPUs with node.gpu",
            key="node.gpus",
            value=ranks,
            cores=cores,
            cores_each=cores_each,
        )
    name = f"{count(ranks, 'CPU rank')} of {count(cores_each, 'core')}"
    return PlannedNode(ranks, name, (f"cpus_per_gpu={cores_each}",), on_gpus=False)


# ---- jobs on a number of GPUs


@dataclass(frozen=True)
class JobRun:
    """A job on a number of GPUs.

    Fields:
        problem: why it cannot run, with the remedy.
        cell: None for a job without a command, or if there is a problem.
        estimate: None for given times.
    """

    job: PlannedJob
    gpus: int
    problem: str = ""
    cell: Cell | None = None
    estimate: Estimate | None = None

    @property
    def seconds(self) -> PredictedInterval | None:
        """Seconds from the command to its end; None if the time is not known."""
        if self.problem:
            return None
        if self.job.times:
            return self.job.times[self.gpus]
        if self.estimate is None or not self.estimate.basis.is_measured:
            return None  # A plan must not rest on a roofline.
        if self.estimate.prediction.total_s is None:
            return None
        return summed([self.estimate.prediction.total_s, self.estimate.start_s or START, END])

    @property
    def seconds_as_busy(self) -> PredictedInterval | None:
        """The same if other programs stay as busy as during the runs behind the estimate.

        None if that is not known.
        """
        as_busy = None if self.estimate is None else self.estimate.prediction.as_busy
        if (
            self.seconds is None
            or self.estimate is None
            or as_busy is None
            or as_busy.total_s is None
        ):
            return None
        return summed([as_busy.total_s, self.estimate.start_s or START, END])

    @property
    def basis(self) -> str:
        """The basis of its time, with the marks of the runs behind it."""
        prediction = None if self.estimate is None else self.estimate.prediction
        return "given" if prediction is None else f"{prediction.basis} {prediction.marks}".strip()

    @property
    def why_not(self) -> str:
        """Why the job is not planned on this number of GPUs; empty if it is."""
        about = "" if self.estimate is None else self.estimate.prediction.about
        if self.problem or self.seconds is not None:
            return self.problem
        return about or Message("plan.time-unknown", "its time is unknown")


def runs(file: JobsFile, node: PlannedNode, sweep: Path) -> list[JobRun]:
    """Return the jobs on each number of GPUs that they may have (`composed`).

    If the file has no times of a job, its runs have estimates.

    Args:
        sweep: folder of the plan's runs.
    """
    job_runs = list(chain.from_iterable(compose_runs(job, node, sweep) for job in file.jobs))
    configs = {
        number: run.cell.config
        for number, run in enumerate(job_runs)
        if run.cell and not run.job.times
    }
    if configs:
        estimates = estimate(
            [*configs.values()], sweep / "run", targets([*configs.values()]), Effort.gpus
        )
        for number, run_estimate in zip(configs, estimates, strict=True):
            job_runs[number] = replace(job_runs[number], estimate=run_estimate)
            if run_estimate.prediction.fits == "no":
                problem = Message("plan.needs-more-memory", "does not fit into the memory of a GPU")
                job_runs[number] = replace(job_runs[number], problem=problem)
    return job_runs


def tasks(file: JobsFile, node: PlannedNode, runs: Sequence[JobRun]) -> list[PlanTask]:
    """Return the tasks of a file's jobs. A job that repeats has several."""
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
    named_runs = []
    for job in file.jobs:
        named_runs.extend((job, name) for name in job.task_names)
    places = {
        job.name: [place for place, (other, _) in enumerate(named_runs) if other is job]
        for job in file.jobs
    }
    after = {}
    for job in file.jobs:
        before = chain.from_iterable(places[name] for name in job.predecessors)
        after[job.name] = tuple(sorted(before))
    return [
        PlanTask(name, options[job.name], after[job.name], job.deadline_s, job.name)
        for job, name in named_runs
    ]


def notes(file: JobsFile, runs: Sequence[JobRun]) -> tuple[list[str], list[str]]:
    """Return the numbers of GPUs that are left out, and the jobs without any known time.

    Both come with the reasons. A job that can run on no number of GPUs is refused.
    """
    left_out = list[str]()
    unknown = list[str]()
    for job in file.jobs:
        job_runs = [run for run in runs if run.job is job]
        reasons = _reasons(job_runs)
        if all(run.problem for run in job_runs):
            key = f"jobs.{job.name}"
            raise Refusal(
                "plan.cannot-run", f"{key}: cannot run ({reasons})", key=key, reasons=reasons
            )
        if all(run.why_not for run in job_runs):
            unknown.append(f"{job.name}: {reasons}")
        elif reasons:
            sentence = f"{job.name}: not planned with {reasons}"
            left_out.append(Message("plan.left-out", sentence, job=job.name, reasons=reasons))
    return left_out, unknown


def _reasons(runs: Sequence[JobRun]) -> str:
    """Return the numbers of GPUs on which a job is not planned, by reason, as text."""
    numbers: dict[str, list[int]] = {}
    for run in runs:
        if run.why_not:
            numbers.setdefault(run.why_not, []).append(run.gpus)
    return "; ".join(
        Message("plan.not-on", f"gpus={','.join(map(str, gpus))}: {why}", gpus=gpus, reason=why)
        for why, gpus in numbers.items()
    )


def probes(job_runs: Sequence[JobRun], node: PlannedNode, sweep: Path) -> list[str]:
    """Return commands of probes, one for each run whose time is unknown.

    Rerunning is needed because an earlier probe of such a run did not show its time.
    """
    commands = []
    for run in (run for run in job_runs if run.why_not and not run.problem):
        entry, *words = run.job.words
        words += [*ON_SHARE, *(word for word in node.words if not word.startswith("predict."))]
        words += [f"gpus={run.gpus}", "probe=true", f"name={sweep.name}", "rerun=true"]
        commands.append(shlex.join(["python", entry, "-m", *words]))
    return commands


# ---- runs as cells


def cells(file: JobsFile, node: PlannedNode, sweep: Path) -> dict[tuple[str, int], Cell]:
    """Return the cell of each task on each number of GPUs, by the task's name and that number.

    Jobs that have nothing to run, and tasks that are the same run, are refused.
    """
    cells_of_tasks: dict[tuple[str, int], Cell] = {}
    owners: dict[tuple[str, int], str] = {}
    for job in file.jobs:
        if not job.run:
            key = f"jobs.{job.name}"
            sentence = (
                f"{key}: has times, but nothing to run; give it a run in addition to its seconds,"
                " or leave --run out"
            )
            raise Refusal("plan.nothing-to-run", sentence, key=key)
        for repetition, name in enumerate(job.task_names, 1):
            for run in compose_runs(job, node, sweep, repetition):
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
                cells_of_tasks[name, run.gpus] = run.cell
                run.cell.number = len(cells_of_tasks)
    return cells_of_tasks


def compose_runs(
    job: PlannedJob, node: PlannedNode, sweep: Path, repetition: int = 1
) -> list[JobRun]:
    """Return the job on each number of GPUs that it may have.

    If the file has no numbers, these are 1, 2, 4 ... and all. A Refusal says why the job's words
    cannot be composed.
    """
    cfg = None
    if job.run:
        try:
            cfg = _compose(job.words[0], (*job.words[1:], BESIDE, *node.words))
        except ValueError as error:
            key = f"jobs.{job.name}.run"
            raise Refusal("plan.run", f"{key}: {error}", key=key, reason=str(error)) from None
    job_runs = []
    for gpus in job.allowed or sorted(job.times) or auto_search.counts(node.gpus):
        run = JobRun(job, gpus)
        if gpus > node.gpus:
            run = replace(
                run,
                problem=Message("plan.node-has-fewer", f"the node has {node.gpus}", gpus=node.gpus),
            )
        elif cfg is not None:
            run = _with_cell(run, cfg, node, sweep, repetition)
        job_runs.append(run)
    return job_runs


def _with_cell(
    run: JobRun, composed: DictConfig, node: PlannedNode, sweep: Path, repetition: int
) -> JobRun:
    composed = deepcopy(composed)
    entry, *words = run.job.words
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
def _compose(entry: str, words: tuple[str, ...]) -> DictConfig:
    """Compose the configuration that the entry gets from these words, with Hydra's own part.

    A ValueError has one line.
    """
    workload = workloads.of_entry(entry)
    switched_words = command_line.switched([*words], workload)
    overrides = command_line.overrides(switched_words)
    command_line.check_overrides(overrides, workload)
    for override in overrides:
        if override.is_sweep_override():
            word = str(override.input_line)
            raise Refusal(
                "plan.sweep", f"{word}: is a sweep; write a job for each value", word=word
            )
    workloads.register()
    try:
        return workloads.composed(entry, switched_words)
    except (HydraException, OmegaConfBaseException) as error:
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        raise ValueError(command_line.explain("\n".join(causes), workload)) from None
