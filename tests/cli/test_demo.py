"""`multicard demo`: its commands one after the other, each started as the demo was."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from multicard import demo
from tests.conftest import PATIENCE_S, ROOT
from tests.helpers.messages import codes

pytestmark = pytest.mark.usefixtures("processes")
# A program that starts the demo as `multicard` does, and is started for each of its commands
PROGRAM = """
import sys, time
from multicard import demo

if sys.argv[1:] == ["demo"]:
    sys.argv[1:] = []
    sys.exit(demo.main())
print("ran", *sys.argv[1:], flush=True)
if sys.argv[1] == "{waits_at}":
    time.sleep(600)
sys.exit(sys.argv[1] == "{fails_at}")
"""


def started(folder: Path, waits_at: str = "", fails_at: str = "") -> subprocess.Popen[str]:
    program = folder / "program.py"
    program.write_text(PROGRAM.format(waits_at=waits_at, fails_at=fails_at))
    line = [sys.executable, str(program), "demo"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(line, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True)


def ran(printed: str) -> list[str]:
    return [line.split()[1] for line in printed.splitlines() if line.startswith("ran ")]


def test_its_commands_run_in_their_order_and_are_printed(tmp_path: Path):
    printed, _ = (process := started(tmp_path)).communicate(timeout=PATIENCE_S)
    names = [words[0] for words in demo.commands()]
    assert process.returncode == 0 and ran(printed) == names == ["vision", "report"]
    assert codes(printed) == ["demo.command"] * 2


def test_it_ends_with_the_first_command_that_fails(tmp_path: Path):
    printed, _ = (process := started(tmp_path, fails_at="vision")).communicate(timeout=PATIENCE_S)
    assert (process.returncode, ran(printed)) == (1, ["vision"])


def test_a_signal_ends_the_command_that_runs(tmp_path: Path):
    process = started(tmp_path, waits_at="vision")
    assert process.stdout is not None
    while not next(process.stdout).startswith("ran vision"):
        pass
    process.send_signal(signal.SIGTERM)
    printed, _ = process.communicate(timeout=PATIENCE_S)  # nobody holds the pipe any more
    assert (process.returncode, ran(printed)) == (128 + signal.SIGTERM, [])
