"""Measure a PyTorch script of your own on 1 to N GPUs, or CPU ranks, without changing it.

one run        python measure_script.py script=train.py args.lr=0.1 gpus=2
a sweep        python measure_script.py -m script=train.py args.precision=bf16,fp32 gpus=1,2,4
short runs     python measure_script.py -m script=train.py gpus=1,2 steps=200 name=mine
plain words    python measure_script.py script=train.py words=[data/train.csv,--verbose]
a Hydra script python measure_script.py script=train.py args.style=hydra args.optim.lr=0.1
"""

import sys

from multicard.ranks import program

program.begin()  # First: a signal during the slow imports must end the process at once.

from multicard import repository
from multicard.cli import command
from multicard.messages import usage
from multicard.script.workload import WORKLOAD


def main() -> int:
    """Run the command in `sys.argv` and return its exit code."""
    return command.execute(
        WORKLOAD, usage=usage(__doc__, __file__), conclude=repository.module("analysis").conclusion
    )


if __name__ == "__main__":
    sys.exit(main())
