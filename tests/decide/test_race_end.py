"""Races to their end: by the real rules on cells without processes, and what a race says then."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multicard.config.sweeps import RaceConfig
from multicard.decide.race import command, live, readings, rules
from multicard.decide.race.live import LiveRace
from multicard.decide.race.posterior import Block
from multicard.decide.race.readings import Reading, in_words, raced_figure
from multicard.decide.race.rules import IN, OUT, Standing, Verdict
from multicard.llm import workload as llm
from multicard.records.figures import FIGURES
from multicard.records.run_folder import Run
from multicard.vision import workload as vision
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
            return Reading(math.log(rates[int(run.record.axes["batch_size"] or 0)]), 0.001)

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
    assert race.rules.round < 100 and "50.0%" in said  # the accuracy


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


@pytest.mark.parametrize(("figure", "blocks"), [("images_per_s", 4), ("energy_joules", 2)])
def test_a_full_runs_energy_which_has_that_of_evaluation_ranks_the_finalists_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, figure: str, blocks: int
):
    monkeypatch.setattr(live, "Race", Rules)
    race = LiveRace(faked([8, 16], tmp_path / figure, monkeypatch, figure))
    for place in range(2):
        race.rules.add(Block(place, 0, -5.0, 0.01, 0))
    monkeypatch.setattr(Rules, "final_runs", [(1, 0), (1, 1)])
    finals = [replace(cell, result=records.as_run({"joules_per_image": 2.0})) for cell in race.cells]
    monkeypatch.setattr(readings, "full_run", lambda *_: Reading(-6.0, 0.01))
    race.take_finals(finals)
    assert len(race.rules._blocks) == blocks and race.rules._full == {0: [-6.0], 1: [-6.0]}
    race.journal.close()


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
    monkeypatch.setattr(readings, "full_run", lambda run, _: Reading(float(run.record.repetition), 0.01))
    race = LiveRace(faked([8, 16, 32], tmp_path, monkeypatch, "images_per_s", "target_accuracy=0.9"))
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


def otherwise(
    rates: Sequence[float],
    peaks: Sequence[int],
    gpus: Sequence[int] | None = None,
    accuracies: dict[int, list[float]] | None = None,
    figure: str = "images_per_s",
    on_gpus: bool = False,
) -> list[str]:
    """What is said of cells beside the first, which has won."""
    configs = [SimpleNamespace(gpus=own) for own in gpus or [1] * len(rates)]
    cells = [SimpleNamespace(label=f"[{place}] ", config=config) for place, config in enumerate(configs)]
    memory = {place: [peak * MB] for place, peak in enumerate(peaks)}
    race: Any = SimpleNamespace(
        cells=cells, figure=FIGURES[figure], options=RaceConfig(), peaks=memory, on_gpus=on_gpus
    )
    sign = -1 if figure == "joules_per_image" else 1
    known = [standing(place, sign * float(np.log(rate))) for place, rate in enumerate(rates)]
    return command._alternatives(race, known, accuracies or {})


def test_what_takes_less_is_named_with_its_cost():
    assert otherwise([100, 90, 80, 70], [50, 40, 45, 20]) == [
        "otherwise, for less memory of a rank, fewer CPU ranks:",
        "  [1]: 10% slower, 40 MB, 1 CPU rank",
        "  [3]: 30% slower, 20 MB, 1 CPU rank",
    ]
    header, line = otherwise([100, 60], [50, 60], gpus=[2, 1], on_gpus=True)
    assert "fewer GPUs:" in header and line == "  [1]: 40% slower, 60 MB, 1 GPU"
    of_energy = otherwise([100, 125], [50, 40], figure="joules_per_image")
    assert of_energy[1:] == ["  [1]: 25% more energy, 40 MB, 1 CPU rank"]
    assert otherwise([1000, 900], [1000, 990]) == []  # 1 % less memory is within the tolerance
    for rate in (999.9, 1003):  # the winner is the best by its full runs
        assert otherwise([1000, rate], [1000, 600])[1:] == ["  [1]: the same speed, 600 MB, 1 CPU rank"]


def test_accuracy_counts_where_runs_are_apart():
    apart = {0: [0.90, 0.91, 0.90], 1: [0.93, 0.92, 0.94]}
    assert otherwise([100, 90], [50, 60], accuracies=apart) == [
        "otherwise, for less memory of a rank, fewer CPU ranks, or a higher accuracy:",
        "  [1]: 10% slower, 60 MB, 1 CPU rank, accuracy 93.0%",
    ]
    assert otherwise([100, 90], [50, 60], accuracies={0: [0.90, 0.925], 1: [0.93, 0.92]}) == []
    assert otherwise([100, 90], [50, 60], accuracies={0: [0.90], 1: [0.93]}) == []  # by chance, perhaps


def test_energy_is_of_an_image_or_a_token():
    for workload, unit in ((vision.WORKLOAD, "joules an image"), (llm.WORKLOAD, "joules a token")):
        assert in_words(raced_figure("energy_joules", workload), standing(0, 0.0)).startswith(f"1 {unit} (")


def test_the_end_of_a_grid_of_five_axes_fits_120_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = faked([16, 128], tmp_path, monkeypatch, "images_per_s", "precision=bf16", "gpus=2", "loader=batched")
    cells += faked([64, 256], tmp_path, monkeypatch, "images_per_s", "layout=nhwc")
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
    for axis in ("precision", "gpus", "loader", "batch_size", "layout", "accuracy"):
        assert axis in said[1], said[1]
    assert f"the race ended: {rules.TIME}" in said
    assert "that is less sure than race.confidence=0.95" in said
    assert "the race does not vouch for accuracy, which precision, batch_size, gpus may change" in said
