"""Answer the signals that ask this process to end by an exception in the main thread.

Python runs a signal's handler between any two instructions of the main thread, and an exception
that it raises there can be lost. Callbacks of weak references and finalizers drop it. A library
that is being imported, or a configuration that is being composed, turns it into an error of its
own. Ranks or jobs that are just being started would be forgotten.

So the exception waits in functions where it would do harm, and is raised again if it was dropped.
It is raised once. After it the process ends, and a second Ctrl-C must not cut this short.

The entries call `end_at_once` before all other imports, so this module imports nothing except
Python's own modules.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
# The exception waits in this package, which would turn it into another error in a configuration
# that is only partly set.
CONFIGURATION = "omegaconf"
AGAIN_S = 0.05  # An exception that waits, or was dropped, is raised again after this time.
# The exception waits in these functions: Python's import, Hydra's composition, the start of ranks
# by torch's agent, and the start of a sweep's jobs.
WAITS_IN = {"_find_and_load", "load_configuration", "load_sweep_config", "_start_workers"}
WAITS_IN |= {"submit_process", "submit_array"}


def end_at_once() -> None:
    """Have each signal end this process with a line: during imports there is nothing to record.

    If a standard stream is closed, open it to /dev/null. Otherwise the next file that is opened
    would get its number, and everything that is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, number) if nothing != number else os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r"))
    for number in _answerable(SIGNALS):
        signal.signal(number, _exit)


def _exit(number: int, _: FrameType | None) -> None:
    with suppress(OSError):  # The terminal may have been closed.
        os.write(2, f"interrupted by {signal.Signals(number).name}\n".encode())
    os._exit(1)


class _Answer:
    """The state of the answer to signals.

    Attributes:
        taken: True once a signal was answered.
        waiting: The exception that waits until it can be raised.
        raised: The exception that was raised last.
    """

    taken = False
    waiting: BaseException | None = None
    raised: BaseException | None = None


def ignore_further() -> None:
    """Ignore all further signals, because the process is ending."""
    _Answer.taken = True


def answer_again() -> None:
    """Answer the next signal, even if one has been answered."""
    _Answer.taken = False


def answer(error_of: Callable[[int], BaseException], *more: int) -> dict[int, Any]:
    """Have the first signal raise an exception in the main thread, and ignore later ones.

    Blocked signals stay blocked. SIGHUP stays ignored if it is (nohup).

    Args:
        error_of: Makes the exception from the number of the signal.
        more: Signals to answer in addition to SIGNALS.

    Returns:
        The handlers that were installed before.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_dead_terminal()
        if not _Answer.taken:
            _Answer.taken = True
            _raise(error_of(number), frame)

    _Answer.taken = False
    sys.unraisablehook = _raise_dropped
    handlers_before = {
        number: signal.signal(number, handle) for number in _answerable((*SIGNALS, *more))
    }
    return handlers_before | {signal.SIGALRM: signal.signal(signal.SIGALRM, _raise_waiting)}


@contextmanager
def answered(error_of: Callable[[int], BaseException], *more: int) -> Iterator[None]:
    """Call `answer` for the duration of a block."""
    hook = sys.unraisablehook
    handlers_before = answer(error_of, *more)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = hook
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
        waiting, _Answer.waiting = _Answer.waiting, None
    if waiting is not None:
        raise waiting


def _answerable(numbers: tuple[int, ...]) -> list[int]:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    under_nohup = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else set()
    return [number for number in numbers if number not in blocked | under_nohup]


def _raise(error: BaseException, frame: FrameType | None) -> None:
    """Raise the error, or let it wait if the main thread is in a function that it would harm."""
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


def _raise_dropped(unraisable: Any) -> None:
    """Handle an exception that nothing can catch, as Python's `sys.unraisablehook`."""
    if unraisable.exc_value is not None and unraisable.exc_value is _Answer.raised:
        _wait(unraisable.exc_value)
    else:
        sys.__unraisablehook__(unraisable)


def _leave_dead_terminal() -> None:
    """Send all output to /dev/null if the terminal was closed.

    Otherwise each line that is printed would raise an error.
    """
    for descriptor in (1, 2):
        try:
            os.write(descriptor, b"")
        except OSError:
            nothing = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nothing, descriptor)
            os.close(nothing)
