"""The package, installed into an empty environment."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def copy_of_the_project(folder: Path) -> Path:
    """What git tracks, with the changes of the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no git checkout")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_it_installs_into_an_empty_environment_and_runs_from_another_folder(tmp_path: Path):
    project = copy_of_the_project(tmp_path / "project")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    uv = [sys.executable, "-m", "uv", "pip", "install", "-q", "--python", python, "-c", project / "requirements.lock"]
    installed = subprocess.run([*uv, "-e", project], capture_output=True, text=True, check=False)
    if re.search(r"error sending request|dns error|Network is unreachable", installed.stderr):
        pytest.skip("no package index")
    assert installed.returncode == 0, installed.stderr
    small = ["device=cpu", "tracker.mode=disabled", "hydra.run.dir=runs/one"]
    vision = ["dataset.train_limit=64", "dataset.test_limit=8", "dataset.image_size=32", "epochs=1"]
    for entry, words in (("train_vision", vision), ("tune_llm", ["max_steps=2", "dataset.rows=12"])):
        line = [python, "-m", entry, *small, *words]
        run = subprocess.run(line, cwd=elsewhere, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
    listed = subprocess.run(
        [python, "-m", "analysis", "list", "runs"], cwd=elsewhere, capture_output=True, text=True, check=True
    )
    assert "2 runs" in listed.stdout or listed.stdout.count(" ok ") == 2, listed.stdout
