"""A cell of a race on the ranks: they train to the step that the race names, measure that block of steps, and wait.

The race writes the step to pause after to the board before it lets the ranks go, so all of them know it before they get
there, and none waits within a collective. A paused rank holds its memory and does nothing, but its loader's workers
load ahead until their queues are full. So the first steps of a block, for which batches lie ready, are trained and not
measured, nor is the first step of an epoch, which waits for its first batch; evaluation lies between two measured steps
and is no part of either.
"""

import json
from collections.abc import Callable
from math import isfinite
from pathlib import Path

import numpy as np
import torch

from multicard.measure import memory
from multicard.measure.timing import Marks, clock_s, pause
from multicard.ranks.process import Rank
from multicard.records.progress import Board
from multicard.records.rank_files import RankProbe

POLL_S = 0.01  # between two looks at the board of a rank that waits


class Pausing:
    """Follows a rank's steps; used as `Probing` is.

    Args:
        clock: by whose clock steps are timed: the rank's device, or the CPU where the host waits for it in every step.
        warm_up: first steps of the run, which are not measured.
        prepared: steps for which batches may lie ready after a pause.
        weight: what each of the rank's samples counts, as posted on the board: less than 1 where ranks train on the
            same ones.
        last_loss: the loss of the rank's last step, asked for once the device has done its work; by default that on the
            board, which must not lag behind then.
    """

    def __init__(
        self,
        rank: Rank,
        clock: torch.device,
        board: Board,
        folder: Path,
        steps_per_epoch: int,
        warm_up: int,
        prepared: int = 0,
        weight: float = 1.0,
        last_loss: Callable[[], float] | None = None,
    ) -> None:
        self.rank, self.board, self.folder, self.steps_per_epoch = rank, board, folder, steps_per_epoch
        self._after_pause, self._weight = prepared + 1, weight
        self._last_loss = last_loss or (lambda: self.board.read(rank.rank).loss)
        self._skip = max(warm_up, self._after_pause)  # steps that are not measured, from now on
        self._marks = Marks(clock)  # the ends of steps in a row
        self._counts: list[int] = []  # samples by each mark
        self._block: list[tuple[float, float]] = []  # seconds of each measured step, and its samples
        self._left_out: list[int] = []  # steps of the run, from 0, that were not measured

    def begin(self) -> float:
        """All is set up: say so, and wait for the first block. Returns the seconds that it waited."""
        paused_at_s = clock_s()
        self._write(0)
        self._wait(0)
        return clock_s() - paused_at_s

    def start_epoch(self) -> None:
        """Training on an epoch starts."""
        self._collect()
        if self.steps_per_epoch > 1:
            self._skip = max(self._skip, 1)
        elif not self._skip:
            self._mark()

    def step_ended(self, steps: int) -> float:
        """The host has ended the run's step `steps`, counted from 1: pause, where the race has named it.

        Returns:
            Seconds that it waited, once the device had done its work; 0.0 where it did not pause.
        """
        if self._skip:
            self._skip -= 1
            self._left_out.append(steps - 1)
        if not self._skip:
            self._mark()
        if steps < self.board.pause_at:
            return 0.0
        self._collect()
        paused_at_s = clock_s()
        self._write(steps)
        self._wait(steps)
        self._skip = max(self._skip, self._after_pause)
        return clock_s() - paused_at_s

    def end_epoch(self) -> bool:
        """False: only the board stops a cell of a race."""
        return False

    def result(self) -> RankProbe:
        """For the rank's report."""
        return RankProbe("race", self.steps_per_epoch, self._left_out)

    def _mark(self) -> None:
        self._marks.add()
        self._counts.append(self.board.read(self.rank.rank).samples)

    def _collect(self) -> None:
        """Add the steps between the marks to the block. Waits for the device."""
        samples = self._weight * np.diff(self._counts)
        self._block += zip(map(float, self._marks.seconds()), map(float, samples), strict=True)
        self._marks.clear()
        self._counts = []

    def _write(self, steps: int) -> None:
        """Add a line to the rank's file: the block that has ended, as `multicard.decide.race.readings` reads it."""
        device, loss = self.rank.device, self._last_loss()
        line = {
            "step": steps,
            "ranks": self.rank.world_size,
            "skips": self._after_pause if steps else self._skip,  # steps that the next block begins with, unmeasured
            "steps_per_epoch": self.steps_per_epoch,
            "step_s": [seconds for seconds, _ in self._block],
            "samples": [samples for _, samples in self._block],
            "peak_memory_bytes": memory.peak_memory_bytes(device),
            "loss": loss if isfinite(loss) else None,
        }
        self._block = []
        path = blocks_file(self.folder, self.rank.rank)
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _wait(self, steps: int) -> None:
        """Wait until the race lets the ranks go on from a step, or stop."""
        while self.board.pause_at <= steps and not self.board.stop_at:
            pause(POLL_S)


def blocks_file(folder: Path, rank: int) -> Path:
    """A rank's blocks: a JSON object a line."""
    return folder / "blocks" / f"r{rank:02d}.jsonl"
