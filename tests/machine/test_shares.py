"""Shares of a machine that several commands take, the locks on them,
and what others computed on it meanwhile.
"""

import errno
import getpass
import os
import random
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from multicard.machine import environment, load, private, shares
from multicard.machine.environment import host
from multicard.machine.shares import Lease, MachineShare, MachineShares, Pool, demand
from multicard.records import limits, ownership, run_folder
from tests.conftest import ROOT, Measured, awaited, typed
from tests.helpers import records
from tests.helpers.messages import says, told

NAMES = [shares.gpu("GPU-0a/b"), shares.core(7)]
On = Callable[[Pool], MachineShares]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Of the leases of a test."""
    monkeypatch.setenv(shares.VARIABLE, str(tmp_path / "leases"))
    return tmp_path / "leases"


def take(*names: str) -> Lease | None:
    """All of them, as a command that chooses takes them; None where one is not free."""
    with shares.choosing() as choice:
        assert choice is not None
        return choice.take(names) if all(map(choice.is_free, names)) else None


def test_what_is_leased_is_free_again_when_all_that_hold_it_are_done():
    by_command = take(*NAMES)
    assert by_command is not None and take(NAMES[1]) is None and take(shares.core(8)) is not None
    by_cell = shares.hold(NAMES)
    by_command.close()
    assert take(NAMES[0]) is None  # the command is gone, its cell is not
    by_cell.close()
    assert take(*NAMES) is not None


def test_one_command_chooses_at_a_time_and_what_it_does_not_take_is_free():
    with shares.choosing() as mine, shares.choosing() as theirs:
        assert mine is not None and theirs is None
        assert all(map(mine.is_free, NAMES))
        lease = mine.take(NAMES[:1])
    assert take(NAMES[1]) is not None and take(NAMES[0]) is None
    lease.close()


def test_every_user_can_open_what_one_with_a_closed_umask_made(folder: Path):
    with private.umask(0o077):
        assert take(*NAMES) is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    files = {path.name: path for path in folder.iterdir()}
    assert {*files} == {"gpu-GPU-0a_b", "core-7", shares.CHOOSING}
    assert {
        (stat.S_IMODE(path.stat().st_mode), path.stat().st_size) for path in files.values()
    } == {(0o644, 0)}


def test_what_another_user_puts_into_the_folder_is_not_followed_or_waited_for(
    folder: Path, tmp_path: Path
):
    take("core-1")
    (folder / NAMES[1]).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(folder / NAMES[0])
    with pytest.raises(OSError) as error:
        take(NAMES[1])
    assert error.value.errno == errno.ELOOP
    assert not (tmp_path / "elsewhere").exists()
    assert shares.hold(NAMES).files.keys() == {NAMES[0]}


def test_the_folder_is_the_first_in_which_every_user_may_make_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv(shares.VARIABLE)
    (tmp_path / "lock").mkdir()
    monkeypatch.setattr(shares, "LOCKS", str(tmp_path / "lock"))
    assert shares.folder() == Path("/tmp/multicard-leases")
    (tmp_path / "lock").chmod(0o1777)
    assert shares.folder() == tmp_path / "lock" / "multicard-leases"


HOLDS = """
import sys
from multicard.machine import shares
held = shares.hold(sys.argv[1:])
print(len(held.files), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
def test_a_process_that_is_killed_holds_nothing():
    words = [sys.executable, "-c", HOLDS, *NAMES, "a\x1b[31m"]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "3\n"
        assert take(NAMES[0]) is None
        holders = shares.holders(NAMES)
        assert len(holders) <= 1  # none where the kernel does not list locks
        if holders:
            assert (
                holders[0].startswith(f"pid {process.pid} ({getpass.getuser()}: ")
                and holders[0].isprintable()
            )
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert awaited(lambda: take(*NAMES))


@pytest.mark.parametrize(
    ("pool", "words", "expected"),
    [
        (Pool(["a", "b", "c"], [*range(12)]), ["gpus=2"], [(("a", "b"), (*range(8),)), None]),
        (
            Pool(["a", "b", "c"], [*range(12)]),
            ["gpus=1"],
            [(("a",), (*range(4),)), (("b",), (*range(4, 8),))],
        ),
        (Pool([], [0, 1, 2, 3]), ["cpus_per_gpu=2"], [(None, (0, 1)), (None, (2, 3)), None]),
        # all, where it wants more
        (Pool(["a", "b"], [0, 1]), ["gpus=9"], [(("a", "b"), (0, 1)), None]),
        (Pool(["a", "b"], [0, 1]), ["exclusive=true"], [(("a", "b"), (0, 1)), None]),
    ],
)
def test_a_cell_gets_gpus_with_their_part_of_the_cores_or_cores_alone(
    on: On,
    pool: Pool,
    words: list[str],
    expected: list[tuple[tuple[str, ...] | None, tuple[int, ...]] | None],
):
    machine, config = on(pool), typed("exclusive=false", *words)
    taken = [machine.take(config) for _ in expected]
    assert taken == [None if share is None else MachineShare(*share) for share in expected]
    assert taken[0] is not None
    machine.give_back(taken[0])
    assert machine.take(config) == taken[0]


def test_a_packed_cell_gets_the_cores_of_its_gpus_node_before_others(
    monkeypatch: pytest.MonkeyPatch,
):
    near = {"GPU-a": {0, 1, 2, 3}, "GPU-b": {4, 5, 6, 7}}
    monkeypatch.setattr(shares.topology, "cpus_near", near.__getitem__)
    free = Pool(["GPU-b", "GPU-a"], [*range(8)])
    one, all_of_it = shares.allocate((1, 3), free), shares.allocate((2, 8), free)
    assert one is not None and (one.gpus, one.cpus) == (("GPU-b",), (4, 5, 6))
    assert all_of_it is not None and all_of_it.cpus == tuple(range(8))
    few = shares.allocate((1, 3), Pool(["GPU-a"], [2, 6, 7]))
    assert few is not None and few.cpus == (2, 6, 7)  # what is left


def test_two_commands_never_share_a_gpu_or_a_core(on: On, monkeypatch, capsys):
    """What they take and give back, by turns of chance: a cell gets all that it wants,
    or nothing.
    """
    monkeypatch.setattr(shares, "LEASES_POLL_S", 0.0)
    words = (
        ["gpus=1"],
        ["gpus=2"],
        ["gpus=3"],
        ["device=cpu", "gpus=5"],
        ["gpus=1", "exclusive=true"],
    )
    configs = [typed("exclusive=false", "cpus_per_gpu=1", *own) for own in words]
    chance, held, waited = random.Random(3), list[tuple[MachineShares, MachineShare]](), 0
    commands = [on(Pool(["a", "b", "c", "d"], list(range(8)))) for _ in range(3)]
    for _ in range(400):
        if held and chance.random() < 0.5:
            machine, share = held.pop(chance.randrange(len(held)))
            machine.give_back(share)
        machine, config = chance.choice(commands), chance.choice(configs)
        share = machine.take(config)
        waited += share is None
        if share is not None:
            assert (None if share.gpus is None else len(share.gpus), len(share.cpus)) == demand(
                config, machine.whole
            )
            held.append((machine, share))
        names = [name for _, share in held for name in share.names]
        assert len(names) == len({*names})
    assert 0 < waited < 400
    assert says(capsys.readouterr().out, "leases.waiting")


def test_without_a_folder_for_leases_cells_run_all_the_same(
    on: On, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "elsewhere").mkdir()
    # as another user may have put it there
    (tmp_path / "leases").symlink_to(tmp_path / "elsewhere")
    machine = on(Pool([], [0, 1]))
    assert [machine.take(typed("exclusive=false", "cpus_per_gpu=1")) is None for _ in range(3)] == [
        False,
        False,
        True,
    ]
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and says(
        printed, "leases.none", folder=str(tmp_path / "leases")
    )
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_run_that_does_not_wait_keeps_packed_cells_off(on: On):
    machine = on(Pool(["a", "b"], [0, 1, 2, 3]))
    packed = typed("gpus=1", "exclusive=false")
    with shares.announced([packed]), shares.announced([packed]):  # two runs on the first GPU
        assert machine.take(packed) == MachineShare(("b",), (2, 3))
    with shares.announced([typed("gpus=1")]):
        assert on(Pool(["a", "b"], [0, 1, 2, 3])).take(packed) is None
    assert on(Pool(["a", "b"], [0, 1, 2, 3])).take(packed) == MachineShare(("a",), (0, 1))


def test_who_is_waited_for_is_said_once(
    on: On, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(shares, "LEASES_POLL_S", -1.0)  # commands look at every call
    holds, waits, small = (
        on(Pool([], [0, 1])),
        on(Pool([], [0, 1])),
        typed("exclusive=false", "cpus_per_gpu=1"),
    )
    shares_held = [holds.take(small), holds.take(small)]
    for share in shares_held:
        assert share is not None
        assert [waits.take(typed()) for _ in range(3)] == [None] * 3
        holds.give_back(share)
    with shares.announced([small]):
        assert waits.take(typed()) is None
    (waiting,) = told(capsys.readouterr().out)
    assert waiting.code == "leases.waiting" and waiting.has({"gpus": 0, "cores": 2})
    assert all(holder.startswith("pid ") for holder in waiting.facts["held_by"])


BURN = "import time; t = time.process_time()\nwhile time.process_time() < t + 0.3: pass"


def test_what_others_computed_is_the_busy_time_less_the_runs_own():
    before = {0: (100.0, 1.0), 1: (50.0, 0.0), 2: (10.0, 0.0)}
    after = {0: (109.0, 1.5), 1: (57.0, 0.0), 2: (20.0, 4.0)}
    counted = load.cores_of_others(before, after, own_s=12.0, seconds=10.0, usable={0, 1})
    assert counted["others_cores"] == pytest.approx((9 + 7 - 12) / 10)
    assert counted["stolen_cores"] == pytest.approx(0.05)  # of cores 0 and 1
    alone = load.cores_of_others(before, after, own_s=99.0, seconds=10.0, usable={0, 1})
    assert alone["others_cores"] == 0.0  # ticks are coarse


def test_linux_counts_ticks_by_core_and_interrupts_are_nobodys():
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    stat = (
        "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 100 20 30 900 7 8 9 40 5 0\ncpu3 1 0 0 0 0 0 0 0 0 0\nintr"
        " 5 6\nctxt 7\n"
    )
    assert load.cores_s(stat) == {0: (150 * tick_s, 40 * tick_s), 3: (1 * tick_s, 0.0)}


@pytest.mark.usefixtures("processes")
def test_descendants_are_the_runs_own_while_they_run_and_after():
    before_s = load.own_cpu_s()
    script = f"{BURN}\nprint(flush=True)\ninput()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        running_s = load.own_cpu_s() - before_s
        # as of a race, whose other cells do not disturb one
        assert load.own_cpu_s(child.pid) >= 0.28
        child.communicate(b"\n")
    assert running_s >= 0.28
    assert load.own_cpu_s() - before_s >= running_s - 0.05


def test_a_process_of_somebody_else_is_seen(tmp_path: Path):
    """It is started by a shell that ends at once, so that it is nobody's child."""
    watched, done = load.LoadMeter(), tmp_path / "done"
    script = f"{BURN}\nopen({str(done)!r}, 'w').close()"
    subprocess.run(["sh", "-c", f'setsid "{sys.executable}" -c "$0" &', script], check=True)
    awaited(done.exists)
    counted = watched.end()
    assert counted["others_cores"] * counted["seconds"] >= 0.25


def test_the_load_now_is_the_share_of_the_cores_that_others_have(monkeypatch):
    told = {"seconds": 1.0, "others_cores": 1.5, "stolen_cores": 0.1}
    monkeypatch.setattr(load.LoadMeter, "end", lambda self: told)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert load.busy_share_now(0.0) == pytest.approx(0.8)


def test_a_crowd_is_said_at_the_run_and_in_its_record(measured: Measured, monkeypatch, capsys):
    monkeypatch.setattr(environment, "cores", lambda: 1)
    record = measured("gpus=2")
    assert says(capsys.readouterr().out, "run.crowded", ranks=2, cores=1)
    assert (record["cores"], record["threads"]) == (1, 1) and ">" in limits.brief_signs(
        records.as_record(record)
    )


def run(sweep: Path, name: str, hosts: list[str] | None = None, **marker: Any) -> Path:
    """A run of a sweep: with a record, if `hosts` says where it was measured,
    or a mark that it is being measured.
    """
    folder = sweep / name
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    if hosts is not None:
        run_folder.write_json(
            folder / "result.json", records.vision(segments=[records.segment() | {"hosts": hosts}])
        )
    if marker:
        records.claim(folder, **marker)
    return folder


def test_runs_of_a_sweep_on_the_same_node_at_the_same_time_are_counted(tmp_path: Path):
    mine = run(tmp_path, "mine", host=host(), pid=os.getpid())
    run(tmp_path, "ended before", ["here"])  # and after `mine` was claimed, as its data was read
    before = ownership.record_stamps(tmp_path)
    for name, hosts in (("meanwhile", ["there", "here"]), ("elsewhere", ["there"])):
        os.utime(run(tmp_path, name, hosts) / "result.json", (1, 1))  # the clock was set back
    run(tmp_path, "running", host=host(), pid=os.getppid())
    run(tmp_path, "gone", host=host(), pid=2**22 + 1)
    run(tmp_path, "running there", host="there", pid=os.getppid())
    assert ownership.count_concurrent_runs(mine, {"here", host()}, before) == 2
