"""Shares of a machine that several commands use."""

import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from multicard.machine import shares
from multicard.machine.shares import Machine, MachineShare, Pool, demand
from tests.conftest import typed


def test_each_gpu_is_used_by_one_cell_with_its_part_of_the_cores(on: Callable[[Pool], Machine]):
    machine = on(Pool(["a", "b", "c", "d"], list(range(16))))
    one, two = typed("gpus=1", "exclusive=false"), typed("gpus=2", "exclusive=false")
    first, second, third = (machine.take(config) for config in (two, one, two))
    assert first == MachineShare(("a", "b"), tuple(range(8)))
    assert second == MachineShare(("c",), tuple(range(8, 12)))
    assert third is None
    machine.give_back(first)
    assert machine.take(two) == first


def test_cpu_ranks_take_cores_each(on: Callable[[Pool], Machine]):
    machine = on(Pool([], [0, 1, 2, 3]))
    config = typed("gpus=1", "cpus_per_gpu=2", "exclusive=false")
    assert [machine.take(config) for _ in range(3)] == [MachineShare(None, (0, 1)), MachineShare(None, (2, 3)), None]


def test_a_cell_is_alone_unless_it_is_not_exclusive_and_one_that_wants_too_much_gets_everything():
    whole = Pool(["a", "b"], [0, 1])
    assert demand(typed("gpus=1"), whole) == demand(typed("gpus=9", "exclusive=false"), whole) == (2, 2)


def test_two_commands_never_share_a_gpu_or_a_core(
    on: Callable[[Pool], Machine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """What they take and give back, by turns of chance: a cell gets all that it wants, or nothing."""
    monkeypatch.setattr(shares, "LEASES_POLL_S", 0.0)
    words = (["gpus=1"], ["gpus=2"], ["gpus=3"], ["device=cpu", "gpus=5"], ["gpus=1", "exclusive=true"])
    configs = [typed("exclusive=false", "cpus_per_gpu=1", *own) for own in words]
    chance, held, waited = random.Random(3), list[tuple[Machine, MachineShare]](), 0
    commands = [on(Pool(["a", "b", "c", "d"], list(range(8)))) for _ in range(3)]
    for _ in range(400):
        if held and chance.random() < 0.5:
            machine, share = held.pop(chance.randrange(len(held)))
            machine.give_back(share)
        machine, config = chance.choice(commands), chance.choice(configs)
        share = machine.take(config)
        waited += share is None
        if share is not None:
            assert (None if share.gpus is None else len(share.gpus), len(share.cpus)) == demand(config, machine.whole)
            held.append((machine, share))
        names = [name for _, share in held for name in share.names]
        assert len(names) == len({*names})
    assert 0 < waited < 400
    assert re.search(r"^waiting for .*: leased or waited for by ", capsys.readouterr().out, re.MULTILINE)


def test_without_a_folder_for_leases_cells_run_all_the_same(
    on: Callable[[Pool], Machine], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")  # as another user may have put it there
    machine = on(Pool([], [0, 1]))
    assert [machine.take(typed("exclusive=false", "cpus_per_gpu=1")) is None for _ in range(3)] == [False, False, True]
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and printed.startswith(f"no leases in {tmp_path / 'leases'} (")
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_does_not_wait_keeps_packed_cells_off(on: Callable[[Pool], Machine]):
    machine = on(Pool(["a", "b"], [0, 1, 2, 3]))
    packed = typed("gpus=1", "exclusive=false")
    with shares.announced([packed]), shares.announced([packed]):  # two runs on the first GPU
        assert machine.take(packed) == MachineShare(("b",), (2, 3))
    with shares.announced([typed("gpus=1")]):
        waits = on(Pool(["a", "b"], [0, 1, 2, 3]))
        assert waits.take(packed) is None
        waits.wait_no_more()
    assert on(Pool(["a", "b"], [0, 1, 2, 3])).take(packed) == MachineShare(("a",), (0, 1))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands look at every call."""
    monkeypatch.setattr(shares, "LEASES_POLL_S", -1.0)


@pytest.mark.usefixtures("impatient")
def test_a_cell_that_wants_the_machine_is_not_overtaken_for_ever(on: Callable[[Pool], Machine]):
    pool = Pool([], [0, 1, 2, 3])
    small, whole = typed("exclusive=false", "cpus_per_gpu=1"), typed()
    first, second, third = on(pool), on(pool), on(pool)
    held = [first.take(small), first.take(small)]
    assert second.take(whole) is None  # from now on it is the next
    assert first.take(small) is None and third.take(small) is None
    for share in held:
        assert share is not None
        assert second.take(whole) is None and third.take(small) is None
        first.give_back(share)
    assert third.take(small) is None  # also where it looks before
    everything = second.take(whole)
    assert everything == MachineShare(None, (0, 1, 2, 3))
    assert third.take(small) is None and first.take(small) is None
    second.give_back(everything)
    taken = [machine.take(small) for machine in (first, third, second)]
    assert None not in taken


@pytest.mark.usefixtures("impatient")
def test_what_nobody_before_waits_for_is_free_to_all(on: Callable[[Pool], Machine]):
    pool, busy = Pool(["a", "b", "c"], list(range(6))), on(Pool(["a", "b"], [0, 1, 2, 3]))
    one, two = typed("gpus=1", "exclusive=false"), typed("gpus=2", "exclusive=false")
    assert busy.take(one) == MachineShare(("a",), (0, 1))
    waits = on(Pool(["a", "b"], [0, 1, 2, 3]))
    assert waits.take(two) is None
    assert on(pool).take(one) == MachineShare(("c",), (4, 5))
    cores = typed("device=cpu", "gpus=1", "cpus_per_gpu=1", "exclusive=false")
    later = on(pool)
    assert later.take(cores) is None  # the other cores come with the GPUs that are waited for
    waits.wait_no_more()
    assert later.take(cores) == MachineShare(None, (2,))


@pytest.mark.usefixtures("impatient")
def test_who_is_waited_for_is_said_once(on: Callable[[Pool], Machine], capsys: pytest.CaptureFixture[str]):
    holds, waits, small = on(Pool([], [0, 1])), on(Pool([], [0, 1])), typed("exclusive=false", "cpus_per_gpu=1")
    shares_held = [holds.take(small), holds.take(small)]
    for share in shares_held:
        assert share is not None
        assert [waits.take(typed()) for _ in range(3)] == [None] * 3
        holds.give_back(share)
    with shares.announced([small]):
        assert waits.take(typed()) is None
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("waiting for 2 cores: leased or waited for by pid ")
