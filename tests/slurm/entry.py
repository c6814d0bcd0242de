"""`train_vision.py` with ranks that end as `seed` says: see work.py."""

import sys
from dataclasses import replace

from multicard import workloads
from multicard.cli import command
from multicard.vision import workload

workloads.register()
WORKLOAD = replace(workload.WORKLOAD, work="tests.slurm.work:train")


if __name__ == "__main__":
    sys.exit(command.execute(WORKLOAD, usage=__doc__))
