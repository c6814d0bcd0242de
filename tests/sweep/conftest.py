"""Sweeps whose runs do not train: what they would measure,
and records of the times that a test gives them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from multicard.measure import formulas
from multicard.records import content
from multicard.records.run_folder import RecordedRun
from multicard.run import controller, outcome
from multicard.run.prepare import typed
from multicard.sweep import dry_run
from multicard.sweep.cells import Cell
from tests.conftest import Called
from tests.helpers import records

Measured = list[tuple[str, int, int]]  # precision, seed and repetition of each run, in their order
Measure = Callable[..., tuple[int, str, Measured]]


@dataclass
class Dry:
    """What a dry run found.

    cells: in the typed order. groups: those of each group of jobs,
    in the order in which they are measured.
    """

    cells: list[Cell]
    groups: list[list[Cell]]
    printed: str


DryRun = Callable[..., Dry]
Planned = Callable[..., list[Cell]]


@pytest.fixture
def dry(called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DryRun:
    """Says what a sweep of these words would measure."""

    def plan(*words: str) -> Dry:
        seen: list[Dry] = []

        def take(sweep: Any, groups: Any, *further: Any, **options: Any) -> None:
            seen.append(Dry(sweep.every, [[*own] for _, own in groups], ""))
            shown(sweep, groups, *further, **options)

        shown = dry_run.show
        with monkeypatch.context() as patched:
            patched.setattr(dry_run, "show", take)
            code, printed = called(
                "-m", *words, "dry_run=true", "device=cpu", f"hydra.sweep.dir={tmp_path}/s"
            )
        assert code == 0, printed
        seen[-1].printed = printed
        return seen[-1]

    return plan


@pytest.fixture
def planned(dry: DryRun) -> Planned:
    """The cells that a sweep of these words would measure, in the typed order."""
    return lambda *words: dry(*words).cells


@pytest.fixture
def sweep(called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Measure:
    """Runs a sweep whose runs take the step times that `step_s` of precision and repetition says,
    without training.

    `busy` says of which runs others use the cores meanwhile. After `most` runs the sweep is
    interrupted. Returns the exit code, what was printed, and the runs that were measured.
    """

    def take(
        *words: str,
        step_s: Callable[[str, int], float] = lambda *_: 0.1,
        busy: Callable[[str, int], bool] = lambda *_: False,
        most: float = math.inf,
    ) -> tuple[int, str, Measured]:
        measured: Measured = []

        def measure(workload: Any, cfg: Any, folder: Path, **_: Any) -> RecordedRun:
            config: Any = typed(workload, cfg)
            measured.append((config.precision.name, config.seed, config.repetition))
            begun = outcome.begin(workload, cfg, folder).record
            own = {
                "axes": begun.axes,
                "repetition": begun.repetition,
                "identity": config.identity(),
            }
            seconds = step_s(config.precision.name, config.repetition)
            status = "ok" if math.isfinite(seconds) else "oom"
            timed = {
                "status": status,
                "step_s": formulas.statistics([seconds if status == "ok" else 1.0] * 10, 1),
            }
            data = msgspec.to_builtins(content.fingerprint(workload.data(config)))
            record = records.vision("cpu") | own | timed | {"data": data, "folder": str(folder)}
            record["config"] = record["config"] | {"order": config.order}
            if busy(config.precision.name, config.repetition):
                record["load"] = record["load"] | {"others_cores": record["cores"] / 2}
            if status != "ok":
                record["cause"] = {"kind": "oom", "message": "out of memory"}
            if len(measured) > most:
                measured.pop()
                record |= {
                    "status": "interrupted",
                    "cause": {"kind": "interrupt", "message": "SIGINT"},
                }
            records.put_whole(folder, record)
            return records.as_run(record)

        monkeypatch.setattr(controller, "measure", measure)
        code, printed = called("-m", *words, "device=cpu", f"hydra.sweep.dir={tmp_path}/s")
        return code, printed, measured

    return take
