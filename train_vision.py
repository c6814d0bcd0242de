"""Train and measure image recognition on 1 to N GPUs, or CPU ranks.

one run        python train_vision.py precision=bf16 gpus=2
a sweep        python train_vision.py -m precision=fp64,fp32,fp16 gpus=1,2,3,4
can resume     python train_vision.py -m name=table2 precision=fp32,fp16
a forecast     python train_vision.py -m gpus=1,2,4 predict=true
from a paper   python train_vision.py experiment=table2 name=table2
"""

import sys

from multicard.ranks import program

program.begin()  # First: a signal during the slow imports must end the process at once.

from multicard import repository
from multicard.cli import command
from multicard.messages import usage
from multicard.vision.workload import WORKLOAD


def main() -> int:
    """Run the command in `sys.argv` and return its exit code."""
    return command.execute(
        WORKLOAD, usage=usage(__doc__, __file__), conclude=repository.module("analysis").conclusion
    )


if __name__ == "__main__":
    sys.exit(main())
