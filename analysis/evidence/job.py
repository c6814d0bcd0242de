"""`multicard evidence --slurm`: the same command as one job of SLURM."""

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

STARTS_MIN = 5  # minutes beyond those of the command: to start, and to write page and file
LOG = "slurm-%j.log"
HINT = "--slurm partition=gpu gpus=4 cpus-per-task=32"


def submit(out: Path, minutes: float, options: Sequence[str], words: Sequence[str]) -> Message:
    """Submit the command with these `words` as a job,
    whose log is in the folder of what it measures.

    Args:
        options: of sbatch, with or without their dashes; they count where ours say otherwise.

    Raises:
        Refusal: no sbatch here, or what sbatch says.
    """
    if shutil.which("sbatch") is None:
        said = (
            "--slurm: no sbatch on this machine; log in to a node of the cluster, or leave --slurm"
            " out to run here"
        )
        raise Refusal("evidence.no-sbatch", said, key="--slurm")
    own = [option if option.startswith("-") else f"--{option}" for option in options]
    command = shlex.join([sys.executable, "-m", "multicard", "evidence", *words])
    out.mkdir(parents=True, exist_ok=True)
    limit = f"--time={round(minutes) + STARTS_MIN}"
    fixed = [
        "--job-name=multicard-evidence",
        "--nodes=1",
        "--ntasks=1",
        limit,
        f"--output={out / LOG}",
    ]
    done = subprocess.run(
        ["sbatch", "--parsable", *fixed, *own],
        input=f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(path())}\nexec {command}\n",
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        reason = (
            "; ".join(slurm_refusals.output_lines(done.stderr)) or f"exit code {done.returncode}"
        )
        said = f"--slurm: sbatch refuses: {reason}"
        raise Refusal("evidence.sbatch", said, key="--slurm", reason=reason, options=own)
    job = done.stdout.strip().partition(";")[0]
    log = str(out / LOG).replace("%j", job)
    lacks_gpu = "" if asks_for_gpus(own) else f"; it asks for no GPU, as `{HINT}` does"
    said = (
        f"submitted job {job}, {round(minutes) + STARTS_MIN} min at most{lacks_gpu}; its log: {log}"
    )
    return Message("evidence.submitted", said, job=job, log=log, asks_for_gpus=not lacks_gpu)


def asks_for_gpus(options: Sequence[str]) -> bool:
    return any("gpu" in option or "gres" in option or option.startswith("-G") for option in options)


def path() -> str:
    """Python's path of this command, with the folder of multicard: the job starts in the same
    folder, but not in the same shell.
    """
    return os.pathsep.join(
        filter(None, [str(repository.PACKAGES), os.environ.get("PYTHONPATH", "")])
    )
