"""A rank that is started as a command, for a profiler that must start what it looks at.

    python multicard/rank.py FOLDER

`launch` leaves in FOLDER what to do. The command replaces itself by the profiler, which starts it once more.
"""

import os
import sys
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[2])  # as for the entries, whichever folder they were started in

from multicard.ranks import process

WRAPPED = "MULTICARD_WRAPPED"  # set for what the profiler starts

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    if WRAPPED in os.environ:
        process.work_as_rank(*process.left_work(folder))
    else:
        *_, job = process.left_work(folder)
        process.redirect(process.log_file(folder, int(os.environ["RANK"])))
        os.environ[WRAPPED] = "1"
        words = [word.replace("RANK", f"{int(os.environ['RANK']):02d}") for word in job.wrapper]
        os.execvp(words[0], [*words, sys.executable, *sys.argv])
