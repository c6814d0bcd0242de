"""Races to their end, by the real rules on cells without processes: equal cells, cells that end by themselves, and
figures of which less is better."""

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

from hydra_plugins.multicard_launchers.launchers import LocalLauncher
from multicard.decide.race import grid, live, processes, readings, to_target, view
from multicard.decide.race.live import LiveRace
from multicard.decide.race.posterior import Block, Prior
from multicard.decide.race.processes import CellEndedError, CellProcess
from multicard.decide.race.readings import LEAST_STEPS, BlockReader, Energy, Reading
from multicard.llm import workload as llm
from multicard.machine import leases, shares
from multicard.ranks.pausing import blocks_file
from multicard.records.journal import JournalError
from multicard.records.progress import Board
from multicard.records.run_folder import Run
from multicard.records.text_table import in_bytes
from multicard.sweep.cells import Cell, Sweep
from multicard.sweep.executor import Executor, Running
from multicard.sweep.streak import SameFailureError
from tests.conftest import SMALL
from tests.helpers import records
from tests.helpers.cells import sweep
from tests.helpers.race_fakes import SHARE, Process, Rules, faked, measured

Called = Callable[..., tuple[int, str]]
Raced = Callable[..., tuple[LiveRace, str]]


@pytest.fixture
def raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raced:
    """Races cells of these images/s, by batch size, to the end. Returns the race, and what it says there."""

    monkeypatch.setattr(live, "FINAL_RUNS", 1)  # three of the best would take as long as such a grid

    def run(rates: dict[int, float], figure: str = "images_per_s", **statuses: Any) -> tuple[LiveRace, str]:
        race = LiveRace(faked([*rates], tmp_path, monkeypatch, figure))
        Process.rates = rates
        Process.statuses = {(when, size): told for when, sizes in statuses.items() for size, told in sizes.items()}
        race.run(SHARE)
        finals = race.finals()
        for cell in finals:
            made = {"test_accuracy": 0.5, "total_s": 60.0, "axes": {"batch_size": cell.cfg.batch_size}}
            cell.result = records.as_run(made)

        def full_run(run: Run, _: str) -> Reading:
            size = float(run.record.axes["batch_size"] or 0)
            return Reading(-math.log(size * 1.2e6) if figure == "peak_memory" else math.log(rates[size]), 0.001)

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


def test_the_least_memory_is_known_after_a_few_steps_of_a_process_each(raced: Raced):
    race, said = raced({8: 300.0, 16: 500.0, 32: 400.0}, "peak_memory")
    assert race.rules.verdict().winner == 0 and len(race.rules.final_runs) == 1
    assert max(sum(entry == ("start", size) for entry in Process.log) for size in (8, 16, 32)) == 1
    assert f"winner: [1/3] {in_bytes(8 * 10**6)} (" in said, said


def test_the_energy_of_a_sample_is_that_of_all_steps_of_a_block():
    block = measured([0.1] * 10, 8.0)
    block = replace(block, energy=Energy(joules=120.0, steps=15, seconds=2.0))
    assert block.reading("energy_joules") == (pytest.approx(-math.log(1.0)), pytest.approx(0.05))
    assert block.reading("peak_memory")[0] == pytest.approx(-math.log(10**6))
    block = replace(block, energy=None)
    assert not np.isfinite(block.reading("energy_joules")).any()
    after = replace(block, energy=Energy(1.0, 2, 3.0))
    assert readings.joined(block, after).energy == after.energy  # the first steps of a process take more
    assert readings.full_run(records.as_run({"joules_per_image": 2.0, "total_s": 10.0}), "energy_joules") == (
        pytest.approx(-math.log(2.0)),
        pytest.approx(0.01),
    )


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


def write_block(folder: Path, step: int) -> None:
    """As a rank does when it has trained to a step."""
    steps = 0 if step == 0 else LEAST_STEPS
    line = {"ranks": 1, "skips": 2, "steps_per_epoch": 100, "peak_memory_bytes": 1, "loss": 0.5, "step": step}
    path = blocks_file(folder, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line | {"step_s": [0.1] * steps, "samples": [8.0] * steps}) + "\n")


def ready(cell: Cell, gpus: tuple[str, ...] | None) -> CellProcess:
    """A process of the cell that has paused before its first step, and writes a block when it is let go."""
    running: Any = SimpleNamespace(cell=cell, share=SimpleNamespace(gpus=gpus), has_ended=bool)
    process = CellProcess(cell, 1, Executor(cell.folder.parent), running, BlockReader(cell.folder))
    write_block(cell.folder, 0)
    process.wait()
    process.board = SimpleNamespace(run_to=lambda step: write_block(cell.folder, step))  # type: ignore[assignment]
    return process


def test_the_energy_of_a_block_is_read_around_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    process = ready(*faked([8], tmp_path, monkeypatch, "energy_joules"), gpus=("a", "b"))
    counter = iter([5.0, 25.0])
    monkeypatch.setattr(processes, "joules", lambda uuids: next(counter) if uuids == ("a",) else None)
    block = process._train(1.0, 0.1)
    assert block.energy is not None and (block.energy.joules, block.energy.steps) == (20.0, block.step)


def test_a_process_that_has_trained_before_does_a_few_steps_more_for_its_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    process = ready(*faked([8], tmp_path, monkeypatch, "peak_memory"), gpus=None)
    assert [len(process.run_block(0.0).step_s) for _ in range(3)] == [LEAST_STEPS] * 3


def test_a_cell_that_its_estimate_threw_out_comes_back_where_another_leaves_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The first is three times slower by its estimate, and the fastest; it is kept in the journal that it was out."""
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
    monkeypatch.setenv(leases.VARIABLE, str(tmp_path / "leases"))
    monkeypatch.setattr(shares, "LEASES_POLL_S", 0.0)
    names = shares.machine().names
    of_another, waited = leases.share(names[-1:]), list[float]()
    monkeypatch.setattr(processes, "pause", lambda seconds: of_another.close() or waited.append(seconds))
    (cell,) = faked([8], tmp_path, monkeypatch, "images_per_s")

    def free() -> list[str]:
        with leases.choosing() as choice:
            return [name for name in names if choice is not None and choice.is_free(name)]

    with processes.whole_machine(cell.config) as share:
        assert waited and not {*free()} & {*share.names}
    assert free() == [*names]


@pytest.fixture
def targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[Cell], list[int], str]]:
    """Races cells that take so many seconds to their target, None: they never reach it; or fail with this kind of
    cause. Returns the finals, the batch sizes of the cells that trained in the race, and what was said."""

    def run(
        times_s: dict[int, float | None], failing: dict[int, str] | None = None, *more: str
    ) -> tuple[list[Cell], list[int], str]:
        trained: list[int] = []
        said: list[str] = []

        def train(cell: Cell, _: Any, bar_s: float | None) -> float | None:
            size = cell.cfg.batch_size
            trained.append(size)
            time_s = times_s[size]
            stopped = time_s is not None and bar_s is not None and time_s > bar_s
            record = {"status": "interrupted" if stopped else "ok", "cause": None, "time_to_target_s": time_s}
            if size in (failing or {}):
                record |= {"status": "failed", "cause": {"kind": (failing or {})[size], "message": "no space left"}}
            record |= {"test_accuracy": 0.9, "startup_s": 2.0, "total_s": time_s or 50.0}
            cell.result = records.as_run(record)
            return bar_s if stopped else None

        def run_all(sweep: Sweep) -> None:
            for cell in sweep.left:
                train(cell, None, None)
                trained.pop()

        cells = faked([*times_s], tmp_path, monkeypatch, "total_s", "target_accuracy=0.9", "stop_at_target=true", *more)
        monkeypatch.setattr(to_target, "train", train)
        monkeypatch.setattr(to_target, "run_all", run_all)
        monkeypatch.setattr(to_target, "say", said.append)
        monkeypatch.setattr(to_target.grid, "priors", lambda cells: [None] * len(cells))
        made = sweep(*cells)
        to_target.run(made, finals := Sweep(made.command))
        return finals.cells, trained, "\n".join(said)

    return run


def test_the_first_at_its_target_sets_the_bar(targets: Callable[..., tuple[list[Cell], list[int], str]]):
    times_s = {8: None, 16: 40.0, 32: 60.0, 64: 38.0, 128: 49.0}
    finals, trained, said = targets(times_s)
    assert trained == [*times_s]
    assert "[1/5] out: did not reach its target in its epochs (90.0%)" in said
    assert "[3/5] out: not at its target after 50.0 s, in which another is" in said
    assert "[5/5] out: not at its target after 47.5 s" in said  # 1.25 times 38
    assert [(cell.cfg.batch_size, cell.cfg.repetition) for cell in finals] == [
        (64, 1), (16, 1), (64, 2), (16, 2), (64, 3), (16, 3),
    ]  # fmt: skip
    assert "winner: [4/5]" in said and "38.0 s to its target" in said and "batch_size=64" in said.splitlines()[-1]
    assert "3 cells out, 2 of them stopped before the target" in said
    _, again, _ = targets(times_s)  # those that are out are not trained again; records would keep the others
    assert again == [16, 64]
    assert targets(times_s, None, "rerun=true")[1] == [*times_s]


def test_a_cell_that_failed_is_trained_again_when_a_race_to_a_target_goes_on(
    targets: Callable[..., tuple[list[Cell], list[int], str]],
):
    times_s: dict[int, float | None] = {8: 60.0, 16: 40.0}
    with pytest.raises(SameFailureError, match="no space left"):
        targets(times_s, {8: "disk"})
    _, trained, said = targets(times_s, {8: "exit"})
    assert trained == [8, 16] and "[1/2] out: failed: no space left" in said and "winner: [2/2]" in said
    assert targets(times_s)[1] == [8, 16]


@pytest.mark.parametrize("error", [SameFailureError, JournalError])
def test_a_race_that_a_full_disk_stops_says_how_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: type[Exception]
):
    def run(*_: Any) -> None:
        raise error("no space left")

    monkeypatch.setattr("multicard.decide.race.live.run", run)
    monkeypatch.setattr(sys, "orig_argv", ["python", "train_vision.py", "-m", "race=images_per_s"])
    launcher = LocalLauncher()
    raced = sweep(*faked([8], tmp_path / "today", monkeypatch))
    launcher.command = raced.command
    launcher._race(raced)
    again = "python train_vision.py -m race=images_per_s name=today"
    assert f"stopped, no space left; to go on with the race: {again}" in capsys.readouterr().err
    assert raced.command.abandoned


def test_what_cannot_be_raced_is_refused_in_a_line(called: Called, tmp_path: Path):
    for words, remedy in {
        ("race=images_per_s", "hydra/launcher=submitit_slurm"): "leave out hydra/launcher=submitit_slurm",
        ("race=images_per_s", "probe=true"): "leave out probe=true",
        ("race=images_per_s,tokens_per_s",): "race.figure=images_per_s,tokens_per_s: takes one value, not a sweep",
        ("race=images_per_s", "hydra/sweeper=basic"): "leave out hydra/sweeper",
        ("race=images_per_s", "hydra.sweeper.max_batch_size=2"): "leave out hydra.sweeper.max_batch_size=2",
        ("race=images_per_s", "repeat=2"): "leave out repeat=2",
        ("race=images_per_s", "nodes=2"): "leave out nodes=2",
        ("race=images_per_s", "profile=kineto"): "leave out profile=kineto",
        ("race=images_per_s", "diagnose=true"): "leave out diagnose=true",
        ("race=total_s",): "set target_accuracy=0.97 or another, and stop_at_target=true",
        ("race=energy_joules",): "take race=images_per_s or race=peak_memory",
        ("race=total_s", "race.confidence=0.9"): "race=total_s: has no use for race.confidence; leave out",
        ("race=peak_memory", "race.block=2"): "race=peak_memory: has no use for race.block; leave out race.block=2",
        ("race=tokens_per_s", "dry_run=true"): "race=tokens_per_s: train_vision.py has race=images_per_s",
    }.items():
        code, printed = called("-m", *words, "seed=0,1", *SMALL, f"hydra.sweep.dir={tmp_path}")
        assert code == 1 and remedy in printed and len(printed.strip().splitlines()) == 1, printed
    code, printed = called("race=images_per_s", *SMALL, f"hydra.run.dir={tmp_path / 'a'}")
    assert code == 1 and "race=images_per_s: needs cells to choose from, a sweep; add -m" in printed


def test_a_dry_run_says_what_a_race_would_do(called: Called, tmp_path: Path):
    words = ("-m", "race=images_per_s", "dry_run=true", "lr=0.1,0.2", *SMALL)
    code, printed = called(*words, f"hydra.sweep.dir={tmp_path}")
    assert code == 0 and "2 cells, to be measured as cells of race=images_per_s, the best of them in full:" in printed
    assert "one after the other" not in printed and not [*tmp_path.iterdir()]


def test_tuning_has_no_time_to_an_accuracy():
    cells: list[Any] = [SimpleNamespace(cfg={"lr": 1e-4}, workload=llm.WORKLOAD)]
    with pytest.raises(ValueError, match=r"which train_vision.py has; tune_llm.py has race=tokens_per_s"):
        grid.refuse("total_s", cells)


def test_what_a_killed_start_of_a_run_left_is_not_taken_for_its_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Else the time until the next start trains would count against the bar."""
    Board(tmp_path, 1, create=True, node=0).post(0, 5, 100, 80, 0, 1.0)
    assert to_target.has_begun(tmp_path)
    begun: list[bool] = []

    def start(_: Any, cell: Any, __: Any) -> Any:
        begun.append(to_target.has_begun(cell.folder))
        return SimpleNamespace(has_ended=lambda: True)

    monkeypatch.setattr(Executor, "collect", lambda *_: None)
    monkeypatch.setattr(Executor, "start", start)
    cell: Any = SimpleNamespace(folder=tmp_path)
    share: Any = None
    assert to_target.train(cell, share, 50.0) is None and begun == [False]
