"""Controllers of several nodes, as threads of this process: what each learns of the others."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import pytest

from multicard.machine.slurm import Allocation
from multicard.messages import Message
from multicard.ranks import failures
from multicard.ranks.failures import Failure
from multicard.run import peers
from multicard.run.peers import Guest, Peers
from tests.conftest import PATIENCE_S, awaited, free_port
from tests.helpers.messages import refused

HOSTS = ("localhost", "second", "third")
PORT = 0
CONNECTIONS: list[Any] = []


@pytest.fixture
def endings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Failure]]:
    """The failures that would have ended this process.
    No listening thread outlives the test: it would really do so.
    """
    failed: list[Failure] = []
    monkeypatch.setattr(failures, "end", failed.append)
    yield failed
    for connection in CONNECTIONS:
        if not connection.closed:
            with suppress(OSError):  # the other side is gone already
                cut(connection, socket.SHUT_RDWR)
    CONNECTIONS.clear()
    for thread in threading.enumerate():
        if "_listen" in thread.name:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A free port for the controllers: the one after the agents'."""
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "127.0.0.1")
    monkeypatch.setattr(f"{__name__}.PORT", free_port(12_000) - 1)


def allocation(node: int, hosts: tuple[str, ...] = HOSTS) -> Allocation:
    return Allocation(hosts, node, "7", PORT, b"key")


def meet(hosts: tuple[str, ...] = HOSTS) -> tuple[Peers, list[Guest]]:
    """Node 0 and the other nodes, connected."""
    head = Peers(allocation(0, hosts))
    with ThreadPoolExecutor(len(hosts)) as pool:
        meeting = pool.submit(head.meet)
        joining = [pool.submit(Guest, allocation(node, hosts)) for node in range(1, len(hosts))]
        meeting.result(PATIENCE_S)
        guests = [guest.result(PATIENCE_S) for guest in joining]
    CONNECTIONS.extend([*head._connections.values(), *(guest._connection for guest in guests)])
    return head, guests


def begin(head: Peers, guests: list[Guest]) -> list[int]:
    """Start the run on all nodes. Returns a list of the
    steps that they will be asked to stop after.
    """
    stops = list[int]()
    with ThreadPoolExecutor(len(guests)) as pool:
        starting = [pool.submit(guest.wait_for_start) for guest in guests]
        head.begin(3, ("a", 1))
        assert [start.result(PATIENCE_S) for start in starting] == [(3, ("a", 1))] * len(guests)
    for guest in guests:
        guest.listen(stops.append)
    return stops


def cut(connection: Any, how: int = socket.SHUT_WR) -> None:
    """Have the other side see what it sees when this one's process ends; this side sees nothing."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(how)


def wait_for_ending(endings: list[Failure]) -> Failure:
    return awaited(lambda: endings)[0]


def test_a_run_that_ends_well_on_all_nodes(endings: list[Failure]):
    head, guests = meet()
    stops = begin(head, guests)
    head.tell_stop(40)
    with ThreadPoolExecutor(2) as pool:
        finishing = [pool.submit(guest.finish, None) for guest in guests]
        assert head.outcome(None) is None
        head.close()
        for guest in finishing:
            guest.result(PATIENCE_S)
    assert stops == [40, 40]
    assert endings == []


def test_one_nodes_failure_ends_the_others(endings: list[Failure]):
    head, guests = meet()
    begin(head, guests)
    failure = Failure("oom", "rank 3: out of memory", rank=3, host="second", log_tail=("a", "b"))
    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(guests[0].finish, failure)
        assert wait_for_ending(endings) == failure
        assert head.outcome(Failure("exception", "rank 0: a collective failed")) == failure
        head.close()
        finishing.result(PATIENCE_S)
        assert guests[1]._released.wait(PATIENCE_S)
    assert [(end.kind, end.host) for end in endings] == [("oom", "second"), ("node", None)]


def test_a_node_that_is_gone_is_named_on_either_side(endings: list[Failure]):
    head, guests = meet()
    begin(head, guests)
    cut(guests[1]._connection)
    assert wait_for_ending(endings).host == "third" and endings[0].kind == "node"
    cut(head._connections[1])
    assert guests[0]._released.wait(PATIENCE_S)
    assert endings[-1].host == "localhost"
    head.close()


def test_what_a_node_refuses_is_refused_by_all(endings: list[Failure]):
    head, guests = meet()
    with ThreadPoolExecutor(len(guests)) as pool:
        gone = Message(
            "data.gone", "dataset.root=data: is not there", key="dataset.root", value="data"
        )
        refusals = (None, gone)
        starting = [
            pool.submit(guest.wait_for_start, refusal)
            for guest, refusal in zip(guests, refusals, strict=True)
        ]
        with refused("node.refused", key="dataset.root", host="third") as refusal:
            head.begin(0, ())
        reason = refusal.value.facts["reason"]
        assert (reason, reason.code, reason.key, reason.facts) == (
            gone,
            gone.code,
            gone.key,
            gone.facts,
        )
        assert refusal.value.message.sentence.endswith("(on third)")
        head.close()
        assert [start.result(PATIENCE_S) for start in starting] == [None, None]
    assert endings == []


def test_a_node_that_is_lost_during_its_checks_is_named():
    head, guests = meet(HOSTS[:2])
    cut(guests[0]._connection)
    with pytest.raises(failures.Interrupted) as lost:
        head.begin(0, ())
    assert (lost.value.failure.code, lost.value.failure.host) == ("node.lost", "second")
    head.close()


def test_a_node_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "MEETING_S", 0.3)
    with pytest.raises(failures.Interrupted) as absent:
        Peers(allocation(0)).meet()
    failure = absent.value.failure
    assert (failure.code, failure.facts["hosts"], failure.host) == (
        "node.absent",
        ["second", "third"],
        "second",
    )


def test_a_stranger_is_not_let_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "MEETING_S", 1.0)
    head = Peers(allocation(0, HOSTS[:2]))
    other = Allocation(HOSTS[:2], 1, "7", allocation(1).port, b"another key")
    with ThreadPoolExecutor(2) as pool:
        waiting, joining = pool.submit(head.meet), pool.submit(Guest, other)
        for side in (waiting, joining):
            with pytest.raises(failures.Interrupted):
                side.result(PATIENCE_S)


def test_a_silent_stranger_keeps_nobody_out():
    head = Peers(allocation(0, HOSTS[:2]))
    with ThreadPoolExecutor(2) as pool, ExitStack() as strangers:
        meeting = pool.submit(head.meet)
        for _ in range(3):
            strangers.enter_context(connected())
        guest = pool.submit(Guest, allocation(1, HOSTS[:2])).result(PATIENCE_S)
        meeting.result(PATIENCE_S)
    head.close()
    assert guest.wait_for_start() is None


def connected() -> socket.socket:
    """A connection to node 0, once it listens."""

    def connection() -> socket.socket | None:
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", PORT + 1))

    return awaited(connection)


def test_node_0_listens_at_its_own_address_alone(monkeypatch: pytest.MonkeyPatch):
    """Other machines of the tests' network are other loopback addresses,
    all of which are this machine.
    """
    names = {"n1": "127.0.0.7", "n2": "127.0.0.1"}
    monkeypatch.setattr(socket, "gethostbyname", names.__getitem__)
    assert allocation(1, ("n1", "n2")).head_address() == "127.0.0.7"  # where others see it
    # its own name may stand for itself alone
    assert allocation(0, ("n1", "n2")).head_address() == "127.0.0.1"
    names["n1"] = "192.0.2.5"
    assert allocation(0, ("n1", "n2")).head_address() == "192.0.2.5"
    assert Allocation().head_address() == "127.0.0.1"

    names["n1"] = "127.0.0.1"
    head = Peers(allocation(0, ("n1", "n2")))
    with ThreadPoolExecutor(1) as pool:
        meeting = pool.submit(head.meet)
        connected().close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", PORT + 1))
        with closing(Guest(allocation(1, ("127.0.0.1", "n2")))._connection):
            meeting.result(PATIENCE_S)
    head.close()


def test_an_address_that_is_not_of_this_machine_is_named(monkeypatch: pytest.MonkeyPatch):
    # for documentation: nobody has it
    monkeypatch.setattr(socket, "gethostbyname", lambda _: "192.0.2.5")
    with pytest.raises(failures.Interrupted) as ended:
        Peers(allocation(0)).meet()
    failure = ended.value.failure
    assert (failure.code, failure.facts["host"], failure.host) == (
        "node.no-port",
        "localhost",
        "localhost",
    )
