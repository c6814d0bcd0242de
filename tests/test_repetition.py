"""Cells that are measured several times: in which order, in which folders, and what a later command finds."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multicard.controller import outcome, run
from multicard.controller.prepare import typed
from multicard.controller.session import SESSION
from multicard.measure import formulas
from multicard.records import run_folder
from multicard.sweep import dry_run
from multicard.sweep.plan import Cell
from tests import records

Called = Callable[..., tuple[int, str]]
Measured = list[tuple[str, int, int]]  # precision, seed and repetition of each run, in their order


@pytest.fixture
def planned(called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Cell]]:
    """The cells that a sweep of these words would measure, in their order."""

    def plan(*words: str) -> list[Cell]:
        seen: list[list[Cell]] = []
        monkeypatch.setattr(dry_run, "show", lambda cells, *_, **__: seen.append(cells))
        code, printed = called("-m", *words, "dry_run=true", "device=cpu", f"hydra.sweep.dir={tmp_path}")
        assert code == 0, printed
        return seen[0]

    return plan


@pytest.fixture
def sweep(called: Called, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Runs a sweep whose runs take the step times that `step_s` of precision and repetition says, without training.

    Returns the exit code, what was printed, and the runs that were measured.
    """

    def take(*words: str, step_s: Callable[[str, int], float] = lambda *_: 0.1) -> tuple[int, str, Measured]:
        measured: Measured = []

        def measure(workload: Any, cfg: Any, folder: Path, **_: Any) -> dict[str, Any]:
            config = typed(workload, cfg)
            measured.append((config.precision.name, config.seed, config.repetition))
            own = outcome.begin(workload, cfg, folder) | {"status": "ok", "identity": config.identity()}
            seconds = step_s(config.precision.name, config.repetition)
            status = "ok" if math.isfinite(seconds) else "oom"
            timed = {"status": status, "step_s": formulas.statistics([seconds] * 10, 1)}
            record = records.vision("cpu") | own | timed
            if status != "ok":
                record["cause"] = {"kind": "oom", "message": "out of memory"}
            run_folder.write_result(folder, record)
            return record

        monkeypatch.setattr(run, "measure", measure)
        code, printed = called("-m", *words, "device=cpu", f"hydra.sweep.dir={tmp_path}/s")
        return code, printed, measured

    yield take
    SESSION.__init__()


@pytest.mark.parametrize("words", [["precision=fp32,bf16", "seed=0,1"], ["seed=0,1", "precision=fp32,bf16"]])
def test_seeds_are_the_outermost_axis_however_they_are_typed(words: list[str], planned: Callable[..., list[Cell]]):
    settings = [(cell.cfg.seed, cell.cfg.precision.name) for cell in planned(*words)]
    assert settings == [(0, "fp32"), (0, "bf16"), (1, "fp32"), (1, "bf16")]


@pytest.mark.parametrize("launcher", ["local", "submitit_local", "submitit_slurm"])
def test_all_cells_are_measured_before_any_is_measured_again(launcher: str, planned: Callable[..., list[Cell]]):
    cells = planned("precision=fp32,bf16", "seed=0,1", "repeat=2", f"hydra/launcher={launcher}")
    settings = [(cell.cfg.repetition, cell.cfg.seed, cell.cfg.precision.name) for cell in cells]
    assert settings == [(r, s, p) for r in (1, 2) for s in (0, 1) for p in ("fp32", "bf16")]
    assert len({cell.folder for cell in cells}) == 8
    assert len({cell.config.identity() for cell in cells if cell.config is not None}) == 4


def test_only_repetitions_that_are_missing_are_measured(sweep: Callable[..., Any], tmp_path: Path):
    _, _, first = sweep("precision=fp32,bf16")
    assert first == [("fp32", 0, 1), ("bf16", 0, 1)]
    assert not list(tmp_path.glob("s/*-r*"))  # a cell that is measured once has the folder that it always had
    _, printed, more = sweep("precision=fp32,bf16", "repeat=3")
    assert more == [("fp32", 0, 2), ("bf16", 0, 2), ("fp32", 0, 3), ("bf16", 0, 3)]
    assert printed.count("measured before (ok)") == 2
    assert [line.split()[:3] for line in printed.splitlines() if line.startswith(("fp32", "bf16"))] == [
        [precision, "1", repetition] for repetition in "123" for precision in ("fp32", "bf16")
    ]
    results = {path.parent.name: run_folder.read_json(path) for path in tmp_path.glob("s/*/result.json")}
    assert sorted(record["repetition"] for record in results.values() if record) == [1, 1, 2, 2, 3, 3]
    assert all(name.endswith(f"-r{r['repetition']}") == (r["repetition"] > 1) for name, r in results.items() if r)
    _, printed, none = sweep("precision=fp32,bf16", "repeat=3", "dry_run=true")
    assert none == [] and "measured before: 6; in the queue: 0; refused: 0" in printed
    _, _, again = sweep("precision=fp32", "repetition=2", "rerun=true")
    assert again == [("fp32", 0, 2)]


def test_a_single_run_cannot_be_repeated_and_bad_counts_are_refused(called: Called, tmp_path: Path):
    run_in = f"hydra.run.dir={tmp_path}/run"
    for words, reason in (
        (["repeat=3"], "refused: repeat=3: several runs are a sweep; add -m"),
        (["repeat=no"], "refused: repeat=no: must be 1 or more"),
        (["repetition=0"], "refused: repetition=0: must be 1 or more"),
        (["-m", "repeat=1,2"], "refused: repeat=1,2: takes one value, not a sweep"),
    ):
        code, printed = called(*words, "device=cpu", run_in, f"hydra.sweep.dir={tmp_path}/run")
        assert (code, printed.strip()) == (1, reason)
        assert not (tmp_path / "run").exists()
