"""Every command of the README runs, shrunk to seconds."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import ROOT, SHARED, command

SHRUNK = {
    "device": "cpu",
    "dataset.train_limit": "64",
    "dataset.test_limit": "8",
    "dataset.image_size": "32",
    "epochs": "1",
    "batch_size": "16",
    "tracker.mode": "disabled",
}
REAL = {"mnist": SHARED / "mnist", "images": SHARED / "clothing"}


def commands(text: str, program: str) -> list[str]:
    """The lines of the fenced blocks that start the program, and those of the Makefile."""
    blocks = re.findall(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"python {program}")]


VISION = commands((ROOT / "README.md").read_text(), "train_vision.py")
DEMO = re.findall(r"^\t\$\(BIN\)/(python train_vision.py .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_and_the_makefile_have_commands():
    assert len(VISION) >= 6 and len(DEMO) == 1


@pytest.mark.parametrize("line", VISION + DEMO)
def test_a_documented_command_runs(line: str, tmp_path: Path):
    words = shlex.split(line)[2:]
    chosen = next((word.partition("=")[2] for word in words if word.startswith("dataset=")), None)
    replaced = dict(SHRUNK)
    if chosen in REAL:
        if not REAL[chosen].exists():
            pytest.skip(f"no {REAL[chosen]}")
        replaced |= {"dataset.root": str(REAL[chosen]), "dataset.download": "false"}
    kept = [word for word in words if word.partition("=")[0] not in replaced]
    known = {"dataset.download"} if chosen != "mnist" else set()
    small = [f"{key}={value}" for key, value in replaced.items() if key not in known]
    folder = [f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}"]
    done = command(*kept, *folder, *small)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"Records: {tmp_path}" in done.stdout
