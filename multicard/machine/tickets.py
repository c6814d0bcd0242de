"""Whose turn it is: commands that wait for GPUs and cores of this machine, in the order in which they asked.

A command that waits has a ticket, a file in the folder of the leases that it keeps locked (flock): the kernel gives the
lock back when the command ends, and an unlocked ticket no longer counts. The file says how many GPUs and cores are
wanted, and of which. Whoever chooses later leaves so many of them alone, so nobody is overtaken for ever. A command
that is suspended, and so does not look whether it can begin, is passed by after a minute.

Tickets are placed and read under the lock of the folder (`leases.choice`). What another user writes there may cost
others time, no more.
"""

import fcntl
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from multicard.machine import leases
from multicard.measure.timing import age_s

NAME = re.compile(r"waiting-(\d{9})")
LAST = 10**9 - 1
LONGEST = 1 << 16  # bytes of a ticket that are read
ASLEEP_S = 60.0  # after which a command that has not looked again is passed by


@dataclass(frozen=True)
class Request:
    """What is waited for: so many GPUs and cores, any of those named (as leases)."""

    gpus: int
    cores: int
    names: frozenset[str]


@dataclass(frozen=True)
class Waiting:
    """A ticket of any command."""

    name: str
    request: Request


@dataclass(frozen=True)
class Ticket:
    """This command's own; `keep` at every look."""

    name: str
    descriptor: int

    def keep(self) -> None:
        os.utime(self.descriptor)

    def close(self) -> None:
        with suppress(OSError), leases.opened() as directory:
            if os.path.samestat(os.stat(self.name, dir_fd=directory), os.fstat(self.descriptor)):
                os.unlink(self.name, dir_fd=directory)
        os.close(self.descriptor)


def place(directory: int, request: Request) -> Ticket | None:
    """Queue up behind all that wait. None where the numbers have run out.

    Raises:
        OSError: the file cannot be made.
    """
    number = 1 + max((int(each.name[-9:]) for each in ahead(directory)), default=0)
    while number <= LAST:
        name = f"waiting-{number:09d}"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | leases.CLOSED
        try:
            descriptor = os.open(name, flags, 0o644, dir_fd=directory)
        except FileExistsError:  # of a command that was killed or sleeps
            number += 1
            continue
        ticket = Ticket(name, descriptor)
        try:
            os.fchmod(descriptor, 0o644)  # whatever the umask: others must read it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = {"gpus": request.gpus, "cores": request.cores, "of": sorted(request.names)}
            os.write(descriptor, json.dumps(content).encode())
        except OSError:
            ticket.close()
            raise
        return ticket
    return None


def ahead(directory: int, own: Ticket | None = None) -> list[Waiting]:
    """Who waits, and came before `own`, the first first. Removes tickets of this user's commands that are gone."""
    names = sorted(name for name in os.listdir(directory) if NAME.fullmatch(name))
    before = [name for name in names if own is None or name < own.name]
    requests = ((name, _request(directory, name)) for name in before)
    return [Waiting(name, request) for name, request in requests if request is not None]


def _request(directory: int, name: str) -> Request | None:
    """What a ticket asks for; None where nobody waits with it."""
    with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):  # whatever others wrote
        descriptor = os.open(name, os.O_RDONLY | leases.CLOSED, dir_fd=directory)
        try:
            if _is_unlocked(descriptor):
                os.unlink(name, dir_fd=directory)
                return None
            if age_s(os.fstat(descriptor)) > ASLEEP_S:
                return None
            content = json.loads(os.read(descriptor, LONGEST))
            return Request(int(content["gpus"]), int(content["cores"]), _names(content["of"]))
        finally:
            os.close(descriptor)
    return None


def _is_unlocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _names(content: Iterable[object]) -> frozenset[str]:
    return frozenset(name for name in content if isinstance(name, str))
