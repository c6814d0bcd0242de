"""Gates: what a rank does between two steps of a short run. It ends a probe, or pauses in a race.

`probe=true`: all ranks stop after the same step, once the mean step time is known. Rank 0 judges by
its own steps. As ranks exchange gradients in every step, they have the same mean. Between two of
its steps, rank 0 writes to the board after which step to stop. Ranks read the board after each of
their steps. Nobody waits for this, because no rank can have passed that step:

- On CPU ranks, nobody ends step k + 1 before rank 0 has taken part in it. So after its step k,
  rank 0 writes k + 1.
- On CUDA, the host runs ahead of its device, and only the device waits for the other ranks. A host
  that is LEAD steps ahead waits for its device, which has enough work for that time. So no host has
  passed step k + LEAD when the host of rank 0 has ended step k.
- Other nodes learn of it through the controllers, within HEARD_AFTER_S.

A cell of a race trains to the step that the race names, measures that block of steps, and waits.
The race writes to the board after which step to pause, and only then lets the ranks go on. So all
ranks know that step before they reach it, and none waits within a collective.

A paused rank holds its memory and does nothing, except that its loader's workers load ahead until
their queues are full. For the first steps of a block, batches are ready at once. So these steps are
trained but not measured. Nor is the first step of an epoch, which waits for its first batch.
Evaluation happens between two measured steps and is not part of either.
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

LEAD = 8  # Steps. No device runs out of work, and a host catches up soon.
POLL_S = 0.01  # A rank that waits looks at the board this often.


class Probing:
    """Ends a probe once its mean step time is known.

    The training loop calls its methods, which are the same as those of `Pausing`.

    Args:
        device: Its clock times the steps. This is the CPU if the host waits for its device in every
            step anyway.
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
        # Other ranks may be this number of steps ahead of rank 0.
        self._passed = LEAD if device.type == "cuda" and rank.world_size > 1 else 0

    def begin(self) -> float:
        """Note that training is about to start. Return the seconds that this paused."""
        return 0.0

    def start_epoch(self) -> None:
        self._laps.start()
        if self._rule is not None:
            self._rule.start_epoch()

    def step_ended(self, steps: int) -> float:
        """Note that the host has ended a step of the run.

        Args:
            steps: The step's number, from 1.

        Returns:
            The seconds that the rank paused, once the device had done its work.
        """
        self._laps.end()
        self._add_known_steps()
        if self._rule is not None and not self.board.stop_at:
            self._judge(self._rule, steps)
        return 0.0

    def _judge(self, rule: StopRule, steps: int) -> None:
        """Ask for a stop if the mean step time is known by now."""
        steps_ahead = self._passed + 1
        if self.nodes > 1:
            steps_ahead += math.ceil(HEARD_AFTER_S["several"] / rule.fastest_s)
        reason = rule.reason(steps_ahead + self._laps.pending)
        if reason is not None:
            self.ended_by = reason
            self.board.ask_stop(steps + steps_ahead)

    def end_epoch(self) -> bool:
        """Return True if the run is to stop at the end of the epoch. All ranks must call it.

        Call it once the rank's device has done the work.
        """
        self._add_known_steps()
        if self._rule is not None and not self.board.stop_at:
            self.ended_by = self._rule.reason() or self.ended_by
        return as_on_rank_0(self.rank, self.ended_by != "run")

    def _add_known_steps(self) -> None:
        for _, step_s in self._laps.known():
            if self._rule is not None:
                self._rule.add(step_s)

    def result(self) -> RankProbe:
        return RankProbe(self.ended_by, self.steps_per_epoch)


class Pausing:
    """Lets a cell of a race train in blocks of steps. Only the board stops it.

    Args:
        clock: The device whose clock times the steps, as in `Probing`.
        warm_up: Number of first steps of the run, which are not measured.
        prepared: Number of steps for which batches may be ready after a pause.
        weight: How much each of the rank's samples counts, as published on the board. It is less
            than 1 if ranks train on the same samples.
        last_loss: Returns the loss of the rank's last step. It is called once the device has done
            its work. The default is the loss on the board, which must be up to date by then.
        held: Returns what the rank has trained so far, by which the race notices ranks that train
            apart from each other. By default nothing is compared.
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
        self._skip = max(warm_up, self._after_pause)  # The next steps, which are not measured.
        self._laps = Laps(clock)  # Consecutive steps.
        # Samples when these steps began, and at the end of each of them.
        self._counts: list[int] = []
        # The seconds and samples of each measured step.
        self._block: list[tuple[float, float]] = []
        self._left_out: list[int] = []  # Steps of the run, from 0, that were not measured.

    def begin(self) -> float:
        """Note that all is set up, and wait for the first block."""
        return self._pause(0)

    def start_epoch(self) -> None:
        self._add_steps_to_block()
        if self.steps_per_epoch > 1:
            self._skip = max(self._skip, 1)
        elif not self._skip:
            self._mark_step()

    def step_ended(self, steps: int) -> float:
        if self._skip:
            self._skip -= 1
            self._left_out.append(steps - 1)
        if not self._skip:
            self._mark_step()
        if steps < self.board.pause_at:
            return 0.0
        self._add_steps_to_block()
        paused_s = self._pause(steps)
        self._skip = max(self._skip, self._after_pause)
        return paused_s

    def end_epoch(self) -> bool:
        return False

    def result(self) -> RankProbe:
        return RankProbe("race", self.steps_per_epoch, self._left_out)

    def _mark_step(self) -> None:
        if self._counts:
            self._laps.end()
        else:
            self._laps.start()
        self._counts.append(self.board.read(self.rank.rank).samples)

    def _add_steps_to_block(self) -> None:
        """Add the consecutive steps to the block. This waits for the device."""
        samples = self._weight * np.diff(self._counts)
        self._block += zip(
            (step_s for _, step_s in self._laps.known(wait=True)), map(float, samples), strict=True
        )
        self._counts = []

    def _pause(self, steps: int) -> float:
        """Write the block that has ended, and wait. Return the seconds that this took."""
        paused_at_s = clock_s()
        self._write_block(steps)
        self._wait_for_race(steps)
        return clock_s() - paused_at_s

    def _write_block(self, steps: int) -> None:
        """Append the block that has ended to the rank's file, as a line of JSON.

        `multicard.decide.race.readings` reads it.
        """
        loss = self._last_loss()
        line = {
            "step": steps,
            "ranks": self.rank.world_size,
            # The next block begins with this number of steps that are not measured.
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

    def _wait_for_race(self, steps: int) -> None:
        """Wait until the race lets the ranks go on from a step, or ends them."""
        while self.board.pause_at <= steps and not self.board.stop_at:
            pause(POLL_S)


Gate = Probing | Pausing  # Both follow a rank's steps by the same methods.


def blocks_file(folder: Path, rank: int) -> Path:
    """Return the file with a rank's blocks, one JSON object on each line."""
    return folder / "blocks" / f"r{rank:02d}.jsonl"
