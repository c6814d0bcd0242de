"""Tunes Llama 3 with torchtune and measures it: `python tune_llm.py method=qlora gpus=2`, or `-m` for a sweep."""

import sys

import hydra
from omegaconf import DictConfig

from multicard import cli, workloads
from multicard.config import llm
from multicard.controller import run
from multicard.llm.workload import WORKLOAD

workloads.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="tune_llm")
def main(cfg: DictConfig) -> None:
    run.cell(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, llm.ExperimentName))
