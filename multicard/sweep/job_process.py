"""The process of a job: runs what submitit left in a folder, if nobody else can have put it there.

    python multicard/sweep/job_process.py -u -m submitit.core._submit FOLDER

Whoever may write to a folder above FOLDER could have put another in its place while the job was queued.
"""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path = [str(HERE.parents[1]), *(path for path in sys.path if path != str(HERE))]  # whatever a site's PYTHONPATH is

from submitit.core.submission import process_job

from multicard.machine import private

if __name__ == "__main__":
    try:
        folder = private.opened(sys.argv[-1])
    except (OSError, ValueError) as error:
        sys.exit(f"refused: {error}")
    process_job(folder)
