"""`probe=true` on the ranks: all of them stop after the same step, soon after the mean step is known.

Rank 0 judges by its own steps: ranks exchange gradients in every step, and so have the same mean. Between two of its
steps it writes the step to stop after to the board, which ranks read after each of theirs. Nobody waits for that, since
no rank can have passed that step:

- On CPU ranks nobody ends step k + 1 before rank 0 has taken part in it. So after its step k it says k + 1.
- On CUDA the host runs ahead of its device, and only the device waits for the others. A host that is LEAD steps ahead
  waits for its device, which has work for so long; so no host has passed k + LEAD when rank 0's has ended step k.
- Other nodes hear of it through the controllers, within HEARD_AFTER_S.
"""

import math

import torch

from multicard.config.base import RunConfig
from multicard.config.sweeps import share
from multicard.measure.stop_rule import StopRule
from multicard.measure.timing import StepEnds
from multicard.ranks.meeting import as_on_rank_0
from multicard.ranks.process import Rank
from multicard.records.progress import HEARD_AFTER_S, Board
from multicard.records.rank_files import RankProbe

LEAD = 8  # steps: enough that no device runs out of work, and soon over


class Probing:
    """Follows a rank's steps.

    Args:
        device: by whose clock steps are timed: the CPU, where the host waits for its device in every step anyway.
    """

    def __init__(self, config: RunConfig, rank: Rank, device: torch.device, board: Board, steps_per_epoch: int) -> None:
        self.rank, self.board, self.nodes, self.steps_per_epoch = rank, board, config.nodes, steps_per_epoch
        self.ended_by = "run"
        self._rule = None
        if rank.rank == 0:
            self._rule = StopRule(share(config.probe.error), config.probe.seconds, steps_per_epoch)
        self._ends = StepEnds(device, LEAD)
        self._passed = LEAD if device.type == "cuda" and rank.world_size > 1 else 0  # by other ranks, ahead of rank 0

    def begin(self) -> float:
        """All is set up, and the training is about to start. Returns 0.0, the seconds that it paused."""
        return 0.0

    def start_epoch(self) -> None:
        """Training on an epoch starts."""
        self._ends.start()
        if self._rule is not None:
            self._rule.start_epoch()

    def step_ended(self, steps: int) -> float:
        """The host has ended the run's step `steps`, counted from 1. Returns 0.0, the seconds that it paused."""
        self._ends.add()
        self._take()
        if self._rule is not None and not self.board.stop_at:
            self._judge(self._rule, steps)
        return 0.0

    def _judge(self, rule: StopRule, steps: int) -> None:
        """Ask for a stop where the mean step is known by now."""
        ahead = self._passed + 1
        if self.nodes > 1:
            ahead += math.ceil(HEARD_AFTER_S["several"] / rule.fastest_s)
        reason = rule.reason(ahead + self._ends.pending)
        if reason is not None:
            self.ended_by = reason
            self.board.ask_stop(steps + ahead)

    def end_epoch(self) -> bool:
        """True where the run is to stop at the end of the epoch.

        A collective: every rank calls it, once its device has done the work.
        """
        self._take()
        if self._rule is not None and not self.board.stop_at:
            self.ended_by = self._rule.reason() or self.ended_by
        return as_on_rank_0(self.rank, self.ended_by != "run")

    def _take(self) -> None:
        for step_s in self._ends.seconds():
            if self._rule is not None:
                self._rule.add(step_s)

    def result(self) -> RankProbe:
        """For the rank's report."""
        return RankProbe(self.ended_by, self.steps_per_epoch)
