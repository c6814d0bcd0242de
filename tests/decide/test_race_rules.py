"""Races: what is known of cells from blocks of some, who runs, who drops out,
when it is over and how.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtr

from multicard.decide.race import budget, disturbance, outcome
from multicard.decide.race import posterior as race_model
from multicard.decide.race.elimination import DROP_SHARE
from multicard.decide.race.outcome import BEATEN, ENDINGS, IN, NOT_STARTED, OUT, RaceOptions
from multicard.decide.race.posterior import OWN, PROCESS, Block, Model, Prior
from multicard.decide.race.readings import LEAST_ERROR, SINGLE_ERROR, log_rate, log_slowdown
from multicard.decide.race.rules import Race
from multicard.messages import code_of

EXACT = dict(
    zip(
        ("pair", "own", "process", "drift", "inflation"),
        (0.03, 0.04, 0.01, 0.005, 1.5),
        strict=True,
    )
)
GRID = [{"a": a, "b": b, "c": c} for a in range(3) for b in range(2) for c in range(2)]
NONE = [None] * len(GRID)
PAIR_OF_CELLS = [{"a": 0}, {"a": 1}]


def modelled(settings, priors=None, **scales):
    """A model that has not learned, with these scales."""
    model = Model(settings, priors or [None] * len(settings))
    model.log_scales = np.log([*(EXACT | scales).values()])
    return model


def blocks(*figures, error=0.01, turn=0, process=0):
    return [Block(cell, turn, figure, error, process) for cell, figure in enumerate(figures)]


def truth(setting, of_a=0.3, of_b=0.1, of_c=0.02):
    return 5 + of_a * setting["a"] + of_b * setting["b"] + of_c * setting["c"]


FIGURES = [truth(setting) for setting in GRID]


def run(race, figures, full_s=budget.FULL_S, finals=True):
    """Race cells with these figures, 0.5 % noise, to the end, and the finals.
    Returns the rounds.
    """
    rng, processes, rounds, raced_s = np.random.default_rng(0), {}, [], 0.0
    race.costs(10.0, 2.0, full_s)
    while cells := race.next_round():
        rounds.append((cells, race.fresh))
        assert len(rounds) < 200
        for cell in cells:
            starts = cell not in processes or cell in race.fresh
            processes[cell] = processes.get(cell, -1) + starts
            raced_s += 10.0 * starts + 2.0
            race.add(
                Block(
                    cell, race.round, figures[cell] + rng.normal(0, 0.005), 0.005, processes[cell]
                )
            )
        race.costs(10.0, 2.0, full_s, raced_s)
    for turn, cell in race.final_runs if finals else []:
        processes[cell] = processes.get(cell, -1) + 1
        race.add_full(
            Block(cell, turn, figures[cell] + rng.normal(0, 0.001), 0.001, processes[cell])
        )
    return rounds


def race_of(cells, **options):
    """A race between cells that differ in one axis."""
    return Race([{"a": cell} for cell in range(cells)], [None] * cells, RaceOptions(**options))


def test_a_difference_is_drawn_to_zero_by_its_noise_alone_as_level_and_drift_are_common():
    known = modelled(PAIR_OF_CELLS).posterior(blocks(5.0, 5.2, turn=3))
    between = 2 * (race_model.AXIS_SD**2 + EXACT["own"] ** 2)  # one axis has no pairs
    noise = 2 * (EXACT["process"] ** 2 + (1.5 * 0.01) ** 2 + race_model.FLOOR)
    mean, sd = known.difference(1, 0)
    assert mean == pytest.approx(0.2 * between / (between + noise), rel=1e-6)
    assert sd**2 == pytest.approx(between * noise / (between + noise), rel=1e-4)


def test_a_cell_that_never_ran_is_predicted_by_its_axes():
    known = modelled([{"a": a, "b": b} for a in range(2) for b in range(2)]).posterior(
        blocks(5.0, 5.1, 5.3)
    )
    assert known.mean[3] == pytest.approx(5.4, abs=0.02)
    own = math.hypot(EXACT["own"], EXACT["pair"])
    assert own < known.difference(3, 0)[1] < 3 * own and known.difference(1, 0)[1] < own


def test_a_block_that_happened_to_be_calm_is_no_surer_than_is_usual():
    known = modelled([{"a": cell} for cell in range(3)])
    usual = blocks(5.0, 5.0, 5.0, error=0.05)
    calm, unsure = ([*usual[:2], replace(usual[2], error=error)] for error in (0.001, 0.2))
    assert known.posterior(calm).sd[2] == pytest.approx(known.posterior(usual).sd[2])
    assert known.posterior(unsure).sd[2] > known.posterior(usual).sd[2] * 1.2


def test_drift_is_not_taken_for_speed():
    """Both cells are equal; the second ran alone after all became 10 % faster,
    as the first showed later.
    """
    seen = [*blocks(5.0), Block(1, 1, 5.1, 0.001, 0), Block(0, 1, 5.1, 0.001, 0)]
    known = modelled(PAIR_OF_CELLS, drift=0.1)
    assert abs(known.posterior(seen).difference(1, 0)[0]) < 0.01
    assert known.posterior(seen[:2]).difference(1, 0)[1] > 0.09


def test_scales_are_learned_within_bounds():
    rng, model = np.random.default_rng(0), Model(GRID, NONE)
    seen = [
        Block(cell, turn, FIGURES[cell] + own + rng.normal(0, 0.001), 0.001, process)
        for cell in range(12)
        for process, own in enumerate(rng.normal(0, 0.04, 3))
        for turn in range(2)
    ]
    defaults = model.log_scales
    model.learn(seen)
    learned = np.exp(model.log_scales)
    assert 0.03 < learned[PROCESS] < 0.055 and learned[OWN] < math.exp(defaults[OWN])
    model.learn(
        [Block(cell, turn, 10.0**cell, 1e-4, turn) for cell in range(12) for turn in range(3)]
    )
    assert np.abs(model.log_scales - defaults).max() <= race_model.MOST_APART + 1e-9


def test_a_full_run_has_the_error_that_its_steps_tell():
    """Not that of blocks, which is inflated."""
    model = modelled(PAIR_OF_CELLS, process=1e-6, drift=1e-6)
    seen = [Block(cell, 0, 5.0, 0.2, 0) for cell in range(2)]
    full = [Block(cell, 1, 5.0, 0.01, 1, is_full=True) for cell in range(2)]
    variance = model.posterior([*seen, *full]).difference(1, 0)[1] ** 2
    between = 2 * (race_model.AXIS_SD**2 + EXACT["own"] ** 2)
    expected = 1 / (1 / (2 * 0.01**2) + 1 / (2 * (1.5 * 0.2) ** 2) + 1 / between)
    assert variance == pytest.approx(expected, rel=1e-3)


def test_how_sure_it_is_that_a_cell_is_beaten_allows_for_a_noise_of_which_its_blocks_tell_little():
    race = race_of(4)
    for cell, figure in enumerate((5.0, 4.5)):
        race.add(Block(cell, 0, figure, 0.01, 0))
    race.next_round()
    mean, sd = race._model.posterior(race._blocks).difference(0, 1)
    (behind,) = [standing for standing in race.standings if standing.cell == 1]
    assert behind.state == OUT, mean / sd
    assert race._outs.spent == pytest.approx(stdtr(4, -mean / sd))


def test_many_estimates_that_agree_are_no_surer_of_an_axis_than_their_errors_are_common():
    known = modelled(GRID, [Prior(figure, 0.1) for figure in FIGURES]).posterior([])
    mean, sd = known.difference(8, 0)  # other by `a` alone
    assert mean == pytest.approx(0.6, abs=0.03) and 0.04 < sd < 0.12


@pytest.mark.parametrize(
    ("steps_s", "expected", "error"),
    [
        (np.full(40, 0.1), math.log(320), LEAST_ERROR),
        (np.array([0.1]), math.log(320), SINGLE_ERROR),
        (np.array([0.1, 0.12]), math.log(32 / 0.11), 2 * 0.02 / 2 / 0.11),
        (np.array([0.1, math.inf]), math.nan, math.nan),
        (np.zeros(3), math.nan, math.nan),
    ],
)
def test_the_figure_of_a_block(steps_s, expected, error):
    assert log_rate(steps_s, 32 * len(steps_s)) == pytest.approx((expected, error), nan_ok=True)


def test_a_race_finds_the_best_cell_without_starting_all_and_drops_the_beaten_within_its_risk():
    race = Race(GRID, NONE)
    rounds = run(race, FIGURES)
    verdict, standings = race.verdict(), race.standings
    assert verdict.winner == 11 and verdict.sure > 0.95
    assert [standing.cell for standing in standings if standing.state == NOT_STARTED]
    for standing in standings:
        assert abs(standing.log_figure - FIGURES[standing.cell]) < 4 * standing.error + 0.01
    beaten = [standing for standing in standings if standing.state == OUT]
    assert (
        beaten
        and all(code_of(standing.reason) == BEATEN for standing in beaten)
        and standings[11].state == IN
    )
    assert 0 < race._outs.spent <= DROP_SHARE * 0.05
    assert (
        standings[11].in_full == pytest.approx(FIGURES[11], abs=0.003)
        and standings[0].in_full is None
    )
    # the same blocks, the same rounds
    assert run(Race(GRID, NONE), FIGURES) == rounds and len(rounds) > 1


def test_a_cell_that_dropped_out_within_the_tolerance_is_named_as_good():
    race = race_of(3, tolerance=0.2)
    for turn in range(40):
        for cell, figure in enumerate((5.0, 4.99, 4.0)):
            race.add(Block(cell, turn, figure, 0.001, turn))
    race.next_round()
    assert {standing.cell for standing in race.standings if standing.state == OUT} == {1, 2}
    verdict = race.verdict()
    assert verdict.winner == 0 and verdict.equal == (1,) and verdict.close == ()


def test_cells_that_fail_are_out_and_do_not_run_again():
    race = Race(GRID, NONE)
    race.out(10, "out of memory")
    rounds = run(race, [*FIGURES[:11], math.nan])
    ran = [cell for cells, _ in rounds for cell in cells]
    assert 10 not in ran and ran.count(11) <= 1
    assert race.standings[10].reason == "out of memory" and race.standings[10].state == OUT
    assert race.verdict().winner == 9
    race = Race(GRID, NONE)
    run(race, [math.nan] * 12)
    assert race.ending == outcome.NO_CELL and {standing.state for standing in race.standings} == {
        OUT
    }
    assert race.finalists == () and race.verdict().winner is None and race.final_runs == []


def test_estimates_say_what_to_start():
    race = Race(GRID, [Prior(5.0 + 3 * (cell == 4), 0.01, "scaled") for cell in range(12)])
    rounds = run(race, [5.0 + 3 * (cell == 4) for cell in range(12)])
    assert rounds[0] == ([4], frozenset()) and race.finalists == (4,)
    race = Race(GRID, [Prior(figure, 0.03, "scaled") for figure in FIGURES])
    rounds = run(race, FIGURES)
    assert {cell for cells, _ in rounds for cell in cells} <= {
        8,
        9,
        10,
        11,
    } and race.verdict().winner == 11


def test_a_winner_by_an_estimate_that_is_wrong_by_far_does_not_win():
    """A cell's step was scaled to 19.6 ms and took 464 ms: neither
    it nor what its estimate implies is believed.
    """
    settings, wrong = [{"a": a, "b": b} for a in range(2) for b in range(4)], math.log(464 / 19.6)
    figures = [4.0 + 0.1 * setting["b"] for setting in settings]
    priors = [
        Prior(figure + wrong * (cell >= 4), 0.05, "scaled") for cell, figure in enumerate(figures)
    ]
    race = Race(settings, priors, RaceOptions(tolerance=0.2))
    run(race, [figure + 0.3 * (cell < 4) for cell, figure in enumerate(figures)])
    # estimates are forgotten
    assert race.verdict().winner == 3 and race._model.posterior([]).sd[0] > 0.3


def test_a_cell_whose_blocks_are_sure_goes_on_in_a_fresh_process():
    figures = [4.0] * 12
    figures[3], figures[7] = 5.0, 4.995
    rounds = run(Race(GRID, NONE, RaceOptions(tolerance=0.001)), figures)
    assert any(fresh & {3, 7} for _, fresh in rounds)
    assert all(fresh <= set(cells) for cells, fresh in rounds)


EIGHT = [{"a": str(a), "b": str(b)} for a in range(4) for b in range(2)]
APART = [0.3 * place for place in range(8)]


@pytest.mark.parametrize(
    ("figures", "full_s", "options", "ending"),
    [
        (APART, 3600.0, {}, outcome.SURE),
        ([5.0] * 8, 23.0, {"tolerance": 0.001}, outcome.TIME),
        ([5.0] * 8, 3600.0, {"tolerance": 0.001}, outcome.NOTHING_LEFT),
        ([5.0, 5.0, *[3.0] * 6], 40.0, {"tolerance": 0.001, "runs": 1}, outcome.CLOSE),
        (APART, 12.0, {}, outcome.NOT_WORTH),
    ],
)
def test_why_a_race_ended(figures, full_s, options, ending):
    race = Race(EIGHT, [None] * 8, RaceOptions(**options))
    run(race, figures, full_s)
    assert race.ending == ending and ending in ENDINGS
    assert (len(race.finalists) > 1) == (ending not in (outcome.SURE, outcome.TIME))


def test_a_race_that_would_not_pay_measures_the_grid():
    """Eight starts and blocks, and three full runs, take longer than eight full runs."""
    race = Race(EIGHT, [None] * 8)
    assert len(race.next_round()) > 1 and not race.gives_up
    race.add(Block(0, 0, 5.0, 0.01, 1))
    race.out(7, "oom")
    race.costs(10.0, 2.0, 12.0)
    assert race.gives_up and race.next_round() == []
    assert race.final_runs == [(1, cell) for cell in range(7)]
    for cells in (1, 3):  # however long runs are
        small = race_of(cells)
        assert run(small, APART) == [] and small.final_runs == [(0, cell) for cell in range(cells)]
        assert small.verdict().winner == cells - 1


def test_a_race_and_its_full_runs_take_no_longer_than_the_grid():
    race = Race(EIGHT, [None] * 8)
    for cell in race.next_round():
        race.add(Block(cell, race.round, 5.0, 0.005, 0))
    race.costs(10.0, 2.0, 1000.0, raced_s=3999.0)
    assert race.most_s == 4000.0 and race.next_round()
    race.costs(10.0, 2.0, 1000.0, raced_s=4000.0)
    assert race.next_round() == [] and race.ending == outcome.TIME
    assert len(race.finalists) == 1  # three runs of one are 3000 of the 4000 s that are left
    small = race_of(5)
    small.costs(10.0, 2.0, 1000.0)
    assert small.most_s == 2000.0  # three of the five full runs fit after it


# ---- bursts of load


def test_a_block_beside_others_or_far_behind_its_cell_is_disturbed():
    seen = [
        Block(0, 0, 5.0, 0.01, 0),
        Block(0, 1, 4.5, 0.01, 0),  # far behind the first
        Block(0, 1, 4.8, 0.01, 1),  # processes differ by themselves
        Block(1, 0, 5.0, 0.01, 2, busy=0.5),
        Block(2, 0, 5.0, 0.2, 3),
        Block(2, 1, 4.5, 0.2, 3),  # within what its steps say
    ]
    found = [block.slowed for block in disturbance.with_slowdowns(seen)]
    assert found == pytest.approx([0.0, 0.5, 0.0, math.log(2), 0.0, 0.0])


def test_a_disturbed_block_tells_as_little_as_its_load_explains():
    model = modelled(PAIR_OF_CELLS)
    calm = blocks(5.0, 4.0)
    disturbed = disturbance.with_slowdowns([calm[0], replace(calm[1], busy=0.5)])
    assert (
        model.posterior(disturbed).difference(0, 1)[1]
        > 0.4
        > 10 * model.posterior(calm).difference(0, 1)[1]
    )


def test_no_single_block_drops_a_cell_against_its_estimate_and_the_block_is_repeated():
    """A cell of 428 images/s by records has a block at 53, and is as fast as the best."""
    race = Race([{"a": cell} for cell in range(4)], [Prior(math.log(428), 0.06, "measured")] * 4)
    for cell, figure in enumerate((424, 53, 300)):
        race.add(Block(cell, 0, math.log(figure), 0.01, cell))
    assert 1 in race.next_round() and race.standings[1].state == IN
    race.add(Block(1, 1, math.log(424), 0.01, 1))
    assert race.standings[1].log_figure == pytest.approx(math.log(424), abs=0.05)
    assert race._model.has_estimate(1)


def test_a_cell_returns_once_the_blocks_that_beat_it_are_disturbed():
    race = race_of(4)
    for cell, figure in enumerate((5.0, 4.5)):
        race.add(Block(cell, 0, figure, 0.01, cell))
    race.next_round()
    assert race.standings[1].state == OUT and race._outs.spent > 0
    race.add(Block(1, 1, 5.05, 0.01, 1))
    race.next_round()
    assert race.standings[1].state == IN and race._outs.spent == pytest.approx(0.0, abs=1e-9)


def test_bursts_end_a_race_in_rounds_of_many_cells_and_nothing_is_sure():
    race = Race(EIGHT, [None] * 8)
    race.costs(10.0, 2.0, 3600.0)
    turn = race.next_round()
    for place, cell in enumerate(turn):
        race.add(Block(cell, 0, 5.0 + APART[cell], 0.01, cell, busy=0.5 * (place % 2)))
    assert race.bursts and race.next_round() == [] and race.ending == outcome.BURSTS
    # three runs of three cells take less than 8 runs
    assert len(race.finalists) == 3 and len(race.final_runs) == 9
    turns = [turn for turn, _ in race.final_runs]
    assert turns == sorted(turns)  # interleaved
    for turn, cell in race.final_runs:
        race.add_full(Block(cell, turn, 5.0 + APART[cell] - 0.3 * (turn % 2), 0.01, 20 + turn))
    verdict = race.verdict()
    assert verdict.sure == 0.0 and verdict.disturbed >= 3 and verdict.equal == verdict.close == ()
    winner = race.standings[verdict.winner]
    full = race._full[verdict.winner]
    assert all(
        abs(winner.log_figure - figure) <= outcome.NORMAL_95 * winner.error + 1e-9
        for figure in full
    )


def test_bursts_that_the_full_runs_show_widen_the_finals():
    race = race_of(12)
    for cell in range(12):
        race.add(Block(cell, 0, 5.0 - cell / 10, 0.01, cell))
    race.costs(10.0, 2.0, 100.0)
    race.end(outcome.SURE, [0])
    runs = [Block(0, turn, 4.7, 0.05, 20 + turn, slowed=0.3) for turn, _ in race.final_runs]
    first = race.final_runs
    assert not race.widen([replace(run, slowed=0.0) for run in runs]) and race.final_runs == first
    assert race.widen(runs) and race.ending == outcome.BURSTS
    assert {*first} < {*race.final_runs} and race.finalists[0] == 0 and not race.widen(runs)


def test_slow_spells_of_a_full_run_are_seen_in_its_steps():
    rng = np.random.default_rng(0)
    steps_s = 0.1 * (1 + 0.04 * rng.normal(size=600))
    assert log_slowdown(steps_s) == 0.0 and log_slowdown(steps_s[:4]) == 0.0
    # single steps are no spell
    assert log_slowdown(np.where(rng.random(600) < 0.01, 2 * steps_s, steps_s)) == 0.0
    in_burst = np.arange(600) % 300 < 100
    assert log_slowdown(np.where(in_burst, 1.8 * steps_s, steps_s)) == pytest.approx(
        math.log(1 + 0.8 / 3), abs=0.03
    )
