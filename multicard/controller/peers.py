"""The controllers of a run on several nodes watch each other: torch's agents do not notice that one is gone.

Node 0 listens; each other node keeps a connection to it. What a connection says, or that it breaks, ends the run on
all nodes at once, with the name of the node.
"""

import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from os import dup
from threading import Event, Lock, Thread
from typing import Any

from multicard.machine.allocation import Allocation
from multicard.measure.timing import clock_s, pause
from multicard.ranks import failures
from multicard.ranks.elastic import MEETING_S
from multicard.ranks.failures import Failure, Interrupted

Connection = Any  # multiprocessing.connection.Connection

SILENCE_S = 15  # after which a node that answers no keep-alive counts as lost
LAST_WORDS_S = 60.0  # for which node 0 waits for the others once its own ranks have ended
TRY_AGAIN_S = 0.2


class Peers:
    """Node 0's side; on a single node there is nobody to watch, and no method does anything."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self._others: dict[int, Connection] = {}
        self._ended: dict[int, Event] = {}
        self._failure: Failure | None = None
        self._lock = Lock()
        self._closed = False

    def meet(self) -> None:
        """Wait for the controller of every other node.

        Raises:
            Interrupted: naming those that did not come up.
        """
        hosts, address = self._allocation.hosts, ("", self._allocation.port + 1)
        if len(hosts) == 1:
            return
        try:
            listener = Listener(address, "AF_INET", backlog=len(hosts), authkey=self._allocation.key)
        except OSError as error:
            message = f"node {hosts[0]}: cannot listen on port {address[1]} ({error.strerror})"
            raise Interrupted(Failure("node", message, host=hosts[0])) from None
        met = Event()
        Thread(target=self._let_in, args=(listener, met), daemon=True).start()
        if not met.wait(MEETING_S):
            absent = [host for node, host in enumerate(hosts) if node and node not in self._others]
            message = f"no controller came up on {', '.join(absent)} within {MEETING_S:.0f} s"
            raise Interrupted(Failure("node", message, host=absent[0]))

    def _let_in(self, listener: Listener, met: Event) -> None:
        with listener:
            while len(self._others) < self._allocation.nodes - 1:
                with suppress(AuthenticationError, EOFError, OSError):  # somebody else: the port is open to all
                    connection = listener.accept()
                    _keep_alive(connection)
                    self._others[connection.recv()] = connection
        met.set()

    def begin(self, arguments: Any) -> None:
        """Give the others what their ranks are to be called with, and hear whether they can do their part.

        Raises:
            ValueError: what one of them refuses, with its name.
            Interrupted: where one of them is gone.
        """
        for node, connection in self._others.items():
            try:
                connection.send(("go", arguments))
                refusal = connection.recv()
            except (EOFError, OSError):
                raise Interrupted(_lost(self._allocation.hosts[node])) from None
            if refusal is not None:
                raise ValueError(f"{refusal} (on {self._allocation.hosts[node]})")
        for node, connection in self._others.items():
            self._ended[node] = Event()
            self._tell(node, ("start", None))
            Thread(target=self._listen, args=(node, connection), daemon=True).start()

    def tell_stop(self, step: int) -> None:
        """Have the ranks on the other nodes stop after this step too."""
        for node in self._others:
            self._tell(node, ("stop", step))

    def _listen(self, node: int, connection: Connection) -> None:
        try:
            failure = connection.recv()
        except (EOFError, OSError):
            failure = _lost(self._allocation.hosts[node])
        with self._lock:
            if failure is not None and self._failure is None and not self._closed:
                self._failure = failure
                failures.end(failure)
        self._ended[node].set()

    def outcome(self, failure: Failure | None) -> Failure | None:
        """What ended the run first, once this node's own ranks have ended. Where they ended well, so must all."""
        deadline_s = clock_s() + (LAST_WORDS_S if failure is None else 0.0)
        for node, ended in self._ended.items():
            if not ended.wait(max(0.0, deadline_s - clock_s())) and failure is None:
                name = self._allocation.hosts[node]
                failure = Failure("node", f"node {name} did not end with the others", host=name)
        return self._failure or failure

    def close(self) -> None:
        """End the run on every other node; where it has ended, let its controller go."""
        with self._lock:
            self._closed = True
        for node, connection in self._others.items():
            self._tell(node, ("end", None))
            connection.close()
        self._others = {}

    def _tell(self, node: int, message: tuple[str, Any]) -> None:
        with suppress(OSError):  # a node that is gone is noticed where it is listened to
            self._others[node].send(message)


class Guest:
    """The side of any other node; use it within `launch.interruptible`.

    Args:
        on_stop: called with the step after which this node's ranks are to stop.

    Raises:
        Interrupted: where node 0 cannot be reached.
    """

    def __init__(self, allocation: Allocation, on_stop: Callable[[int], None]) -> None:
        self._head, self._on_stop = allocation.hosts[0], on_stop
        self._connection = _knock((self._head, allocation.port + 1), allocation.key)
        self._lock, self._finishing, self._gone = Lock(), False, Event()
        self.head_lost = False
        _keep_alive(self._connection)
        self._connection.send(allocation.node)

    def arguments(self) -> Any:
        """What this node's ranks are to be called with; None where node 0 will not run."""
        word, content = self._hear()
        return content if word == "go" else None

    def answer(self, refusal: str | None) -> bool:
        """Say whether this node can do its part. Returns whether all can."""
        with suppress(OSError):
            self._connection.send(refusal)
        started = self._hear()[0] == "start"
        if started:
            Thread(target=self._listen, daemon=True).start()
        return started

    def finish(self, failure: Failure | None) -> None:
        """Say how this node's ranks ended, and wait until node 0 needs this controller no more."""
        with self._lock:
            self._finishing = True
        with suppress(OSError):
            self._connection.send(failure)
        self._gone.wait(LAST_WORDS_S)

    def _hear(self) -> tuple[str, Any]:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            self.head_lost = True
            return "end", None

    def _listen(self) -> None:
        while (message := self._hear())[0] == "stop":
            self._on_stop(message[1])
        with self._lock:
            if not self._finishing:
                failures.end(_lost(self._head) if self.head_lost else Failure("node", "node 0 ended the run"))
        self._gone.set()


def _lost(name: str) -> Failure:
    return Failure("node", f"node {name} was lost: its controller is gone", host=name)


def _knock(address: tuple[str, int], key: bytes) -> Connection:
    deadline_s = clock_s() + MEETING_S
    while True:
        try:
            return Client(address, "AF_INET", authkey=key)
        except (OSError, EOFError, AuthenticationError):  # not up yet, or another run's
            if clock_s() > deadline_s:
                message = f"node {address[0]}: its controller did not come up within {MEETING_S:.0f} s"
                raise Interrupted(Failure("node", message, host=address[0])) from None
            pause(TRY_AGAIN_S)


def _keep_alive(connection: Connection) -> None:
    """Have the kernel find out when the other machine is gone without a word."""
    with socket.socket(fileno=dup(connection.fileno())) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 3)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 3)
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
