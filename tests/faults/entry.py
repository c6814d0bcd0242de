"""`train_vision.py` with the faults of work.py."""

import sys
from dataclasses import replace

from multicard.ranks import interruption

interruption.end_at_once()  # while the rest is imported

from multicard import workloads
from multicard.cli import command
from multicard.vision import workload
from tests.faults import work

workloads.register()
WORKLOAD = replace(workload.WORKLOAD, work="tests.faults.work:train", summarise=work.summarise)

if __name__ == "__main__":
    sys.exit(command.execute(WORKLOAD, usage=__doc__))
