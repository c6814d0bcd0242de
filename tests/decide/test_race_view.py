"""What a race says at its end: the table, why it ended, and what it costs to choose otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multicard.config.job import Device
from multicard.config.sweeps import RaceConfig
from multicard.decide.race import live, readings, rules, view
from multicard.decide.race.live import LiveRace
from multicard.decide.race.readings import raced_figure
from multicard.decide.race.rules import IN, OUT, Standing, Verdict
from multicard.llm import workload as llm
from multicard.machine.shares import Pool
from multicard.records.figures import FIGURES
from multicard.vision import workload as vision
from tests.helpers import records
from tests.helpers.race_fakes import SHARE, Rules, faked

MB = 10**6


def standing(cell: int, log_figure: float, error: float = 0.003, reason: str = "") -> Standing:
    state = OUT if reason else IN
    return Standing(cell, state, reason, 3, log_figure, error)


def otherwise(
    rates: Sequence[float],
    peaks: Sequence[int],
    gpus: Sequence[int] | None = None,
    accuracies: dict[int, list[float]] | None = None,
    error: float = 0.003,
    figure: str = "images_per_s",
    device: Device = Device.cpu,
) -> list[str]:
    """The front of cells of which the first has won."""
    configs = [SimpleNamespace(gpus=own, device=device) for own in gpus or [1] * len(rates)]
    cells = [SimpleNamespace(label=f"[{place}] ", config=config) for place, config in enumerate(configs)]
    race: Any = SimpleNamespace(
        cells=cells,
        figure=FIGURES[figure],
        options=RaceConfig(),
        peaks=dict(enumerate(peak * MB for peak in peaks)),
        ended=set(),
    )
    sign = -1 if figure == "joules_per_image" else 1
    known = [standing(place, sign * float(np.log(rate)), error) for place, rate in enumerate(rates)]
    return view.otherwise(race, known, accuracies or {})


def test_what_takes_less_is_named_with_its_cost():
    assert otherwise([100, 90, 80, 70], [50, 40, 45, 20]) == [
        "otherwise, for less memory of a rank, fewer CPU ranks:",
        "  [1]: 10% slower, 40 MB, 1 CPU rank",
        "  [3]: 30% slower, 20 MB, 1 CPU rank",
    ]
    assert otherwise([100, 60], [50, 60], gpus=[2, 1])[1:] == ["  [1]: 40% slower, 60 MB, 1 CPU rank"]
    of_energy = otherwise([100, 125], [50, 40], figure="joules_per_image")
    assert of_energy[1:] == ["  [1]: 25% more energy, 40 MB, 1 CPU rank"]


def test_gpus_and_cpu_ranks_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    assert otherwise([100, 60], [50, 20], gpus=[1, 2], device=Device.auto)[1].endswith("2 CPU ranks")  # without a GPU
    monkeypatch.setattr(view, "machine", lambda: Pool(["a", "b"], [0]))
    header, line = otherwise([100, 60], [50, 20], gpus=[1, 2], device=Device.auto)
    assert "fewer GPUs:" in header and line.endswith("2 GPUs")
    assert otherwise([100, 60], [50, 20], gpus=[1, 2])[1].endswith("2 CPU ranks")
    configs = [SimpleNamespace(device=device) for device in (Device.cpu, Device.cuda)]
    of_both: list[Any] = [SimpleNamespace(config=config) for config in configs]
    assert view.unit(of_both) == "GPU or CPU rank"


def test_figures_within_the_tolerance_are_not_better():
    assert otherwise([1000, 900], [1000, 990]) == []  # 1 % less memory
    # Neither is the second's memory better than the third's, which is as fast by what is known
    assert len(otherwise([1000, 900, 899], [1000, 600, 599])) == 2
    assert otherwise([1000, 900, 850], [1000, 600, 590], error=0.1) == otherwise([1000, 900], [1000, 600], error=0.1)
    (_, line) = otherwise([1000, 999.9], [1000, 600])
    assert line == "  [1]: the same speed, 600 MB, 1 CPU rank"
    (_, line) = otherwise([1000, 1003], [1000, 600])  # the winner is the best by its full runs
    assert line == "  [1]: the same speed, 600 MB, 1 CPU rank"


def test_accuracy_counts_where_runs_are_apart():
    apart = {0: [0.90, 0.91, 0.90], 1: [0.93, 0.92, 0.94]}
    assert otherwise([100, 90], [50, 60], accuracies=apart) == [
        "otherwise, for less memory of a rank, fewer CPU ranks, or a higher accuracy:",
        "  [1]: 10% slower, 60 MB, 1 CPU rank, accuracy 93.0%",
    ]
    assert otherwise([100, 90], [50, 60], accuracies={0: [0.90, 0.925], 1: [0.93, 0.92]}) == []
    assert otherwise([100, 90], [50, 60], accuracies={0: [0.90], 1: [0.93]}) == []  # by chance, perhaps


@pytest.fixture
def measured_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a race of three cells says, of which each was measured in full and ended at this accuracy; 90 % were asked
    for."""

    def end(*accuracies: float) -> str:
        monkeypatch.setattr(live, "Race", told := Rules(1))
        monkeypatch.setattr(readings, "full_run", lambda run, _: readings.Reading(float(run.record.repetition), 0.01))
        monkeypatch.setattr(view.text_table, "terminal_width", lambda: 120)
        cells = faked([8, 16, 32], tmp_path / str(accuracies), monkeypatch, "images_per_s", "target_accuracy=0.9")
        race = LiveRace(cells)
        race.run(SHARE)
        finals = race.finals()
        for cell in finals:
            place = cell.number - 1
            reached_s = 5.0 if accuracies[place] >= 0.9 else None
            own = {"repetition": place, "time_to_target_s": reached_s, "test_accuracy": accuracies[place]}
            cell.result = records.as_run(own | {"total_s": 9.0})
        assert told.raced_s == race.raced_s > 0
        race.take_finals(finals)
        race.journal.close()
        return "\n".join(view.end(race, finals))

    return end


def test_a_cell_that_missed_its_target_does_not_win(measured_in_full: Callable[..., str]):
    said = measured_in_full(0.95, 0.92, 0.85)
    assert "winner: [2/3]" in said and "out: missed target_accuracy=0.9" in said and "race without such cells" in said
    assert "does not vouch" not in said and "[3/3]:" not in said  # no other choice
    said = measured_in_full(0.95, 0.92, 0.91)
    assert "winner: [3/3]" in said and "missed" not in said
    said = measured_in_full(0.8, 0.82, 0.85)
    assert "winner" not in said and "none of the fastest reached the target; to look at all cells" in said
    assert "[2/3] out: missed target_accuracy=0.9 in a full run, which ended at 82.0%" in said


def test_energy_is_of_an_image_or_a_token():
    for workload, unit in ((vision.WORKLOAD, "joules an image"), (llm.WORKLOAD, "joules a token")):
        assert view.figure(raced_figure("energy_joules", workload), standing(0, 0.0)).startswith(f"1 {unit} (")


def test_the_end_of_a_grid_of_five_axes_fits_120_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cells = faked([16, 128], tmp_path, monkeypatch, "images_per_s", "precision=bf16", "gpus=2", "loader=batched")
    cells += faked([64, 256], tmp_path, monkeypatch, "images_per_s", "layout=nhwc")
    cells = [replace(cell, number=place, label=f"[{place}/144] ") for place, cell in enumerate(cells, 11)]
    known = [standing(place, 8.0 - place / 10) for place in range(3)]
    known.append(standing(3, 7.0, reason="beaten: 64.2% behind the leader, at least 63.9%"))
    told = Rules(cells=4, ending=rules.TIME)
    monkeypatch.setattr(Rules, "standings", known)
    monkeypatch.setattr(Rules, "verdict", lambda _: Verdict(0, 0.83))
    race: Any = SimpleNamespace(
        cells=cells, options=cells[0].config.race, figure=FIGURES["images_per_s"], rules=told, raced_s=60.0,
        peaks=dict.fromkeys(range(4), 570 * MB), used_s={}, ended=set(), full_s=lambda: 100.0,
    )  # fmt: skip
    final = replace(cells[0], result=records.as_run({"test_accuracy": 0.875, "total_s": 60.0}))
    said = view.end(race, [final])
    assert max(map(len, said[1:6])) <= 120 and said[5].endswith("out: 64.2% behind"), "\n".join(said)
    for axis in ("precision", "gpus", "loader", "batch_size", "layout", "accuracy"):
        assert axis in said[1], said[1]
    assert f"the race ended: {rules.TIME}" in said
    assert "that is less sure than race.confidence=0.95" in said
    assert "the race does not vouch for accuracy, which precision, batch_size, gpus may change" in said
