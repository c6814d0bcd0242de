"""Start a rank as a command, for profilers that start the process that they profile.

    python multicard/ranks/wrapped.py FILE

`elastic.launch` writes function, arguments and job into FILE. The command replaces itself by the
profiler, which starts it a second time. The second time it works as a rank.
"""

import os
import pickle
import sys
from pathlib import Path

# Find multicard whichever folder the command was started in, as the entries do.
sys.path[0] = str(Path(__file__).parents[2])

from multicard.ranks import os_calls, process

WRAPPED = "MULTICARD_WRAPPED"  # Set for the process that the profiler starts.

if __name__ == "__main__":
    rank = int(os.environ["RANK"])
    work, arguments, job = pickle.loads(Path(sys.argv[1]).read_bytes())
    if WRAPPED in os.environ:
        process.work_as_rank(work, arguments, job)
    else:
        os_calls.redirect(process.log_file(job.folder, rank))
        os.environ[WRAPPED] = "1"
        words = [word.replace("RANK", f"{rank:02d}") for word in job.wrapper]
        os.execvp(words[0], [*words, sys.executable, *sys.argv])
