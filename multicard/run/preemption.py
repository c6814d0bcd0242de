"""Answer SLURM's warning before a time limit or a preemption.

The ranks save a checkpoint and stop, all after the same step.
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
# Ranks that take longer to save than this share of the time between warning and kill are ended.
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


_warning_received = Event()


def hold_warnings() -> None:
    """Hold back warnings until a `StopOnWarning` takes them.

    Call it in the main thread before anything is started: threads and children inherit the blocked
    signals. Threads that exist already do not, and OpenBLAS starts some. A handler notes the
    signals that reach them.
    """
    for number in WARNINGS:
        signal.signal(number, lambda *_: _warning_received.set())
    signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)


class StopOnWarning:
    """Answers a warning while it is open, as a context manager.

    Ranks that can save are asked to stop after a step. Others are ended.

    Args:
        resumable: True if the ranks look at the board for the step to stop after, and save there.
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
        # On several nodes, hosts run ahead of their devices independently of each other.
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
        """Return the failure that ended the run. Call it once the ranks have ended.

        A stop that came too late changes nothing.

        Args:
            failure: The failure of the ranks; None if they ended by themselves.
        """
        if self._reason is None or failure is not None:
            return failure
        return self._reason if checkpoint.latest(self._folder) == self._step else None

    def _wait(self) -> None:
        relayed = 0
        while not self._done.is_set():
            if self._board.stop_at != relayed:  # Rank 0 of a probe asks for it, on its own node.
                relayed = self._board.stop_at
                self._peers.tell_stop(relayed)
            warned = signal.sigtimedwait(WARNINGS, POLL_S) is not None or _warning_received.is_set()
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
            # Saving takes too long. The job resumes from an earlier checkpoint, or starts again.
            failures.end(failure)

    def _choose_step(self) -> bool:
        """Ask the ranks to stop after a step that no rank has passed when it reads the request.

        Returns:
            True if there is anything to save.
        """
        steps_before = self._steps()
        if self._done.wait(POLL_S):
            return False
        steps_now = self._steps()
        if steps_now == 0:
            return False
        heard_after_s = HEARD_AFTER_S["one node" if self._allocation.nodes == 1 else "several"]
        self._step = steps_now + max(
            self._margin, round((steps_now - steps_before) / POLL_S * heard_after_s)
        )
        self._peers.tell_stop(self._step)
        self._board.ask_stop(self._step)
        return True

    def _steps(self) -> int:
        return max(self._board.read(rank).steps for rank in range(self._ranks))
