"""What docs/extending.md says of an experiment and a claim: its files, and no others, add one each in a copy."""

import re
from pathlib import Path

import pytest

from tests.project.test_extending import FILE, PAGE, copy_of_the_project, run

SECTIONS = {
    "Add an experiment": ("conf/experiment/batch_sizes.yaml", "tests/test_batch_sizes.py"),
    "Add a claim": ("analysis/claims/tuning_claims.yaml", "tests/helpers/claim_worlds.py"),
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of_the_project(tmp_path_factory.mktemp("project"))
    for title, paths in SECTIONS.items():
        (text,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
        files = FILE.findall(text)
        assert tuple(path for path, *_ in files) == paths
        for path, where, content in files:
            assert (copy / path).exists() == (where == "at its end"), path
            with (copy / path).open("a") as file:
                file.write(content if where == "new" else f"\n{content}")
    return copy


def test_the_experiment_has_a_table_and_a_command(project: Path):
    run(project, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "tests/test_batch_sizes.py")
    planned = run(project, "train_vision.py", "experiment=batch_sizes", "device=cpu", "dry_run=true", "name=planned")
    assert len(re.findall(r"batch_size=\d+", planned)) >= 6


def test_the_claim_is_judged_in_its_worlds(project: Path):
    ended = run(
        project,
        "-m",
        "pytest",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/analysis/test_claims.py",
        "-k",
        "qlora-below",
    )
    assert "4 passed" in ended
    listed = run(project, "-m", "analysis", "claims", "tests/fixtures/records_v1", "--only", "qlora-below-lora")
    assert listed.startswith("qlora-below-lora: not measured")
