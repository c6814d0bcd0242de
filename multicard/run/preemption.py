"""Answers SLURM's warning before a time limit or a preemption: the
ranks save and stop after a step that all reach.
"""

import signal
from pathlib import Path
from threading import Event, Thread
from typing import Self

from multicard.config.placement import Placement
from multicard.machine import slurm
from multicard.machine.slurm import Allocation
from multicard.measure.timing import clock_s
from multicard.messages import Message
from multicard.ranks import checkpoint, failures
from multicard.ranks.failures import Failure
from multicard.ranks.gates import LEAD
from multicard.records.progress import HEARD_AFTER_S, Board
from multicard.run.peers import Peers

WARNINGS = {signal.SIGTERM, signal.SIGUSR2}
# of the time between the warning and the kill: ranks that take longer to save are ended
SAVING_SHARE = 0.8
POLL_S = 0.25
MESSAGES = {
    "timeout": Message("job.time-limit", "the job reached its time limit"),
    "preempted": Message("job.preempted", "SLURM preempted the job"),
    "requeued": Message(
        "job.requeued",
        "SLURM put the job back into the queue (its node failed, or by scontrol requeue)",
    ),
    "cancelled": Message("job.cancelled", "the job was cancelled (scancel)"),
}


_warned = Event()


def hold_warnings() -> None:
    """Keep warnings for a `StopOnWarning` to take. Call it in the main thread before anything is
    started: threads and children inherit the blocked signals. Threads that exist already (OpenBLAS
    starts some) do not; a handler notes what reaches them.
    """
    for number in WARNINGS:
        signal.signal(number, lambda *_: _warned.set())
    signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)


class StopOnWarning:
    """While it is open, answers a warning: ranks that can save are asked to stop after a step,
    others are ended.

    Args:
        resumable: whether the ranks look at the board for the step, and save there.
    """

    def __init__(
        self,
        allocation: Allocation,
        board: Board,
        placement: Placement,
        folder: Path,
        resumable: bool,
        peers: Peers,
    ) -> None:
        self._allocation = allocation
        self._board = board
        self._ranks = placement.world_size
        self._folder = folder
        # hosts of several nodes run ahead of their devices, each by itself
        self._margin = LEAD if placement.device == "cuda" and allocation.nodes > 1 else 2
        self._resumable = resumable
        self._peers = peers
        self._reason: Failure | None = None
        self._step = 0
        self._done = Event()
        self._thread = Thread(target=self._wait, daemon=True)

    def __enter__(self) -> Self:
        if self._allocation.job is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        if self._thread.is_alive():
            self._thread.join()

    def outcome(self, failure: Failure | None) -> Failure | None:
        """The failure that ended the run, once its ranks have ended.
        A stop that came too late changes nothing.

        Args:
            failure: of the ranks; None where they ended by themselves.
        """
        if self._reason is None or failure is not None:
            return failure
        return self._reason if checkpoint.latest(self._folder) == self._step else None

    def _wait(self) -> None:
        relayed = 0
        while not self._done.is_set():
            if self._board.stop_at != relayed:  # a probe's rank 0 asks by itself, on its own node
                relayed = self._board.stop_at
                self._peers.tell_stop(relayed)
            warned = signal.sigtimedwait(WARNINGS, POLL_S) is not None or _warned.is_set()
            if warned and self._allocation.node == 0:
                self._stop()
                return

    def _stop(self) -> None:
        warned_s = clock_s()
        assert self._allocation.job is not None
        reason = slurm.why_warned(self._allocation.job)
        kind = "interrupt" if reason == "cancelled" else reason
        failure = Failure(kind, MESSAGES[reason], host=self._allocation.hosts[0])
        if not self._resumable or reason == "cancelled" or not self._choose_step():
            if not self._done.is_set():
                failures.end(failure)
            return
        self._reason = failure
        if not self._done.wait(SAVING_SHARE * self._allocation.grace_s - (clock_s() - warned_s)):
            # too slow to save: the job resumes from an earlier checkpoint, or starts again
            failures.end(failure)

    def _choose_step(self) -> bool:
        """Ask the ranks to stop after a step so far ahead that none has passed it when it reads
        that. Returns whether there is anything to save.
        """
        before = self._steps()
        if self._done.wait(POLL_S):
            return False
        now = self._steps()
        if now == 0:
            return False
        heard_after_s = HEARD_AFTER_S["one node" if self._allocation.nodes == 1 else "several"]
        self._step = now + max(self._margin, round((now - before) / POLL_S * heard_after_s))
        self._peers.tell_stop(self._step)
        self._board.ask_stop(self._step)
        return True

    def _steps(self) -> int:
        return max(self._board.read(rank).steps for rank in range(self._ranks))
