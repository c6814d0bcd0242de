"""A rank that comes to the end that its seed names, on the last rank; with any other seed it trains."""

import os
import signal
import time
from pathlib import Path

import torch

from multicard.config.vision import VisionConfig
from multicard.ranks.process import Rank
from multicard.vision import train as vision

RAISES, RUNS_OUT, IS_KILLED, SLEEPS = 101, 102, 103, 104


def train(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    if rank.rank == rank.world_size - 1:
        if config.seed == RAISES:
            raise KeyError("no such weight")
        if config.seed == RUNS_OUT:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if config.seed == IS_KILLED:
            os.kill(os.getpid(), signal.SIGKILL)
    if config.seed == SLEEPS:
        time.sleep(600)
    vision.train(rank, config, folder, workers)
