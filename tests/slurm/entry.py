"""`train_vision.py` with ranks that end as `seed` says: see work.py."""

import sys
from dataclasses import replace

import hydra
from omegaconf import DictConfig

from multicard import workloads
from multicard.cli import command as cli
from multicard.sweep import task
from multicard.vision import workload

workloads.register()
WORKLOAD = replace(workload.WORKLOAD, work="tests.slurm.work:train")


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train_vision")
def main(cfg: DictConfig) -> None:
    task.measure(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, usage=__doc__))
