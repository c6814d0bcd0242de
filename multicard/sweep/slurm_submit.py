"""Submits the cells of a sweep to SLURM, in arrays of equal resources, and finds again what was submitted before.

What an array holds is written to `.submitit/` of the sweep before it is submitted, under the name that its jobs get:
whoever submits may be killed at any moment, and the same command still finds them.
"""

import fcntl
import json
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from multicard.config.job import Resources, resources
from multicard.config.keys import require
from multicard.controller import run
from multicard.controller.session import SESSION, say
from multicard.machine import slurm
from multicard.records import run_folder
from multicard.sweep import plan
from multicard.sweep.job import SlurmJob
from multicard.sweep.plan import SUBMITTED, Planned

# Options of ours; the rest is sbatch's
OURS = ("_target_", "mode", "additional_parameters", "setup", "array_parallelism", "signal_delay_s")

LOCK = "lock"

Options = dict[str, Any]


def arrays(left: list[Planned]) -> list[tuple[tuple[Resources, Options], list[Planned]]]:
    """The cells by what their jobs ask for, in the sweep's order."""
    groups: dict[str, tuple[tuple[Resources, Options], list[Planned]]] = {}
    for cell in left:
        assert cell.config is not None
        options = OmegaConf.to_container(cell.composed.hydra.launcher, resolve=True)
        assert isinstance(options, dict)
        asked = resources(cell.config)
        key = f"{asked} {json.dumps(options, sort_keys=True, default=str)}"
        groups.setdefault(key, ((asked, {str(k): v for k, v in options.items()}), []))[1].append(cell)
    return list(groups.values())


def submit(planned: list[Planned], left: list[Planned]) -> dict[int, str]:
    """Submit what is not in the queue already.

    Returns:
        SLURM's name of each cell's job, by the cell's number.

    Raises:
        ValueError: where SLURM cannot be asked, or refuses what is the same for all jobs.
    """
    remedy = "log in to a node of the cluster, or leave the launcher out to run here"
    require(shutil.which("sbatch") is not None, f"hydra/launcher=submitit_slurm: no sbatch on this machine; {remedy}")
    folder = left[0].folder.parent / SUBMITTED
    folder.mkdir(parents=True, exist_ok=True)
    with _lock(folder):
        jobs = find_again(left)
        for cell in left:
            if cell.number in jobs:
                say(f"{plan.label(cell, planned)}job {jobs[cell.number]} was submitted before: {cell.folder}")
        for (asked, options), cells in arrays([cell for cell in left if cell.number not in jobs]):
            try:
                jobs |= _submit(folder, asked, options, cells)
            except ValueError as error:
                if str(error).startswith("hydra") and not jobs:
                    (folder / LOCK).unlink()
                    raise
                for cell in cells:
                    assert SESSION.workload is not None
                    SESSION.label = plan.label(cell, planned)
                    cell.result = run.refuse(SESSION.workload, cell.cfg, cell.folder, str(error))
    return jobs


def find_again(left: list[Planned]) -> dict[int, str]:
    """The jobs of an earlier command that are still in the queue, by their cell's number."""
    folder = left[0].folder.parent / SUBMITTED if left else Path()
    numbers = {cell.folder.name: cell.number for cell in left}
    found: list[tuple[str, int]] = []  # a cell that was submitted again after a failure has several jobs
    for file in folder.glob("*.json"):
        content = run_folder.read_json(file)
        if content is not None:
            names = content["cells"]
            job = content["job"] or slurm.named(file.stem)  # killed between submitting and writing it down
            tasks = [] if job is None else _tasks(job, len(names))
            found += [(task, numbers[name]) for task, name in zip(tasks, names, strict=False) if name in numbers]
    alive = slurm.queued([job for job, _ in found])
    return {number: job for job, number in found if job in alive}


def _tasks(job: str, count: int) -> list[str]:
    """What SLURM calls the jobs of an array; one alone is submitted without an array."""
    return [job] if count == 1 else [f"{job}_{index}" for index in range(count)]


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """One command at a time looks at the queue and submits: two would submit the same cell twice."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _submit(folder: Path, asked: Resources, options: Options, cells: list[Planned]) -> dict[int, str]:
    """Submit one array.

    Raises:
        ValueError: what sbatch refuses, with the key.
    """
    import submitit
    from submitit.core.utils import FailedJobError

    name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', folder.parent.name)}-{secrets.token_hex(4)}"
    executor = submitit.AutoExecutor(folder, cluster="slurm")
    executor.update_parameters(**parameters(name, asked, options))
    key, grace_s = slurm.new_key(), float(options["signal_delay_s"])
    made = plan.job_cells(cells, SlurmJob, key=key, grace_s=grace_s)
    file = folder / f"{name}.json"
    run_folder.write_json(file, {"cells": [cell.folder.name for cell in cells], "job": None})
    try:
        with executor.batch():
            submitted = [executor.submit(job) for job in made]
    except FailedJobError as error:
        file.unlink()
        raise ValueError(explain(str(error), asked, options)) from None
    job = submitted[0].job_id.partition("_")[0]
    run_folder.write_json(file, {"cells": [cell.folder.name for cell in cells], "job": job})
    say(f"submitted job {job}: {len(cells)} cell{'s' if len(cells) > 1 else ''}, {told(asked)} each")
    return {cell.number: task for cell, task in zip(cells, _tasks(job, len(cells)), strict=True)}


def parameters(name: str, asked: Resources, options: Options) -> dict[str, Any]:
    """The job's own resources and the site's options, as submitit takes them."""
    several = asked.nodes > 1  # the controllers see to it that a lost node ends the run, and one is left to record it
    extra = {"requeue": True, **({"no-kill": True} if several else {}), **(options["additional_parameters"] or {})}
    step = [f"--cpus-per-task={asked.cpus}"]  # since SLURM 22.05 srun does not take it from sbatch
    found: dict[str, Any] = {
        "name": name,
        "nodes": asked.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": asked.cpus,
        "timeout_min": asked.time_min,
        "slurm_signal_delay_s": options["signal_delay_s"],
        "slurm_array_parallelism": options["array_parallelism"],
        "slurm_additional_parameters": extra,
        "slurm_srun_args": [*step, "--no-kill", "--kill-on-bad-exit=0"] if several else step,
    }
    if asked.gpus:
        found["gpus_per_node"] = asked.gpus
    if asked.memory_gb is not None:
        found["mem_gb"] = asked.memory_gb
    if asked.exclusive:
        found["slurm_exclusive"] = True
    if options["setup"]:
        found["slurm_setup"] = list(options["setup"])
    return found | {f"slurm_{key}": value for key, value in options.items() if key not in OURS and value is not None}


# What sbatch says, the key that it is about, and the remedy
REFUSALS = (
    ("account", "hydra.launcher.account", "`sacctmgr show associations user=$USER` lists the accounts"),
    ("partition", "hydra.launcher.partition", "`sinfo -s` lists the partitions"),
    ("qos", "hydra.launcher.qos", "`sacctmgr show qos` lists them"),
    ("time limit", "time_min", "`sinfo -o '%P %l'` shows the limits"),
)


def explain(said: str, asked: Resources, options: Options) -> str:
    """What sbatch refused, in one line with the key and the remedy."""
    lines = [line.strip() for line in said.splitlines() if line.strip().startswith("sbatch:")]
    why = (lines[-1] if lines else said.strip().splitlines()[-1]).removeprefix("sbatch: error: ")
    why = why.removeprefix("Batch job submission failed: ")
    if "node configuration" in why.lower() or "node count" in why.lower():
        remedy = "`sinfo -o '%P %D %G %c %m'` shows what the nodes have"
        return f"gpus={asked.gpus}: no node takes a job with {told(asked)} (SLURM: {why}); {remedy}"
    for word, key, remedy in REFUSALS:
        if word in why.lower():
            value = asked.time_min if key == "time_min" else options.get(key.rpartition(".")[2])
            value = "null" if value is None else value
            return f"{key}={value}: SLURM refuses it ({why}); {remedy}"
    return f"hydra/launcher=submitit_slurm: SLURM refuses the job ({why}); mend hydra.launcher or ask the site"


def told(asked: Resources) -> str:
    """The resources in words."""
    parts = [f"{asked.nodes} node{'s' if asked.nodes > 1 else ''}", f"{asked.gpus} GPUs", f"{asked.cpus} cores"]
    parts += [f"{asked.memory_gb} GB"] if asked.memory_gb is not None else []
    return ", ".join([*parts, f"{asked.time_min} min"]) + (", alone on its nodes" if asked.exclusive else "")
