"""Train and measure image recognition on 1 to N GPUs, or CPU ranks.

python train_vision.py precision=bf16 gpus=2                      one run
python train_vision.py -m precision=fp64,fp32,fp16 gpus=1,2,3,4   a sweep: every combination
python train_vision.py -m name=table2 precision=fp32,fp16         a named sweep: the same command resumes it
python train_vision.py -m gpus=1,2,4 predict=true                 what a sweep would take; starts none
python train_vision.py experiment=table2 name=table2              a table of the papers; scale=smoke shrinks it
"""

import sys

from multicard.ranks import program

program.begin()  # while the rest is imported

from multicard import repository
from multicard.cli import command
from multicard.messages import usage
from multicard.vision.workload import WORKLOAD


def main() -> int:
    """Run the command of `sys.argv` and return its exit code."""
    return command.execute(WORKLOAD, usage=usage(__doc__, __file__), conclude=repository.module("analysis").conclusion)


if __name__ == "__main__":
    sys.exit(main())
