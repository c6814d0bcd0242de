"""`train_vision.py` whose races have three rounds of all cells, and one full run of the best."""

import sys

from multicard import workloads
from multicard.cli import command
from multicard.decide.race import live
from multicard.vision.workload import WORKLOAD
from tests.helpers.race_fakes import Rules

workloads.register()


class ThreeRounds(Rules):
    rounds = 3

    @property
    def final_runs(self) -> list[tuple[int, int]]:
        return [(3, self.finalists[0])]


live.Race = ThreeRounds  # pyright: ignore[reportAttributeAccessIssue]


if __name__ == "__main__":
    sys.exit(command.execute(WORKLOAD, usage=__doc__))
