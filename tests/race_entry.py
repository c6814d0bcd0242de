"""`train_vision.py` whose races end with one full run of one cell."""

import sys

import hydra
from omegaconf import DictConfig

from multicard import cli, workloads
from multicard.race import live
from multicard.sweep import task
from multicard.vision.workload import WORKLOAD

workloads.register()
live.FINALISTS = live.FINAL_RUNS = 1


@hydra.main(version_base="1.3", config_path="../conf", config_name="train_vision")
def main(cfg: DictConfig) -> float | None:
    return task.measure(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, usage=__doc__))
