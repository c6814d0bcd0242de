"""Races: what is known of cells from blocks of some, who runs, who drops out, when it is over and how."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import stdtr

from benchmarks.race_grid import SHORT, MeasuredGrid
from benchmarks.race_replays import Kind, MadeGrid, replay
from multicard.decide.race import posterior as race_model
from multicard.decide.race.blocks import LEAST_ERROR, SINGLE_ERROR, of_steps
from multicard.decide.race.posterior import Block, Model, Scales
from multicard.decide.race.rules import DROP_SHARE, Race
from multicard.decide.race.standings import IN, NOT_STARTED, OUT, RaceOptions

EXACT = Scales(pair=0.03, own=0.04, process=0.01, drift=0.005, inflation=1.5)
GRID = [{"a": a, "b": b, "c": c} for a in range(3) for b in range(2) for c in range(2)]
NONE = [None] * len(GRID)


def known_of(model, seen, scales=EXACT):
    return model.posterior(seen, model.unlearned(scales))


def blocks(*figures, error=0.01, turn=0, process=0):
    return [Block(cell, turn, figure, error, process) for cell, figure in enumerate(figures)]


def truth(setting, of_a=0.3, of_b=0.1, of_c=0.02):
    return 5 + of_a * setting["a"] + of_b * setting["b"] + of_c * setting["c"]


def run(race, figures, most=200, seed=0, finals=True):
    """Blocks of cells with these figures, 0.5 % noise, to the end, and the finals; the rounds."""
    rng, processes, rounds = np.random.default_rng(seed), {}, []
    while cells := race.next_round():
        rounds.append((cells, race.fresh))
        assert len(rounds) < most
        for cell in cells:
            processes[cell] = processes.get(cell, -1) + (cell not in processes or cell in race.fresh)
            race.add(Block(cell, race.round, figures[cell] + rng.normal(0, 0.005), 0.005, processes[cell]))
    for turn, cell in race.final_runs if finals else []:
        processes[cell] += 1
        race.add_full(Block(cell, turn, figures[cell] + rng.normal(0, 0.001), 0.001, processes[cell]))
    return rounds


def test_a_difference_is_drawn_to_zero_by_its_noise_alone_as_level_and_drift_are_common():
    known = known_of(Model([{"a": 0}, {"a": 1}], [None, None]), blocks(5.0, 5.2, turn=3))
    between = 2 * (race_model.AXIS_SD**2 + EXACT.own**2)  # one axis has no pairs
    noise = 2 * (EXACT.process**2 + (1.5 * 0.01) ** 2 + race_model.FLOOR)
    mean, sd = known.difference(1, 0)
    assert mean == pytest.approx(0.2 * between / (between + noise), rel=1e-6)
    assert sd**2 == pytest.approx(between * noise / (between + noise), rel=1e-4)


def test_a_cell_that_never_ran_is_predicted_by_its_axes():
    settings = [{"a": a, "b": b} for a in range(2) for b in range(2)]
    known = known_of(Model(settings, [None] * 4), blocks(5.0, 5.1, 5.3))
    assert known.mean[3] == pytest.approx(5.4, abs=0.02)
    own = math.sqrt(EXACT.own**2 + EXACT.pair**2)
    assert own < known.difference(3, 0)[1] < 3 * own and known.difference(1, 0)[1] < own


def test_a_block_that_happened_to_be_calm_is_no_surer_than_is_usual():
    known = Model([{"a": cell} for cell in range(3)], [None] * 3)
    usual = blocks(5.0, 5.0, 5.0, error=0.05)
    calm = [*usual[:2], replace(usual[2], error=0.001)]
    assert known_of(known, calm).sd[2] == pytest.approx(known_of(known, usual).sd[2])
    unsure = [*usual[:2], replace(usual[2], error=0.2)]
    assert known_of(known, unsure).sd[2] > known_of(known, usual).sd[2] * 1.2


def test_drift_is_not_taken_for_speed():
    """Both cells are equal; the second ran alone after all became 10 % faster, as the first showed later."""
    seen = [*blocks(5.0), Block(1, 1, 5.1, 0.001, 0), Block(0, 1, 5.1, 0.001, 0)]
    drifting = replace(EXACT, drift=0.1)
    known = Model([{"a": 0}, {"a": 1}], [None, None])
    assert abs(known_of(known, seen, drifting).difference(1, 0)[0]) < 0.01
    assert known_of(known, seen[:2], drifting).difference(1, 0)[1] > 0.09


def test_scales_are_learned():
    rng, model = np.random.default_rng(0), Model(GRID, NONE)
    seen = [
        Block(cell, turn, truth(GRID[cell]) + own + rng.normal(0, 0.001), 0.001, process)
        for cell in range(12)
        for process, own in enumerate(rng.normal(0, 0.04, 3))
        for turn in range(2)
    ]
    learned = model.unlearned(EXACT)
    for _ in range(10):
        learned = model.learned(seen, learned, EXACT)
    assert 0.03 < learned.scales.process < 0.055 and learned.scales.own < EXACT.own


def test_the_scatter_of_a_cell_is_its_own_and_drawn_to_that_of_all(monkeypatch: pytest.MonkeyPatch):
    """Blocks around a level that is known well, each cell's by as much: the closed form of the variance's posterior."""
    settings, by = [{"a": cell} for cell in range(3)], (0.5, 1.0, 3.0)
    seen = [
        Block(cell, turn, 5 + 0.015 * by[cell] * (-1) ** turn, 0.01, 0)  # errors of 1 %, with an inflation of 1.5
        for cell in range(3)
        for turn in range(40)
    ]
    model, scales = Model(settings, [None] * 3), replace(EXACT, process=1e-6, drift=1e-6)
    learned = model.unlearned(scales)
    monkeypatch.setattr(race_model, "LEARNING_STEPS", 0)
    for _ in range(30):
        learned = model.learned(seen, learned, scales)
    expected = [(3 + 40 * factor**2) / (3 + 40) for factor in by]
    assert learned.scatter == pytest.approx(expected, rel=0.06)  # the mean of 40 is not known quite
    assert race_model.scatter_degrees(seen, 4).tolist() == [43, 43, 43, 3]


def test_a_full_run_has_the_error_that_its_steps_tell():
    """Not that of blocks, nor their scatter."""
    model, scales = Model([{"a": 0}, {"a": 1}], [None] * 2), replace(EXACT, process=1e-6, drift=1e-6)
    seen = [Block(cell, 0, 5.0, 0.2, 0) for cell in range(2)]
    full = [Block(cell, 1, 5.0, 0.01, 1, is_full=True) for cell in range(2)]
    learned = replace(model.unlearned(scales), scatter=np.array([9.0, 9.0]))
    variance = model.posterior([*seen, *full], learned).difference(1, 0)[1] ** 2
    blocks_variance = 2 * 9 * (1.5 * 0.2) ** 2
    between = 2 * (race_model.AXIS_SD**2 + EXACT.own**2)
    assert variance == pytest.approx(1 / (1 / (2 * 0.01**2) + 1 / blocks_variance + 1 / between), rel=1e-3)


def test_of_figures_that_are_alike_the_noisier_cell_is_slower_by_half_the_variance_of_their_logarithms():
    model, scales = Model([{"a": 0}, {"a": 1}], [None] * 2), replace(EXACT, inflation=1.0)
    noise = 0.1**2
    seen = [Block(cell, turn, 5.0, 0.1, turn) for cell in range(2) for turn in range(400)]
    learned = replace(model.unlearned(scales), scatter=np.array([1.0, 4.0]))
    assert model.posterior(seen, learned).difference(0, 1)[0] == pytest.approx((4 - 1) * noise / 2, rel=0.02)


def test_how_sure_it_is_that_a_cell_is_beaten_allows_for_a_noise_of_which_its_blocks_tell_little():
    race = Race([{"a": cell} for cell in range(2)], [None] * 2, 1.0, 1.0)
    for turn, figure in enumerate((5.0, 4.7)):
        race.add(Block(turn, 0, figure, 0.01, 0))
    race.next_round()
    mean, sd = race._posterior().difference(0, 1)
    (behind,) = [standing for standing in race.standings if standing.cell == 1]
    assert race._spent == (pytest.approx(stdtr(4, -mean / sd)) if behind.state == OUT else 0)
    assert behind.state == OUT, mean / sd


def test_many_predictions_that_agree_are_no_surer_of_an_axis_than_their_errors_are_common():
    known = Model(GRID, [(truth(setting), 0.1) for setting in GRID]).prior(EXACT, 0.0)
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
    assert of_steps(steps_s, 32 * len(steps_s)) == pytest.approx((expected, error), nan_ok=True)


def test_neighbouring_steps_that_are_alike_make_a_block_less_sure():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 0.004, 200)
    alike = np.repeat(noise[:20], 10)
    assert of_steps(0.1 + alike, 200)[1] > 2 * of_steps(0.1 + noise, 200)[1]


def test_a_race_finds_the_best_cell_without_starting_all():
    race = Race(GRID, NONE, 10.0, 2.0)
    figures = [truth(setting) for setting in GRID]
    run(race, figures)
    verdict, standings = race.verdict(), race.standings
    assert verdict.winner == 11 and verdict.sure > 0.95
    assert [standing.cell for standing in standings if standing.state == NOT_STARTED]
    assert standings[11].behind == 0 and standings[11].best == max(standing.best for standing in standings)
    for standing in standings:
        assert abs(standing.behind - (figures[11] - figures[standing.cell])) < 4 * standing.behind_error + 0.01


@pytest.mark.parametrize("seed", range(2))
def test_a_start_that_costs_much_is_worth_it_where_cheap_blocks_say_nothing_more(seed):
    rng = np.random.default_rng(seed)
    figures = [truth(setting) + rng.normal(0, 0.05) for setting in GRID]
    race = Race(GRID, NONE, start_s=1000, block_s=0.1, seed=seed)
    run(race, figures, seed=seed)
    verdict = race.verdict()
    assert verdict.sure > 0.95 and verdict.winner == np.argmax(figures)


def test_the_same_blocks_lead_to_the_same_rounds():
    figures = [truth(setting) for setting in GRID]
    rounds = [run(Race(GRID, NONE, 10.0, 2.0, seed=7), figures) for _ in range(2)]
    assert rounds[0] == rounds[1] and len(rounds[0]) > 1


def test_two_equal_cells_end_and_are_said_to_be_equal():
    figures = [4.0] * 12
    figures[3] = figures[7] = 5.0
    race = Race(GRID, NONE, 10.0, 2.0)
    run(race, figures)
    verdict = race.verdict()
    assert {verdict.winner, *verdict.equal, *verdict.close} == {3, 7} and len(verdict.equal) + len(verdict.close) == 1
    both = [standing for standing in race.standings if standing.cell in (3, 7)]
    assert all(standing.behind < 2 * standing.behind_error + 0.005 for standing in both)


def test_two_cells_of_which_runs_hardly_differ_are_said_to_be_equal():
    figures = [4.0] * 12
    figures[3] = figures[7] = 5.0
    race = Race(GRID, NONE, 10.0, 2.0, RaceOptions(process_sd=0.002))
    run(race, figures)
    verdict = race.verdict()
    assert {verdict.winner, *verdict.equal} == {3, 7} and not verdict.close


def test_cells_beaten_drop_out_with_the_reason_and_no_more_is_spent_on_it_than_allowed():
    race = Race(GRID, NONE, 10.0, 2.0)
    run(race, [truth(setting) for setting in GRID])
    beaten = [standing for standing in race.standings if standing.state == OUT]
    assert beaten and all(standing.reason.startswith("beaten: ") for standing in beaten)
    assert race.standings[11].state == IN
    assert 0 < race._spent <= DROP_SHARE * 0.05


def test_a_cell_that_dropped_out_within_the_tolerance_is_named_as_good():
    race = Race([{"a": cell} for cell in range(3)], [None] * 3, 1.0, 1.0, RaceOptions(tolerance=0.2))
    figures = [5.0, 4.99, 4.0]
    for turn in range(40):
        for cell, figure in enumerate(figures):
            race.add(Block(cell, turn, figure, 0.001, turn))
    race.next_round()
    assert {standing.cell for standing in race.standings if standing.state == OUT} == {1, 2}
    verdict = race.verdict()
    assert verdict.winner == 0 and verdict.equal == (1,) and verdict.close == ()


def test_full_runs_of_other_work_rank_the_finalists_and_tell_nothing_of_the_others():
    race = Race([{"a": cell} for cell in range(3)], [None] * 3, 1.0, 1.0, RaceOptions(finalists=2))
    run(race, [5.0, 5.0, 4.0], finals=False)
    before = race.standings
    assert set(race.finalists) == {0, 1} or len(race.finalists) == 1
    for turn, cell in race.final_runs:
        race.add_full(Block(cell, turn, 3.0 + 0.1 * (cell == race.finalists[-1]), 0.001, 9), is_alike=False)
    assert race.standings == before and race.verdict().winner == race.finalists[-1]


def test_a_cell_that_fails_is_out_and_does_not_run_again():
    race = Race(GRID, NONE, 10.0, 2.0)
    figures = [truth(setting) for setting in GRID]
    figures[11] = math.nan
    race.out(10, "out of memory")
    rounds = run(race, figures)
    ran = [cell for cells, _ in rounds for cell in cells]
    assert 10 not in ran and ran.count(11) <= 1
    assert race.standings[10].reason == "out of memory" and race.standings[10].state == OUT
    assert race.verdict().winner == 9


def test_a_race_of_which_all_cells_fail_ends_without_a_winner():
    race = Race(GRID, NONE, 10.0, 2.0)
    run(race, [math.nan] * 12)
    assert race.finalists == () and race.verdict().winner is None and race.final_runs == []
    assert {standing.state for standing in race.standings} == {OUT}


def test_one_cell_wins_at_once():
    race = Race(GRID[:1], [None], 10.0, 2.0)
    run(race, [5.0])
    assert race.verdict().winner == 0 and len(race.final_runs) == 3


def test_a_cell_that_wins_for_certain_by_its_prediction_is_measured():
    race = Race(GRID, [(5.0 + 3 * (cell == 4), 0.01) for cell in range(12)], 10.0, 2.0)
    rounds = run(race, [5.0 + 3 * (cell == 4) for cell in range(12)])
    assert rounds[0] == ([4], frozenset()) and race.finalists == (4,)


def test_a_race_without_cells_is_refused():
    with pytest.raises(ValueError, match="needs a cell"):
        Race([], [], 10.0, 2.0)


def test_cells_that_cannot_win_by_their_prediction_are_not_started():
    predictions = [(truth(setting), 0.03) for setting in GRID]
    race = Race(GRID, predictions, 10.0, 2.0)
    rounds = run(race, [truth(setting) for setting in GRID])
    started = {cell for cells, _ in rounds for cell in cells}
    assert started <= {8, 9, 10, 11} and race.verdict().winner == 11


def test_a_cell_whose_blocks_are_sure_goes_on_in_a_fresh_process():
    figures = [4.0] * 12
    figures[3], figures[7] = 5.0, 4.995
    rounds = run(Race(GRID, NONE, 10.0, 2.0, RaceOptions(tolerance=0.001)), figures)
    assert any(fresh & {3, 7} for _, fresh in rounds)
    assert all(fresh <= set(cells) for cells, fresh in rounds)


@pytest.mark.parametrize(
    "kind",
    [Kind(), Kind(start_s=3), Kind(correlation=0.6, drift=0.02), Kind(equal=3), Kind(predicted=True)],
    ids=lambda kind: f"start {kind.start_s:g} s, drift {kind.drift:g}, {kind.equal} equal, predicted {kind.predicted}",
)
def test_a_few_replays_of_each_kind_end_near_the_best(kind):
    races = [replay(MadeGrid(kind, seed), seed=seed) for seed in range(5)]
    assert sum(race.loss <= 0.02 for race in races) >= 4
    assert np.mean([race.share for race in races]) <= 0.12


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "share"),
    [
        (lambda seed: MadeGrid(Kind(), seed), 0.15),
        (lambda seed: MadeGrid(Kind(start_s=3), seed), 0.12),
        (lambda seed: MeasuredGrid(SHORT, seed, times=4), 0.15),
    ],
    ids=["made, a start of 10 s", "made, a start of 3 s", "measured steps, in longer runs"],
)
def test_of_40_replays_95_percent_end_near_the_best_within_their_share_of_the_time(world, share):
    races = [replay(world(seed), seed=seed) for seed in range(40)]
    assert np.mean([race.loss <= 0.02 for race in races]) >= 0.95
    assert np.mean([race.share for race in races]) <= share
