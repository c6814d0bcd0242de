"""What no other user may read or write, whatever the umask:
nothing that others could have written is run.
"""

import getpass
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from multicard.config.placement import Placement
from multicard.machine import private
from multicard.ranks import checkpoint, elastic, os_calls
from multicard.ranks.process import Rank, RankSettings
from multicard.records import run_folder
from multicard.records.journal import Journal
from multicard.records.progress import Board
from multicard.records.run_folder import RecordedRun
from multicard.sweep.command import Command
from multicard.vision.workload import WORKLOAD
from tests.conftest import ROOT
from tests.helpers import records
from tests.helpers.messages import Told, refused, says, told

CPU = Placement("cpu", "gloo", 1, False)


@pytest.fixture(autouse=True)
def open_to_all() -> Iterator[None]:
    """The most careless umask."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_is_closed_to_others(tmp_path: Path):
    assert mode(private.folder(tmp_path / "new" / "folder", "")) == 0o700
    (tmp_path / "open").mkdir(mode=0o777)
    assert mode(private.folder(tmp_path / "open", "")) == 0o700
    with private.umask() as before:
        (tmp_path / "file").touch()
    assert (mode(tmp_path / "file"), before) == (0o600, 0)
    (tmp_path / "after").touch()
    assert mode(tmp_path / "after") == 0o666


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with refused("private.not-own", folder=str(tmp_path / "link")) as refusal:
        private.folder(tmp_path / "link", "the remedy")
    assert refusal.value.message.sentence.endswith("the remedy")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with refused("private.not-own", folder=str(tmp_path / "theirs")):
        private.folder(tmp_path / "theirs", "")


WRITERS: dict[str, Callable[[Path], object]] = {  # by the file that another user replaced by a link
    "cell/result.json": lambda path: run_folder.write_json(path, {"status": "ok"}),
    "cell/.result.json.PID": lambda path: run_folder.write_json(path.with_name("result.json"), {}),
    "cell/logs/r00.log": os_calls.redirect,
    "cell/logs/r01.log": lambda path: elastic.shorten_logs(path.parents[1], {}),
    "cell/.progress": lambda path: Board(path.parent, 1, create=True),
    "race/total_s.jsonl": lambda path: Journal(path, "race"),
    "plan/events.lock": lambda path: Journal(path.with_suffix(".jsonl"), "plan"),
}


@pytest.mark.parametrize("planted", WRITERS)
def test_what_is_written_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
):
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the log stays that of the test
    victim, link = tmp_path / "victim", tmp_path / planted.replace("PID", str(os.getpid()))
    victim.write_bytes(b"mine")
    os.truncate(victim, elastic.MAX_LOG_BYTES + 1)
    link.parent.mkdir(parents=True)
    link.symlink_to(victim)
    with suppress(OSError):
        WRITERS[planted](link)
    with victim.open("rb") as file:
        assert file.read(4) == b"mine" and victim.stat().st_size == elastic.MAX_LOG_BYTES + 1
    assert stat.S_ISREG((link if planted == "cell/result.json" else victim).lstat().st_mode)


@pytest.mark.parametrize(
    ("mode", "group", "writers"),
    [(0o755, 0, None), (0o775, 0, None), (0o775, 1, "group 1"), (0o775, 60_001, "group 60001"),
     (0o1777, 0, "all users")],
)  # fmt: skip
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_sweeps_folder_that_others_may_write_to_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: int, group: int, writers: str | None
):
    folder = tmp_path / "sweep"
    folder.mkdir()
    os.chown(folder, -1, group)
    folder.chmod(mode)
    assert private.writers(folder) == writers
    command = Command(WORKLOAD)
    command.runs = [
        RecordedRun(folder / "cell", records.as_record(records.vision(status="refused")))
    ] * 2
    assert command.close() == 1 and not capsys.readouterr().err  # nothing is written
    (folder / "cell").mkdir()
    command.close()
    said = Told("sweep.open-to-others", facts={"who": writers, "folder": str(folder)})
    assert told(capsys.readouterr().err) == ([said] if writers else [])


def test_compiled_code_is_kept_where_only_the_owner_can_put_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # as torch does itself
    monkeypatch.setenv(elastic.CODE_CACHE, str(tmp_path / f"torchinductor_{getpass.getuser()}"))
    cache = Path(elastic._variables(CPU, 1)[elastic.CODE_CACHE])
    assert (cache.parent, mode(cache)) == (tmp_path, 0o700)
    cache.rmdir()
    cache.symlink_to(tmp_path)  # by somebody who knows the name
    failure = elastic.launch(
        "tests.helpers.rank_work:says_hello",
        (),
        CPU,
        RankSettings(tmp_path, "cpu", "gloo", 0, 1, "system"),
    )
    assert failure is not None and failure.code == "rank.not-started"
    assert says(failure.message, "private.not-own", folder=str(cache))
    monkeypatch.setenv(elastic.CODE_CACHE, "mine")
    assert elastic._variables(CPU, 1)[elastic.CODE_CACHE] == "mine"


def test_checkpoints_are_closed_to_others(tmp_path: Path):
    checkpoint.save(tmp_path, Rank(0, 0, 1, torch.device("cpu"), "gloo", 1), 3, {})
    assert mode(tmp_path / "checkpoint") == 0o700


@pytest.mark.usefixtures("processes")
def test_ranks_import_nothing_from_the_folder_that_a_command_is_started_in(tmp_path: Path):
    """Python looks there first, and others may write there."""
    # which the fork server imports
    (tmp_path / "selectors.py").write_text("raise SystemExit('run')")
    (tmp_path / "entry").mkdir()
    entry = tmp_path / "entry" / "entry.py"
    entry.write_text(
        f"""
import multiprocessing, os, sys
if __name__ == "__main__":
    sys.path.append({str(ROOT)!r})
    from multicard.ranks import elastic
    elastic.warm_up("cpu", ["multicard.config.base"])
    child = multiprocessing.get_context("forkserver").Process(target=os.system, args=("echo started",))
    child.start()
    child.join()
    sys.exit("PYTHONSAFEPATH" in os.environ)
"""
    )
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    line = [sys.executable, str(entry)]
    done = subprocess.run(
        line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
