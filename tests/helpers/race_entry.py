"""`train_vision.py` whose races have three rounds of all cells, and one full run of the best."""

import sys

import hydra
from omegaconf import DictConfig

from multicard import workloads
from multicard.cli import command as cli
from multicard.decide.race import live
from multicard.sweep import task
from multicard.vision.workload import WORKLOAD
from tests.helpers.race_fakes import Rules

workloads.register()


class ThreeRounds(Rules):
    @property
    def final_runs(self) -> list[tuple[int, int]]:
        return [(3, self.finalists[0])]


live.Race = ThreeRounds(3)  # pyright: ignore[reportAttributeAccessIssue]


@hydra.main(version_base="1.3", config_path="../conf", config_name="train_vision")
def main(cfg: DictConfig) -> float | None:
    return task.measure(WORKLOAD, cfg)


if __name__ == "__main__":
    sys.exit(cli.execute(main, WORKLOAD, usage=__doc__))
