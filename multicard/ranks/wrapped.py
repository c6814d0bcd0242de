"""A rank that is started as a command, for a profiler that starts the process it profiles.

    python multicard/ranks/wrapped.py FILE

FILE is what `elastic.launch` hands over: function, arguments and job. The command replaces itself
by the profiler, which starts it once more.
"""

import os
import pickle
import sys
from pathlib import Path

# as for the entries, whichever folder they were started in
sys.path[0] = str(Path(__file__).parents[2])

from multicard.ranks import os_calls, process

WRAPPED = "MULTICARD_WRAPPED"  # set for the process that the profiler starts

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
