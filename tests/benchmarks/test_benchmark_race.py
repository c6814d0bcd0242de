"""The benchmark of races: when a goal counts as met, and what is wrong; its golden has the replays themselves."""

from benchmarks import race
from benchmarks.race_replays import (
    Kind,
    MadeGrid,
    Replay,
    replay,
)
from multicard.decide.race.rules import Verdict


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
