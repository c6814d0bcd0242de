"""Predicted times of runs on each number of GPUs, and the probes that unknown ones need."""

import shlex
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from multicard import workloads
from multicard.cli import command_line
from multicard.config.base import RunConfig, plain
from multicard.config.placement import place
from multicard.decide.plan.jobs_file import Job
from multicard.decide.plan.node import PlannedNode
from multicard.estimate import history
from multicard.estimate.alike import Alike
from multicard.estimate.history import History
from multicard.estimate.run import Predictor, Target, target
from multicard.estimate.totals import summed
from multicard.machine import environment, private
from multicard.records.schema_parts import Interval, Prediction
from multicard.run import prepare
from multicard.run.workload import Workload
from multicard.sweep import fewest_probes

# Seconds from a command to the start of its training, where no run of the machine tells: imports, data, the ranks
START = Interval(15.0, 5.0, 40.0)
START_SD = 0.3  # of its logarithm, between runs
# From the end of training to that of the command: its record, W&B, the ends of ranks and of the launcher; 2.0 to 2.4 s
# in eight runs on CPU ranks
END = Interval(2.2, 1.0, 6.0)
SWEEPS = Path("multirun", "plan", "run")  # whose sweeps a plan learns from: a run of any of them


@dataclass(frozen=True)
class PredictedRun:
    """A job on a number of GPUs. config: None where `problem` says why it cannot run so.

    seconds: from the command to its end; None where they are not known.
    """

    job: Job
    gpus: int
    config: RunConfig | None = None
    problem: str = ""
    prediction: Prediction | None = None
    where: Target | None = None
    seconds: Interval | None = None

    @property
    def basis(self) -> str:
        return "" if self.prediction is None else self.prediction.basis

    @property
    def is_unknown(self) -> bool:
        """Whether a probe would tell its time."""
        return not self.problem and self.seconds is None


def predict(jobs: Sequence[Job], node: PlannedNode, folder: Path = SWEEPS) -> list[PredictedRun]:
    """The runs of these jobs on each number of GPUs that they may have.

    Args:
        folder: of a run, as one of the runs that predictions rest on: <root>/<sweep>/<run>.

    Raises:
        ValueError: a job's words cannot be composed, with the job, the key and the remedy.
    """
    runs = [run for job in jobs for run in configured(job, node)]
    sound = [(place, run) for place, run in enumerate(runs) if run.config is not None]
    if not sound:
        return runs
    known = history.read(history.history_folders(folder.absolute()))
    commit = history.commit_of(environment.git(private.ROOT))
    targets = [target(run.config) for _, run in sound if run.config is not None]
    for where in dict.fromkeys(targets):
        members = [each for each, own in zip(sound, targets, strict=True) if own == where]
        configs = [run.config for _, run in members if run.config is not None]
        predictions = Predictor(where, known, commit).predict_all(configs, where.device_type == "cuda", reads_data=True)
        for (place_of, run), config, prediction in zip(members, configs, predictions, strict=True):
            problem = ""
            if prediction.fits == "no":
                problem = "does not fit into the memory of a GPU"
            seconds = None
            if prediction.total_s is not None:
                seconds = summed([prediction.total_s, start_s(config, where, known), END])
            runs[place_of] = PredictedRun(run.job, run.gpus, config, problem, prediction, where, seconds)
    return runs


def start_s(config: RunConfig, where: Target, known: History) -> Interval:
    """Seconds from the command to training, by the runs nearest to it."""
    kind = workload_of(config).name
    runs = [run for run in known.timed(kind) if run.is_of(where.hardware, where.cores) and not run.is_raced]
    return Alike(history.setting(plain(config)), runs).interval(lambda run: run.record.startup_s, START_SD) or START


def workload_of(config: RunConfig) -> Workload:
    return next(workload for workload in workloads.WORKLOADS if isinstance(config, workload.schema))


def configured(job: Job, node: PlannedNode) -> list[PredictedRun]:
    """The job on each number of GPUs that the node has for it; nothing is predicted yet.

    Raises:
        ValueError: its words cannot be composed, with the job, the key and the remedy.
    """
    entry, *words = job.run
    workload = next(workload for workload in workloads.WORKLOADS if workload.entry == entry)
    try:
        cfg = _composed(workload, [*words, *node.words])
    except ValueError as error:
        raise ValueError(f"jobs.{job.name}.run: {error}") from None
    allowed = job.gpus or tuple(sorted(job.seconds)) or counts(node.gpus)
    return [_on(job, workload, cfg, gpus, node) for gpus in allowed if gpus <= node.gpus]


def counts(gpus: int) -> tuple[int, ...]:
    """1, 2, 4 and so on, and all."""
    return tuple(sorted({*(1 << power for power in range(gpus.bit_length())), gpus}))


def _on(job: Job, workload: Workload, cfg: DictConfig, gpus: int, node: PlannedNode) -> PredictedRun:
    cfg = deepcopy(cfg)
    cfg.gpus = gpus
    try:
        config = prepare.typed(workload, cfg)
        placement = place(config, node.gpus if node.on_gpus else 0, 1, workload.processes(config))
        workload.fits(config, placement)
    except ValueError as error:
        return PredictedRun(job, gpus, problem=str(error))
    is_on_cpu = placement.device == "cpu"
    if is_on_cpu and node.on_gpus:
        return PredictedRun(job, gpus, problem="device=cpu: the plan is of GPUs; leave it out")
    return PredictedRun(job, gpus, config)


def _composed(workload: Workload, words: Sequence[str]) -> DictConfig:
    """The configuration as the entry gets it from these words.

    Raises:
        ValueError: in one line, the key and the remedy.
    """
    own = command_line.switched([*words], workload)
    command_line.check(overrides := command_line.overrides(own), workload)
    for override in overrides:
        if override.is_sweep_override():
            raise ValueError(f"{override.input_line}: is a sweep; write a job for each value")
    workloads.register()
    try:
        with initialize_config_dir(str(workloads.CONF), version_base="1.3"):
            return compose(workload.entry.removesuffix(".py"), own)
    except (HydraException, OmegaConfBaseException) as error:
        causes = [str(part) for part in (error, error.__cause__) if part is not None]
        raise ValueError(command_line.explain("\n".join(causes), workload)) from None


def probes(runs: Sequence[PredictedRun], node: PlannedNode) -> list[list[str]]:
    """The fewest commands after which every run's time is known, each as its words after `python`."""
    commands: list[list[str]] = []
    for workload in workloads.WORKLOADS:
        own = [run for run in runs if run.config is not None and workload_of(run.config) is workload]
        settings = [history.setting(plain(run.config)) for run in own if run.config is not None]
        machines = [str(run.where.hardware if run.where else None) for run in own]
        known, wanted = [run.seconds is not None for run in own], [run.is_unknown for run in own]
        chosen = fewest_probes.fewest(settings, machines, known, wanted)
        commands += [command(own[each], node, "probe=true") for each in chosen]
    return commands


def command(run: PredictedRun, node: PlannedNode, *more: str) -> list[str]:
    """The words of a run's command after `python`, packed beside others."""
    entry, *words = run.job.run
    return [entry, "-m", *node.launcher, *packing(node), *words, f"gpus={run.gpus}", *more]


def packing(node: PlannedNode) -> list[str]:
    """What a run's command has so that it runs beside others."""
    return [word for word in node.words if not word.startswith("predict.")]


def in_words(command: Sequence[str]) -> str:
    return shlex.join(["python", *command])


def unknown_reason(runs: Sequence[PredictedRun]) -> Any:
    """Why no time of these runs is known, each reason once."""
    reasons = (run.problem or (run.prediction.about if run.prediction else "") for run in runs)
    return "; ".join(dict.fromkeys(filter(None, reasons)))
