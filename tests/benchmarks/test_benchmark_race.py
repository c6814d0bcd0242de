"""The benchmark of races: made and measured grids, their time, and when a goal counts as met."""

import math

import numpy as np
import pytest

from benchmarks import race
from benchmarks.race_replays import (
    GRIDS,
    STRETCH_S,
    Kind,
    MadeGrid,
    MeasuredGrid,
    Replay,
    correlated,
    replay,
    swept,
)
from multicard.decide.race.rules import Verdict


def test_steps_are_correlated_as_they_are_described():
    series = correlated(np.random.default_rng(0).normal(0, 1, 20_000), 0.6)
    assert series.std() == pytest.approx(1, abs=0.05)
    assert np.corrcoef(series[1:], series[:-1])[0, 1] == pytest.approx(0.6, abs=0.03)


def test_the_measured_grid_replays_its_own_steps():
    for kept in GRIDS.values():
        grid = MeasuredGrid(kept, seed=0, between_runs=0.0)
        assert len(grid.settings) == 96 and len({tuple(setting.items()) for setting in grid.settings}) == 96
        step_s = grid.samples[5] * math.exp(-grid.truth[5])
        series_s = grid.steps_s(5, 0, 10_000.0, 0.0)
        assert len(series_s) == round(10_000 / step_s) > len(np.unique(series_s))
        assert series_s.mean() == pytest.approx(step_s, rel=0.03)
        block_s = grid.steps_s(5, 1, STRETCH_S, 7.0)  # as it was measured, from some step on
        twice = np.tile(grid._steps_s[5], 2)
        places = range(len(twice) - len(block_s))
        assert any(np.array_equal(twice[place : place + len(block_s)], block_s) for place in places)


def test_a_sweep_finds_the_best_where_runs_do_not_differ():
    assert all(swept(MadeGrid(Kind(between_runs=0.0, between_steps=0.0, drift=0.0), seed)) == 0 for seed in range(5))


def test_a_missed_goal_is_said():
    def ended(loss, share, dropped_wrongly=False, sure=0.98):
        return Replay(loss, share, share, 20, 30, dropped_wrongly, not dropped_wrongly, Verdict(0, sure))

    near, far, long, unsure = ended(0.0, 0.1), ended(0.03, 0.1, True), ended(0.0, 0.2), ended(0.0, 0.1, sure=0.9)
    sweeps = [0.01, 0.02, 0.03, 0.0]
    assert race.row("grid", [near] * 9 + [unsure] * 10 + [far], sweeps, 0.15) == (
        *("grid", "95.0% (76-99)", "75.0%", "3.0%", "10.0%", "10.0%", "20", "30", "5.0%", "95.0%", "50%", "90%", "yes"),
    )
    assert race.row("grid", [unsure], sweeps, 0.15)[-3:] == ("0%", "-", "yes")
    assert race.row("grid", [near] * 18 + [far] * 2, sweeps, 0.15)[-1] == "no"
    assert race.row("grid", [long] * 20, sweeps, 0.15)[-1] == "no"
    assert race.row("grid", [long] * 20, sweeps, None)[-1] == "-"


def test_a_cell_that_drops_out_and_is_better_than_the_winner_is_counted():
    """The cell that is in fact the best by far is slow for as long as the race lasts."""
    grid = MadeGrid(Kind(between_runs=0.0), seed=2)
    best = int(grid.truth.argmax())
    honest = replay(grid, seed=2)
    assert honest.covered and not honest.dropped_wrongly
    steps_s = grid.steps_s
    grid.steps_s = lambda cell, *rest: steps_s(cell, *rest) * (1.5 if cell == best else 1.0)
    wrong = replay(grid, seed=2)
    assert wrong.loss > 0 and wrong.dropped_wrongly
