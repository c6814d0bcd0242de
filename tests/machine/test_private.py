"""What no other user may read or write, whatever the umask: nothing that others could have written is run."""

import getpass
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from multicard.config.placement import Placement
from multicard.machine import private
from multicard.ranks import checkpoint, elastic
from multicard.ranks.process import Job, Rank
from tests.conftest import ROOT

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
    with pytest.raises(ValueError, match="link: belongs to another user, or is a link; remove it"):
        private.folder(tmp_path / "link", "remove it")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match="theirs: belongs to another user"):
        private.folder(tmp_path / "theirs", "")


def test_compiled_code_is_kept_where_only_the_owner_can_put_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv(elastic.CODE_CACHE, str(tmp_path / f"torchinductor_{getpass.getuser()}"))  # as torch does itself
    cache = Path(elastic._variables(CPU, 1)[elastic.CODE_CACHE])
    assert (cache.parent, mode(cache)) == (tmp_path, 0o700)
    cache.rmdir()
    cache.symlink_to(tmp_path)  # by somebody who knows the name
    failure = elastic.launch(
        "tests.helpers.rank_work:says_hello", (), CPU, Job(tmp_path, "cpu", "gloo", 0, 1, "system")
    )
    assert (
        failure is not None
        and f"{cache}: belongs to another user, or is a link; set TORCHINDUCTOR_CACHE_DIR" in failure.message
    )
    monkeypatch.setenv(elastic.CODE_CACHE, "mine")
    assert elastic._variables(CPU, 1)[elastic.CODE_CACHE] == "mine"


def test_checkpoints_are_closed_to_others(tmp_path: Path):
    checkpoint.save(tmp_path, Rank(0, 0, 1, torch.device("cpu"), "gloo", 1), 3, {})
    assert mode(tmp_path / "checkpoint") == 0o700


@pytest.mark.usefixtures("processes")
def test_ranks_import_nothing_from_the_folder_that_a_command_is_started_in(tmp_path: Path):
    """Python looks there first, and others may write there."""
    (tmp_path / "selectors.py").write_text("raise SystemExit('run')")  # which the fork server imports
    (tmp_path / "entry").mkdir()
    entry = tmp_path / "entry" / "entry.py"
    entry.write_text(f"""
import multiprocessing, os, sys
if __name__ == "__main__":
    sys.path.append({str(ROOT)!r})
    from multicard.ranks import elastic
    elastic.warm_up("cpu", ["multicard.config.base"])
    child = multiprocessing.get_context("forkserver").Process(target=os.system, args=("echo started",))
    child.start()
    child.join()
    sys.exit("PYTHONSAFEPATH" in os.environ)
""")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    line = [sys.executable, str(entry)]
    done = subprocess.run(line, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "started\n"), done.stderr
