"""What ended a run, and the signals that interrupt it."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from threading import main_thread
from typing import TYPE_CHECKING, Any

from multicard.machine.environment import host

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Failure:
    """Why a run ended. `kind` is oom, exception, signal, exit, node, interrupt, timeout or preempted."""

    kind: str
    message: str
    rank: int | None = None
    host: str | None = None
    memory_bytes: int | None = None  # that the rank held when memory ran out
    log: str | None = None  # relative to the run folder
    log_tail: tuple[str, ...] = ()


class Interrupted(BaseException):
    """A signal, or `end`, asked the controller to end. The agent ends its ranks by SIGTERM then."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


INTERRUPTIONS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_ENDING: list[Failure] = []


def end(failure: Failure) -> None:
    """Have the main thread raise `Interrupted` with this failure, from any other; within `interruptible` only."""
    _ENDING.append(failure)
    main = main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGUSR1)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it, a signal that asks this process to end raises `Interrupted`, once; but for those that are blocked,
    which somebody else waits for."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    wanted = [number for number in (*INTERRUPTIONS, signal.SIGUSR1) if number not in blocked]
    handlers = {number: signal.signal(number, _interrupt) for number in wanted}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _interrupt(number: int, _: object) -> None:
    for again in {*INTERRUPTIONS, signal.SIGUSR1} - signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        signal.signal(again, signal.SIG_IGN)  # a second Ctrl-C must not keep the ranks from being ended
    name = signal.Signals(number).name
    failure = _ENDING.pop() if _ENDING else Failure("interrupt", f"interrupted by {name}", host=host())
    _ENDING.clear()
    raise Interrupted(failure)


def _in_a_line(error: BaseException) -> str:
    """The error as a user reads it: a ValueError's own words, else with its type."""
    lines = str(error).strip().splitlines() or [""]
    if lines[0].startswith("Caught ") and "DataLoader worker" in lines[0]:
        return lines[-1].removeprefix("ValueError: ")  # the last line of the worker's own traceback
    return lines[0] if isinstance(error, ValueError) else f"{type(error).__name__}: {lines[0]}"


def is_oom(error: BaseException) -> bool:
    """Whether memory ran out: torch's own error, or what the libraries below it say; Python's on the host."""
    if isinstance(error, MemoryError):
        return True
    signs = ("out of memory", "alloc_failed", "can't allocate memory")  # driver and NCCL, cuBLAS and cuDNN, host
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in signs)


def describe(failure: Failure) -> dict[str, Any]:
    """The failure as the record's `cause`."""
    return asdict(failure)
