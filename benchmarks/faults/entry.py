"""`train_vision.py` with the faults of work.py."""

import sys
from dataclasses import replace

from multicard.ranks import interruption

interruption.end_at_once()  # while the rest is imported

from benchmarks.faults import work
from multicard import workloads
from multicard.cli import command
from multicard.vision import workload

workloads.register()
WORKLOAD = replace(workload.WORKLOAD, work="benchmarks.faults.work:train", summarise=work.summarise)

if __name__ == "__main__":
    sys.exit(command.execute(WORKLOAD, usage=__doc__))
