"""The tasks of a jobs file: each run of a job with its options, by times that were given or are predicted."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException

from multicard import workloads
from multicard.cli import command_line
from multicard.config.base import plain
from multicard.config.job import count
from multicard.config.keys import require
from multicard.config.placement import place
from multicard.decide.plan.jobs_file import Job, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.schedule import Task, timed_option
from multicard.estimate import history
from multicard.estimate.estimates import Effort, Estimate, estimate
from multicard.estimate.target import targets
from multicard.estimate.totals import summed
from multicard.records import identity
from multicard.records.schema_parts import Interval
from multicard.sweep import auto_gpus, fewest_probes
from multicard.sweep.cells import Cell, Refused, cell_of

# Seconds from a command to the start of its training, where no run of the machine tells: imports, data, the ranks
START = Interval(15.0, 5.0, 40.0)
# From the end of training to that of the command: its record, W&B, the ends of ranks; 2.0 to 2.4 s in eight runs on CPU
END = Interval(2.2, 1.0, 6.0)
SWEEPS = Path("multirun")  # folder of sweeps: that of a plan's runs has the plan's name


@dataclass(frozen=True)
class JobRun:
    """A job on a number of GPUs.

    Fields:
        problem: why it cannot run, with the remedy.
        cell: None for a job without a command, and where there is a problem.
        estimate: None for given times.
    """

    job: Job
    gpus: int
    problem: str = ""
    cell: Cell | None = None
    estimate: Estimate | None = None

    @property
    def seconds(self) -> Interval | None:
        """From the command to its end; None where the time is not known."""
        if self.problem:
            return None
        if self.job.seconds:
            return self.job.seconds[self.gpus]
        if self.estimate is None or self.estimate.total_s is None:
            return None
        return summed([self.estimate.total_s, self.estimate.start_s or START, END])

    @property
    def basis(self) -> str:
        """The basis of its time, with the marks of the runs behind it."""
        told = None if self.estimate is None else self.estimate.prediction
        return "given" if told is None else f"{told.basis} {told.marks}".strip()

    @property
    def is_unknown(self) -> bool:
        """True where a probe would tell its time."""
        return not self.problem and self.seconds is None


def tasks(file: JobsFile, node: PlannedNode, runs: Sequence[JobRun]) -> list[Task]:
    """The tasks of a file's jobs; a job that repeats has several."""
    names = [(job, name) for job in file.jobs for name in job.task_names()]
    return [
        Task(
            name,
            tuple(
                timed_option(run.gpus, run.seconds, node.gpus, file.slowdown, run.basis)
                for run in runs
                if run.job is job and run.seconds is not None
            ),
            tuple(place for place, (other, _) in enumerate(names) if other.name in job.after),
            job.deadline_s,
            job.name,
        )
        for job, name in names
    ]


def notes(file: JobsFile, runs: Sequence[JobRun]) -> tuple[list[str], list[str]]:
    """The numbers of GPUs that are left out, and the jobs whose time is not known at all; both with the reasons.

    Raises:
        ValueError: a job can run on no number of GPUs; with the key and the reason.
    """
    left_out, unknown = list[str](), list[str]()
    for job in file.jobs:
        own = [run for run in runs if run.job is job]
        problems = [f"{count(run.gpus, 'GPU')}: {run.problem}" for run in own if run.problem]
        reasons = "; ".join(problems)
        require(len(problems) < len(own), f"jobs.{job.name}: can run on no allowed number of GPUs ({reasons})")
        untimed = [run for run in own if run.is_unknown]
        if any(run.seconds is not None for run in own):
            left_out += [f"{job.name}: not on {problem}" for problem in problems]
            numbers = ", ".join(str(run.gpus) for run in untimed)
            left_out += [f"{job.name}: not planned on {numbers} GPUs, whose time is not known"] if numbers else []
        else:
            told = [run.estimate.prediction.about for run in untimed if run.estimate is not None]
            why = "; ".join(dict.fromkeys([*filter(None, told), *problems])) or "its time is not known"
            unknown.append(f"{job.name}: {why}")
    return left_out, unknown


# ---- runs as cells


def runs(file: JobsFile, node: PlannedNode, sweep: Path) -> list[JobRun]:
    """The jobs on each number of GPUs that they may have, with estimates where the file has no times.

    Args:
        sweep: folder of the plan's runs.

    Raises:
        ValueError: a job's words cannot be composed, with the job, the key and the remedy.
    """
    found = [run for job in file.jobs for run in composed(job, node, sweep, node.predict_words)]
    asked = {number: run.cell.config for number, run in enumerate(found) if run.cell and run.job.is_predicted}
    if asked:
        estimates = estimate([*asked.values()], sweep / "run", targets([*asked.values()]), Effort.gpus)
        for number, own in zip(asked, estimates, strict=True):
            problem = "does not fit into the memory of a GPU" if own.fits == "no" else ""
            found[number] = replace(found[number], problem=problem, estimate=own)
    return found


def composed(job: Job, node: PlannedNode, sweep: Path, more: Iterable[str] = (), repetition: int = 1) -> list[JobRun]:
    """The job on each number of GPUs that it may have: 1, 2, 4 ... and all, where the file does not say.

    Args:
        more: words of its command, beside those of the file and of the node.

    Raises:
        ValueError: its words cannot be composed, with the job, the key and the remedy.
    """
    allowed, cfg = job.gpus or sorted(job.seconds) or auto_gpus.counts(node.gpus), None
    if job.run:
        try:
            cfg = _composed(job.run[0], (*job.run[1:], *node.words, *more))
        except ValueError as error:
            raise ValueError(f"jobs.{job.name}.run: {error}") from None
    return [
        JobRun(job, gpus, f"the node has {node.gpus}")
        if gpus > node.gpus
        else JobRun(job, gpus)
        if cfg is None
        else _run(job, cfg, gpus, node, sweep, repetition)
        for gpus in allowed
    ]


def _run(job: Job, composed: DictConfig, gpus: int, node: PlannedNode, sweep: Path, repetition: int) -> JobRun:
    composed, workload = deepcopy(composed), workloads.of_entry(job.run[0])
    with open_dict(composed):
        composed.gpus, composed.repetition, composed.name = gpus, repetition, sweep.name
    cell = cell_of(workload, composed, identity.task_of(composed), sweep.absolute(), [*job.run[1:], f"gpus={gpus}"])
    if isinstance(cell, Refused):
        return JobRun(job, gpus, cell.reason)
    try:
        placement = place(cell.config, node.gpus if node.on_gpus else 0, 1, workload.processes(cell.config))
        workload.fits(cell.config, placement)
    except ValueError as error:
        return JobRun(job, gpus, str(error))
    if placement.device == "cpu" and node.on_gpus:
        return JobRun(job, gpus, "device=cpu: the plan is of GPUs; leave it out")
    return JobRun(job, gpus, cell=cell)


@cache
def _composed(entry: str, words: tuple[str, ...]) -> DictConfig:
    """The configuration as the entry gets it from these words, with Hydra's own part.

    Raises:
        ValueError: in one line, the key and the remedy.
    """
    workload = workloads.of_entry(entry)
    own = command_line.switched([*words], workload)
    command_line.check(overrides := command_line.overrides(own), workload)
    for override in overrides:
        require(not override.is_sweep_override(), f"{override.input_line}: is a sweep; write a job for each value")
    workloads.register()
    try:
        with initialize_config_dir(str(workloads.CONF), version_base="1.3"):
            return compose(entry.removesuffix(".py"), own, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        raise ValueError(command_line.explain("\n".join(causes), workload)) from None


def cells(file: JobsFile, node: PlannedNode, sweep: Path) -> dict[tuple[str, int], Cell]:
    """The cell of each task on each number of GPUs, by the task's name and that number.

    Raises:
        ValueError: the file cannot be carried out here, or two tasks are the same run; with the key and the remedy.
    """
    is_elsewhere = file.node.gpu is not None and not file.node.slurm
    require(not is_elsewhere, "node.gpu: is another node, on which --run can start nothing; leave it out")
    found: dict[tuple[str, int], Cell] = {}
    owners: dict[tuple[str, int], str] = {}
    for job in file.jobs:
        problem = f"jobs.{job.name}: has times alone, and nothing to run; give it a run beside its seconds"
        require(bool(job.run), f"{problem}, or leave --run out")
        for repetition, name in enumerate(job.task_names(), 1):
            for run in composed(job, node, sweep, (), repetition):
                if run.cell is None:
                    continue
                owner = owners.setdefault((run.cell.config.identity(), repetition), job.name)
                remedy = "write repeat: for several runs of a job, or another seed"
                require(owner == job.name, f"jobs.{job.name}.run: is the same run as jobs.{owner}; {remedy}")
                found[name, run.gpus] = run.cell
                run.cell.number = len(found)
    return found


def probes(known: Sequence[JobRun], node: PlannedNode, sweep: Path) -> dict[str, Cell]:
    """The fewest probes after which every run's time is known, by a description of each."""
    found: dict[str, Cell] = {}
    for workload in workloads.WORKLOADS:
        own = [(run, run.cell) for run in known if run.cell is not None and run.cell.workload is workload]
        settings = [history.setting(plain(cell.config)) for _, cell in own]
        machines = [str(run.estimate and run.estimate.target.hardware) for run, _ in own]
        is_known, wanted = [run.seconds is not None for run, _ in own], [run.is_unknown for run, _ in own]
        for run, _ in [own[each] for each in fewest_probes.fewest(settings, machines, is_known, wanted)]:
            (probe,) = composed(replace(run.job, gpus=(run.gpus,)), node, sweep, ("probe=true",))
            if probe.cell is not None:
                found[f"{run.job.name} on {count(run.gpus, node.noun)}"] = probe.cell
                probe.cell.number = len(found)
    return found
