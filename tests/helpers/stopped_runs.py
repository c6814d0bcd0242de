"""Runs that are stopped after a step, and go on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from multicard.config.base import plain
from multicard.config.placement import Placement
from multicard.config.vision import VisionConfig
from multicard.ranks import checkpoint, elastic
from multicard.ranks.failures import Failure
from multicard.ranks.process import RankSettings
from multicard.records import rank_files, run_folder
from multicard.records.progress import Board
from multicard.vision.summary import summarise
from multicard.vision.workload import WORKLOAD
from tests.conftest import SMALL, typed, warm_up
from tests.helpers import records

WORK = WORKLOAD.work


@dataclass
class Case:
    """A run in `folder` on `world` ranks."""

    folder: Path
    config: VisionConfig
    world: int = 1
    workers: int = 0
    device: str = "cpu"

    @property
    def placement(self) -> Placement:
        return Placement(self.device, "gloo", self.world, False)

    def start(self, stop_at: int = 0) -> Failure | None:
        warm_up()
        self.folder.mkdir(exist_ok=True)
        board = Board(self.folder, self.world, create=True)
        board.ask_stop(stop_at)
        job = RankSettings(self.folder, self.device, "gloo", 1, 1, "tuned")
        try:
            return elastic.launch(
                WORK, (self.config, self.folder, self.workers), self.placement, job
            )
        finally:
            board.remove()

    def train(self, *stops: int) -> dict[str, Any]:
        """Stop after each of these steps, then go on to the end; the summary."""
        for stop in (*stops, 0):
            failure = self.start(stop)
            if failure is not None:
                pytest.fail("\n".join([failure.message, *failure.log_tail]))
            assert not stop or checkpoint.latest(self.folder) == stop
        ranks, steps = rank_files.read_reports(self.folder), run_folder.read_steps(self.folder)
        record = records.as_record({"config": plain(self.config)})
        summarise(record, self.config, self.placement, ranks, steps)
        return msgspec.to_builtins(record, enc_hook=float)

    def state(self, steps: int, rank: int = 0) -> dict[str, Any]:
        return torch.load(
            self.folder / f"checkpoint/s{steps:08d}/r{rank:02d}.pt", weights_only=True
        )

    def rows(self) -> dict[str, np.ndarray]:
        table = run_folder.read_steps(self.folder)
        return {name: table[name].to_numpy() for name in table.column_names}


def case(folder: Path, *words: str, world: int = 1, workers: int = 0) -> Case:
    return Case(
        folder,
        typed(*SMALL, "model.width=0.35", f"gpus={world}", "epochs=2", *words),
        world,
        workers,
    )
