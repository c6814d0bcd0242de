"""`multicard evidence --slurm`: run the same command as one SLURM job."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from multicard import repository
from multicard.messages import Message, Refusal
from multicard.sweep import slurm_refusals

STARTS_MIN = 5  # The job gets these minutes more, to start and to write the page and the file.
LOG = "slurm-%j.log"
HINT = "--slurm partition=gpu gpus=4 cpus-per-task=32"


def submit(out: Path, minutes: float, options: Sequence[str], words: Sequence[str]) -> Message:
    """Submit the command with these `words` as a job, with its log in the folder of the evidence.

    Args:
        out: the folder of the evidence.
        minutes: the time that the command may take.
        options: options of sbatch, with or without their dashes. They override the defaults.
        words: the words of the command.

    Raises:
        Refusal: this machine has no sbatch, or sbatch refuses the job.
    """
    if shutil.which("sbatch") is None:
        text = (
            "--slurm: no sbatch on this machine; log in to a node of the cluster, or leave --slurm"
            " out to run here"
        )
        raise Refusal("evidence.no-sbatch", text, key="--slurm")
    user_options = [option if option.startswith("-") else f"--{option}" for option in options]
    command = shlex.join([sys.executable, "-m", "multicard", "evidence", *words])
    out.mkdir(parents=True, exist_ok=True)
    limit = f"--time={round(minutes) + STARTS_MIN}"
    default_options = [
        "--job-name=multicard-evidence",
        "--nodes=1",
        "--ntasks=1",
        limit,
        f"--output={out / LOG}",
    ]
    submission = subprocess.run(
        ["sbatch", "--parsable", *default_options, *user_options],
        input=f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(python_path())}\nexec {command}\n",
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if submission.returncode:
        reason = (
            "; ".join(slurm_refusals.output_lines(submission.stderr))
            or f"exit code {submission.returncode}"
        )
        text = f"--slurm: sbatch refuses: {reason}"
        raise Refusal("evidence.sbatch", text, key="--slurm", reason=reason, options=user_options)
    job = submission.stdout.strip().partition(";")[0]
    log = str(out / LOG).replace("%j", job)
    lacks_gpu = "" if asks_for_gpus(user_options) else f"; it asks for no GPU, as `{HINT}` does"
    text = (
        f"submitted job {job}, {round(minutes) + STARTS_MIN} min at most{lacks_gpu}; its log: {log}"
    )
    return Message("evidence.submitted", text, job=job, log=log, asks_for_gpus=not lacks_gpu)


def asks_for_gpus(options: Sequence[str]) -> bool:
    """Return True if one of sbatch's options asks for GPUs."""
    return any("gpu" in option or "gres" in option or option.startswith("-G") for option in options)


def python_path() -> str:
    """Return this command's Python path, with the folder of multicard.

    The job starts in the same folder, but not in the same shell.
    """
    return os.pathsep.join(
        filter(None, [str(repository.PACKAGES), os.environ.get("PYTHONPATH", "")])
    )
