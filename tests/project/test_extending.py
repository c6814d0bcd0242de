"""What docs/develop/extending.md says: its files, and no others,
add an option each to a copy of the project, and work.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "develop" / "extending.md").read_text()
ENTRIES = ("train_vision.py", "tune_llm.py")
PARTS = ("conf", "multicard", "hydra_plugins", "tests", "analysis", "pyproject.toml", *ENTRIES)
FILE = re.compile(
    r"^\*\*([\w/.]+)\*\*, (new|at its end):\n\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL
)
SECTIONS = {  # the option that each adds, and its number of files
    "strategy": ("ddp_fp16", 3),
    "loader": ("thread", 4),
    "precision": ("bf16_weights", 3),
    "vision model": ("tiny_cnn", 3),
    "vision data set": ("stripes", 4),
    "method": ("rslora", 3),
    "language model": ("qwen2_5_1_5b", 3),
    "text data set": ("alpaca_gpt4", 3),
    "experiment": ("batch_sizes", 2),
    "claim": ("", 2),
}
# One process in the copy: the page's tests; one training with all options of training;
# the claim in its worlds
DRIVER = """
import inspect, importlib, pathlib, sys, tempfile

if __name__ == "__main__":
    from analysis import __main__ as analysis
    from tests import conftest
    from tests.analysis import test_claims

    def fresh():
        return pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))

    for module in map(importlib.import_module, sys.argv[2:]):
        for test in [value for name, value in vars(module).items() if name.startswith("test_")]:
            folder = fresh()
            values = {"tmp_path": folder, "measured": conftest.Measuring(folder), "tuned": conftest.Tuning(folder)}
            test(**{name: values[name] for name in inspect.signature(test).parameters})
    words = "strategy=ddp_fp16 loader=thread precision=bf16_weights model=tiny_cnn dataset=stripes".split()
    record = conftest.ok(conftest.Measuring(fresh())(*words, "gpus=2", "dataset.train_limit=128"))
    assert record["axes"].items() >= {key: value for key, _, value in (word.partition("=") for word in words)}.items()
    assert record["input"]["loader"] == "thread" and record["input"]["train"] == {"ahead": 2}
    assert record["communication_bytes"]["all_reduce"] > 0
    for state in test_claims.STATES:
        test_claims.test_a_claim_is_judged_by_what_was_measured("qlora-below-lora", state, fresh())
    test_claims.test_what_was_not_measured_has_its_command(fresh())
    analysis.main(["claims", "tests/fixtures/records_v1", "--only", "qlora-below-lora"])
"""


def files(section: str) -> list[tuple[str, str, str]]:
    """Path, "new" or "at its end", and content of the files that a section of the page names."""
    (text,) = re.findall(
        rf"^## Add an? {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL
    )
    return FILE.findall(text)


def run(project: Path, *words: str) -> str:
    ended = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False, cwd=project
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_names_as_many_files_as_it_says(section: str):
    (name, count), named = SECTIONS[section], files(section)
    assert len(named) == count
    if name:
        group = section.rpartition(" ")[2].replace("set", "dataset")
        assert f"conf/{group}/{name}.yaml" in {path for path, *_ in named}
        assert sum(path.startswith("tests/") for path, *_ in named) == 1
    (row,) = [
        line
        for line in PAGE.splitlines()
        if re.match(rf"\|.*#add-an?-{section.replace(' ', '-')}\)", line)
    ]
    assert f"{count}" in row and all(
        f"`{path}`" in row for path, where, _ in named if where != "new"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("processes")
def test_the_files_of_the_page_work_in_a_copy_of_the_project(tmp_path: Path):
    project = tmp_path / "project"
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(
                ROOT / part, project / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / part, project / part)
    added = [file for section in SECTIONS for file in files(section)]
    for path, where, content in added:
        assert (project / path).exists() == (where == "at its end"), path
        with (project / path).open("a") as file:
            file.write(content if where == "new" else f"\n\n{content}")
    helped = "".join(run(project, entry, "--help") for entry in ENTRIES)
    assert [name for name, _ in SECTIONS.values() if not re.search(rf"\b{name}\b", helped)] == []
    planned = run(
        project, ENTRIES[0], "experiment=batch_sizes", "device=cpu", "dry_run=true", "name=planned"
    )
    assert len(re.findall(r"batch_size=\d+", planned)) >= 6
    (project / "driver.py").write_text(DRIVER)
    names = [path for path, *_ in added if path.endswith(".py")]
    tests = [path[:-3].replace("/", ".") for path in names if path.startswith("tests/test_")]
    assert "qlora-below-lora: not measured" in run(project, "driver.py", str(tmp_path), *tests)
    run(project, "-m", "ruff", "check", "--ignore", "F811", *names)
    run(project, "-m", "ruff", "format", "--check", *names)
