"""Tune an LLM with torchtune's recipes on 1 to N GPUs, or CPU ranks, and measure it.

python tune_llm.py                                                      one run, of a tiny model on synthetic rows
python tune_llm.py method=qlora model=llama3_8b precision=bf16 gpus=2   one run, of 8B random weights
python tune_llm.py -m method=lora,qlora,dpo,qat gpus=1,2                a sweep: every combination
python tune_llm.py -m method=lora,qlora gpus=1,2 predict=true           what a sweep would take; starts none
python tune_llm.py experiment=templates name=templates                  a figure of the papers; scale=smoke shrinks it
"""

import sys

from multicard.ranks import interruption

interruption.end_at_once()  # while the rest is imported

import hydra
from omegaconf import DictConfig

from multicard import workloads
from multicard.cli import command as cli
from multicard.llm.workload import WORKLOAD
from multicard.sweep import task

workloads.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="tune_llm")
def main(cfg: DictConfig) -> float | None:
    return task.measure(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, usage=__doc__))
