"""The runs of a plan's jobs: each a cell, with what it will take, and the probes that unknown times need."""

import shlex
from collections.abc import Sequence
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
from multicard.estimate import history
from multicard.estimate.estimates import Effort, Estimate, estimate
from multicard.estimate.target import targets
from multicard.estimate.totals import summed
from multicard.records import identity
from multicard.records.schema_parts import Interval
from multicard.run.workload import Workload
from multicard.sweep import fewest_probes
from multicard.sweep.cells import Cell, Refused, cell_of

# Seconds from a command to the start of its training, where no run of the machine tells: imports, data, the ranks
START = Interval(15.0, 5.0, 40.0)
# From the end of training to that of the command: its record, W&B, the ends of ranks and of the launcher; 2.0 to 2.4 s
# in eight runs on CPU ranks
END = Interval(2.2, 1.0, 6.0)
SWEEPS = Path("multirun")  # folder of sweeps: that of a plan's runs has the plan's name


@dataclass(frozen=True)
class JobRun:
    """A job on a number of GPUs.

    cell: None where `problem` says why it cannot run so. estimate: None before it is estimated.
    """

    job: Job
    gpus: int
    cell: Cell | None = None
    problem: str = ""
    estimate: Estimate | None = None

    @property
    def seconds(self) -> Interval | None:
        """From the command to its end; None where they are not known."""
        if self.estimate is None or self.estimate.total_s is None:
            return None
        return summed([self.estimate.total_s, self.estimate.start_s or START, END])

    @property
    def basis(self) -> str:
        """What the times rest on, with the marks of those runs."""
        told = None if self.estimate is None else self.estimate.prediction
        return "" if told is None else f"{told.basis} {told.marks}".strip()

    @property
    def is_unknown(self) -> bool:
        """True where a probe would tell its time."""
        return not self.problem and self.seconds is None


def estimated(jobs: Sequence[Job], node: PlannedNode, sweep: Path) -> list[JobRun]:
    """The runs of these jobs on each number of GPUs that they may have, with what they will take.

    Args:
        sweep: folder of the plan's runs.

    Raises:
        ValueError: a job's words cannot be composed, with the job, the key and the remedy.
    """
    runs = [run for job in jobs for run in composed(job, node, sweep)]
    configs = {number: run.cell.config for number, run in enumerate(runs) if run.cell is not None}
    if configs:
        estimates = estimate([*configs.values()], sweep / "run", targets([*configs.values()]), Effort.gpus)
        for number, own in zip(configs, estimates, strict=True):
            problem = "does not fit into the memory of a GPU" if own.fits == "no" else ""
            runs[number] = replace(runs[number], problem=problem, estimate=own)
    return runs


def composed(job: Job, node: PlannedNode, sweep: Path, repetition: int = 1) -> list[JobRun]:
    """The job on each number of GPUs that the node has for it.

    Raises:
        ValueError: its words cannot be composed, with the job, the key and the remedy.
    """
    entry, *words = job.run
    workload = _workload(entry)
    try:
        cfg = _composed(entry, (*words, *node.words), node.launcher)
    except ValueError as error:
        raise ValueError(f"jobs.{job.name}.run: {error}") from None
    counts = tuple(sorted({*(1 << power for power in range(node.gpus.bit_length())), node.gpus}))  # 1, 2, 4 ... and all
    allowed = job.gpus or tuple(sorted(job.seconds)) or counts
    return [_on(job, workload, cfg, gpus, node, sweep, repetition) for gpus in allowed if gpus <= node.gpus]


def _on(
    job: Job, workload: Workload, composed: DictConfig, gpus: int, node: PlannedNode, sweep: Path, repetition: int
) -> JobRun:
    composed = deepcopy(composed)
    with open_dict(composed):
        composed.gpus, composed.repetition, composed.name = gpus, repetition, sweep.name
    cfg = identity.task_of(composed)
    cell = cell_of(workload, composed, cfg, sweep.absolute(), [*job.run[1:], f"gpus={gpus}"])
    if isinstance(cell, Refused):
        return JobRun(job, gpus, problem=cell.reason)
    try:
        placement = place(cell.config, node.gpus if node.on_gpus else 0, 1, workload.processes(cell.config))
        workload.fits(cell.config, placement)
    except ValueError as error:
        return JobRun(job, gpus, problem=str(error))
    if placement.device == "cpu" and node.on_gpus:
        return JobRun(job, gpus, problem="device=cpu: the plan is of GPUs; leave it out")
    return JobRun(job, gpus, cell)


def _workload(entry: str) -> Workload:
    return next(workload for workload in workloads.WORKLOADS if workload.entry == entry)


@cache
def _composed(entry: str, words: tuple[str, ...], launcher: tuple[str, ...]) -> DictConfig:
    """The configuration as the entry gets it from these words, with Hydra's own part.

    Raises:
        ValueError: in one line, the key and the remedy.
    """
    workload = _workload(entry)
    own = command_line.switched([*words], workload)
    command_line.check(overrides := command_line.overrides(own), workload)
    for override in overrides:
        if override.is_sweep_override():
            raise ValueError(f"{override.input_line}: is a sweep; write a job for each value")
    workloads.register()
    try:
        with initialize_config_dir(str(workloads.CONF), version_base="1.3"):
            return compose(entry.removesuffix(".py"), [*own, *launcher], return_hydra_config=True)
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
    node = replace(node, words=node.packing)
    found: dict[tuple[str, int], Cell] = {}
    owners: dict[tuple[str, int], str] = {}
    for job in file.jobs:
        problem = f"jobs.{job.name}: has times alone, and nothing to run; give it a run beside its seconds"
        require(bool(job.run), f"{problem}, or leave --run out")
        for repetition, name in enumerate(job.task_names(), 1):
            for run in composed(job, node, sweep, repetition):
                if run.cell is None:
                    require(job.is_predicted, f"jobs.{job.name}: on {count(run.gpus, 'GPU')}: {run.problem}")
                    continue  # it was left out
                owner = owners.setdefault((run.cell.config.identity(), repetition), job.name)
                remedy = "write repeat: for several runs of a job, or another seed"
                require(owner == job.name, f"jobs.{job.name}.run: is the same run as jobs.{owner}; {remedy}")
                found[name, run.gpus] = run.cell
    for number, cell in enumerate(found.values(), 1):
        cell.number = number
    return found


def probes(runs: Sequence[JobRun], node: PlannedNode) -> list[list[str]]:
    """The fewest commands after which every run's time is known, each as its words after `python`."""
    commands: list[list[str]] = []
    for workload in workloads.WORKLOADS:
        own = [(run, run.cell) for run in runs if run.cell is not None and run.cell.workload is workload]
        settings = [history.setting(plain(cell.config)) for _, cell in own]
        machines = [str(run.estimate and run.estimate.target.hardware) for run, _ in own]
        known, wanted = [run.seconds is not None for run, _ in own], [run.is_unknown for run, _ in own]
        chosen = fewest_probes.fewest(settings, machines, known, wanted)
        for job, gpus in [(own[each][0].job, own[each][0].gpus) for each in chosen]:
            words = [*node.launcher, *node.packing, *job.run[1:], f"gpus={gpus}", "probe=true"]
            commands.append([job.run[0], "-m", *words])
    return commands


def in_words(command: Sequence[str]) -> str:
    return shlex.join(["python", *command])


def unknown_reason(runs: Sequence[JobRun]) -> str:
    """Why no time of these runs is known, each reason once."""
    reasons = (run.problem or (run.estimate.prediction.about if run.estimate else "") for run in runs)
    return "; ".join(dict.fromkeys(filter(None, reasons))) or "its time is not known"
