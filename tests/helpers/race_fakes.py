"""Races without processes: cells that train as their batch size says."""

import json
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from multicard.decide.race import processes
from multicard.decide.race.outcome import OUT, SURE
from multicard.decide.race.processes import CellEndedError
from multicard.decide.race.readings import LEAST_STEPS, MeasuredBlock
from multicard.decide.race.rules import Race
from multicard.machine.shares import MachineShare
from multicard.ranks.elastic import KILLED
from multicard.ranks.gates import blocks_file
from multicard.sweep.cells import Cell
from tests.conftest import SMALL, composed
from tests.helpers import records
from tests.helpers.cells import cell

SHARE = MachineShare(None, (0,))
KILLED_BY = f"rank 0 was {KILLED[0]}"


def measured(
    step_s: Sequence[float] | np.ndarray, samples: Any = 8.0, peak: int = 10**6, step: int = 5
) -> MeasuredBlock:
    seconds = np.asarray(step_s)
    return MeasuredBlock(step, 1, 100, seconds, samples * np.ones(len(seconds)), [peak], False)


def write_block(folder: Path, rank: int = 0, end: str = "\n", **values: Any) -> None:
    """As a rank does when it pauses."""
    line = {
        "step": 5,
        "ranks": 1,
        "skips": 2,
        "steps_per_epoch": 100,
        "peak_memory_bytes": 10,
        "loss": 0.5,
    }
    path = blocks_file(folder, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(
            json.dumps(
                line | {"step_s": [0.1] * LEAST_STEPS, "samples": [8.0] * LEAST_STEPS} | values
            )
            + end
        )


class Rules(Race):
    """Rules of a race that ends after some rounds of all cells that are in;
    full runs of all of these follow.
    """

    rounds = 2

    @property
    def gives_up(self) -> bool:
        return False

    def next_round(self) -> list[int]:
        alive = [each for each in self.standings if each.state != OUT]
        if self.round + 1 >= self.rounds:
            self.end(SURE, [each.cell for each in sorted(alive, key=lambda each: -each.log_figure)])
            return []
        self._rounds += 1
        return [each.cell for each in alive]


class Process:
    """A process of a cell that trains as its step says, or ends with a status."""

    log: list[tuple[str, int]]
    statuses: dict[tuple[str, int], list[str]]  # by batch size
    load: dict[int, float] = {}  # noqa: RUF012 (share of the cores that others have, by batch size)
    # images/s by batch size, with noise; else the time of a step is nearly the same
    rates: dict[int, float]

    def __init__(self, cell: Cell, number: int, executor: Any) -> None:
        self.cell, self.number, self.ran_at_s, self.size = (
            cell,
            number,
            float(number),
            cell.cfg.batch_size,
        )
        self.start_s, self.block_s, self.ended, self.diverged = 2.0, 1.0, False, False
        self.busy = Process.load.get(self.size, 0.0)
        self.step_s: float | None = None
        self.running = SimpleNamespace(has_ended=lambda: self.ended)
        self.executor = executor
        self.executor.running.append(self.running)
        self.act("start")

    def act(self, what: str) -> None:
        Process.log.append((what, self.size))
        statuses = Process.statuses.get((what, self.size))
        status = statuses.pop(0) if statuses else "ok"
        self.diverged = status == "not finite"
        if status not in ("ok", "not finite"):
            self._end()
            message = KILLED_BY if status == "killed" else "of its own"
            status = "failed" if status == "killed" else status
            raise CellEndedError(
                records.as_run(records.vision(status=status, cause={"message": message}))
            )

    def run_block(self, _: float) -> MeasuredBlock:
        self.act("block")
        self.step_s = 0.1
        if self.diverged:
            return replace(measured([0.1]), diverged=True)
        if self.size in Process.rates:
            noise = 1 + 0.04 * np.random.default_rng([self.number, len(Process.log)]).normal(
                size=50
            )
            return measured(
                self.size / Process.rates[self.size] * noise, self.size, peak=self.size * 10**6
            )
        return measured([0.1 + 1e-4 * self.size] * 10, self.size, peak=self.size * 10**6)

    def end(self) -> None:
        Process.log.append(("end", self.size))
        self._end()

    def _end(self) -> None:
        self.ended = True
        self.executor.running.remove(self.running)

    def wait_until_quiet(self) -> None:
        Process.log.append(("quiet", self.size))


def faked(
    sizes: Sequence[int], folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str
) -> list[Cell]:
    """Cells of these batch sizes, whose processes are `Process`."""
    monkeypatch.setattr(
        processes, "start", lambda executor, cell, number, _: Process(cell, number, executor)
    )
    Process.log, Process.statuses, Process.rates, Process.load = [], {}, {}, {}
    words = [
        *(word for word in SMALL if not word.startswith("batch_size")),
        "race.figure=images_per_s",
        *more,
    ]
    cells, of_all = [], composed(*words)
    for number, size in enumerate(sizes, 1):
        cfg = deepcopy(of_all)
        cfg.batch_size = size
        config: Any = OmegaConf.to_object(cfg)
        task = SimpleNamespace(
            hydra=SimpleNamespace(overrides=SimpleNamespace(task=[*words, f"batch_size={size}"]))
        )
        place, label = (
            folder / f"batch_size={size}-{config.identity()}",
            f"[{number}/{len(sizes)}] ",
        )
        cells.append(cell(number, place, label=label, composed=task, cfg=cfg, config=config))
    return cells
