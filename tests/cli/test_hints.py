"""Commands in messages work where they are read: in a checkout, beside one, and from a wheel."""

import json
import re
import shlex
import sys
import tomllib
from pathlib import Path

import pytest

from multicard import messages, repository
from tests.conftest import ROOT, in_checkout

SOURCES = [
    path for name in ("multicard", "analysis") for path in sorted((ROOT / name).rglob("*.py"))
]
CALL_OF_INSTALL = re.compile(r"\binstall\(['\"](\w+)['\"]\)")


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages as a wheel's."""
    monkeypatch.setattr(messages, "IS_INSTALLED", True)


def script(folder: Path) -> Path:
    """A console script as pip writes it."""
    folder.mkdir()
    path = folder / "multicard"
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_installed_command_is_typed_by_its_path_if_the_shell_does_not_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here, other = script(tmp_path / "a venv"), script(tmp_path / "other")
    monkeypatch.setattr(sys, "argv", [str(here), "vision"])
    found = {
        "": shlex.quote(str(here)),
        str(other.parent): shlex.quote(str(here)),
        str(here.parent): "multicard",
    }
    for path, command in found.items():
        monkeypatch.setenv("PATH", path)
        assert messages.typed("-m analysis") == command
        assert messages.typed("train_vision.py") == f"{command} vision"


def test_extras_are_installed_from_where_multicard_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(messages, "in_checkout", in_checkout)
    monkeypatch.chdir(ROOT)
    assert messages.install("trl") == "pip install -e '.[trl]'"
    monkeypatch.chdir(tmp_path)
    assert messages.install("trl") == f"pip install -e '{ROOT}[trl]'"
    monkeypatch.setattr(messages, "IS_INSTALLED", True)
    assert messages.install("trl") == "pip install 'multicard[trl]'"


def test_each_extra_that_a_message_names_exists():
    named = {extra for path in SOURCES for extra in CALL_OF_INSTALL.findall(path.read_text())}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert {"dali", "liger", "trl"} <= named
    assert named <= project["tool"]["setuptools"]["dynamic"]["optional-dependencies"].keys()


@pytest.mark.usefixtures("wheel")
def test_the_help_of_a_wheel_has_its_own_commands_and_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(sys, "argv", [str(script(tmp_path / "bin")), "vision"])
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for page in ("plan.md", "reference/plans.md"):
        written = f"python train_vision.py gpus=2   one run (docs/{page})"
        helped = messages.usage(written, __file__)
        assert helped == f"multicard vision gpus=2   one run ({ROOT / 'docs' / page})"


def test_a_copy_without_git_has_the_commit_that_was_written_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As a wheel or a source archive has it. A checkout asks git, whatever is written."""
    monkeypatch.setattr(repository, "__file__", str(tmp_path / "repository.py"))
    assert repository.commit(tmp_path) is None
    built = {"commit": "a" * 40, "dirty": True, "changes": "0123abcd"}
    (tmp_path / repository.COMMIT).write_text(json.dumps(built))
    assert repository.commit(tmp_path) == built
    assert repository.in_words(built) == "commit aaaaaaaaa with changes 0123abcd"
    (tmp_path / repository.COMMIT).write_text("{")
    assert repository.commit(tmp_path) is None
