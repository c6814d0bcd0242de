"""Races to their end, by the real rules on cells without processes: equal cells, cells that end by themselves, energy,
and what is refused."""

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from hydra_plugins.multicard_launchers._batches import Batches
from multicard.decide.race import grid, live, processes, readings, view
from multicard.decide.race.live import LiveRace
from multicard.decide.race.posterior import Block, Prior
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.readings import LEAST_STEPS, BlockReader, Energy, Reading
from multicard.machine import shares
from multicard.records.figures import FIGURES
from multicard.records.journal import JournalError
from multicard.records.run_folder import Run
from multicard.sweep.executor import Executor, Running, SameFailureError
from tests.conftest import SMALL
from tests.helpers import records
from tests.helpers.cells import sweep
from tests.helpers.race_fakes import SHARE, Process, Rules, faked, measured, write_block

Called = Callable[..., tuple[int, str]]
Raced = Callable[..., tuple[LiveRace, str]]
ENERGY = FIGURES["joules_per_image"]


@pytest.fixture
def raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raced:
    """Races cells of these images/s, by batch size, to the end. Returns the race, and its last lines."""

    monkeypatch.setattr(live, "FINAL_RUNS", 1)  # three of the best would take as long as such a grid

    def run(rates: dict[int, float], **statuses: Any) -> tuple[LiveRace, str]:
        race = LiveRace(faked([*rates], tmp_path, monkeypatch))
        Process.rates = rates
        Process.statuses = {(when, size): told for when, sizes in statuses.items() for size, told in sizes.items()}
        race.run(SHARE)
        finals = race.finals()
        for cell in finals:
            made = {"test_accuracy": 0.5, "total_s": 60.0, "axes": {"batch_size": cell.cfg.batch_size}}
            cell.result = records.as_run(made)

        def full_run(run: Run, _: Any) -> Reading:
            return Reading(math.log(rates[int(run.record.axes["batch_size"] or 0)]), 0.001)

        monkeypatch.setattr(readings, "full_run", full_run)
        monkeypatch.setattr(view.text_table, "terminal_width", lambda: 120)
        race.take_finals(finals)
        race.journal.close()
        return race, "\n".join(view.end(race, finals))

    return run


def test_two_equal_cells_end_and_that_is_said(raced: Raced):
    race, said = raced({8: 300.0, 16: 300.0, 32: 200.0})
    winner = race.rules.verdict().winner
    other = {0: "[2/3]", 1: "[1/3]"}[winner or 0]
    assert winner in (0, 1) and (f"as good, within 2%: {other}" in said or f"too close to tell: {other}" in said), said
    assert race.rules.round < 100 and "50.0%" in said  # the accuracy


@pytest.mark.parametrize("status", ["oom", "diverged", "failed", "not finite"])
def test_a_cell_that_ends_by_itself_is_out_and_the_race_goes_on(raced: Raced, status: str):
    race, said = raced({8: 200.0, 16: 300.0, 32: 400.0}, block={32: [status] * 9})
    assert race.rules.verdict().winner == 1 and race.ended == {2}
    reason = "diverged: its loss is not finite" if status == "not finite" else f"{status}: of its own"
    assert race.rules.standings[2].reason == reason
    lines = [json.loads(line) for line in race.journal.path.read_text().splitlines()]
    assert [line["out"] for line in lines if "out" in line] == [reason] * (status != "failed")
    assert "winner: [2/3]" in said and f"out: [3/3] {reason}" in said


def test_a_process_that_is_killed_is_out_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (cell,) = faked([8], tmp_path, monkeypatch)
    cell.folder.mkdir()
    executor = Executor(tmp_path)
    job = SimpleNamespace(done=lambda: True, job_id="17")
    executor.running.append(Running(cell, job, SHARE))
    process = CellProcess(cell, 1, executor, executor.running[0], BlockReader(cell.folder))
    with pytest.raises(CellEndedError) as ended:
        process.wait()
    record = ended.value.run.record
    assert record.status == "failed" and record.cause is not None and "ended without a record" in record.cause.message


def test_the_energy_of_a_sample_is_that_of_all_steps_of_a_block():
    block = replace(measured([0.1] * 10, 8.0), energy=Energy(joules=120.0, steps=15, seconds=2.0))
    assert block.reading(ENERGY) == (pytest.approx(-math.log(1.0)), pytest.approx(0.05))
    block = replace(block, energy=None)
    assert not np.isfinite(block.reading(ENERGY)).any()
    after = replace(block, energy=Energy(1.0, 2, 3.0))
    assert block.joined(after).energy == after.energy  # the first steps of a process take more
    run = records.as_run({"joules_per_image": 2.0, "total_s": 10.0})
    assert readings.full_run(run, ENERGY) == (pytest.approx(-math.log(2.0)), pytest.approx(0.01))


def test_a_full_runs_energy_which_has_that_of_evaluation_ranks_the_finalists_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for figure, blocks in {"images_per_s": 4, "energy_joules": 2}.items():
        monkeypatch.setattr(live, "Race", told := Rules(1))
        race = LiveRace(faked([8, 16], tmp_path / figure, monkeypatch, figure))
        for place in range(2):
            told.add(Block(place, 0, -5.0, 0.01, 0))
        monkeypatch.setattr(Rules, "final_runs", [(1, 0), (1, 1)])
        finals = [replace(cell, result=records.as_run({"joules_per_image": 2.0})) for cell in race.cells]
        monkeypatch.setattr(readings, "full_run", lambda *_: Reading(-6.0, 0.01))
        race.take_finals(finals)
        assert len(told.blocks) == blocks and told.full == {0: [-6.0], 1: [-6.0]}
        race.journal.close()


def test_the_energy_of_a_block_is_read_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (cell,) = faked([8], tmp_path, monkeypatch, "energy_joules")
    running: Any = SimpleNamespace(cell=cell, share=SimpleNamespace(gpus=("a", "b")), has_ended=bool)
    process = CellProcess(cell, 1, Executor(tmp_path), running, BlockReader(cell.folder))
    write_block(cell.folder, step=0, step_s=[], samples=[])
    process.wait()
    process.board = SimpleNamespace(run_to=lambda step: write_block(cell.folder, step=step))  # type: ignore[assignment]
    counter = iter([5.0, 25.0])
    monkeypatch.setattr(processes, "joules", lambda uuids: next(counter) if uuids == ("a",) else None)
    block = process._train(1.0, 0.1)
    assert block.energy is not None and (block.energy.joules, block.energy.steps) == (20.0, block.step)
    monkeypatch.setattr(processes, "joules", lambda _: None)
    assert len(process.run_block(0.0).step_s) == LEAST_STEPS


def test_a_cell_that_its_estimate_threw_out_comes_back_where_another_leaves_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The first is three times slower by its estimate, and the fastest; the journal keeps that it was out."""
    monkeypatch.setattr(live, "FINAL_RUNS", 1)
    told = [Prior(math.log(figure), 0.05, "measured", True) for figure in (100, 300)]
    monkeypatch.setattr(grid, "priors", lambda _: [*told, None])
    race = LiveRace(cells := faked([8, 16, 32], tmp_path, monkeypatch))
    Process.rates = {8: 400.0, 16: 200.0, 32: 100.0}
    race.journal.close()
    monkeypatch.setattr(grid, "priors", lambda _: [None] * 3)  # as the race's own blocks would change them
    race = LiveRace(cells)
    assert [each.cell for each in race.rules.standings if each.reason.startswith("cannot win: 92.1")] == [0]
    race.run(SHARE)
    said = capsys.readouterr().out
    assert "[1/3] out: cannot win" in said and "[1/3] in again: estimates like the one" in said
    race.journal.close()
    assert race.rules.finalists == (0,)


def test_a_race_that_does_not_pay_measures_the_grid(raced: Raced, monkeypatch: pytest.MonkeyPatch):
    """It stops after its first block, as a process starts in 2 s and a full run takes less than 2 s more."""
    monkeypatch.setattr(LiveRace, "full_s", lambda race: 3.0 if race.steps else None)
    race, said = raced({8: 200.0, 16: 300.0, 32: 400.0})
    assert [when for when, _ in Process.log] == ["start", "block", "quiet", "end"]
    assert [(cell.cfg.batch_size, cell.cfg.repetition) for cell in race.finals()] == [(8, 1), (16, 1), (32, 1)]
    assert "the race ended: it would take longer than all cells of the grid in full" in said
    assert "winner: [3/3]" in said and "in full" in said.splitlines()[1]


def test_a_race_waits_for_the_machine_and_has_all_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(shares.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(shares, "LEASES_POLL_S", 0.0)
    names = shares.machine().names
    of_another, waited = shares.hold(names[-1:]), list[float]()
    monkeypatch.setattr(processes, "pause", lambda seconds: of_another.close() or waited.append(seconds))
    (cell,) = faked([8], tmp_path, monkeypatch)

    def free() -> list[str]:
        with shares.choosing() as choice:
            return [name for name in names if choice is not None and choice.is_free(name)]

    with processes.whole_machine(cell.config) as share:
        assert waited and not {*free()} & {*share.names}
    assert free() == [*names]


@pytest.mark.parametrize("error", [SameFailureError, JournalError])
def test_a_race_that_a_full_disk_stops_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[Exception]
):
    def run(*_: Any) -> None:
        raise error("no space left")

    monkeypatch.setattr("multicard.decide.race.live.run", run)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train_vision.py", "-m", "race=images_per_s"])
    raced = sweep(*faked([8], tmp_path / "today", monkeypatch))
    context: Any = None
    config: Any = OmegaConf.create({"dry_run": False, "race": {"figure": "images_per_s"}})
    Batches(raced.command, context, config, on_slurm=False, packs=False)._race(raced)
    again = "python train_vision.py -m race=images_per_s name=today"
    assert f"stopped, no space left; to go on with the race: {again}" in capsys.readouterr().err
    assert raced.command.abandoned


REFUSED = {
    "hydra/launcher=submitit_slurm": "leave out hydra/launcher=submitit_slurm",
    "probe=true": "leave out probe=true",
    "race=images_per_s,tokens_per_s": "race.figure=images_per_s,tokens_per_s: takes one value, not a sweep",
    "hydra/sweeper=basic": "leave out hydra/sweeper",
    "hydra.sweeper.max_batch_size=2": "leave out hydra.sweeper.max_batch_size=2",
    "repeat=2": "leave out repeat=2",
    "nodes=2": "leave out nodes=2",
    "profile=kineto": "leave out profile=kineto",
    "diagnose=true": "leave out diagnose=true",
    "race=energy_joules": "no GPU here has an energy counter; take race=images_per_s",
    "race=total_s": "race=total_s: choose one of images_per_s, tokens_per_s, energy_joules",
    "race=tokens_per_s dry_run=true": "race=tokens_per_s: train_vision.py has race=images_per_s",
}


def test_what_cannot_be_raced_is_refused_in_a_line(called: Called, tmp_path: Path):
    for words, remedy in REFUSED.items():
        race = [] if words.startswith("race=") else ["race=images_per_s"]
        code, printed = called("-m", *race, *words.split(), "seed=0,1", *SMALL, f"hydra.sweep.dir={tmp_path}")
        assert code == 1 and remedy in printed and len(printed.strip().splitlines()) == 1, printed
    code, printed = called("race=images_per_s", *SMALL, f"hydra.run.dir={tmp_path / 'a'}")
    assert code == 1 and "race=images_per_s: needs cells to choose from, a sweep; add -m" in printed


def test_a_dry_run_says_what_a_race_would_do(called: Called, tmp_path: Path):
    words = ("-m", "race=images_per_s", "dry_run=true", "lr=0.1,0.2", *SMALL)
    code, printed = called(*words, f"hydra.sweep.dir={tmp_path}")
    assert code == 0 and "2 cells, to be measured as cells of race=images_per_s, the best of them in full:" in printed
    assert "one after the other" not in printed and not [*tmp_path.iterdir()]
