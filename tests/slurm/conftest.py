"""A SLURM for tests, started by `tests/slurm/cluster up`. Without it they skip,
on another machine's SLURM too.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, SMALL
from tests.faults.harness import ENTRY

CLUSTER = Path(__file__).parent / "cluster"
QUICK = (
    *(word for word in SMALL if word != "device=cpu"),
    "dataset.train_limit=48",
    "cpus_per_gpu=1",
)

# Variables that a user may have set: no answer of SLURM's, and no job, is another for them
USERS = {
    "SQUEUE_STATES": "COMPLETED",
    "SACCT_FEDERATION": "1",
    "SBATCH_JOB_NAME": "other",
    "SBATCH_TIMELIMIT": "1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slurm)


def ask(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout.strip()


@pytest.fixture(scope="session", autouse=True)
def slurm() -> Iterator[None]:
    """Points the commands at the tests' cluster, and leaves its queue empty."""
    exports = ask(str(CLUSTER), "env")
    os.environ["SLURM_CONF"] = exports.partition("SLURM_CONF=")[2]
    try:
        ask("sinfo")
    except (OSError, AssertionError, subprocess.SubprocessError):
        pytest.skip("no SLURM: `tests/slurm/cluster up` starts one (root, Debian packages)")
    ask("sacctmgr", "-n", "list", "cluster")  # half a cluster is a defect, not a reason to skip
    yield
    ask("scancel", "--user", ask("id", "-un"))


class Sweep:
    """A sweep on SLURM, in a folder of its own."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.root = folder, root

    def words(self, *words: str) -> list[str]:
        fixed = [
            "hydra/launcher=submitit_slurm",
            f"hydra.sweep.dir={self.folder}",
            "order=typed",
            *QUICK,
        ]
        return [sys.executable, str(self.root / ENTRY), "-m", *fixed, *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        out, error = subprocess.PIPE, subprocess.STDOUT
        return subprocess.Popen(self.words(*words), **self._where, stdout=out, stderr=error)

    def run(self, *words: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*words), **self._where, capture_output=True, timeout=timeout, check=False
        )

    @property
    def _where(self) -> dict[str, Any]:
        variables = os.environ | {"PYTHONPATH": str(self.root), **USERS}
        return {"cwd": self.root, "env": variables, "stdin": subprocess.DEVNULL, "text": True}

    def results(self) -> list[dict[str, Any]]:
        return [
            json.loads(path.read_text()) | {"folder": path.parent}
            for path in self.folder.glob("*/result.json")
        ]

    def submissions(self) -> list[str]:
        return submissions(self.folder)


def submissions(sweep: Path) -> list[str]:
    """All jobs that SLURM ever had for a sweep's folder,
    by its accounting (which leaves out those on hold).
    """
    names = [path.stem for path in (sweep / ".submitit").glob("*.json")]
    return (
        ask("sacct", "-X", "-n", "-P", "-o", "JobID", "--name", ",".join(names)).split()
        if names
        else []
    )


@pytest.fixture
def sweep(tmp_path: Path) -> Iterator[Sweep]:
    yield Sweep(tmp_path / "sweep")
    ask("scancel", "--user", ask("id", "-un"))  # what a failed test left would disturb the next
