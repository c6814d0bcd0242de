"""What no other user may read or write, whatever the umask: nothing that others could have written is run."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from multicard.config.placement import Placement
from multicard.machine import private
from multicard.ranks import checkpoint, elastic
from multicard.ranks.process import Job, Rank

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
    assert mode(private.folder(tmp_path / "new" / "folder")) == 0o700
    (tmp_path / "open").mkdir(mode=0o777)
    assert mode(private.folder(tmp_path / "open")) == 0o700
    with private.files() as before:
        (tmp_path / "file").touch()
    assert (mode(tmp_path / "file"), before) == (0o600, 0)
    (tmp_path / "after").touch()
    assert mode(tmp_path / "after") == 0o666


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(ValueError, match="link: is a link, or belongs to another user"):
        private.folder(tmp_path / "link")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ValueError, match="theirs: is a link, or belongs to another user"):
        private.folder(tmp_path / "theirs")


def test_compiled_code_is_kept_where_only_the_owner_can_put_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(elastic.CODE_CACHE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cache = Path(elastic._variables(CPU, 1)[elastic.CODE_CACHE])
    assert (cache.parent, mode(cache)) == (tmp_path, 0o700)
    cache.rmdir()
    cache.symlink_to(tmp_path)  # by somebody who knows the name
    failure = elastic.launch("tests.rank_work:says_hello", (), CPU, Job(tmp_path, "cpu", "gloo", 0, 1, "system"))
    assert failure is not None and f"{cache}: is a link, or belongs to another user" in failure.message
    monkeypatch.setenv(elastic.CODE_CACHE, "mine")
    assert elastic._variables(CPU, 1)[elastic.CODE_CACHE] == "mine"


def test_checkpoints_are_closed_to_others(tmp_path: Path):
    checkpoint.save(tmp_path, Rank(0, 0, 1, torch.device("cpu"), "gloo", 1), 3, {})
    assert mode(tmp_path / "checkpoint") == 0o700
