"""A plan that SLURM carries out: jobs have the GPUs and the order of the plan, and none is submitted twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.conftest import PATIENCE_S, ROOT
from tests.slurm.conftest import QUICK, Sweep, ask, wait_for

JOBS = """
node: {{slurm: true, partition: main, cpus_per_gpu: 1}}
slowdown: 1.0
jobs:
  first: {{run: train_vision.py {words}, seconds: {{2: 60}}}}
  next: {{run: train_vision.py {words} seed=3, seconds: {{1: 60}}, after: [first]}}
"""


def plan(folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "multicard", "plan", "jobs.yaml", "--run", "--json", "plan.json", "--seconds", "1"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=folder, env=variables, text=True, stdout=-1, stderr=subprocess.STDOUT)


def test_a_plan_is_carried_out_and_goes_on_after_a_kill(tmp_path: Path, sweep: Sweep):
    (tmp_path / "jobs.yaml").write_text(
        JOBS.format(words=" ".join(w for w in (*QUICK, "dataset=digits") if "cpus" not in w))
    )
    sweep.folder = tmp_path / "multirun" / "jobs"
    killed = plan(tmp_path)
    wait_for(lambda: ask("squeue", "-h", "--me"))
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=PATIENCE_S)  # its output ends when its jobs' commands have
    assert len(wait_for(sweep.submissions)) == 1
    again = plan(tmp_path)
    printed, _ = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, printed
    assert "on 4 GPUs of SLURM" in printed  # of one run, where the first has ended meanwhile
    jobs = {job["name"]: job for job in json.loads((tmp_path / "plan.json").read_text())["carried_out"]["jobs"]}
    assert {name: (job["status"], job["gpus"]) for name, job in jobs.items()} == {"first": ("ok", 2), "next": ("ok", 1)}
    fields = ("sacct", "-X", "-n", "-P", "-o", "AllocTRES,Start,End", "-j")

    def accounted() -> list[list[str]]:
        """Resources, start and end of the jobs, once accounting has the ends of both."""
        jobs = sweep.submissions()
        rows = [row.split("|") for row in ask(*fields, ",".join(jobs)).splitlines()] if jobs else []
        return sorted(rows, key=lambda row: row[1]) if sum(row[2] != "Unknown" for row in rows) >= 2 else []

    first, after = wait_for(accounted)  # and no third
    assert "gres/gpu=2" in first[0] and "gres/gpu=1" in after[0] and first[1] < after[1]
    assert jobs["first"]["end_s"] <= jobs["next"]["start_s"]  # by its record, before SLURM has cleaned up
