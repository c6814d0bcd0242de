"""Trains and measures image recognition: `python train_vision.py precision=bf16 gpus=2`, or `-m` for a sweep."""

import sys

import hydra
from omegaconf import DictConfig

from multicard import cli, workloads
from multicard.config import vision
from multicard.controller import run
from multicard.vision.workload import WORKLOAD

workloads.register()


@hydra.main(version_base="1.3", config_path="conf", config_name="train_vision")
def main(cfg: DictConfig) -> None:
    run.cell(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, vision.ExperimentName))
