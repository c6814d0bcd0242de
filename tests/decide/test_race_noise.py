"""Races whose cells are noisy by themselves: their slow spells are not others' load,
and do not make them win.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from multicard.decide.race import disturbance
from multicard.decide.race.blocks import Block, own_noise, variances
from multicard.decide.race.rules import Race

GRID = [{"a": a, "b": b, "c": c} for a in range(3) for b in range(2) for c in range(2)]
FIGURES = [5 + 0.3 * each["a"] + 0.1 * each["b"] + 0.02 * each["c"] for each in GRID]


def series(cell, figures, error=0.02, process=0):
    """Blocks of one process, a round each."""
    return [Block(cell, turn, figure, error, process) for turn, figure in enumerate(figures)]


def calm(cells, turns=4):
    """Blocks of cells that all have a figure of 5, with next to no noise."""
    return [block for cell in cells for block in series(cell, [5.0, 5.01, 4.99, 5.0][:turns])]


def test_slow_blocks_of_one_cell_are_its_own_spells_and_no_bursts():
    spells = series(0, [5.0, 4.5, 5.0, 4.5, 4.5, 5.0])
    found = disturbance.with_slowdowns([*spells, *calm(range(1, 9))])
    assert [block.slowed for block in found] == [0.0] * len(found)
    assert not disturbance.are_bursts(found)


def test_slow_blocks_of_many_cells_are_bursts():
    slow = [block for cell in range(4) for block in series(cell, [5.0, 4.5])]
    found = disturbance.with_slowdowns([*slow, *calm(range(4, 9))])
    assert [block.cell for block in found if block.slowed] == [0, 1, 2, 3]
    assert disturbance.are_bursts(found)


def test_a_single_slow_block_is_disturbed():
    found = disturbance.with_slowdowns([*series(0, [5.0, 4.5, 5.0]), *calm(range(1, 9))])
    assert [block.slowed > 0 for block in found[:3]] == [False, True, False]


def test_load_that_was_seen_is_load_however_few_cells_it_met():
    busy = [replace(block, busy=0.5) for block in series(0, [4.5, 4.5, 4.5])]
    found = disturbance.with_slowdowns([*series(0, [5.0]), *busy, *calm(range(1, 5), turns=2)])
    assert [block.slowed > 0 for block in found[:4]] == [False, True, True, True]
    assert disturbance.are_bursts(found)


def test_a_noisy_cell_has_a_variance_of_its_own_and_the_others_have_not():
    rng = np.random.default_rng(2)
    noises = [0.2] + [0.02] * 9
    blocks = [
        block
        for cell, noise in enumerate(noises)
        for block in series(cell, 5 + rng.normal(0, noise, 8), error=0.02)
    ]
    factors = own_noise(blocks)
    assert 30 < factors[0] < 300  # a hundred times the variance; eight blocks tell it so far
    assert all(factor < 4 for cell, factor in factors.items() if cell)
    widened = variances(blocks)
    assert widened[:8] == pytest.approx(np.full(8, 0.02**2 * factors[0]))


def test_equally_noisy_cells_have_one_variance_and_full_runs_their_own():
    rng = np.random.default_rng(5)
    blocks = [block for cell in range(12) for block in series(cell, 5 + rng.normal(0, 0.05, 6))]
    assert max(own_noise(blocks).values(), default=1.0) < 3
    full = replace(blocks[0], is_full=True, error=0.001)
    assert variances([*blocks, full])[-1] == pytest.approx(1e-6)


def raced():
    """A race of twelve cells, of which each ran four blocks, that is over."""
    race = Race(GRID, [None] * len(GRID))
    for cell, figure in enumerate(FIGURES):
        for block in series(cell, [figure, figure + 0.005, figure - 0.005, figure], error=0.01):
            race.add(block)
    race.end("close", [10, 11])
    return race


def test_of_two_finalists_a_noisy_one_does_not_win_by_a_lucky_mean():
    race = raced()
    for turn, luck in zip((4, 5, 6), (0.1, -0.05, 0.07), strict=True):
        race.add_full(Block(10, turn, FIGURES[10] + luck, 0.1, turn))
        race.add_full(Block(11, turn, FIGURES[11], 0.002, turn))
    lucky, steady = (race.standings[cell].in_full for cell in (10, 11))
    assert lucky is not None and steady is not None and lucky > steady
    assert race.verdict().winner == 11


def test_full_runs_tell_alone_of_a_cell_with_slow_blocks_of_which_nobody_knows_the_cause():
    race = raced()
    for block in series(11, [FIGURES[11] + 0.2, FIGURES[11] - 0.3, FIGURES[11] + 0.2], process=1):
        race.add(replace(block, round=block.round + 4))
    assert race.standings[11].log_figure > FIGURES[11] + 0.03
    for turn, own in zip((8, 9, 10), (0.01, -0.01, 0.0), strict=True):
        race.add_full(Block(11, turn, FIGURES[11] + own, 0.005, turn))
    standing = race.standings[11]
    assert standing.log_figure == pytest.approx(FIGURES[11], abs=0.01)
    assert standing.error < 0.02 and math.isfinite(race.verdict().sure)
