"""`train_vision.py` with the faults of work.py."""

import sys
from dataclasses import replace

from multicard.ranks import interruption

interruption.end_at_once()  # while the rest is imported

import hydra
from omegaconf import DictConfig

from benchmarks.faults import work
from multicard import workloads
from multicard.cli import command as cli
from multicard.sweep import task
from multicard.vision import workload

workloads.register()
WORKLOAD = replace(workload.WORKLOAD, work="benchmarks.faults.work:train", summarise=work.summarise)


@hydra.main(version_base="1.3", config_path="../../conf", config_name="train_vision")
def main(cfg: DictConfig) -> None:
    task.measure(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, usage=__doc__))
