"""A wheel, built and installed beside the packages of this Python, but without the checkout."""

import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest
from filelock import FileLock

from multicard import repository
from tests.conftest import ROOT, SMALL
from tests.helpers.messages import codes, find

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("processes")]
# Modules and folders of the user's own, in the working folder and on PYTHONPATH
FOREIGN = (
    "analysis",
    "conf",
    "papers",
    "multirun",
    "train_vision",
    "tune_llm",
    "measure_script",
    "tests",
    "docs",
)
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "-q")
LOCAL = ("--no-index", "--no-deps")  # nothing is downloaded
SOURCES = ("multicard", "conf", "analysis")
RECORDS = ROOT / "tests" / "fixtures" / "records_v1"
EXAMPLES = ROOT / "docs" / "example" / "records"


class Installed:
    """A virtual environment with the wheel, and a folder
    of a user's in which commands are typed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "user", folder / "venv" / "bin"
        built = folder / "built"
        # builds write to the checkout's .egg-info
        with FileLock(folder.parent.parent / "wheel.lock"):
            run([*PIP, "wheel", *LOCAL, "--no-build-isolation", "-w", str(built), str(ROOT)])
        (self.wheel,) = built.glob("*.whl")
        run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
        (self.packages,) = (folder / "venv").glob("lib/python*/site-packages")
        # A line of a .pth file names a folder, whose own .pth files,
        # as that of an editable install, are not read
        (self.packages / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
        run([*PIP, "--python", str(self.bin / "python"), "install", *LOCAL, str(self.wheel)])
        self.folder.mkdir()
        for name in FOREIGN:
            (self.folder / f"{name}.py").write_text("raise SystemExit(7)\n")

    def __call__(
        self, *words: str, rc: int = 0, program: tuple[str, ...] = ("multicard",), **variables: str
    ) -> str:
        """What a command prints that ends with this exit code."""
        done = subprocess.run(
            [str(self.bin / program[0]), *program[1:], *words],
            cwd=self.folder,
            env=self.variables | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=500,
        )
        assert done.returncode == rc, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    @property
    def variables(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        return kept | {"PATH": path, "PYTHONPATH": str(self.folder)}

    def records(self, sweep: str) -> list[dict[str, Any]]:
        found = sorted((self.folder / "multirun" / sweep).glob("*/result.json"))
        return [json.loads(path.read_text()) for path in found]

    def content(self) -> dict[str, int]:
        """Each file of the installed package with the time of its last change, but for bytecode."""
        package = self.packages / "multicard"
        files = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        return {path.relative_to(package).as_posix(): path.stat().st_mtime_ns for path in files}


def run(command: list[str], cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Nothing writes into the installed package."""
    made = Installed(tmp_path_factory.mktemp("wheel"))
    before = made.content()
    yield made
    assert made.content() == before


def test_the_top_of_site_packages_has_two_names(installed: Installed):
    top = {path.name for path in installed.packages.iterdir()} - {"others.pth"}
    assert {re.sub(r"-.*", "", name) for name in top} == {"multicard", "hydra_plugins"}
    shared = {path.name for path in (installed.packages / "hydra_plugins").iterdir()}
    assert shared - {"__pycache__"} == {"multicard_launchers"}


def test_the_wheel_has_all_files_of_the_checkout(installed: Installed):
    content = {name.removeprefix("checkout/") for name in installed.content()}
    for source in SOURCES:
        files = [
            path
            for path in (ROOT / source).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        ]
        start = ROOT / "multicard" if source == "multicard" else ROOT
        assert {path.relative_to(start).as_posix() for path in files} <= content
    assert {
        "train_vision.py",
        "tune_llm.py",
        "measure_script.py",
        "docs/own.md",
        "docs/reference/data.md",
    } <= content


@pytest.mark.parametrize("flag", ["-B", "-OO"])
def test_it_starts_beside_foreign_modules(installed: Installed, flag: str):
    program = ("python", flag, str(installed.bin / "multicard"))
    here = repository.commit()
    version = installed("--version", program=program)
    assert here is None or repository.in_words(here) in version
    helped = installed("vision", "--help", program=program)
    assert "multicard vision -m " in helped and "train_vision.py" not in helped
    # where its page is
    assert str(installed.packages) in installed("plan", "--help", program=program)
    assert "--columns" in installed("list", "--help", program=program)
    script = f"import sys, multicard\nsys.exit(len(multicard.load({str(RECORDS)!r})))"
    installed(program=("python", flag, "-c", script), rc=len([*RECORDS.rglob("result.json")]))


def test_it_measures_and_says_what_was_measured(installed: Installed):
    plans = installed(
        "vision",
        "-m",
        *SMALL,
        "gpus=1,2",
        "hydra/launcher=submitit_slurm",
        "dry_run=true",
        "name=s",
    )
    assert find(plans, "sweep.dry-run")
    installed("vision", "-m", *SMALL, "gpus=1,2", "name=v", "hydra/launcher=submitit_local")
    script = (ROOT / "examples" / "ddp_digits.py").read_text()
    (installed.folder / "own.py").write_text(script)
    installed(
        "script",
        "script=own.py",
        "gpus=2",
        "steps=5",
        "device=cpu",
        "name=c",
        "tracker.mode=disabled",
    )
    installed(
        "tune", "max_steps=4", "skip_steps=1", "device=cpu", "name=t", "tracker.mode=disabled"
    )
    measured = [record for name in "vct" for record in installed.records(name)]
    assert [record["status"] for record in measured] == ["ok"] * 4
    here = repository.commit()
    assert all(here is None or record["commit"] == here["commit"] for record in measured)
    assert "predict.title" in codes(
        installed("vision", "-m", *SMALL, "layout=nchw,nhwc", "predict=true", "name=p")
    )
    page = installed.folder / "multirun" / "report.html"
    assert str(page.relative_to(installed.folder)) in installed("report")
    assert page.read_text().count("<svg") or "vega" in page.read_text()
    for words in (
        "best",
        "list",
        "claims",
        "compare multirun/v --by gpus",
        "table table2 multirun/v",
        "figure effects",
    ):
        installed(*words.split())
    installed("export", str(EXAMPLES), "--anonymous", "--out", "rows.json")  # of undisturbed runs
    assert (
        find(installed("import", "rows.json"), "import.written")
        .facts["file"]
        .startswith("multirun/published/")
    )
    jobs = ROOT / "docs" / "jobs.yaml"
    assert find(installed("plan", str(jobs), "--seconds", "1"), "plan.title")
    assert "precision=" in installed("completion", "words", "multicard vision preci")


def test_the_tests_of_gpus_are_found(installed: Installed):
    """`multicard evidence` runs them. Without a GPU they are skipped."""
    words = ["-o", "addopts=", "-p", "no:cacheprovider", "-q", "-m", "gpu", "-rs"]
    folder = installed.packages / "multicard" / "checkout" / "tests" / "gpu"
    printed = installed(*words, str(folder), program=("python", "-m", "pytest"))
    assert re.search(r"\b\d\d+ (passed|skipped)", printed) and not re.search(
        r"failed|error", printed
    )


def test_a_source_archive_makes_the_same_wheel(installed: Installed, tmp_path: Path):
    """It has no .git, and so brings the commit."""
    build = f"from setuptools import build_meta\nbuild_meta.build_sdist({str(tmp_path)!r})"
    with FileLock(tmp_path.parent.parent / "wheel.lock"):
        run([sys.executable, "-c", build], cwd=ROOT)
    (archive,) = tmp_path.glob("*.tar.gz")
    run([*PIP, "wheel", *LOCAL, "--no-build-isolation", "-w", str(tmp_path), str(archive)])
    (wheel,) = tmp_path.glob("*.whl")
    contents = [
        {name: file.read(name) for name in file.namelist()}
        for file in map(ZipFile, (wheel, installed.wheel))
    ]
    own, expected = (
        {name: part for name, part in each.items() if "dist-info" not in name} for each in contents
    )
    assert own == expected
