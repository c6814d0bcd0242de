"""Tune an LLM with torchtune's recipes on 1 to N GPUs, or CPU ranks, and measure it.

a tiny model   python tune_llm.py
8B, random     python tune_llm.py method=qlora model=llama3_8b precision=bf16 gpus=2
a sweep        python tune_llm.py -m method=lora,qlora,dpo,qat gpus=1,2
a forecast     python tune_llm.py -m method=lora,qlora gpus=1,2 predict=true
from a paper   python tune_llm.py experiment=templates name=templates
"""

import sys

from multicard.ranks import program

program.begin()  # First: a signal during the slow imports must end the process at once.

from multicard import repository
from multicard.cli import command
from multicard.llm.workload import WORKLOAD
from multicard.messages import usage


def main() -> int:
    """Run the command in `sys.argv` and return its exit code."""
    return command.execute(
        WORKLOAD, usage=usage(__doc__, __file__), conclude=repository.module("analysis").conclusion
    )


if __name__ == "__main__":
    sys.exit(main())
