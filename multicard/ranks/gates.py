"""What a rank does between two steps of a short run: end it once its mean step is known,
or pause in a race.

`probe=true`: all ranks stop after the same step. Rank 0 judges by its own steps: ranks exchange
gradients in every step, and so have the same mean. Between two of its steps it writes the step to
stop after to the board, which ranks read after each of theirs. Nobody waits for that,
since no rank can have passed that step:

- On CPU ranks nobody ends step k + 1 before rank 0 has taken part in it. So after its step k it
  says k + 1.
- On CUDA the host runs ahead of its device, and only the device waits for the others. A host that
  is LEAD steps ahead waits for its device, which has work for so long; so no host has passed k +
  LEAD when rank 0's has ended step k.
- Other nodes hear of it through the controllers, within HEARD_AFTER_S.

A cell of a race trains to the step that the race names, measures that block of steps, and waits.
The race writes the step to pause after to the board before it lets the ranks go, so all of them
know it before they get there, and none waits within a collective. A paused rank holds its memory
and does nothing, but its loader's workers load ahead until their queues are full. So the first
steps of a block, for which batches lie ready, are trained and not measured, nor is the first step
of an epoch, which waits for its first batch; evaluation lies between two measured steps and is no
part of either.
"""

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from multicard.config.base import RunConfig
from multicard.config.sweeps import share
from multicard.machine import private
from multicard.measure import memory
from multicard.measure.series import StopRule
from multicard.measure.timing import Laps, clock_s, pause
from multicard.ranks.process import Rank, as_on_rank_0
from multicard.records.progress import HEARD_AFTER_S, Board
from multicard.records.rank_files import RankProbe
from multicard.records.trained_weights import Held

if TYPE_CHECKING:
    import torch

LEAD = 8  # steps: enough that no device runs out of work, and soon over
POLL_S = 0.01  # between two looks at the board of a rank that waits


class Probing:
    """Ends a probe once its mean step is known; the loop calls its methods, and those of `Pausing`,
    as it goes. Steps are timed by the clock of `device`: the CPU, where the host waits for its
    device in every step anyway.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: Rank,
        device: "torch.device",
        board: Board,
        steps_per_epoch: int,
    ) -> None:
        self.rank = rank
        self.board = board
        self.steps_per_epoch = steps_per_epoch
        self.nodes = config.nodes
        self.ended_by = "run"
        self._rule = None
        if rank.rank == 0:
            self._rule = StopRule(share(config.probe.error), config.probe.seconds, steps_per_epoch)
        self._laps = Laps(device, LEAD)
        # by other ranks, ahead of rank 0
        self._passed = LEAD if device.type == "cuda" and rank.world_size > 1 else 0

    def begin(self) -> float:
        """All is set up, and the training is about to start. Returns the seconds that it paused."""
        return 0.0

    def start_epoch(self) -> None:
        self._laps.start()
        if self._rule is not None:
            self._rule.start_epoch()

    def step_ended(self, steps: int) -> float:
        """The host has ended the run's step `steps`, counted from 1. Returns the seconds that it
        paused, once the device had done its work.
        """
        self._laps.end()
        self._take()
        if self._rule is not None and not self.board.stop_at:
            self._judge(self._rule, steps)
        return 0.0

    def _judge(self, rule: StopRule, steps: int) -> None:
        """Ask for a stop where the mean step is known by now."""
        ahead = self._passed + 1
        if self.nodes > 1:
            ahead += math.ceil(HEARD_AFTER_S["several"] / rule.fastest_s)
        reason = rule.reason(ahead + self._laps.pending)
        if reason is not None:
            self.ended_by = reason
            self.board.ask_stop(steps + ahead)

    def end_epoch(self) -> bool:
        """True where the run is to stop at the end of the epoch. A collective, once a rank's device
        has done the work.
        """
        self._take()
        if self._rule is not None and not self.board.stop_at:
            self.ended_by = self._rule.reason() or self.ended_by
        return as_on_rank_0(self.rank, self.ended_by != "run")

    def _take(self) -> None:
        for _, step_s in self._laps.known():
            if self._rule is not None:
                self._rule.add(step_s)

    def result(self) -> RankProbe:
        return RankProbe(self.ended_by, self.steps_per_epoch)


class Pausing:
    """Has a cell of a race train in blocks of steps; only the board stops it.

    Args:
        clock: that of `Probing`.
        warm_up: first steps of the run, which are not measured.
        prepared: steps for which batches may lie ready after a pause.
        weight: what each of the rank's samples counts, as posted on the board: less than 1 where
            ranks train on the same ones.
        last_loss: the loss of the rank's last step, asked for once the device has done its work; by
            default that on the board, which must not lag behind then.
        held: what the rank trained so far, from which the race sees ranks that train apart; by
            default it is not looked at.
    """

    def __init__(
        self,
        rank: Rank,
        clock: "torch.device",
        board: Board,
        folder: Path,
        steps_per_epoch: int,
        warm_up: int,
        prepared: int = 0,
        weight: float = 1.0,
        last_loss: Callable[[], float] | None = None,
        held: Callable[[], Held] = Held,
    ) -> None:
        self.rank = rank
        self.board = board
        self.steps_per_epoch = steps_per_epoch
        self.folder = folder
        self._after_pause = prepared + 1
        self._weight = weight
        self._held = held
        self._last_loss = last_loss or (lambda: self.board.read(rank.rank).loss)
        self._skip = max(warm_up, self._after_pause)  # steps that are not measured, from now on
        self._laps = Laps(clock)  # steps in a row
        self._counts: list[int] = []  # samples at their start, and at the end of each
        # seconds of each measured step, and its samples
        self._block: list[tuple[float, float]] = []
        self._left_out: list[int] = []  # steps of the run, from 0, that were not measured

    def begin(self) -> float:
        """Say that all is set up, and wait for the first block."""
        return self._pause(0)

    def start_epoch(self) -> None:
        self._collect()
        if self.steps_per_epoch > 1:
            self._skip = max(self._skip, 1)
        elif not self._skip:
            self._mark()

    def step_ended(self, steps: int) -> float:
        if self._skip:
            self._skip -= 1
            self._left_out.append(steps - 1)
        if not self._skip:
            self._mark()
        if steps < self.board.pause_at:
            return 0.0
        self._collect()
        paused_s = self._pause(steps)
        self._skip = max(self._skip, self._after_pause)
        return paused_s

    def end_epoch(self) -> bool:
        return False

    def result(self) -> RankProbe:
        return RankProbe("race", self.steps_per_epoch, self._left_out)

    def _mark(self) -> None:
        (self._laps.end if self._counts else self._laps.start)()
        self._counts.append(self.board.read(self.rank.rank).samples)

    def _collect(self) -> None:
        """Add the steps in a row to the block. Waits for the device."""
        samples = self._weight * np.diff(self._counts)
        self._block += zip(
            (step_s for _, step_s in self._laps.known(wait=True)), map(float, samples), strict=True
        )
        self._counts = []

    def _pause(self, steps: int) -> float:
        """Write the block that has ended, and wait. Returns the seconds that this took."""
        paused_at_s = clock_s()
        self._write(steps)
        self._wait(steps)
        return clock_s() - paused_at_s

    def _write(self, steps: int) -> None:
        """Add a line to the rank's file: the block that has ended,
        as `multicard.decide.race.readings` reads it.
        """
        loss = self._last_loss()
        line = {
            "step": steps,
            "ranks": self.rank.world_size,
            # steps that the next block begins with, unmeasured
            "skips": self._after_pause if steps else self._skip,
            "steps_per_epoch": self.steps_per_epoch,
            "step_s": [seconds for seconds, _ in self._block],
            "samples": [samples for _, samples in self._block],
            "peak_memory_bytes": memory.peak_memory_bytes(self.rank.device),
            "loss": loss if math.isfinite(loss) else None,
            "held": msgspec.to_builtins(self._held()),
        }
        self._block = []
        path = blocks_file(self.folder, self.rank.rank)
        path.parent.mkdir(exist_ok=True)
        with os.fdopen(private.no_link(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as file:
            file.write(json.dumps(line) + "\n")

    def _wait(self, steps: int) -> None:
        """Wait until the race lets the ranks go on from a step, or stop."""
        while self.board.pause_at <= steps and not self.board.stop_at:
            pause(POLL_S)


Gate = Probing | Pausing  # follows a rank's steps


def blocks_file(folder: Path, rank: int) -> Path:
    """A rank's blocks: a JSON object a line."""
    return folder / "blocks" / f"r{rank:02d}.jsonl"
