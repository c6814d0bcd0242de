"""Worlds of unequal noise: what the table counts,
and that verdicts keep to its goals in drawn worlds.
"""

import numpy as np
import pytest

from benchmarks import identical, unequal_noise
from benchmarks.unequal_noise import Shares
from multicard.measure.noise import Spread


def test_a_difference_is_told_by_its_spreads():
    quiet = Spread(0.0004, freedom=1e9, repetitions=9)
    half = 1.959964 * (2 * 0.0004 / 5) ** 0.5
    assert unequal_noise.exceeds_noise(1.01 * half, (quiet, quiet), 5, 0.95)
    assert not unequal_noise.exceeds_noise(0.99 * half, (quiet, quiet), 5, 0.95)


def test_worlds_have_the_noise_that_they_are_said_to_have():
    logs = unequal_noise.logarithms(np.random.default_rng(1), 4, 2, 20_000, heavy=False)
    assert logs.std(axis=1) == pytest.approx([0.2, 0.2, 0.02, 0.02], rel=0.03)


def test_goals_are_by_repetitions():
    assert Shares(8, 2, False, 3, 0.14, 0.1, 0.5).meets_goals
    assert not Shares(8, 2, False, 5, 0.09, 0.01, 1.0).meets_goals
    assert not Shares(8, 2, False, 5, 0.01, 0.01, 0.89).meets_goals


def test_identical_judges_these_worlds_first_and_measures_nothing_if_told_so(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["identical", "--worlds", "3", "--seed", "5", "--rounds", "0"])
    identical.main()
    assert capsys.readouterr().out.splitlines() == unequal_noise.report(3, 5)


@pytest.mark.slow
@pytest.mark.parametrize("runs", unequal_noise.REPETITIONS)
def test_verdicts_keep_to_the_goals(runs: int):
    found = unequal_noise.shares(np.random.default_rng(runs), 600, 8, 2, runs, heavy=False)
    assert found.meets_goals, found
