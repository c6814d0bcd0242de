"""Plans carried out in a time of their own, by a place whose cells only leave records."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from multicard.decide.plan import carry_out, journal, planning
from multicard.decide.plan.carry_out import CarryingOut
from multicard.decide.plan.journal import PlanJournal
from multicard.decide.plan.schedule import Option, Task
from multicard.records.run_folder import Run
from multicard.records.schema_parts import Interval
from tests.helpers import records

BEGAN_S = 1.7e9  # of the first command, since 1970
AGO_S = 1000.0  # since the first command began, where there was one


@dataclass
class FakeCell:
    """A cell on a number of GPUs: `ends` is its status.

    queued_s: how long it waits in a queue. None: for ever.
    """

    name: str
    folder: Path
    lasts_s: float
    ends: str = "ok"
    queued_s: float = 0.0
    result: Run | None = None

    def leave(self, began_s: float, start_s: float, end_s: float, **more: Any) -> dict[str, Any]:
        """Leave a record of a run, at seconds since the plan began."""
        ends = [datetime.fromtimestamp(began_s + s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ") for s in (start_s, end_s)]
        cause = None if self.ends == "ok" else {"kind": "exception", "message": f"it was made to end {self.ends}"}
        record = (
            records.vision(segments=[])
            | {"status": self.ends, "cause": cause, "started_at": ends[0], "ended_at": ends[1]}
            | more
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        records.put(self.folder, record)
        return record


class World:
    """Tasks, their cells and where they run: both the place and the clock of a plan.

    Attributes:
        now_s: since 1970.
        started: name, GPUs and start of the cells.
        given_up: how often turns in the queue of others' leases were given up.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, BEGAN_S
        self.keeps_jobs = False
        self.tasks: list[Task] = []
        self.cells: dict[tuple[str, int], FakeCell] = {}
        self.running: dict[str, tuple[FakeCell, float]] = {}
        self.started: list[tuple[str, tuple[int, ...], float]] = []
        self.given_up = 0

    def add(self, name: str, seconds: Mapping[int, float], *after: int, job: str = "", lasts: float = 1.0,
            queued_s: float = 0.0, wide: bool = False, **ends: str) -> None:  # fmt: skip
        """A task that is planned with these times, and takes `lasts` times as long.

        Args:
            wide: its times may be anything from half to ten times what is planned.
            ends: status by number of GPUs ("on1"); "ok" of others.
        """
        spread = (0.5, 10.0) if wide else (1.0, 1.0)
        options = [Option(gpus, s, Interval(s, s * spread[0], s * spread[1]), s) for gpus, s in seconds.items()]
        self.tasks.append(Task(name, tuple(options), after, None, job or name))
        for gpus, planned_s in seconds.items():
            status = ends.get(f"on{gpus}", "ok")
            self.cells[name, gpus] = FakeCell(name, self.folder / f"{name}-{gpus}", planned_s * lasts, status, queued_s)

    # ---- the place

    def start(self, cell: FakeCell, gpu_ids: Sequence[int]) -> str:
        taken = {gpu for name, gpus, _ in self.started if name in self.running for gpu in gpus}
        assert self.keeps_jobs or not taken & {*gpu_ids}
        self.started.append((cell.name, tuple(gpu_ids), self.now_s - BEGAN_S))
        self.running[cell.name] = cell, self.now_s + cell.queued_s
        return "log"

    def ended(self) -> list[FakeCell]:
        over = [(cell, start_s) for cell, start_s in self.running.values() if start_s + cell.lasts_s <= self.now_s]
        for cell, start_s in over:
            del self.running[cell.name]
            cell.result = records.as_run(cell.leave(start_s, 0, cell.lasts_s) | {"folder": str(cell.folder)})
        return [cell for cell, _ in over]

    def age_s(self, cell: FakeCell) -> float | None:
        start_s = self.running[cell.name][1]
        return None if start_s > self.now_s else self.now_s - start_s

    def interrupt(self) -> None:
        self.running.clear()

    def wait_no_more(self) -> None:
        self.given_up += 1

    # ---- the command

    def carrying(self, gpus: int = 2) -> CarryingOut:
        cells: Any = self.cells
        place: Any = self
        return CarryingOut(self.tasks, gpus, cells, place, PlanJournal(self.folder), limit_s=0.5)

    def run(self, gpus: int = 2) -> CarryingOut:
        """Plan and carry out to the end."""
        carried = self.carrying(gpus)
        try:
            if rest := carried.rest():
                carried.run(planning.make(rest, gpus, 0.5).schedule)
        finally:
            carried.journal.close()
        return carried

    def began(self, *events: dict[str, Any]) -> None:
        """Leave what a command noted that began AGO_S ago."""
        file = self.folder / journal.FOLDER / "events.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text("".join(json.dumps(event) + "\n" for event in ({"began": self.now_s}, *events)))
        self.now_s += AGO_S

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / journal.FOLDER / "events.jsonl").open()]


def in_own_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose clock moves on when a plan pauses."""
    made = World(folder)

    def pause(seconds: float) -> None:
        made.now_s += seconds
        assert made.now_s < BEGAN_S + 10 * AGO_S, "the plan does not end"

    monkeypatch.setattr(carry_out, "pause", pause)
    monkeypatch.setattr(journal, "since_epoch_s", lambda: made.now_s)
    return made


def statuses(carried: CarryingOut) -> dict[str, str]:
    return {each.task.name: each.status for each in carried.progress}
