"""Calls to the kernel and the C library.

They decide which signals a rank obeys, when it is killed, and how it keeps memory.
"""

import _posixsubprocess
import ctypes
import os
import select
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

from multicard.machine import private

# A terminal or SLURM sends these signals to every process of a job. The controller answers them for
# its ranks.
SHARED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2}
ENDING_SIGNALS = {signal.SIGTERM, signal.SIGINT}  # A program ends its children by these.

SAVING_S = 10.0  # A rank that is to end has this time for each call of `before_end`.
# On the controller's SIGTERM these are called, each in a thread of its own.
before_end: list[Callable[[], object]] = []


def follow(controller: int) -> None:
    """End this process when its controller says so, and have it killed if the controller is gone.

    Call it in the main thread, before any other thread or process is started: they inherit the
    blocked signals.

    Args:
        controller: Process id of the controller.
    """
    for number in SHARED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)
    Thread(target=_obey, args=(controller,), daemon=True).start()
    die_with(controller)


def _obey(controller: int) -> None:
    """End this process on SIGTERM from the controller, and ignore signals from anybody else.

    A terminal or SLURM sends its signals to all processes.
    """
    while True:
        received = signal.sigwaitinfo(SHARED_SIGNALS)
        if received.si_signo == signal.SIGTERM and received.si_pid == controller:
            for call in before_end:  # A call may wait for a device that waits for other ranks.
                saving = Thread(target=call, daemon=True)
                saving.start()
                saving.join(SAVING_S)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            signal.raise_signal(signal.SIGTERM)


def unblock_in_children() -> None:
    """Unblock ENDING_SIGNALS in processes that this one starts from here on.

    Children inherit blocked signals, even if they become other programs (exec). A script that ends
    a child and waits for it would wait forever.
    """
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, ENDING_SIGNALS)
    os.register_at_fork(after_in_child=unblock)
    fork_exec = _posixsubprocess.fork_exec

    def fork_exec_unblocked(*arguments: Any) -> int:
        signal_mask = unblock()
        try:
            return fork_exec(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)

    _posixsubprocess.fork_exec = fork_exec_unblocked  # multiprocessing calls it here.
    subprocess._fork_exec = fork_exec_unblocked  # pyright: ignore[reportAttributeAccessIssue]


def die_with(process: int, number: int = signal.SIGKILL) -> None:
    """Send this process a signal when another process, which is not its parent, is gone.

    The parent of a rank is the fork server, which lives as long as its ranks do.
    """

    def wait() -> None:
        with suppress(ProcessLookupError):  # The process is gone already.
            select.select([os.pidfd_open(process)], [], [])
        os.kill(os.getpid(), number)

    Thread(target=wait, daemon=True).start()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, for whatever reason.

    This also holds for the program that the process becomes (exec). If the parent has ended
    already, the process is killed at once.

    Args:
        parent: Process id of the parent.
    """
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Adopt the processes that this process's children leave behind, so that none is overlooked."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None).prctl(pr_set_child_subreaper, 1)


def redirect(log: Path) -> None:
    """Append all output of this process and its children to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = private.no_link(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def tune_malloc() -> None:
    """Have glibc keep freed memory.

    By default it maps and unmaps every large tensor, and each batch pays for the page faults again.
    Nothing changes if the C library has no mallopt.
    """
    # The values are in malloc.h.
    m_trim_threshold = -1
    m_mmap_max = -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
