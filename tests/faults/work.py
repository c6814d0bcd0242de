"""Faults from within: what a rank, or the controller, of a cell does at one of its own points.

A cell with a seed above 100 ends as `train` says. For seed 1 the variable MULTICARD_FAULT names an
act of `ACTS` and a point, as "hold@step3". The points are `step3` (the last rank's third optimiser
step), `evaluate` (its first evaluation) and `record` (the controller, once the ranks have ended and
before the record is written). Otherwise this is `multicard.vision`'s own work.
"""

import ctypes
import os
import signal
from collections.abc import Callable
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
# seeds: the end of the last rank; all sleep
RAISES, RUNS_OUT, IS_KILLED, SLEEPS = 101, 102, 103, 104
# files of FOLDER: what holds writes the first, and goes on once there is the second
REACHED, GO = "reached", "go"
# a file of FOLDER: a line for each start of a rank, with its number and the folder of its cell
STARTS = "starts"
POLL_S = 0.02
CHUNK_BYTES, MOST_CHUNKS = 64 << 20, 256


def train(rank: Rank, config: VisionConfig, folder: Path, workers: int) -> None:
    """As `multicard.vision.train.train`, with the fault on the last rank."""
    import torch
    from torch.nn.modules.module import register_module_forward_pre_hook
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from multicard.vision import train as vision

    if FOLDER in os.environ:  # the tests of SLURM that strike nothing have none
        with (Path(os.environ[FOLDER]) / STARTS).open("a") as starts:
            starts.write(f"{rank.rank} {folder}\n")
    last = rank.rank == rank.world_size - 1
    if last and config.seed == SEED and VARIABLE in os.environ:
        steps = count(1)
        register_optimizer_step_post_hook(lambda *_: reach(f"step{next(steps)}"))
        register_module_forward_pre_hook(
            lambda *_: None if torch.is_grad_enabled() else reach("evaluate")
        )
    if last and config.seed == RAISES:
        raise_error()
    if last and config.seed == RUNS_OUT:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if last and config.seed == IS_KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.seed == SLEEPS:
        pause(600)
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
    """Stay here until told to go on, so that whatever is
    done to the command is done at this point.
    """
    folder = Path(os.environ[FOLDER])
    (folder / f".{REACHED}").write_text(str(os.getpid()))
    (folder / f".{REACHED}").replace(folder / REACHED)
    while not (folder / GO).exists():
        pause(POLL_S)


def swallow() -> None:
    """Take memory and use it, until the kernel ends this process."""
    chunks = [os.urandom(1024) * (CHUNK_BYTES // 1024) for _ in range(MOST_CHUNKS)]
    raise RuntimeError(f"{len(chunks)} chunks of {CHUNK_BYTES} bytes did not exceed the limit")


def raise_error() -> None:
    raise KeyError("no such weight")


def run_out() -> None:
    import torch

    torch.empty(1 << 60, dtype=torch.uint8)  # the allocator's own error


ACTS: dict[str, Callable[[], object]] = {
    "hold": hold,
    "swallow": swallow,
    "raise": raise_error,
    "run_out": run_out,
    "exit": lambda: os._exit(3),
    "crash": lambda: ctypes.string_at(0),
}
