"""Connect the controllers of a run on several nodes, so that a lost node ends the run in seconds.

Torch's agents do not notice that a node is gone. SLURM notices it after `SlurmdTimeout`, which is
300 s by default. It then requeues the job without naming the node in its accounting.

Node 0 listens at its own address, and every other node keeps a connection to it. A message on a
connection, or its loss, ends the run on all nodes. Both sides prove that they know the run's key.
Messages are JSON objects: nothing that comes from a socket is unpickled.
"""

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Connection, answer_challenge, deliver_challenge
from os import dup
from threading import Event, Lock, Thread
from typing import Any

import msgspec

from multicard.machine.slurm import Allocation
from multicard.measure.timing import clock_s, pause
from multicard.messages import Message, Refusal
from multicard.ranks import failures
from multicard.ranks.elastic import MEETING_S
from multicard.ranks.failures import Failure, Interrupted

SILENCE_S = 15  # A node that answers no keep-alive for this long counts as lost.
LAST_WORDS_S = 60.0  # Node 0 waits this long for the others once its own ranks have ended.
RETRY_S = 0.2


class Peers:
    """The side of node 0. On a single node its methods do nothing, as there are no others."""

    def __init__(self, allocation: Allocation) -> None:
        self._allocation = allocation
        self._connections: dict[int, Connection] = {}  # by node
        self._ended: dict[int, Event] = {}
        self._failure: Failure | None = None
        self._lock = Lock()
        self._closed = False

    def meet(self) -> None:
        """Wait for the controller of every other node.

        Raises:
            Interrupted: Some controllers did not come up. The message names their nodes.
        """
        hosts = self._allocation.hosts
        port = self._allocation.port + 1
        if len(hosts) == 1:
            return
        try:
            server = socket.create_server((self._allocation.head_address(), port))
        except OSError as error:
            message = Message(
                "node.no-port",
                f"node {hosts[0]}: cannot listen on port {port} ({error.strerror})",
                host=hosts[0],
                port=port,
                reason=error.strerror,
            )
            raise Interrupted(Failure("node", message, host=hosts[0])) from None
        all_met = Event()
        Thread(target=self._accept, args=(server, all_met), daemon=True).start()
        if not all_met.wait(MEETING_S):
            all_met.set()
            absent = [
                host for node, host in enumerate(hosts) if node and node not in self._connections
            ]
            message = Message(
                "node.absent",
                f"no controller came up on {', '.join(absent)} within {MEETING_S:.0f} s",
                hosts=absent,
                seconds=MEETING_S,
            )
            raise Interrupted(Failure("node", message, host=absent[0]))

    def _accept(self, server: socket.socket, all_met: Event) -> None:
        server.settimeout(RETRY_S)
        with server:
            while not all_met.is_set():
                with suppress(OSError):  # Nobody has connected yet.
                    connection = Connection(server.accept()[0].detach())
                    # Greet each in a thread: a program that is not ours may stay silent.
                    Thread(target=self._greet, args=(connection, all_met), daemon=True).start()

    def _greet(self, connection: Connection, all_met: Event) -> None:
        # The port is open to all, so a program that is not ours may have connected.
        with suppress(AuthenticationError, EOFError, OSError):
            deliver_challenge(connection, self._allocation.key)
            answer_challenge(connection, self._allocation.key)
            _keep_alive(connection)
            hello = _receive(connection)
            if hello is not None:
                self._connections[hello["node"]] = connection
                if len(self._connections) == self._allocation.nodes - 1:
                    all_met.set()

    def begin(self, attempt: int, arguments: tuple[Any, ...]) -> None:
        """Wait for the checks of the other nodes, start their ranks, and watch them from now on.

        Args:
            attempt: The number of the run's start, from 0.
            arguments: The ranks' arguments after configuration and folder. They are JSON-ready.

        Raises:
            ValueError: Another node refuses the run. The message names it.
            Interrupted: Another node was lost during its checks.
        """
        for node, connection in self._connections.items():
            check_result = _receive(connection)
            host = self._allocation.hosts[node]
            if check_result is None:
                raise Interrupted(_node_lost(host))
            if check_result["refusal"] is not None:
                raise _refusal_of_node(check_result["refusal"], host)
        for node, connection in self._connections.items():
            self._ended[node] = Event()
            _send(connection, start={"attempt": attempt, "arguments": arguments})
            Thread(target=self._listen, args=(node, connection), daemon=True).start()

    def _listen(self, node: int, connection: Connection) -> None:
        message = _receive(connection)
        failure = _node_lost(self._allocation.hosts[node])
        if message is not None:
            failure = message["failure"] and msgspec.convert(message["failure"], Failure)
        with self._lock:
            if failure is not None and self._failure is None and not self._closed:
                self._failure = failure
                failures.end(failure)
        self._ended[node].set()

    def tell_stop(self, step: int) -> None:
        """Tell the other nodes that their ranks shall stop after this step too."""
        for connection in self._connections.values():
            _send(connection, stop=step)

    def outcome(self, failure: Failure | None) -> Failure | None:
        """Return the failure that ended the run first, or None if all nodes ended without one.

        Call it once the ranks of node 0 have ended.

        Args:
            failure: The failure of node 0's own ranks, if there is one.
        """
        deadline_s = clock_s() + (LAST_WORDS_S if failure is None else 0.0)
        for node, ranks_ended in self._ended.items():
            if not ranks_ended.wait(max(0.0, deadline_s - clock_s())) and failure is None:
                name = self._allocation.hosts[node]
                message = Message(
                    "node.not-ended", f"node {name} did not end when the others did", host=name
                )
                failure = Failure("node", message, host=name)
        return self._failure or failure

    def close(self) -> None:
        """End the run on every other node. If it has ended already, release their controllers."""
        with self._lock:
            self._closed = True
        for connection in self._connections.values():
            _send(connection, end=True)
            connection.close()
        self._connections = {}


class Guest:
    """The side of every other node. Use it within `failures.interruptible`.

    Raises:
        Interrupted: Node 0 cannot be reached.
    """

    def __init__(self, allocation: Allocation) -> None:
        self._head = allocation.hosts[0]
        self._connection = _connect((self._head, allocation.port + 1), allocation.key)
        self._lock = Lock()
        self._finishing = False
        self._released = Event()
        _keep_alive(self._connection)
        _send(self._connection, node=allocation.node)

    def wait_for_start(self, refusal: str | None = None) -> tuple[int, tuple[Any, ...]] | None:
        """Tell node 0 how this node's checks ended, and wait for its answer.

        Args:
            refusal: Why this node cannot do its part; None if it can.

        Returns:
            The number of the run's start, and the ranks' arguments after configuration and folder.
            None if node 0 does not start the run.
        """
        _send(self._connection, refusal=refusal.parts if isinstance(refusal, Message) else refusal)
        start = (_receive(self._connection) or {}).get("start")
        return None if start is None else (start["attempt"], tuple(start["arguments"]))

    def listen(self, on_stop: Callable[[int], None]) -> None:
        """Watch node 0 from now on.

        Args:
            on_stop: Called with the step after which this node's ranks are to stop.
        """
        Thread(target=self._listen, args=(on_stop,), daemon=True).start()

    def _listen(self, on_stop: Callable[[int], None]) -> None:
        while (message := _receive(self._connection)) is not None and "stop" in message:
            on_stop(message["stop"])
        with self._lock:
            if not self._finishing:
                ended_by_node_0 = Failure(
                    "node", Message("node.ended-by-first", "node 0 ended the run")
                )
                failures.end(_node_lost(self._head) if message is None else ended_by_node_0)
        self._released.set()

    def finish(self, failure: Failure | None) -> None:
        """Tell node 0 how this node's ranks ended, and wait until it releases this controller."""
        with self._lock:
            self._finishing = True
        _send(
            self._connection, failure=None if failure is None else msgspec.structs.asdict(failure)
        )
        self._released.wait(LAST_WORDS_S)


def _node_lost(name: str) -> Failure:
    message = Message("node.lost", f"node {name} was lost: its controller has gone", host=name)
    return Failure("node", message, host=name)


def _refusal_of_node(refusal: dict[str, Any] | str, host: str) -> Refusal:
    """Return another node's refusal, made of the parts of its message or of its text."""
    reason = refusal if isinstance(refusal, str) else Message.of(refusal)
    key = reason.key if isinstance(reason, Message) else None
    return Refusal("node.refused", f"{reason} (on {host})", key=key, host=host, reason=reason)


def _connect(address: tuple[str, int], key: bytes) -> Connection:
    deadline_s = clock_s() + MEETING_S
    while True:
        try:
            connection: Any = Client(address, "AF_INET", authkey=key)
            return connection
        # The controller is not up yet, or another program listens at its port.
        except (OSError, EOFError, AuthenticationError, AssertionError):
            if clock_s() > deadline_s:
                message = Message(
                    "node.first-absent",
                    f"node {address[0]}: its controller did not come up within {MEETING_S:.0f} s",
                    host=address[0],
                    seconds=MEETING_S,
                )
                raise Interrupted(Failure("node", message, host=address[0])) from None
            pause(RETRY_S)


def _send(connection: Connection, **message: Any) -> None:
    with suppress(OSError):  # The thread that listens notices the loss of a node.
        connection.send_bytes(json.dumps(message).encode())


def _receive(connection: Connection) -> dict[str, Any] | None:
    """Return the next message, or None if the other side is gone."""
    try:
        return json.loads(connection.recv_bytes())
    except (EOFError, OSError):
        return None


def _keep_alive(connection: Connection) -> None:
    """Have the kernel notice if the other machine disappears without closing the connection."""
    with socket.socket(fileno=dup(connection.fileno())) as same_socket:
        same_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        same_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENCE_S // 3)
        same_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, SILENCE_S // 3)
        same_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
