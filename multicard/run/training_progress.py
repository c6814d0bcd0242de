"""What happens on a rank between two steps, whatever it trains.

After each step the rank posts its progress to the controller. Then its gate acts: it ends a probe
whose mean step is known, or pauses a cell of a race. At last the rank reads whether it is to stop.
Vision's loop, the tuning's probe and the recorder of scripts each hold one `TrainingProgress`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multicard.config.base import RunConfig
from multicard.config.sweeps import pauses
from multicard.ranks.gates import Gate, Pausing, Probing
from multicard.ranks.process import Rank
from multicard.records.progress import Board

if TYPE_CHECKING:
    import torch


class TrainingProgress:
    """How far a rank has come, and whether it pauses or stops after a step.

    Args:
        loss: returns a recent loss without waiting for the device.
        total: steps of the whole run; -1 if nobody knows.
        in_lockstep: no rank passes a step before the others take part in it. Ranks that exchange
            nothing may have passed the step to stop after. They stop when they see the request.

    Attributes:
        gate: ends a probe, or pauses a cell of a race; None in other runs.
        steps: steps of the run that have ended.
        amount: samples or tokens that this rank has trained on.
        epoch: the epoch that is under way, from 0.
        paused_s: how long the gate has paused this rank so far.
        is_stopped: the rank was asked to stop after its last step.
    """

    def __init__(
        self,
        rank: Rank,
        folder: Path,
        loss: Callable[[], float],
        total: int = -1,
        in_lockstep: bool = True,
    ) -> None:
        self.rank = rank
        self.folder = folder
        self.board = Board(folder, rank.world_size)
        self.gate: Gate | None = None
        self.total = total
        self.steps = 0
        self.amount = 0
        self.epoch = 0
        self.paused_s = 0.0
        self.is_stopped = False
        self._loss = loss
        self._in_lockstep = in_lockstep

    def add_gate(
        self,
        config: RunConfig,
        clock: "torch.device",
        steps_per_epoch: int,
        warm_up: int,
        **pausing: Any,
    ) -> None:
        """Have a gate follow the steps if this run is a probe, or a cell of a race.

        Args:
            clock: the device whose clock times the steps.
            warm_up: first steps of the run, which a race does not measure.
            pausing: further arguments of `Pausing`.
        """
        if not config.probe.enabled:
            return
        if pauses(config):
            self.gate = Pausing(
                self.rank, clock, self.board, self.folder, steps_per_epoch, warm_up, **pausing
            )
        else:
            self.gate = Probing(config, self.rank, clock, self.board, steps_per_epoch)

    def begin(self) -> None:
        """Begin the training. A cell of a race waits here for its first block of steps."""
        if self.gate is not None:
            self.paused_s += self.gate.begin()

    def start_epoch(self) -> None:
        """Tell the gate that an epoch begins, or goes on after an evaluation."""
        if self.gate is not None:
            self.gate.start_epoch()

    def end_step(self, amount: int) -> float:
        """End a step that trained on so many samples or tokens.

        Returns:
            How long the gate paused this rank after the step, in seconds.
        """
        self.steps += 1
        self.amount += amount
        self.post()
        paused_s = 0.0
        if self.gate is not None:
            paused_s = self.gate.step_ended(self.steps)
            self.paused_s += paused_s
        if self._in_lockstep:
            self.is_stopped = self.board.stops(self.steps)
        else:
            self.is_stopped = 0 < self.board.stop_at <= self.steps
        return paused_s

    def ends_with_epoch(self) -> bool:
        """Return True, on all ranks, if a probe is to end after the epoch that has just ended."""
        return self.gate is not None and (self.gate.end_epoch() or self.is_stopped)

    def post(self, evaluating: bool = False) -> None:
        """Show the controller how far this rank is."""
        self.board.post(
            self.rank.rank,
            self.steps,
            self.total,
            self.amount,
            self.epoch,
            self._loss(),
            evaluating,
        )
