"""Submits the cells of a sweep to SLURM, in arrays of equal resources, and finds jobs that were submitted before.

The cells of an array are written to `.submitit/` of the sweep before it is submitted, under the name that its jobs
get: the command may be killed at any moment, and the same command still finds the jobs.
"""

import json
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import OmegaConf

from multicard.config.job import Resources, count, resources
from multicard.machine import slurm
from multicard.messages import Message, Refusal, say
from multicard.ranks.failures import unwritable
from multicard.records import run_folder
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.job import STARTS_JOBS, SUBMITTED, SlurmJob, jobs_folder, make_jobs, submission, terminal_blocked

# Files that submitit writes before it submits, and leaves where sbatch refuses
UNSUBMITTED = re.compile(r"[0-9a-f]{32}\.pkl|\.submission_file_[0-9a-f]+\.sh")
# Options of the launcher that are not sbatch's
OWN_OPTIONS = ("_target_", "mode", "on_slurm", "packs")
OWN_OPTIONS += ("additional_parameters", "setup", "array_parallelism", "signal_delay_s")

Options = dict[str, Any]


@dataclass(frozen=True)
class JobArray:
    """Cells whose jobs ask for the same: the resources of a node, and the launcher's options."""

    request: Resources
    options: Options
    cells: list[Cell]

    def in_words(self) -> str:
        """A line for the resources and one for each option of the site."""
        site = [f"{key}={self.options[key]}" for key in ("partition", "account", "qos") if self.options.get(key)]
        return "\n".join([self.request.in_words(), *site])


def submit(sweep: Sweep) -> dict[int, str]:
    """Submit the cells that are not in the queue already. Returns SLURM's name of each job, by the cell's number; a
    ValueError where SLURM cannot be asked, or refuses what is the same for all jobs.
    """
    for program in ("sbatch", "srun"):  # submitit wants both
        if shutil.which(program) is None:
            raise Refusal(
                "slurm.absent",
                f"hydra/launcher=submitit_slurm: no {program} on this machine; "
                "log in to a node of the cluster, or leave the launcher out to run here",
                key="hydra/launcher",
                program=program,
            )
    left = sweep.left
    arrays(left)  # refuses options before anything is written
    folder = jobs_folder(left[0].folder.parent)
    with FileLock(folder / "lock", mode=0o600) as lock:  # two commands at once would submit the same cell twice
        jobs = queued_jobs(left)
        for cell in left:
            if cell.number in jobs:
                job = jobs[cell.number]
                message = Message("job.submitted-before", f"job {job} was submitted before", job=job)
                say(f"{cell.title}{message}")
        for array in arrays([cell for cell in left if cell.number not in jobs]):
            try:
                with submission() as umask:
                    jobs |= submit_array(folder, array, umask)
            except ValueError as error:
                key = error.key if isinstance(error, Refusal) else None
                for path in folder.iterdir():  # nobody else submits now, and what was submitted has its job's name
                    if UNSUBMITTED.fullmatch(path.name):
                        path.unlink()
                if key is not None and key.startswith("hydra") and not jobs:
                    Path(lock.lock_file).unlink()
                    run_folder.remove_empty(folder)
                    raise
                for cell in array.cells:
                    sweep.refuse(cell, str(error))
                sweep.record_refused()
    if sweep.left:
        sweep.say_start()
    return jobs


def queued_jobs(left: list[Cell]) -> dict[int, str]:
    """The jobs of an earlier command that have not ended, by their cell's number."""
    folder = left[0].folder.parent / SUBMITTED if left else Path()
    numbers = {cell.folder.name: cell.number for cell in left}
    candidates: list[tuple[str, int]] = []  # several jobs of a cell that was submitted again after a failure
    for file in folder.glob("*.json"):
        array = run_folder.read_json(file)
        if array is not None:
            job = array["job"] or slurm.job_named(file.stem)  # null if the command was killed as it submitted
            jobs = [] if job is None else _array_jobs(job, len(array["cells"]))
            pairs = zip(jobs, array["cells"], strict=False)
            candidates += [(job, numbers[name]) for job, name in pairs if name in numbers]
    unended = slurm.unended([job for job, _ in candidates])
    return {number: job for job, number in candidates if job in unended}


def arrays(left: list[Cell]) -> list[JobArray]:
    """The cells as arrays of jobs with the same resources and options, in the sweep's order; wrong ones are refused."""
    groups: dict[str, JobArray] = {}
    for cell in left:
        place = cell.folder.parent.absolute()
        if "%" in str(place):
            raise Refusal(
                "slurm.percent",
                f"hydra.sweep.dir={place}: SLURM takes % in the names of its logs for a placeholder; "
                "choose a folder without it",
                key="hydra.sweep.dir",
                value=str(place),
            )
        options = OmegaConf.to_container(cell.composed.hydra.launcher, resolve=True)
        assert isinstance(options, dict)
        request = resources(cell.config)
        check_options(options, request)
        key = f"{request} {json.dumps(options, sort_keys=True, default=str)}"
        groups.setdefault(key, JobArray(request, {str(k): v for k, v in options.items()}, [])).cells.append(cell)
    return list(groups.values())


def check_options(options: Mapping[Any, Any], request: Resources) -> None:
    """Refuse options of the launcher that have the wrong type, or that no job can keep, before anything is written."""
    for key in ("array_parallelism", "signal_delay_s"):
        value = options[key]
        if type(value) is not int or value <= 0:
            raise Refusal(
                "slurm.whole-number",
                f"hydra.launcher.{key}={value}: must be a whole number above 0",
                key=f"hydra.launcher.{key}",
                value=value,
            )
    early_s = options["signal_delay_s"]
    if early_s >= request.time_min * 60:
        raise Refusal(
            "slurm.early-signal",
            f"hydra.launcher.signal_delay_s={early_s}: must be less than the time limit "
            f"(time_min={request.time_min}); else a job is asked to save before it has begun",
            key="hydra.launcher.signal_delay_s",
            value=early_s,
            time_min=request.time_min,
        )
    for key, types, form in (("setup", list, "[COMMAND,...]"), ("additional_parameters", dict, "{OPTION:VALUE}")):
        value = options[key]
        if not isinstance(value, types | None):
            raise Refusal(
                "slurm.form",
                f"hydra.launcher.{key}={value}: write it as `hydra.launcher.{key}={form}`, or null",
                key=f"hydra.launcher.{key}",
                value=value,
                form=form,
            )


def _array_jobs(job: str, count: int) -> list[str]:
    """SLURM's names of the jobs of an array; a single job is submitted without an array."""
    return [job] if count == 1 else [f"{job}_{index}" for index in range(count)]


def submit_array(folder: Path, array: JobArray, umask: int) -> dict[int, str]:
    """Submit one array. Returns each cell's job, by the cell's number; a ValueError says what sbatch refuses."""
    import submitit
    from submitit.core.utils import FailedJobError

    request, options, cells = array.request, array.options, array.cells
    name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', folder.parent.name)}-{secrets.token_hex(4)}"
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_python=STARTS_JOBS)
    try:
        executor.update_parameters(**parameters(name, request, options))
    except NameError as error:
        key = next(key for key in options if f"'slurm_{key}'" in str(error))
        raise Refusal(
            "slurm.no-option",
            f"hydra.launcher.{key}: submitit has no such option; "
            f"use `hydra.launcher.additional_parameters={{{key}:{options[key]}}}`",
            key=f"hydra.launcher.{key}",
            value=options[key],
        ) from None
    grace_s, key = float(options["signal_delay_s"]), secrets.token_hex(16)
    jobs = make_jobs(cells, SlurmJob, umask=umask, key=key, grace_s=grace_s)
    file, content = folder / f"{name}.json", {"cells": [cell.folder.name for cell in cells], "key": key}
    run_folder.write_json(file, content | {"job": None})
    try:  # submitit prints what sbatch says
        every = options | (options["additional_parameters"] or {})
        chosen = {key for key, value in every.items() if value is not None}
        with terminal_blocked(), redirect_stderr(StringIO()), slurm.submitting(chosen), executor.batch():
            submitted = [executor.submit(job) for job in jobs]
    except FailedJobError as error:
        file.unlink()
        raise explain(str(error), request, options) from None
    except OSError as error:
        file.unlink()
        raise Refusal.of(unwritable(folder, error, "hydra.sweep.dir")) from None
    job = submitted[0].job_id.partition("_")[0]
    run_folder.write_json(file, content | {"job": job})
    message = Message(
        "job.submitted",
        f"submitted job {job}: {count(len(cells), 'cell')}, {request.in_words()} each",
        job=job,
        cells=len(cells),
        each=request.in_words(),
    )
    say(message)
    return {cell.number: task for cell, task in zip(cells, _array_jobs(job, len(cells)), strict=True)}


def parameters(name: str, request: Resources, options: Options) -> dict[str, Any]:
    """The job's resources and the site's options, as submitit takes them."""
    several = request.nodes > 1  # then the controllers end the run when a node is lost, and one is left to record it
    extra = {"requeue": True, **({"no-kill": True} if several else {}), **(options["additional_parameters"] or {})}
    step = [f"--cpus-per-task={request.cpus}"]  # since SLURM 22.05 srun does not take it from sbatch
    settings: dict[str, Any] = {
        "name": name,
        "nodes": request.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": request.cpus,
        "timeout_min": request.time_min,
        "slurm_signal_delay_s": options["signal_delay_s"],
        "slurm_array_parallelism": options["array_parallelism"],
        "slurm_additional_parameters": extra,
        "slurm_srun_args": [*step, "--no-kill", "--kill-on-bad-exit=0"] if several else step,
    }
    settings |= {"gpus_per_node": request.gpus} if request.gpus else {}
    settings |= {} if request.memory_gb is None else {"mem_gb": request.memory_gb}
    settings |= {"slurm_exclusive": True} if request.exclusive else {}
    settings |= {"slurm_setup": list(options["setup"])} if options["setup"] else {}
    site = {key: value for key, value in options.items() if key not in OWN_OPTIONS and value is not None}
    return settings | {f"slurm_{key}": value for key, value in site.items()}


# A word of sbatch's refusal, the key that it is about, and the remedy
REFUSALS = (
    ("account", "hydra.launcher.account", "`sacctmgr show associations user=$USER` lists the accounts"),
    ("partition", "hydra.launcher.partition", "`sinfo -s` lists the partitions"),
    ("qos", "hydra.launcher.qos", "`sacctmgr show qos` lists them"),
    ("time limit", "time_min", "`sinfo -o '%P %l'` shows the limits"),
)


def explain(output: str, request: Resources, options: Options) -> Refusal:
    """A refusal of sbatch in one line, with the key and the remedy."""
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("sbatch:")]
    reason = (lines[-1] if lines else output.strip().splitlines()[-1]).removeprefix("sbatch: error: ")
    reason = reason.removeprefix("Batch job submission failed: ")
    if "node configuration" in reason.lower() or "node count" in reason.lower():
        return Refusal(
            "slurm.no-node",
            f"gpus, cpus_per_gpu, nodes or memory_gb: no node takes a job with {request.in_words()} "
            f"(SLURM: {reason}); `sinfo -o '%P %D %G %c %m'` shows what the nodes have",
            key="gpus",
            keys=["gpus", "cpus_per_gpu", "nodes", "memory_gb"],  # no roles: what a request has
            asked=request.in_words(),
            reason=reason,
        )
    for word, key, remedy in REFUSALS:
        if word in reason.lower():
            value = request.time_min if key == "time_min" else options.get(key.rpartition(".")[2])
            typed = "null" if value is None else value
            return Refusal(
                "slurm.refuses",
                f"{key}={typed}: SLURM refuses it ({reason}); {remedy}",
                key=key,
                value=value,
                reason=reason,
            )
    return Refusal(
        "slurm.refuses-job",
        f"hydra/launcher=submitit_slurm: SLURM refuses the job ({reason}); mend hydra.launcher or ask the site",
        key="hydra/launcher",
        reason=reason,
    )
