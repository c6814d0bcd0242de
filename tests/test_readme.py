"""Every command of the README runs, shrunk to seconds."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, SHARED, has_dali

Called = Callable[..., tuple[int, str]]

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
    joined = "\n".join(blocks).replace("\\\n", " ")
    lines = [line.partition("  #")[0].strip() for line in joined.splitlines()]
    return [" ".join(line.split()) for line in lines if line.startswith(f"python {program}")]


VISION = commands((ROOT / "README.md").read_text(), "train_vision.py")
TUNING = commands((ROOT / "README.md").read_text(), "tune_llm.py")
DEMO = re.findall(r"^\t\$\(BIN\)/(python train_vision.py .*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_readme_and_the_makefile_have_commands():
    assert len(VISION) >= 6 and len(TUNING) >= 5 and len(DEMO) == 1


@pytest.mark.parametrize("line", VISION + DEMO)
def test_a_documented_command_runs(line: str, tmp_path: Path, called: Called):
    words = shlex.split(line)[2:]
    chosen = next((word.partition("=")[2] for word in words if word.startswith("dataset=")), None)
    if "loader=dali" in words and not has_dali():
        pytest.skip("no DALI (make dali)")
    replaced = dict(SHRUNK)
    if chosen in REAL:
        if not REAL[chosen].exists():
            pytest.skip(f"no {REAL[chosen]}")
        replaced |= {"dataset.root": str(REAL[chosen])}
        replaced |= {"dataset.download": "false"} if chosen == "mnist" else {"dataset.cache_dir": str(tmp_path)}
    kept = [word for word in words if word.partition("=")[0] not in replaced]
    small = [f"{key}={value}" for key, value in replaced.items()]
    folder = [f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*kept, *folder, *small)
    assert code == 0, printed
    assert ("12 cells" if "dry_run=true" in words else f"Records: {tmp_path}") in printed


# What a command of the README names that this machine may not have
FILES = {
    "rows.jsonl": SHARED / "text" / "alpaca_cleaned_500.jsonl",
    "pairs.jsonl": SHARED / "text" / "hh_helpful_500.jsonl",
    "Meta-Llama-3-8B/original/tokenizer.model": SHARED / "tokenizer" / "tokenizer.model",
}
TUNING_SHRUNK = {"device": "cpu", "max_steps": "2", "dataset.rows": "12", "tracker.mode": "disabled"}
TINY = {"model=llama3_8b": "model=llama3_tiny"}


@pytest.mark.parametrize("line", TUNING)
def test_a_documented_tuning_command_runs(line: str, tmp_path: Path, called: Called):
    words = []
    for word in shlex.split(line)[2:]:
        key, _, value = word.partition("=")
        if value in FILES and not FILES[value].exists():
            pytest.skip(f"no {FILES[value]}")
        words.append(f"{key}={FILES[value]}" if value in FILES else TINY.get(word, word))
    kept = [word for word in words if word.partition("=")[0] not in TUNING_SHRUNK]
    small = [f"{key}={value}" for key, value in TUNING_SHRUNK.items()]
    folder = [f"hydra.run.dir={tmp_path}", f"hydra.sweep.dir={tmp_path}"]
    code, printed = called(*kept, *folder, *small, entry="tune_llm.py")
    assert code == 0, printed
    assert f"Records: {tmp_path}" in printed
