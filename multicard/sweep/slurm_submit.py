"""Submit the cells of a sweep to SLURM, as arrays of jobs with equal resources.

Jobs that were submitted before are found again. Before an array is submitted, its cells are written
to `.submitit/` of the sweep, under the name that its jobs get. The command may therefore be killed
at any moment, and the same command still finds the jobs.
"""

import json
import math
import re
import secrets
import shutil
from collections.abc import Mapping
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any

from filelock import FileLock
from omegaconf import OmegaConf

from multicard.config.job import Resources, count, resources
from multicard.machine import slurm
from multicard.measure.timing import clock_s, pause
from multicard.messages import Message, Refusal, say
from multicard.ranks.failures import unwritable
from multicard.records import run_folder
from multicard.sweep import slurm_options, slurm_refusals
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.job import (
    STARTS_JOBS,
    SUBMITTED,
    SlurmJob,
    jobs_folder,
    make_jobs,
    submission,
    terminal_blocked,
)

# Submitit writes these files before it submits, and leaves them if sbatch refuses.
UNSUBMITTED = re.compile(r"[0-9a-f]{32}\.pkl|\.submission_file_[0-9a-f]+\.sh")
# If sbatch gives no answer, SLURM is asked for the job for this time.
LOOKS_FOR_S = 30.0
LOOKS_EVERY_S = 3.0

Options = dict[str, Any]


@dataclass(frozen=True)
class JobArray:
    """Cells whose jobs ask for the same resources of a node and have the same launcher options."""

    request: Resources
    options: Options
    cells: list[Cell]

    def in_words(self) -> str:
        """Return a line for the resources, and one for each option of the site."""
        return slurm_options.in_words(self.request, self.options)


def submit(sweep: Sweep) -> dict[int, str]:
    """Submit the cells that are not in the queue already.

    Returns:
        SLURM's name of each job, by the cell's number.

    Raises:
        ValueError: SLURM cannot be asked, or refuses an option that all jobs share.
    """
    for program in ("sbatch", "srun"):  # Submitit needs both.
        if shutil.which(program) is None:
            raise Refusal(
                "slurm.absent",
                f"hydra/launcher=submitit_slurm: no {program} on this machine; "
                "log in to a node of the cluster, or use `hydra/launcher=local` to run here",
                key="hydra/launcher",
                program=program,
            )
    remaining = sweep.left
    arrays(remaining)  # This refuses options before anything is written.
    folder = jobs_folder(remaining[0].folder.parent)
    # Without the lock, two commands at once would submit the same cell twice.
    with FileLock(folder / "lock", mode=0o600) as lock:
        jobs = queued_jobs(remaining)
        for cell in remaining:
            if cell.number in jobs:
                job = jobs[cell.number]
                message = Message(
                    "job.submitted-before", f"job {job} was submitted before", job=job
                )
                say(f"{cell.title}{message}")
        for array in arrays([cell for cell in remaining if cell.number not in jobs]):
            try:
                with submission() as umask:
                    jobs |= submit_array(folder, array, umask)
            except ValueError as error:
                key = error.key if isinstance(error, Refusal) else None
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
    """Return the jobs of an earlier command that have not ended, by their cell's number."""
    folder = left[0].folder.parent / SUBMITTED if left else Path()
    numbers = {cell.folder.name: cell.number for cell in left}
    # A cell that was submitted again after a failure has several jobs.
    candidates: list[tuple[str, int]] = []
    for file in folder.glob("*.json"):
        array = run_folder.read_json(file)
        if array is not None:
            # The name is null if the command was killed while it submitted.
            job = array["job"] or slurm.job_named(file.stem)
            jobs = [] if job is None else _array_jobs(job, len(array["cells"]))
            pairs = zip(jobs, array["cells"], strict=False)
            candidates += [(job, numbers[name]) for job, name in pairs if name in numbers]
    unended = slurm.unended([job for job, _ in candidates])
    return {number: job for job, number in candidates if job in unended}


def arrays(left: list[Cell]) -> list[JobArray]:
    """Group cells into arrays of jobs with the same resources and options, in the sweep's order.

    Invalid options are refused.
    """
    groups: dict[str, JobArray] = {}
    for cell in left:
        place = cell.folder.parent.absolute()
        if "%" in str(place):
            raise Refusal(
                "slurm.percent",
                f"hydra.sweep.dir={place}: SLURM takes % in the names of its logs as a"
                " placeholder; choose a folder without it",
                key="hydra.sweep.dir",
                value=str(place),
            )
        options: Any = OmegaConf.to_container(cell.composed.hydra.launcher, resolve=True)
        request = resources(cell.config)
        check_options(options, request)
        slurm_options.flags(request, options)  # This refuses options that a job cannot have.
        key = f"{request} {json.dumps(options, sort_keys=True, default=str)}"
        groups.setdefault(key, JobArray(request, options, [])).cells.append(cell)
    max_cells = (
        slurm.max_array_size() if any(len(group.cells) > 1 for group in groups.values()) else None
    )
    return list(chain.from_iterable(_split_array(group, max_cells) for group in groups.values()))


def _split_array(array: JobArray, max_cells: int | None) -> list[JobArray]:
    """Split an array into parts that are small enough for SLURM.

    The parts divide the number of jobs that may run at a time between them.
    """
    cells = array.cells
    parallel = array.options["array_parallelism"]
    parts = 1 if max_cells is None else math.ceil(len(cells) / max(max_cells, 1))
    if parts == 1:
        return [array]
    bounds = [len(cells) * part // parts for part in range(parts + 1)]
    shares = [parallel * (part + 1) // parts - parallel * part // parts for part in range(parts)]
    return [
        JobArray(
            array.request, array.options | {"array_parallelism": max(share, 1)}, cells[first:last]
        )
        for first, last, share in zip(bounds, bounds[1:], shares, strict=False)
    ]


def check_options(options: Mapping[Any, Any], request: Resources) -> None:
    """Refuse launcher options of a wrong type or value before anything is written."""
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
            f"(time_min={request.time_min}); otherwise a job must save before it has begun",
            key="hydra.launcher.signal_delay_s",
            value=early_s,
            time_min=request.time_min,
        )
    forms = [(key, list, "[COMMAND,...]") for key in ("setup", "teardown")]
    forms += [("additional_parameters", dict, "{OPTION:VALUE}")]
    for key, types, form in forms:
        value = options.get(key)
        if not isinstance(value, types | None):
            raise Refusal(
                "slurm.form",
                f"hydra.launcher.{key}={value}: write it as `hydra.launcher.{key}={form}`, or null",
                key=f"hydra.launcher.{key}",
                value=value,
                form=form,
            )


def _array_jobs(job: str, count: int) -> list[str]:
    """Return SLURM's names of the jobs of an array. A single job is submitted without an array."""
    return [job] if count == 1 else [f"{job}_{index}" for index in range(count)]


def submit_array(folder: Path, array: JobArray, umask: int) -> dict[int, str]:
    """Submit one array.

    Returns:
        Each cell's job, by the cell's number.

    Raises:
        ValueError: sbatch refused the array.
    """
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    request = array.request
    options = array.options
    cells = array.cells
    name = f"{re.sub(r'[^A-Za-z0-9_.-]', '_', folder.parent.name)}-{secrets.token_hex(4)}"
    flags = slurm_options.flags(request, options)
    executor = submitit.AutoExecutor(folder, cluster="slurm", slurm_python=STARTS_JOBS)
    executor.update_parameters(**parameters(name, request, options))
    grace_s = float(options["signal_delay_s"])
    key = secrets.token_hex(16)
    jobs = make_jobs(cells, SlurmJob, umask=umask, key=key, grace_s=grace_s)
    file = folder / f"{name}.json"
    content = {
        "cells": [cell.folder.name for cell in cells],
        "key": key,
    }
    files_before = {*folder.iterdir()}
    try:  # Submitit prints the output of sbatch, so it is caught.
        run_folder.write_json(file, content | {"job": None})
        with (
            terminal_blocked(),
            redirect_stderr(StringIO()),
            slurm.submitting(flags),
            executor.batch(),
        ):
            submitted = [executor.submit(job) for job in jobs]
        job = submitted[0].job_id.partition("_")[0]
    except (FailedJobError, FailedSubmissionError) as error:
        unanswered_job = None
        if isinstance(error, FailedSubmissionError) or slurm_refusals.is_unanswered(str(error)):
            unanswered_job = _find_unanswered_job(name)
            if unanswered_job is None:
                raise slurm_refusals.unanswered_refusal(str(error), name) from None
        if unanswered_job is None:
            _remove_unsubmitted(folder, files_before)
            raise slurm_refusals.explain(str(error), request, flags) from None
        job = unanswered_job
    except OSError as error:
        _remove_unsubmitted(folder, files_before)
        raise Refusal.of(unwritable(folder, error, "hydra.sweep.dir")) from None
    run_folder.write_json(file, content | {"job": job})
    message = Message(
        "job.submitted",
        f"submitted job {job}: {count(len(cells), 'cell')}, {request.in_words()} each",
        job=job,
        cells=len(cells),
        each=request.in_words(),
    )
    say(message)
    return {
        cell.number: task for cell, task in zip(cells, _array_jobs(job, len(cells)), strict=True)
    }


def _find_unanswered_job(name: str) -> str | None:
    """Return the job of a submission that SLURM did not answer, or None if it stays unknown.

    A busy controller may take a while to show it, so it is looked for during `LOOKS_FOR_S`.
    """
    until_s = clock_s() + LOOKS_FOR_S
    while True:
        with suppress(slurm.SilentError):
            job = slurm.job_named(name)
            if job is not None:
                return job
        if clock_s() >= until_s:
            return None
        pause(LOOKS_EVERY_S)


def _remove_unsubmitted(folder: Path, files_before: set[Path]) -> None:
    """Remove the files of a submission that SLURM refused.

    Files of earlier submissions stay, because their jobs may be queued.
    """
    for path in {*folder.iterdir()} - files_before:
        if UNSUBMITTED.fullmatch(path.name) or path.suffix == ".json":
            path.unlink(missing_ok=True)


def parameters(name: str, request: Resources, options: Options) -> dict[str, Any]:
    """Return the job's resources and the site's options in the form that submitit takes."""
    # Since SLURM 22.05, srun does not take over the cores from sbatch. On sites with --export=NONE,
    # the task would not get the variables that the job's script exports for it.
    srun = [f"--cpus-per-task={request.cpus}", "--export=ALL"]
    if request.nodes > 1:
        srun += ["--no-kill", "--kill-on-bad-exit=0"]
    settings: dict[str, Any] = {
        "name": name,
        "nodes": request.nodes,
        "tasks_per_node": 1,
        "cpus_per_task": request.cpus,
        "timeout_min": request.time_min,
        "slurm_signal_delay_s": options["signal_delay_s"],
        "slurm_array_parallelism": options["array_parallelism"],
        "slurm_additional_parameters": slurm_options.flags(request, options),
        "slurm_srun_args": srun,
    }
    for key in ("setup", "teardown"):
        if options.get(key):
            settings[f"slurm_{key}"] = list(options[key])
    return settings
