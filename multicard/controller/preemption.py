"""SLURM's warning before a time limit or a preemption: the controller has its ranks save and stop, and nobody else
reacts."""

import signal
from pathlib import Path
from threading import Event, Thread
from typing import Self

from multicard.controller.peers import Peers
from multicard.machine import slurm
from multicard.machine.allocation import Allocation
from multicard.measure.timing import clock_s
from multicard.ranks import checkpoint, failures
from multicard.ranks.failures import Failure
from multicard.records.progress import Board

WARNINGS = {signal.SIGTERM, signal.SIGUSR2}
SAVING_SHARE = 0.8  # of the time between the warning and the kill: later the ranks are ended as they are
LOOK_S = 0.25
SAYS = {
    "timeout": "the job reached its time limit",
    "preempted": "SLURM preempted the job",
    "cancelled": "the job was cancelled (scancel)",
}


_warned = Event()


def hold_warnings() -> None:
    """Keep the warnings for a `Stop` to take. Call it in the main thread before anything is started: threads and
    children inherit that they are blocked. Those that are there already (OpenBLAS starts some) do not, and what reaches
    them is noted by a handler."""
    for number in WARNINGS:
        signal.signal(number, lambda *_: _warned.set())
    signal.pthread_sigmask(signal.SIG_BLOCK, WARNINGS)


class Stop:
    """While it is open, answers a warning: ranks that can save are told after which step to stop, others are ended.

    Args:
        resumable: whether the ranks look at the board for the step, and save there.
    """

    def __init__(
        self, allocation: Allocation, board: Board, ranks: int, folder: Path, resumable: bool, peers: Peers
    ) -> None:
        self._allocation, self._board, self._ranks, self._folder = allocation, board, ranks, folder
        self._resumable, self._peers = resumable, peers
        self._asked: Failure | None = None
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
        """What ended the run, once its ranks have ended: a stop that came too late changes nothing."""
        if self._asked is None or failure is not None:
            return failure
        return self._asked if self._step and checkpoint.latest(self._folder) == self._step else None

    def _wait(self) -> None:
        while not self._done.is_set():
            told = signal.sigtimedwait(WARNINGS, LOOK_S) is not None or _warned.is_set()
            if told and self._allocation.node == 0:
                return self._stop()
        return None

    def _stop(self) -> None:
        warned_s = clock_s()
        assert self._allocation.job is not None
        why = slurm.why_warned(self._allocation.job)
        failure = Failure("interrupt" if why == "cancelled" else why, SAYS[why], host=self._allocation.hosts[0])
        if not self._resumable or why == "cancelled" or not self._choose_step():
            if not self._done.is_set():
                failures.end(failure)
            return
        self._asked = failure
        if not self._done.wait(SAVING_SHARE * self._allocation.grace_s - (clock_s() - warned_s)):
            failures.end(
                failure
            )  # the ranks were too slow: the job goes on from an earlier checkpoint, or starts again

    def _choose_step(self) -> bool:
        """Tell the ranks the step after which to stop: far enough ahead that none has passed it when it hears."""
        before = self._steps()
        if self._done.wait(LOOK_S):
            return False
        now = self._steps()
        if now == 0:
            return False  # nothing is trained yet that could be saved
        hear_s = 0.5 if self._allocation.nodes == 1 else 2.0
        self._step = now + max(2, round((now - before) / LOOK_S * hear_s))
        self._peers.tell_stop(self._step)
        self._board.ask_stop(self._step)
        return True

    def _steps(self) -> int:
        return max(self._board.read(rank).steps for rank in range(self._ranks))
