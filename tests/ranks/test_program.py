"""Commands start anew without -O and -OO, with which libraries that they need do not work."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multicard.ranks import program
from tests.conftest import ROOT

RECORDS = ROOT / "tests" / "fixtures" / "records_v1"


@pytest.mark.parametrize(
    ("words", "left"),
    [
        ("-OO train_vision.py -O", "train_vision.py -O"),
        ("-O -B -m multicard report -OO", "-B -m multicard report -OO"),
        ("-BOO -c O", "-B -c O"),
        ("-OOm analysis", "-m analysis"),
        ("-W OO -X Oh -WO -O file", "-W OO -X Oh -WO file"),
        ("--check-hash-based-pycs never -O file", "--check-hash-based-pycs never file"),
        ("-O -", "-"),
        ("-O", ""),
    ],
)
def test_the_words_of_the_new_start(words: str, left: str):
    assert program.without_optimisation(words.split()) == left.split()


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("start", "variables"),
    [
        pytest.param("-OO -m analysis", {}, marks=pytest.mark.core),
        ("-m multicard", {"PYTHONOPTIMIZE": "2"}),
        ("-O -m multicard", {}),
    ],
)
def test_figures_are_drawn_though_docstrings_were_to_be_left_out(
    start: str, variables: dict[str, str], tmp_path: Path
):
    line = [
        sys.executable,
        *start.split(),
        "figure",
        "effects",
        str(RECORDS),
        "--out",
        str(tmp_path / "effects.svg"),
    ]
    done = subprocess.run(
        line, cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [*tmp_path.glob("*.svg")]
