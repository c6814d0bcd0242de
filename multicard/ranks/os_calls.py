"""Calls to the kernel and the C library: whose signals a rank obeys, when it is killed,
how it keeps memory.
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

# Signals that a terminal or SLURM sends to every process of a
# job: the controller answers them for its ranks
SHARED_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2}
ENDING_SIGNALS = {signal.SIGTERM, signal.SIGINT}  # by which a program ends those that it started

SAVING_S = 10.0  # that a rank which is to end has for `before_end`
# called on the controller's SIGTERM, in a thread of their own
before_end: list[Callable[[], object]] = []


def follow(controller: int) -> None:
    """Have this process end when its controller (a process id) says so,
    and be killed when the controller is gone.

    Call it in the main thread, before any other thread or process
    is started: they inherit the blocked signals.
    """
    for number in SHARED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, SHARED_SIGNALS)
    Thread(target=_obey, args=(controller,), daemon=True).start()
    die_with(controller)


def _obey(controller: int) -> None:
    """End this process on the controller's own SIGTERM;
    drop what a terminal or SLURM sends to all processes.
    """
    while True:
        received = signal.sigwaitinfo(SHARED_SIGNALS)
        if received.si_signo == signal.SIGTERM and received.si_pid == controller:
            for call in before_end:  # it may wait for a device that waits for other ranks
                (saving := Thread(target=call, daemon=True)).start()
                saving.join(SAVING_S)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            signal.raise_signal(signal.SIGTERM)


def unblock_in_children() -> None:
    """Have processes that this one starts from here on hear ENDING_SIGNALS. They inherit the
    blocked ones, also as other programs (exec), and a script that ends one and waits for it would
    wait for ever.
    """
    unblock = partial(signal.pthread_sigmask, signal.SIG_UNBLOCK, ENDING_SIGNALS)
    os.register_at_fork(after_in_child=unblock)
    fork_exec = _posixsubprocess.fork_exec

    def unblocked(*arguments: Any) -> int:
        before = unblock()
        try:
            return fork_exec(*arguments)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    _posixsubprocess.fork_exec = unblocked  # which multiprocessing calls
    subprocess._fork_exec = unblocked  # pyright: ignore[reportAttributeAccessIssue]


def die_with(process: int, number: int = signal.SIGKILL) -> None:
    """Have this process get a signal when another, that is not its parent, is gone. The parent of a
    rank, the fork server, lives as long as its ranks do.
    """

    def wait() -> None:
        with suppress(ProcessLookupError):  # gone already
            select.select([os.pidfd_open(process)], [], [])
        os.kill(os.getpid(), number)

    Thread(target=wait, daemon=True).start()


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process, and the program that it becomes (exec), when its parent
    ends, however that
    happens: at once where it, by its process id, has ended already.
    """
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans() -> None:
    """Have the processes that this one's children leave behind become its own,
    so that none outlives it unseen.
    """
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
    """Have glibc keep freed memory. Else it maps and unmaps every big tensor, and each batch pays
    the page faults again. Without mallopt in the C library nothing changes.
    """
    # malloc.h
    m_trim_threshold = -1
    m_mmap_max = -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(m_mmap_max, 0)
        mallopt(m_trim_threshold, 2**31 - 1)
