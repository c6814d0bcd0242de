"""Faults from within: what a rank, or the controller, of the cell with seed 1 does at one of its own points.

The variable MULTICARD_FAULT names both, as "hold@step3": an act of `ACTS`, and a point. The points are `step3` (the
last rank's third optimiser step), `evaluate` (its first evaluation) and `record` (the controller, once the ranks have
ended and before the record is written). Without the variable this is `multicard.vision`'s own work.
"""

import os
from itertools import count
from pathlib import Path
from typing import Any

from multicard.config.vision import VisionConfig
from multicard.measure.timing import pause
from multicard.ranks.process import Rank
from multicard.records.schema import VisionRecord
from multicard.vision import summary

VARIABLE, FOLDER = "MULTICARD_FAULT", "MULTICARD_FAULT_FOLDER"
SEED = 1  # of the cell that a fault hits
REACHED, GO = "reached", "go"  # files of FOLDER: what holds writes the first, and goes on once there is the second
POLL_S = 0.02
CHUNK_BYTES, MOST_CHUNKS = 64 << 20, 256


def train(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """As `multicard.vision.train.train`, with the fault on the last rank."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from multicard.vision import train as vision

    if config.seed == SEED and rank.rank == rank.world_size - 1 and VARIABLE in os.environ:
        steps = count(1)
        register_optimizer_step_post_hook(lambda *_: reach(f"step{next(steps)}"))
        register_module_forward_pre_hook(lambda *_: None if torch.is_grad_enabled() else reach("evaluate"))
    vision.train(rank, config, folder, workers)


def summarise(record: VisionRecord, config: VisionConfig, *arguments: Any) -> None:
    """As `multicard.vision.summary.summarise`, with the fault in the controller, which calls it."""
    if config.seed == SEED:
        reach("record")
    summary.summarise(record, config, *arguments)


def reach(point: str) -> None:
    act, _, where = os.environ.get(VARIABLE, "").partition("@")
    if where == point:
        ACTS[act]()


def hold() -> None:
    """Stay here until told to go on, so that whatever is done to the command is done at this point."""
    folder = Path(os.environ[FOLDER])
    (folder / f".{REACHED}").write_text(str(os.getpid()))
    (folder / f".{REACHED}").replace(folder / REACHED)
    while not (folder / GO).exists():
        pause(POLL_S)


def swallow() -> None:
    """Take memory and use it, until the kernel ends this process."""
    chunks = [os.urandom(1024) * (CHUNK_BYTES // 1024) for _ in range(MOST_CHUNKS)]
    raise RuntimeError(f"{len(chunks)} chunks of {CHUNK_BYTES} bytes did not exceed the limit")


ACTS = {"hold": hold, "swallow": swallow}
