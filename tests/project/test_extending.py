"""What docs/extending.md says: its files, and no others, add an option each; they run in a copy of the project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "extending.md").read_text()
ENTRIES = ("train_vision.py", "tune_llm.py")
PARTS = ("conf", "multicard", "papers", "hydra_plugins", "tests", "analysis", "pyproject.toml", *ENTRIES)
FILE = re.compile(r"^\*\*([\w/.]+)\*\*, (new|at its end):\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
VISION = {
    "strategy": ("ddp_fp16", 3),
    "loader": ("thread", 4),
    "precision": ("bf16_weights", 3),
    "vision model": ("tiny_cnn", 3),
    "vision data set": ("stripes", 4),
}
TUNING = {"method": ("rslora", 3), "language model": ("qwen2_5_1_5b", 3), "text data set": ("alpaca_gpt4", 3)}
OPTIONS = VISION | TUNING


def files(section: str) -> list[tuple[str, str, str]]:
    """Path, "new" or "at its end", and content of the files that a section of the page names."""
    (text,) = re.findall(rf"^## Add a {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return FILE.findall(text)


def run(project: Path, *words: str) -> str:
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=project)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def copy_of_the_project(folder: Path) -> Path:
    """What the page's examples need of it."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / part, folder / part)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the files of all sections added."""
    copy = copy_of_the_project(tmp_path_factory.mktemp("project"))
    for section in OPTIONS:
        for path, where, content in files(section):
            assert (copy / path).exists() == (where == "at its end"), path
            with (copy / path).open("a") as file:
                file.write(content if where == "new" else f"\n\n{content}")
    return copy


@pytest.mark.parametrize("section", OPTIONS)
def test_the_page_names_as_many_files_as_it_says(section: str):
    name, count = OPTIONS[section]
    paths = [path for path, *_ in files(section)]
    assert len(paths) == count
    group = section.rpartition(" ")[2].replace("set", "dataset")
    assert f"conf/{group}/{name}.yaml" in paths and sum(path.startswith("tests/") for path in paths) == 1
    anchor = f"#add-a-{section.replace(' ', '-')}"
    (row,) = [line for line in PAGE.splitlines() if line.startswith("|") and anchor in line]
    assert f"{count}" in row and all(f"`{path}`" in row for path, where, _ in files(section) if where != "new")


@pytest.mark.slow
def test_the_options_are_listed_and_train_together(project: Path):
    helped = run(project, "train_vision.py", "--help")
    assert all(re.search(rf"\b{name}\b", helped) for name, _ in VISION.values())
    groups = ("strategy", "loader", "precision", "model", "dataset")
    chosen = dict(zip(groups, (name for name, _ in VISION.values()), strict=True))
    small = ["gpus=2", "device=cpu", "epochs=1", "dataset.train_limit=128", "tracker.mode=disabled", "name=added"]
    run(project, "train_vision.py", *(f"{group}={name}" for group, name in chosen.items()), *small)
    (result,) = (project / "multirun" / "added").glob("*/result.json")
    record = json.loads(result.read_text())
    assert record["status"] == "ok" and record["axes"].items() >= chosen.items()
    assert record["input"]["loader"] == "thread" and record["input"]["train"] == {"ahead": 2}
    assert record["communication_bytes"]["all_reduce"] > 0


def test_the_options_of_tuning_are_listed(project: Path):
    helped = run(project, "tune_llm.py", "--help")
    assert all(re.search(rf"\b{name}\b", helped) for name, _ in TUNING.values())


@pytest.mark.slow
def test_the_tests_of_the_page_pass(project: Path):
    tests = [path for section in OPTIONS for path, *_ in files(section) if path.startswith("tests/")]
    run(project, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *tests)


def test_the_code_of_the_page_is_formatted(project: Path):
    added = [path for section in OPTIONS for path, *_ in files(section) if path.endswith(".py")]
    run(project, "-m", "ruff", "check", "--ignore", "F811", *added)
    run(project, "-m", "ruff", "format", "--check", *added)
