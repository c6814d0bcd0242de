"""Deliberate sabotages of what the tests guard, mutants/*.patch:
each is noticed by the tests that its patch names.

A patch begins with what goes wrong, in a sentence, and the line "Noticed by: TESTS",
as pytest takes them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

MUTANTS = sorted((Path(__file__).parent / "mutants").glob("*.patch"))
FOLDERS = ("analysis", "conf", "docs", "hydra_plugins", "multicard", "tests")
FILES = ("measure_script.py", "pyproject.toml", "train_vision.py", "tune_llm.py")
PASSED, FAILED = 0, 1  # pytest's exit codes; others say that nothing was tested


def noticing(mutant: Path) -> list[str]:
    """The tests that are to notice it."""
    return mutant.read_text().splitlines()[1].removeprefix("Noticed by: ").split()


def test_every_mutant_applies_and_names_tests_that_exist():
    assert len(MUTANTS) >= 25
    for mutant in MUTANTS:
        check = ["git", "apply", "--check", str(mutant)]
        done = subprocess.run(check, cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 0, f"{mutant.name} sabotages what has changed: {done.stderr}"
        for test in noticing(mutant):
            path, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(), (
                f"{mutant.name} names no test: {test}"
            )


@pytest.mark.faults
@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    "mutant", [None, *MUTANTS], ids=lambda mutant: mutant.stem if mutant else "none"
)
def test_a_mutant_is_noticed(mutant: Path | None, tmp_path: Path):
    """By tests of a copy of the sources, which pass without it."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, tmp_path)
    if mutant is not None:
        subprocess.run(["git", "apply", str(mutant)], cwd=tmp_path, check=True)
    tests = sorted({test for each in ([mutant] if mutant else MUTANTS) for test in noticing(each)})
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "0",
        "-x",
        "-m",
        "not (gpu or slurm or nightly)",
        *tests,
    ]
    variables = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        line, cwd=tmp_path, env=variables, stdout=subprocess.PIPE, text=True, check=False
    )
    assert done.returncode == (FAILED if mutant else PASSED), done.stdout
