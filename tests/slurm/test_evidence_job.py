"""`multicard evidence --slurm`: the command as one job,
which writes page and file where it was submitted.
"""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.conftest import ROOT, awaited
from tests.helpers.messages import find, says
from tests.slurm.conftest import ask


def has_ended(log: Path) -> bool:
    return log.exists() and says(log.read_text(), "evidence.written")


def test_evidence_is_one_job_and_goes_on_in_another(tmp_path: Path):
    out = tmp_path / "evidence"
    words = [sys.executable, "-m", "multicard", "evidence", "--out", str(out), "--minutes", "5"]
    words += ["--only", "machine", "--slurm", "cpus-per-task=2"]
    for _ in range(2):
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        submitted = find(done.stdout, "evidence.submitted", asks_for_gpus=False)
        job, log = submitted.facts["job"], Path(submitted.facts["log"])
        awaited(partial(has_ended, log))
        while ask("squeue", "-h", "-j", job, "-t", "all", "-o", "%T") in ("RUNNING", "COMPLETING"):
            time.sleep(0.5)
        assert "COMPLETED" in ask("sacct", "-n", "-X", "-j", job, "-o", "State")
        assert find(log.read_text(), "evidence.summary", measured=1, steps=1)
    assert (out / "evidence.html").stat().st_size > 10_000


def test_what_slurm_refuses_is_said():
    words = [sys.executable, "-m", "multicard", "evidence", "--slurm", "partition=nowhere"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "partition" in find(done.stderr, "evidence.sbatch", key="--slurm").facts["reason"]
