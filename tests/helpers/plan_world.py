"""Plans carried out in a time of their own, by an executor whose cells only leave records."""

import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.decide.plan import carry_out, planning
from multicard.decide.plan.carry_out import FOLDER, CarriedPlan
from multicard.decide.plan.schedule import GpusOption, PlanTask
from multicard.estimate.totals import exact
from multicard.records.journal import Journal
from multicard.records.run_folder import RecordedRun
from multicard.sweep import executor
from multicard.sweep.drive import Drive
from multicard.sweep.executor import Processes
from multicard.sweep.streak import Streak
from tests.helpers import records

BEGAN_S = 1.7e9  # of the first command, since 1970
AGO_S = 1000.0  # since the first command began, where there was one


@dataclass
class FakeCell:
    """A task on a number of GPUs: `ends` is its status."""

    name: str
    gpus: int
    folder: Path
    lasts_s: float
    ends: str = "ok"
    result: RecordedRun | None = None
    config: Any = None
    max_jobs: int | None = None
    cause: dict[str, str] | None = None

    def leave(self) -> RecordedRun:
        """Leave its record."""
        made = self.cause or {"kind": "exception", "message": f"made {self.ends}"}
        cause = None if self.ends == "ok" else made
        record = records.vision() | {"status": self.ends, "cause": cause}
        self.folder.mkdir(parents=True, exist_ok=True)
        records.put(self.folder, record)
        return records.as_run(record | {"folder": str(self.folder)})


class World:
    """Tasks, their cells and where they run: the executor of a plan, its machine and its clock.

    Attributes:
        now_s: since 1970.
        started: name, number of GPUs and start of the cells.
        leased: GPUs that another command has.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.now_s = folder, BEGAN_S
        self.tasks: list[PlanTask] = []
        self.cells: dict[tuple[str, int], FakeCell] = {}
        self.running: dict[str, tuple[FakeCell, float]] = {}
        self.started: list[tuple[str, int, float]] = []
        self.gpus, self.leased = 2, 0
        self.machine = self

    def add(self, name: str, seconds: Mapping[int, float], *after: int, job: str = "", lasts: float = 1.0,
            **ends: str) -> None:  # fmt: skip
        """A task that is planned with these times, and takes `lasts` times as long.

        Args:
            ends: status by number of GPUs ("on1"); "ok" of others.
        """
        options = [GpusOption(gpus, s, exact(s), exact(s)) for gpus, s in seconds.items()]
        self.tasks.append(PlanTask(name, tuple(options), after, None, job or name))
        for gpus, planned_s in seconds.items():
            cell = FakeCell(
                name,
                gpus,
                self.folder / f"{name}-{gpus}",
                planned_s * lasts,
                ends.get(f"on{gpus}", "ok"),
            )
            cell.config = self.cells[name, gpus] = cell

    # ---- the executor

    def take(self, cell: FakeCell) -> int | None:
        free = self.gpus - self.leased - sum(other.gpus for other, _ in self.running.values())
        assert cell.gpus <= free + self.leased, "the plan has more GPUs at once than there are"
        return cell.gpus if cell.gpus <= free else None

    def start(self, cell: FakeCell, share: int) -> Any:
        self.started.append((cell.name, share, self.now_s - BEGAN_S))
        self.running[cell.name] = cell, self.now_s
        return SimpleNamespace(pid=17)

    def log_of(self, process: Any) -> Path:
        return self.folder / f"{process.pid}_0_log.out"

    def collect_ended(self) -> list[FakeCell]:
        over = [
            cell for cell, start_s in self.running.values() if start_s + cell.lasts_s <= self.now_s
        ]
        for cell in over:
            del self.running[cell.name]
            cell.result = cell.leave()
        return over

    def interrupt(self) -> None:
        self.running.clear()

    # ---- the command

    def journal(self) -> closing[Journal]:
        return closing(Journal(self.folder / FOLDER / "events.jsonl", f"--name {self.folder.name}"))

    def carrying(self, journal: Journal) -> CarriedPlan:
        cells: Any = self.cells
        return CarriedPlan(self.tasks, self.gpus, cells, journal, limit_s=0.5)

    def run(self, *raised: type[Exception]) -> CarriedPlan:
        """Plan and carry out to the end, at which these are raised."""
        with self.journal() as journal:
            carried = self.carrying(journal)
            executor: Any = self
            if rest := carried.rest():
                ends = pytest.raises(raised) if raised else nullcontext()
                with ends:
                    carried.run(planning.make(rest, self.gpus, 0.5).schedule, executor)
        return carried

    def start_ready(self, carried: CarriedPlan) -> None:
        executor: Any = self
        Drive(carried, Processes(executor), Streak()).start_ready()

    @contextmanager
    def started_plan(self) -> Iterator[CarriedPlan]:
        """A plan whose first tasks have been started, as far as they can."""
        with self.journal() as journal:
            carried = self.carrying(journal)
            carried.adopt(planning.make(carried.rest(), self.gpus, 0.5).schedule)
            carried.began = self.now_s
            self.start_ready(carried)
            yield carried

    def began(self, *events: dict[str, Any]) -> None:
        """Leave what a command noted that began AGO_S ago."""
        file = self.folder / FOLDER / "events.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(
            "".join(json.dumps(event) + "\n" for event in ({"began": self.now_s}, *events))
        )
        self.now_s += AGO_S


def in_own_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world whose clock moves on when a plan pauses."""
    made = World(folder)

    def pause(seconds: float) -> None:
        made.now_s += seconds
        assert made.now_s < BEGAN_S + 10 * AGO_S, "the plan does not end"

    monkeypatch.setattr(executor, "pause", pause)
    monkeypatch.setattr(carry_out, "since_epoch_s", lambda: made.now_s)
    return made


def statuses(carried: CarriedPlan) -> dict[str, str]:
    return {each.task.name: each.status for each in carried.progress}
