"""Races to their end: by the real rules on cells without processes, and what a race says then."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicard.decide.race import command, live, readings, rules
from multicard.decide.race.live import LiveRace
from multicard.decide.race.readings import Reading
from multicard.decide.race.rules import IN, OUT, Standing, Verdict
from multicard.records.figures import FIGURES
from multicard.records.run_folder import Run
from tests.helpers import records
from tests.helpers.race_fakes import SHARE, Process, Rules, faked

Raced = Callable[..., tuple[LiveRace, str]]
MB = 10**6


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 120 columns; one full run of the best, as three take as long as such a grid."""
    monkeypatch.setattr(command.text_table, "terminal_width", lambda: 120)
    monkeypatch.setattr(live, "FINAL_RUNS", 1)


@pytest.fixture
def raced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raced:
    """Races cells of these images/s, by batch size, to the end. Returns the race, and its last lines."""

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
            return math.log(rates[int(run.record.axes["batch_size"] or 0)]), 0.001

        monkeypatch.setattr(readings, "full_run", full_run)
        race.take_finals(finals)
        race.journal.close()
        return race, "\n".join(command.end(race, finals))

    return run


def test_two_equal_cells_end_and_that_is_said(raced: Raced):
    race, said = raced({8: 300.0, 16: 300.0, 32: 200.0})
    winner = race.rules.verdict().winner
    other = {0: "[2/3]", 1: "[1/3]"}[winner or 0]
    assert winner in (0, 1) and (f"as good, within 2%: {other}" in said or f"too close to tell: {other}" in said), said
    assert race.rules.round < 100


@pytest.mark.parametrize("status", ["oom", "diverged", "failed", "not finite"])
def test_a_cell_that_ends_by_itself_is_out_and_the_race_goes_on(raced: Raced, status: str):
    race, said = raced({8: 200.0, 16: 300.0, 32: 400.0}, block={32: [status] * 9})
    assert race.rules.verdict().winner == 1 and race.rules.standings[2].failed
    reason = "diverged: its loss is not finite" if status == "not finite" else f"{status}: of its own"
    assert race.rules.standings[2].reason == reason
    lines = [json.loads(line) for line in race.journal.path.read_text().splitlines()]
    assert [line["out"] for line in lines if "out" in line] == [reason] * (status != "failed")
    assert "winner: [2/3]" in said and f"out: [3/3] {reason}" in said


@pytest.mark.parametrize("place", range(4))
def test_a_race_that_does_not_pay_measures_the_grid(raced: Raced, monkeypatch: pytest.MonkeyPatch, place: int):
    """It stops after its first block, as a process starts in 2 s and a full run takes less than 2 s more."""
    monkeypatch.setattr(LiveRace, "full_s", lambda race: 3.0 if race.trained_s else None)
    sizes = (8, 16, 32, 64)
    race, said = raced({size: 400.0 if number == place else 200.0 + size for number, size in enumerate(sizes)})
    assert [when for when, _ in Process.log] == ["start", "block", "quiet", "end"]
    assert [(cell.cfg.batch_size, cell.cfg.repetition) for cell in race.finals()] == [(size, 1) for size in sizes]
    assert "the race ended: it would take longer than all cells of the grid in full" in said
    assert f"winner: [{place + 1}/4]" in said and "in full" in said.splitlines()[1]


# ---- full runs


@pytest.mark.parametrize(
    ("accuracies", "words", "missing"),
    [
        ((0.95, 0.92, 0.85), ("winner: [2/3]", "out: missed target_accuracy", "race without such cells"), "[3/3]:"),
        ((0.95, 0.92, 0.91), ("winner: [3/3]",), "missed"),
        (
            (0.8, 0.82, 0.85),
            ("none of the fastest reached the target; to look at all cells",
             "[2/3] out: missed target_accuracy=0.9 in a full run, which ended at 82.0%"),
            "winner",
        ),
    ],
)  # fmt: skip
def test_a_cell_that_missed_its_target_does_not_win(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accuracies: Sequence[float], words: Sequence[str], missing: str
):
    """Three cells, of which each was measured in full and ended at this accuracy; 90 % were asked for."""
    monkeypatch.setattr(live, "Race", Rules)
    monkeypatch.setattr(readings, "full_run", lambda run, _: (float(run.record.repetition), 0.01))
    race = LiveRace(faked([8, 16, 32], tmp_path, monkeypatch, "target_accuracy=0.9"))
    race.run(SHARE)
    finals = race.finals()
    for cell in finals:
        accuracy = accuracies[cell.number - 1]
        own = {"repetition": cell.number, "time_to_target_s": 5.0 if accuracy >= 0.9 else None, "total_s": 9.0}
        cell.result = records.as_run(own | {"test_accuracy": accuracy})
    race.take_finals(finals)
    race.journal.close()
    said = "\n".join(command.end(race, finals))
    assert all(each in said for each in words) and missing not in said and "does not vouch" not in said, said


# ---- what is said


def standing(cell: int, log_figure: float, error: float = 0.003, reason: str = "") -> Standing:
    return Standing(cell, OUT if reason else IN, reason, 3, log_figure, error)


def test_the_end_of_a_grid_of_five_axes_fits_120_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = faked([16, 128], tmp_path, monkeypatch, "precision=bf16", "gpus=2", "loader=batched")
    cells += faked([64, 256], tmp_path, monkeypatch, "layout=nhwc")
    cells = [replace(cell, number=place, label=f"[{place}/144] ") for place, cell in enumerate(cells, 11)]
    known = [standing(place, 8.0 - place / 10) for place in range(3)]
    known.append(standing(3, 7.0, reason="beaten: 64.2% behind the leader, at least 63.9%"))
    told = SimpleNamespace(ending=rules.TIME, standings=known, verdict=lambda: Verdict(0, 0.83))
    race: Any = SimpleNamespace(
        cells=cells, options=cells[0].config.race, figure=FIGURES["images_per_s"], rules=told, raced_s=60.0,
        peaks={place: [570 * MB] for place in range(4)}, full_s=lambda: 100.0, on_gpus=False,
    )  # fmt: skip
    final = replace(cells[0], result=records.as_run({"test_accuracy": 0.875, "total_s": 60.0}))
    said = command.end(race, [final])
    assert max(map(len, said[1:6])) <= 120 and said[5].endswith("out: 64.2% behind"), "\n".join(said)
    for axis in ("precision", "gpus", "loader", "batch_size", "layout"):
        assert axis in said[1], said[1]
    assert f"the race ended: {rules.TIME}" in said
    assert "that is less sure than race.confidence=0.95" in said
    assert "the race does not vouch for accuracy, which precision, batch_size, gpus may change" in said
