"""Leases of GPUs and cores: the kernel's locks, whoever else uses the folder."""

import fcntl
import getpass
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from multicard.machine import leases, private, tickets
from multicard.machine.leases import Lease
from multicard.machine.tickets import Request, Ticket
from tests.conftest import ROOT, awaited

NAMES = [leases.gpu("GPU-0a/b"), leases.core(7)]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(leases.VARIABLE, str(tmp_path / "leases"))
    return tmp_path / "leases"


def take(*names: str) -> Lease | None:
    """All of them, as a command that chooses takes them; None where one is not free."""
    with leases.opened() as directory, leases.choice(directory) as choice:
        assert choice is not None
        return choice.take(names) if all(map(choice.is_free, names)) else None


def test_what_is_leased_is_free_again_when_all_that_hold_it_are_done():
    by_command = take(*NAMES)
    assert by_command is not None and take(NAMES[1]) is None and take(leases.core(8)) is not None
    by_cell = leases.share(NAMES)
    by_command.close()
    assert take(NAMES[0]) is None  # the command is gone, its cell is not
    by_cell.close()
    assert take(*NAMES) is not None


def test_one_command_chooses_at_a_time():
    with leases.opened() as directory:
        with leases.choice(directory) as mine, leases.choice(directory) as theirs:
            assert mine is not None and theirs is None
        with leases.choice(directory) as theirs:
            assert theirs is not None


def test_what_is_not_taken_is_given_back():
    with leases.opened() as directory, leases.choice(directory) as choice:
        assert choice is not None and all(map(choice.is_free, NAMES))
        lease = choice.take(NAMES[:1])
    assert take(NAMES[1]) is not None and take(NAMES[0]) is None
    lease.close()


def test_every_user_can_open_what_one_with_a_closed_umask_made(folder: Path):
    with private.umask(0o077):
        assert take(*NAMES) is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
    files = {path.name: path for path in folder.iterdir()}
    assert {*files} == {"gpu-GPU-0a_b", "core-7", leases.CHOOSING}
    assert {(stat.S_IMODE(path.stat().st_mode), path.stat().st_size) for path in files.values()} == {(0o644, 0)}


def test_a_link_in_the_folder_is_not_followed(folder: Path, tmp_path: Path):
    take("core-1")
    (folder / NAMES[1]).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"Too many levels of symbolic links"):
        take(NAMES[1])
    assert not (tmp_path / "elsewhere").exists()
    assert leases.share(NAMES).files.keys() == {NAMES[0]}


def test_a_file_that_is_removed_before_it_is_locked_is_no_lease(folder: Path, monkeypatch: pytest.MonkeyPatch):
    lock = fcntl.flock

    def removed(descriptor: int, operation: int) -> None:
        lock(descriptor, operation)
        (folder / NAMES[1]).unlink(missing_ok=True)

    with leases.opened() as directory, leases.choice(directory) as choice:
        assert choice is not None
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", removed)
            assert not choice.is_free(NAMES[1])
        assert choice.is_free(NAMES[1])


def test_the_folder_is_the_first_in_which_every_user_may_make_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(leases.VARIABLE)
    (tmp_path / "lock").mkdir()
    monkeypatch.setattr(leases, "SHARED_BY_ALL", (str(tmp_path / "lock"), "/tmp"))
    assert leases.folder() == Path("/tmp/multicard-leases")
    (tmp_path / "lock").chmod(0o1777)
    assert leases.folder() == tmp_path / "lock" / "multicard-leases"


HOLDS = """
import sys
from multicard.machine import leases
held = leases.share(sys.argv[1:])
print(len(held.files), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
def test_a_process_that_is_killed_holds_nothing():
    words = [sys.executable, "-c", HOLDS, *NAMES, "a\x1b[31m"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == "3\n"
        assert take(NAMES[0]) is None
        holders = leases.holders(NAMES)
        assert len(holders) <= 1  # none where the kernel does not list locks
        if holders:
            assert holders[0].startswith(f"pid {process.pid} ({getpass.getuser()}: ") and holders[0].isprintable()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert awaited(lambda: take(*NAMES))


REQUEST = Request(0, 2, frozenset({leases.core(0), leases.core(1)}))


def ahead(own: Ticket | None = None) -> list[Request]:
    with leases.opened() as directory:
        return [each.request for each in tickets.ahead(directory, own)]


def queue(request: Request = REQUEST) -> Ticket:
    with leases.opened() as directory:
        ticket = tickets.place(directory, request)
    assert ticket is not None
    return ticket


def test_who_asked_first_is_first(folder: Path):
    first, second = queue(), queue(Request(1, 0, frozenset({leases.gpu("a")})))
    assert (first.name, second.name) == ("waiting-000000001", "waiting-000000002")
    assert ahead(first) == [] and ahead(second) == [REQUEST] and len(ahead()) == 2
    assert stat.S_IMODE((folder / first.name).stat().st_mode) == 0o644
    first.close()
    assert ahead(second) == [] and not (folder / first.name).exists()
    third = queue()
    assert third.name > second.name
    second.close()
    third.close()
    assert [*folder.iterdir()] == []


def test_a_command_that_does_not_look_is_passed_by(folder: Path):
    ticket = queue()
    os.utime(folder / ticket.name, (0, 0))
    assert ahead() == []
    later = queue()
    assert later.name > ticket.name
    ticket.keep()
    assert ahead(later) == [REQUEST]


def test_what_is_no_ticket_is_nobodys_turn(folder: Path, tmp_path: Path):
    """Whatever another user puts there."""
    good = queue()
    for number, content in enumerate((b"", b"[1]", b'{"gpus": "x", "cores": 1, "of": []}', b"\xff" * 100_000), 2):
        path = folder / f"waiting-{number:09d}"
        path.write_bytes(content)
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    (folder / "waiting-000000010").symlink_to(folder / good.name)
    os.mkfifo(folder / "waiting-000000011")
    (folder / "waiting-000000012").mkdir()
    (folder / "waiting-999").touch()
    assert ahead() == [REQUEST]


QUEUES = """
import sys
from multicard.machine import leases, tickets
with leases.opened() as directory:
    tickets.place(directory, tickets.Request(0, 2, frozenset(["core-0", "core-1"])))
print("waits", flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
def test_a_process_that_is_killed_waits_no_more(folder: Path):
    words = [sys.executable, "-c", QUEUES]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == "waits\n"
        assert ahead() == [REQUEST]
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert awaited(lambda: not ahead())
    assert [*folder.iterdir()] == []


TAKES_BY_TURNS = """
import os, random, sys, time
from multicard.machine import leases
chance, folder, taken = random.Random(int(sys.argv[1])), sys.argv[2], 0
os.close(os.open(f"{folder}/ready-{sys.argv[1]}", os.O_CREAT))
while sum(name.startswith("ready") for name in os.listdir(folder)) < 3:
    time.sleep(0.01)
while taken < 100:
    names = [leases.core(number) for number in chance.sample(range(4), 2)]
    with leases.opened() as directory, leases.choice(directory) as choice:
        lease = choice.take(names) if choice and all(map(choice.is_free, names)) else None
    if lease is not None:
        taken += 1
        for name in names:
            os.close(os.open(f"{folder}/{name}", os.O_CREAT | os.O_EXCL))  # fails where another process has it
        time.sleep(0.001)
        for name in names:
            os.unlink(f"{folder}/{name}")
        lease.close()
"""


@pytest.mark.usefixtures("processes")
def test_processes_that_take_by_turns_never_have_the_same(tmp_path: Path):
    words = [sys.executable, "-c", TAKES_BY_TURNS]
    processes = [
        subprocess.Popen([*words, str(seed), str(tmp_path)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for seed in range(3)
    ]
    assert [process.communicate(timeout=300)[1] for process in processes] == [""] * 3
    assert [process.returncode for process in processes] == [0] * 3
