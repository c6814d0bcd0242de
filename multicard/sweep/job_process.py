"""Run the job that submitit left in a folder, if only this user can have put it there.

    python multicard/sweep/job_process.py -u -m submitit.core._submit FOLDER

Anyone who may write to a folder above FOLDER could have replaced FOLDER while the job was queued.
"""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# This must work with any PYTHONPATH of a site.
sys.path = [str(HERE.parents[1]), *(path for path in sys.path if path != str(HERE))]

from submitit.core.job_environment import JobEnvironment
from submitit.core.submission import process_job
from submitit.core.utils import DelayedSubmission

from multicard.machine import private
from multicard.measure.timing import pause
from multicard.records import run_folder

# This is how long the process waits for the command to name its file.
POLLS = 100
POLL_S = 0.1


def name_own(folder: Path) -> None:
    """Give this job's file its name if the command was killed after sbatch, before naming it.

    The file is found by the name of the submission, which SLURM has, and by the place of its cell
    in the array.
    """
    os.environ["SUBMITIT_FOLDER"] = str(folder)
    job_file = JobEnvironment().paths.submitted_pickle
    for _ in range(POLLS):
        if job_file.exists():
            return
        pause(POLL_S)
    submission = run_folder.read_json(folder / f"{os.environ.get('SLURM_JOB_NAME')}.json") or {
        "cells": []
    }
    place = int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))
    if place >= len(submission["cells"]):
        return
    name = submission["cells"][place]
    for path in folder.glob(f"{'[0-9a-f]' * 32}.pkl"):
        # The file may have its name by now, or an earlier submission may be cut off.
        with suppress(Exception):
            job: Any = DelayedSubmission.load(path).function
            if (job.key, job.folder.name) == (submission["key"], name):
                job_file.hardlink_to(path)


if __name__ == "__main__":
    try:
        folder = private.opened(sys.argv[-1])
        name_own(folder)
    except (OSError, ValueError) as error:
        sys.exit(f"refused: {error}")
    process_job(folder)
