"""Leases of GPUs and cores: the kernel's locks, whoever else uses the folder."""

import fcntl
import getpass
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from multicard.machine import leases, private
from multicard.machine.leases import Lease, Request
from tests.conftest import ROOT, awaited

NAMES = [leases.gpu("GPU-0a/b"), leases.core(7)]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv(leases.VARIABLE, str(tmp_path / "leases"))
    return tmp_path / "leases"


def take(*names: str) -> Lease | None:
    """All of them, as a command that chooses takes them; None where one is not free."""
    with leases.choosing() as choice:
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


def test_one_command_chooses_at_a_time_and_what_it_does_not_take_is_free():
    with leases.choosing() as mine, leases.choosing() as theirs:
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

    with leases.choosing() as choice:
        assert choice is not None
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", removed)
            assert not choice.is_free(NAMES[1])
        assert choice.is_free(NAMES[1])


def test_the_folder_is_the_first_in_which_every_user_may_make_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(leases.VARIABLE)
    (tmp_path / "lock").mkdir()
    monkeypatch.setattr(leases, "LOCKS", str(tmp_path / "lock"))
    assert leases.folder() == Path("/tmp/multicard-leases")
    (tmp_path / "lock").chmod(0o1777)
    assert leases.folder() == tmp_path / "lock" / "multicard-leases"


REQUEST = Request(0, 2, frozenset(NAMES))


def ahead(own: Lease | None = None) -> list[Request]:
    with leases.choosing() as choice:
        assert choice is not None
        return [*choice.ahead(own).values()]


def queue(request: Request = REQUEST) -> tuple[str, Lease]:
    """The name of a ticket, and the ticket."""
    with leases.choosing() as choice:
        assert choice is not None
        ticket = choice.queue(request)
    return next(iter(ticket.files)), ticket


HOLDS = """
import sys
from multicard.machine import leases
held = leases.share(sys.argv[1:])
with leases.choosing() as choice:
    ticket = choice.queue(leases.Request(0, 2, frozenset(sys.argv[1:3])))
print(len(held.files), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("processes")
def test_a_process_that_is_killed_holds_nothing_and_waits_no_more(folder: Path):
    words = [sys.executable, "-c", HOLDS, *NAMES, "a\x1b[31m"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None and process.stdout.readline() == "3\n"
        assert take(NAMES[0]) is None and ahead() == [REQUEST]
        for names in (NAMES, [path.name for path in folder.glob("waiting-*")]):
            holders = leases.holders(names)
            assert len(holders) <= 1  # none where the kernel does not list locks
            if holders:
                assert holders[0].startswith(f"pid {process.pid} ({getpass.getuser()}: ") and holders[0].isprintable()
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert awaited(lambda: not ahead() and take(*NAMES))
    assert not [*folder.glob("waiting-*")]


def test_who_asked_first_is_first(folder: Path):
    (first_name, first), (second_name, second) = queue(), queue(Request(1, 0, frozenset({leases.gpu("a")})))
    assert first_name < second_name and stat.S_IMODE((folder / first_name).stat().st_mode) == 0o644
    assert ahead(first) == [] and ahead(second) == [REQUEST] and len(ahead()) == 2
    first.close()
    assert ahead(second) == [] and not (folder / first_name).exists()
    second.close()


def test_a_command_that_does_not_look_is_passed_by(folder: Path):
    name, ticket = queue()
    os.utime(folder / name, (0, 0))
    assert ahead() == []
    _, later = queue()
    ahead(ticket)  # it looks
    assert ahead(later) == [REQUEST]


def test_what_is_no_ticket_is_nobodys_turn(folder: Path):
    """Whatever another user puts there."""
    name, _ = queue()
    bad = (b"", b"[1]", b'{"gpus": "x", "cores": 1, "names": []}', b"\xff" * 100_000, b"[" * 60_000)
    bad = (*bad, msgspec.json.encode({"gpus": -1, "cores": 1, "names": NAMES}))
    for number, content in enumerate(bad):
        path = folder / f"waiting-{number:017d}"
        path.write_bytes(content)
        fcntl.flock(os.open(path, os.O_RDONLY), fcntl.LOCK_EX)
    (folder / f"waiting-{10:017d}").symlink_to(folder / name)
    os.mkfifo(folder / f"waiting-{11:017d}")
    (folder / f"waiting-{12:017d}").mkdir()
    (folder / "waiting-999").touch()
    assert ahead() == [REQUEST]
