"""The commands of a plan's tasks on each number of GPUs, and where their records are."""

from contextlib import suppress
from pathlib import Path

from multicard.config.job import count
from multicard.config.keys import require
from multicard.decide.plan import predicted_runs
from multicard.decide.plan.jobs_file import Job, JobsFile
from multicard.decide.plan.node import PlannedNode
from multicard.decide.plan.places import Record, Start
from multicard.decide.plan.predicted_runs import PredictedRun
from multicard.machine import private
from multicard.measure import timing
from multicard.records import run_folder
from multicard.sweep import shares

SWEEPS = Path("multirun")  # folder of sweeps: that of a plan's runs has the plan's name


def refuse(file: JobsFile) -> None:
    """Refuse a file that cannot be carried out here.

    Raises:
        ValueError: with the key and the remedy.
    """
    for job in file.jobs:
        problem = f"jobs.{job.name}: has times alone, and nothing to run; give it a run beside its seconds"
        require(bool(job.run), f"{problem}, or leave --run out")
    is_elsewhere = file.node.gpu is not None and not file.node.slurm
    require(not is_elsewhere, "node.gpu: is another node, on which --run can start nothing; leave it out")


def of_jobs(file: JobsFile, node: PlannedNode, name: str) -> dict[tuple[str, int], Start]:
    """What starts each task, by its name and its number of GPUs.

    Raises:
        ValueError: two tasks are the same run; with the key and the remedy.
    """
    starts: dict[tuple[str, int], Start] = {}
    owners: dict[str, str] = {}
    for job in file.jobs:
        for run in predicted_runs.configured(job, node):
            if run.config is None:
                problem = f"jobs.{job.name}: on {count(run.gpus, 'GPU')}: {run.problem}"
                require(job.is_predicted, problem)  # else it was left out
                continue
            for repetition in range(1, job.repeat + 1):
                ending = f"-{run.config.identity()}" + (f"-r{repetition}" if repetition > 1 else "")
                owner = owners.setdefault(ending, job.name)
                remedy = "write repeat: for several runs of a job, or another seed"
                require(owner == job.name, f"jobs.{job.name}.run: is the same run as jobs.{owner}; {remedy}")
                start = _start(job, run, repetition, ending, node, name)
                starts[job.task_names()[repetition - 1], run.gpus] = start
    return starts


def _start(job: Job, run: PredictedRun, repetition: int, ending: str, node: PlannedNode, name: str) -> Start:
    assert run.config is not None
    entry, *words = job.run
    own = [f"gpus={run.gpus}", f"name={name}", *([f"repetition={repetition}"] if repetition > 1 else [])]
    launcher = node.launcher if node.on_slurm else ()
    command = (str(private.ROOT / entry), "-m", *launcher, *predicted_runs.packing(node), *words, *own)
    sweep = (SWEEPS / name).absolute()

    def record() -> Record | None:
        folder = run_folder.find_cell(sweep, ending)
        return None if folder is None else run_folder.read_json(folder / run_folder.RESULT)

    def age_s() -> float | None:
        folder = run_folder.find_cell(sweep, ending)
        with suppress(FileNotFoundError):
            return None if folder is None else timing.age_s((folder / run_folder.RUNNING).stat())
        return None

    if node.on_slurm:
        return Start(command, run.gpus, 0, True, record, age_s)
    gpus, cores = shares.demand(run.config, shares.machine())
    return Start(command, run.gpus, cores, gpus is not None, record)
