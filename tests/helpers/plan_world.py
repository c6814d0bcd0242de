"""Plans whose jobs are tiny scripts, on two GPUs that stand for real ones."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from multicard.decide.plan import planning
from multicard.decide.plan.carry_out import CarryingOut
from multicard.decide.plan.jobs_file import Goal
from multicard.decide.plan.places import Place, Start, ThisMachine
from multicard.decide.plan.schedule import Option, Task
from multicard.decide.plan.state import State
from multicard.machine import leases
from multicard.records import run_folder
from multicard.records.schema_parts import Interval
from multicard.sweep import shares

# Writes a line with its times and its GPUs, waits until a file is there where it has to, and leaves a record
JOB = """
import json, os, sys, time
from pathlib import Path
folder, status, seconds, waits_for = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4]
folder.mkdir(exist_ok=True)
with open(folder.parent / "started", "a") as file:
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    file.write(json.dumps([folder.name, os.getpid(), gpus, sorted(os.sched_getaffinity(0))]) + "\\n")
busy = [folder.parent / f"busy-{gpu}" for gpu in gpus.split(",") if waits_for]
for mark in busy:
    os.close(os.open(mark, os.O_CREAT | os.O_EXCL))  # fails where another job is on the same GPU
time.sleep(seconds)
while waits_for and not Path(waits_for).exists():
    time.sleep(0.02)
for mark in busy:
    mark.unlink()
if status == "exit":
    sys.exit(3)
cause = None if status == "ok" else {"message": f"it was made to end {status}"}
Path(sys.argv[5]).write_text(json.dumps({"status": status, "cause": cause}))
"""
GPUS = ("GPU-a", "GPU-b")


class World:
    """Jobs that are scripts, on two GPUs that stand for real ones, or wherever `place` says."""

    place: Place | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.script = folder / "job.py"
        self.script.write_text(JOB)
        self.tasks: list[Task] = []
        self.starts: dict[tuple[str, int], Start] = {}

    def add(self, name: str, seconds: Mapping[int, float], *after: int, job: str = "", lasts_s: float = 0.0,
            waits_for: str = "", **ends: str) -> None:  # fmt: skip
        """A task that is planned with these times.

        Args:
            ends: status by number of GPUs ("on1"); "ok" of others.
        """
        exact = {gpus: Interval(s, s, s) for gpus, s in seconds.items()}
        options = tuple(Option(gpus, s, exact[gpus], s) for gpus, s in seconds.items())
        self.tasks.append(Task(name, options, after, None, job or name))
        for gpus in seconds:
            own, record = self.folder / name, self.folder / name / f"on{gpus}.json"
            awaited_file = str(self.folder / waits_for) if waits_for else ""
            words = (str(self.script), str(own), ends.get(f"on{gpus}", "ok"), str(lasts_s), awaited_file, str(record))
            self.starts[name, gpus] = Start(words, gpus, 0, True, lambda at=record: run_folder.read_json(at))

    def carrying(self, name: str = "plan", gpus: int = 2) -> CarryingOut:
        state = State(self.folder / name)
        place = self.place or ThisMachine(gpus)
        return CarryingOut(self.tasks, gpus, Goal.makespan, self.starts, place, state)

    def run(self, name: str = "plan", gpus: int = 2) -> CarryingOut:
        """Plan and carry out to the end, without the solver's share."""
        carried = self.carrying(name, gpus)
        try:
            rest = carried.rest()
            if rest:
                carried.run(planning.make(rest, gpus, Goal.makespan, 1.0).schedule)
        finally:
            carried.state.close()
        return carried

    def started(self) -> list[tuple[str, int, str, list[int]]]:
        """Name, process, GPUs and cores of the jobs, in the order in which they began."""
        path = self.folder / "started"
        return [tuple(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def in_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world with leases of its own."""
    monkeypatch.setenv(leases.VARIABLE, str(folder / "leases"))
    monkeypatch.setattr(shares, "machine", lambda: shares.Pool([*GPUS], sorted(os.sched_getaffinity(0))))
    return World(folder)


def statuses(carried: CarryingOut) -> dict[str, str]:
    return {each.task.name: each.status for each in carried.progress}
