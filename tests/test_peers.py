"""The controllers of several nodes, as threads of this process: what each hears of the others."""

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event
from typing import Any

import pytest

from multicard.controller import peers
from multicard.controller.peers import Guest, Peers
from multicard.machine.allocation import Allocation
from multicard.ranks import failures
from multicard.ranks.failures import Failure

HOSTS = ("localhost", "second", "third")


CONNECTIONS: list[Any] = []


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Failure]]:
    """What would have ended this process. No thread that listens outlives the test: it would really end it."""
    told: list[Failure] = []
    monkeypatch.setattr(failures, "end", told.append)
    yield told
    for connection in CONNECTIONS:
        if not connection.closed:
            with suppress(OSError):  # the other side is gone already
                die(connection, socket.SHUT_RDWR)
    CONNECTIONS.clear()
    for thread in threading.enumerate():
        if "_listen" in thread.name:
            thread.join(20)
            assert not thread.is_alive()


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch) -> None:
    """A port that nobody else listens on; the controllers meet on the one after the agents'."""
    with socket.socket() as free:
        free.bind(("", 0))
        monkeypatch.setattr(f"{__name__}.PORT", free.getsockname()[1] - 1)


PORT = 0


def allocation(node: int, hosts: tuple[str, ...] = HOSTS) -> Allocation:
    return Allocation(hosts, node, "7", PORT, b"key")


def meet(hosts: tuple[str, ...] = HOSTS) -> tuple[Peers, list[Guest], list[int]]:
    """Node 0 and the guests, acquainted."""
    head, steps = Peers(allocation(0, hosts)), list[int]()
    with ThreadPoolExecutor(len(hosts)) as pool:
        waiting = pool.submit(head.meet)
        guests = [pool.submit(Guest, allocation(node, hosts), steps.append) for node in range(1, len(hosts))]
        waiting.result(20)
        found = [guest.result(20) for guest in guests]
    CONNECTIONS.extend([*head._others.values(), *(guest._connection for guest in found)])
    return head, found, steps


def begin(head: Peers, guests: list[Guest], refusals: dict[int, str] | None = None) -> list[bool]:
    refused = refusals or {}
    with ThreadPoolExecutor(len(guests) + 1) as pool:
        answers = [
            pool.submit(lambda g=g, i=i: (g.arguments(), g.answer(refused.get(i)))) for i, g in enumerate(guests)
        ]
        try:
            head.begin(("config", "arguments"))
        finally:
            if refused:
                head.close()
        heard = [answer.result(20) for answer in answers]
    assert all(given == ("config", "arguments") for given, _ in heard)
    return [starts for _, starts in heard]


def die(connection: Any, how: int = socket.SHUT_WR) -> None:
    """Have the other side hear what it hears when this one's process ends; this one, alive, hears nothing."""
    with socket.socket(fileno=os.dup(connection.fileno())) as other:
        other.shutdown(how)


def test_a_run_that_ends_well_on_all_nodes(ended: list[Failure]):
    head, guests, steps = meet()
    assert begin(head, guests) == [True, True]
    head.tell_stop(40)
    with ThreadPoolExecutor(2) as pool:
        finishing = [pool.submit(guest.finish, None) for guest in guests]
        assert head.outcome(None) is None
        head.close()
        for one in finishing:
            one.result(20)
    assert steps == [40, 40]
    assert ended == []


def test_one_nodes_failure_ends_the_others(ended: list[Failure]):
    head, guests, _ = meet()
    begin(head, guests)
    failure = Failure("oom", "rank 3: out of memory", rank=3, host="second")
    with ThreadPoolExecutor(1) as pool:
        finishing = pool.submit(guests[0].finish, failure)
        while not ended:
            Event().wait(0.01)
        assert head.outcome(Failure("exception", "rank 0: a collective failed")) == failure
        head.close()
        finishing.result(20)
        assert guests[1]._gone.wait(20)
    assert [told.kind for told in ended] == ["oom", "node"]
    assert not guests[1].head_lost


def test_a_node_that_is_gone_is_named(ended: list[Failure]):
    head, guests, _ = meet()
    begin(head, guests)
    die(guests[1]._connection)
    while not ended:
        Event().wait(0.01)
    assert (ended[0].kind, ended[0].host) == ("node", "third")
    head.close()


def test_when_node_0_is_gone_the_others_know(ended: list[Failure]):
    head, guests, _ = meet(HOSTS[:2])
    begin(head, guests)
    for connection in head._others.values():
        die(connection)
    assert guests[0]._gone.wait(20)
    assert guests[0].head_lost
    assert ended[-1].host == "localhost"


def test_what_a_node_refuses_is_refused_by_all(ended: list[Failure]):
    head, guests, _ = meet()
    with pytest.raises(ValueError, match=r"dataset.root=data: no such folder \(on third\)"):
        begin(head, guests, {1: "dataset.root=data: no such folder"})
    assert ended == []


def test_a_node_that_does_not_come_up_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "MEETING_S", 0.3)
    with pytest.raises(failures.Interrupted, match="no controller came up on second, third"):
        Peers(allocation(0)).meet()


def test_a_stranger_is_not_let_in(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peers, "MEETING_S", 1.0)
    head = Peers(allocation(0, HOSTS[:2]))
    other = Allocation(HOSTS[:2], 1, "7", allocation(1).port, b"another key")
    with ThreadPoolExecutor(2) as pool:
        waiting, knocking = pool.submit(head.meet), pool.submit(Guest, other, print)
        for one in (waiting, knocking):
            with pytest.raises(failures.Interrupted):
                one.result(20)
