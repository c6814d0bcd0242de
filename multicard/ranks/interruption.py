"""The signals that ask this process to end, each answered by an exception in the main thread.

Python runs a handler between any two instructions of the main thread, and what it raises there can
be lost: callbacks of weak references and finalisers drop it, a library that is being imported, or a
configuration that is being composed, turns it into an error of its own, and ranks or jobs that are
just being started would be forgotten. So the exception waits where it would do harm, and is raised
again where it was dropped. It is raised once: what follows is the end of the process,
which no second Ctrl-C may cut short.

Imports nothing but Python: the entries call `end_at_once` before all other imports.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# the package in which it waits: what is half set turns it into another error
CONFIGURATION = "omegaconf"
AGAIN_S = 0.05  # after which an exception that waits, or was dropped, is raised
# Functions within which it waits: Python's import; Hydra's composition; the start of ranks by
# torch's agent; that of a sweep's jobs
WAITS_IN = {"_find_and_load", "load_configuration", "load_sweep_config", "_start_workers"}
WAITS_IN |= {"submit_process", "submit_array"}


def end_at_once() -> None:
    """Have each signal end this process with a line: while it only imports, there is nothing to
    record. Standard streams that are closed lead nowhere: else the next files would take their
    numbers, and what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number) if nothing != number else os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for number in _answerable(SIGNALS):
        signal.signal(number, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    with suppress(OSError):  # the terminal may be gone
        os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(1)


class _Answer:
    """The exception to raise: `taken` once a signal was answered;
    `waiting` until it can be raised.
    """

    taken = False
    waiting: BaseException | None = None
    raised: BaseException | None = None


def ignore_further() -> None:
    """Answer no more signals: the process is ending."""
    _Answer.taken = True


def answer_again() -> None:
    """Answer the next signal, though there was one."""
    _Answer.taken = False


def answer(error_of: Callable[[int], BaseException], *more: int) -> dict[int, Any]:
    """Have the first signal, of SIGNALS and `more`, raise in the main thread what `error_of` makes
    of its number; later ones are ignored. Blocked signals stay blocked,
    and SIGHUP ignored where it is (nohup). Returns the handlers before.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_dead_terminal()
        if not _Answer.taken:
            _Answer.taken = True
            _raise(error_of(number), frame)

    _Answer.taken = False
    sys.unraisablehook = _dropped
    before = {number: signal.signal(number, handle) for number in _answerable((*SIGNALS, *more))}
    return before | {signal.SIGALRM: signal.signal(signal.SIGALRM, _raise_waiting)}


@contextmanager
def answered(error_of: Callable[[int], BaseException], *more: int) -> Iterator[None]:
    """`answer` within a block."""
    hook = sys.unraisablehook
    before = answer(error_of, *more)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in before.items():
            signal.signal(number, handler)
        waiting, _Answer.waiting = _Answer.waiting, None
    if waiting is not None:
        raise waiting


def _answerable(numbers: tuple[int, ...]) -> list[int]:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    under_nohup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    return [number for number in numbers if number not in blocked | under_nohup]


def _raise(error: BaseException, frame: FrameType | None) -> None:
    """Raise the error, or have it wait where the main thread
    is within a function that it would harm.
    """
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if frame.f_code.co_name in WAITS_IN or package == CONFIGURATION:
            _wait(error)
            return
        frame = frame.f_back
    _Answer.raised = error
    raise error


def _wait(error: BaseException) -> None:
    _Answer.waiting = error
    signal.setitimer(signal.ITIMER_REAL, AGAIN_S)


def _raise_waiting(_: int, frame: FrameType | None) -> None:
    error, _Answer.waiting = _Answer.waiting, None
    if error is not None:
        _raise(error, frame)


def _dropped(unraisable: Any) -> None:
    """Python's hook for exceptions that nothing can catch."""
    if unraisable.exc_value is not None and unraisable.exc_value is _Answer.raised:
        _wait(unraisable.exc_value)
    else:
        sys.__unraisablehook__(unraisable)


def _leave_dead_terminal() -> None:
    """Drop what is printed from here on where the terminal was
    closed: each line would be an error of its own.
    """
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, descriptor)
            os.close(nothing)
