"""What a race says at its end: the table, why it ended, and what it costs to choose otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from multicard.config.job import Device
from multicard.config.race import RaceConfig
from multicard.decide.race import front, live, readings, rules, view
from multicard.decide.race.live import LiveRace
from multicard.decide.race.posterior import Block
from multicard.decide.race.rules import SURE, Race
from multicard.decide.race.standings import IN, OUT, RaceOptions, Standing, Verdict
from multicard.llm import workload as llm
from multicard.sweep.shares import Pool
from multicard.vision import workload as vision
from tests.helpers.cells import sweep
from tests.helpers.race_fakes import SHARE, Rules, faked

MB = 10**6


def standing(cell: int, log_figure: float, error: float = 0.003, reason: str = "") -> Standing:
    state = OUT if reason else IN
    return Standing(cell, state, reason, 3, log_figure, error, 0.0, 0.0, 0.5)


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
        cells=cells, options=RaceConfig(figure), peaks=dict(enumerate(peak * MB for peak in peaks)), ended=set()
    )
    sign = -1 if figure == "energy_joules" else 1
    known = [standing(place, sign * float(np.log(rate)), error) for place, rate in enumerate(rates)]
    return front.lines(race, known, accuracies or {})


def test_what_takes_less_is_named_with_its_cost():
    assert otherwise([100, 90, 80, 70], [50, 40, 45, 20]) == [
        "otherwise, for less memory of a rank, fewer CPU ranks:",
        "  [1]: 10% slower, 40 MB, 1 CPU rank",
        "  [3]: 30% slower, 20 MB, 1 CPU rank",
    ]
    assert otherwise([100, 60], [50, 60], gpus=[2, 1])[1:] == ["  [1]: 40% slower, 60 MB, 1 CPU rank"]
    of_energy = otherwise([100, 125], [50, 40], figure="energy_joules")
    assert of_energy[1:] == ["  [1]: 25% more energy, 40 MB, 1 CPU rank"]


def test_gpus_and_cpu_ranks_are_told_apart(monkeypatch: pytest.MonkeyPatch):
    assert otherwise([100, 60], [50, 20], gpus=[1, 2], device=Device.auto)[1].endswith("2 CPU ranks")  # without a GPU
    monkeypatch.setattr(front, "machine", lambda: Pool(["a", "b"], [0]))
    header, line = otherwise([100, 60], [50, 20], gpus=[1, 2], device=Device.auto)
    assert "fewer GPUs:" in header and line.endswith("2 GPUs")
    assert otherwise([100, 60], [50, 20], gpus=[1, 2])[1].endswith("2 CPU ranks")
    configs = [SimpleNamespace(device=device) for device in (Device.cpu, Device.cuda)]
    of_both: list[Any] = [SimpleNamespace(config=config) for config in configs]
    assert front.unit(of_both) == "GPU or CPU rank"


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


SETTINGS = [{"a": str(a), "b": str(b)} for a in range(4) for b in range(2)]


def raced(figures: Sequence[float], full_s: float | None = None, **options: Any) -> Race:
    race = Race(SETTINGS, [None] * len(SETTINGS), 10.0, 2.0, RaceOptions(**options), full_s=full_s)
    rng = np.random.default_rng(0)
    processes: dict[int, int] = {}
    while cells := race.next_round():
        for cell in cells:
            processes[cell] = processes.get(cell, -1) + (cell not in processes or cell in race.fresh)
            race.add(Block(cell, race.round, figures[cell] + rng.normal(0, 0.005), 0.005, processes[cell]))
    return race


def test_why_a_race_ended(monkeypatch: pytest.MonkeyPatch):
    apart = [0.3 * place for place in range(8)]
    assert raced(apart).ending == SURE
    assert raced(apart, full_s=12.0).ending == rules.TIME  # 8 of them take as long as 8 blocks
    alike = raced([5.0] * 8, tolerance=0.001)
    assert alike.ending == rules.NOTHING_LEFT and len(alike.finalists) > 1
    assert raced([5.0, 5.0, *[3.0] * 6], full_s=40.0, tolerance=0.001, runs=1).ending == rules.CLOSE
    race = Race(SETTINGS[:1], [None], 10.0, 2.0)
    race.out(0, "oom")
    assert race.next_round() == [] and race.ending == rules.NO_CELL
    monkeypatch.setattr(rules, "MOST_ROUNDS", 1)
    assert raced([5.0] * 8, tolerance=0.001).ending == rules.ROUNDS


def test_a_race_ends_by_its_own_time_too():
    race = Race(SETTINGS, [None] * len(SETTINGS), 10.0, 2.0)
    for cell in race.next_round():
        race.add(Block(cell, race.round, 5.0, 0.005, 0))
    race.costs(10.0, 2.0, 1000.0, raced_s=3999.0)
    assert race.next_round()
    race.costs(10.0, 2.0, 1000.0, raced_s=4000.0)
    assert race.next_round() == [] and race.ending == rules.TIME


@pytest.fixture
def measured_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a race of three cells says, of which each was measured in full and ended at this accuracy; 90 % were asked
    for."""

    def end(*accuracies: float) -> str:
        monkeypatch.setattr(live, "Race", told := Rules(1))
        monkeypatch.setattr(readings, "of_result", lambda record, _: (record["log_figure"], 0.01))
        monkeypatch.setattr(view.text_table, "terminal_width", lambda: 120)
        cells = faked([8, 16, 32], tmp_path / str(accuracies), monkeypatch, "images_per_s", "target_accuracy=0.9")
        race = LiveRace(cells)
        race.run(SHARE)
        finals = race.finals()
        for cell in finals:
            place = cell.number - 1
            reached_s = 5.0 if accuracies[place] >= 0.9 else None
            cell.result = {"status": "ok", "log_figure": float(place), "total_s": 9.0, "time_to_target_s": reached_s}
            cell.result["test_accuracy"] = accuracies[place]
        assert told.raced_s == race.raced_s > 0
        race.take_finals(finals)
        race.close()
        return "\n".join(view.end(race, finals))

    return end


def test_a_cell_that_missed_its_target_does_not_win(measured_in_full: Callable[..., str]):
    said = measured_in_full(0.95, 0.92, 0.85)
    assert "winner: [2/3]" in said and "out: missed target_accuracy=0.9" in said and "race without such cells" in said
    assert "does not vouch" not in said and "[3/3]:" not in said  # no other choice
    said = measured_in_full(0.95, 0.92, 0.91)
    assert "winner: [3/3]" in said and "missed" not in said
    said = measured_in_full(0.8, 0.82, 0.85)
    assert "winner" not in said and "none of the fastest reached the target; race=total_s" in said
    assert "[2/3] out: missed target_accuracy=0.9 in a full run, which ended at 82.0%" in said


def test_a_small_grid_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(view, "say", said.append)
    for cells in (2, 9, 10):
        race: Any = SimpleNamespace(cells=[None] * cells, options=RaceConfig("images_per_s"), rules=Rules())
        view.say_if_small(race)
    assert [line.partition(";")[0].removeprefix("race=images_per_s: measures the best in full, ") for line in said] == [
        "3 to 6 runs, of a grid of 2 cells",
        "3 to 9 runs, of a grid of 9 cells",
    ]
    monkeypatch.setattr(view, "say_if_small", lambda race: said.append(f"of {len(race.cells)}"))
    monkeypatch.setattr(live.processes, "whole_machine", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        live.run(made := sweep(*faked([8, 16], tmp_path, monkeypatch)), made)
    assert said[-1] == "of 2"  # before it waits for the machine


def test_energy_is_of_an_image_or_a_token():
    for workload, unit in ((vision.WORKLOAD, "J an image"), (llm.WORKLOAD, "J a token")):
        cells = [SimpleNamespace(workload=workload)]
        race: Any = SimpleNamespace(options=RaceConfig("energy_joules"), cells=cells)
        assert view.figure(race, standing(0, 0.0)).startswith(f"1 {unit} (")


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
        cells=cells, options=cells[0].config.race if cells[0].config else None, rules=told, raced_s=60.0,
        peaks=dict.fromkeys(range(4), 570 * MB), used_s={}, ended=set(), full_s=lambda: 100.0,
    )  # fmt: skip
    final = replace(cells[0], result={"status": "ok", "test_accuracy": 0.875, "total_s": 60.0})
    said = view.end(race, [final])
    assert max(map(len, said[1:6])) <= 120 and said[5].endswith("out: 64.2% behind"), "\n".join(said)
    for axis in ("precision", "gpus", "loader", "batch_size", "layout", "accuracy"):
        assert axis in said[1], said[1]
    assert "the race ended: it has taken 50% of the time of the whole grid" in said
    assert "that is less sure than race.confidence=0.95" in said
    assert "the race does not vouch for accuracy, which precision, batch_size, gpus may change" in said
