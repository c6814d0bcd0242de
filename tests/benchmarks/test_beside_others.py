"""How often predicted steps lie in their intervals: what the table counts,
and that it is its goal.
"""

import math

import numpy as np
import pytest
from scipy.special import ndtr

from benchmarks import beside_others
from benchmarks.beside_others import Coverage
from multicard.estimate.observations import BUSY_SD, CPU_SD, NORMAL_90


def test_worlds_differ_as_they_are_said_to():
    seen = beside_others.world(np.random.default_rng(3), 4, 5_000, 0.3, beside=True)
    logs = np.log([each.step_s for each in seen]).reshape(4, -1)
    assert logs.std(axis=1) == pytest.approx(0.3, rel=0.05)
    assert {each.busy_share for each in seen} == {beside_others.BUSY}


@pytest.mark.parametrize(("beside", "sd"), [(True, BUSY_SD), (False, CPU_SD)])
def test_one_run_holds_nine_of_ten_next_ones_where_runs_differ_as_assumed(beside: bool, sd: float):
    """The next run is off by the noise of both: sd √2,
    of which the interval has 1.645 to either side.
    """
    known = beside_others.interval(
        beside_others.world(np.random.default_rng(1), 1, 1, sd, beside), beside
    )
    assert known is not None
    half = math.log(known.high / known.value)
    inside = 2 * float(ndtr(half / (math.sqrt(2) * sd))) - 1
    assert inside == pytest.approx(2 * float(ndtr(NORMAL_90)) - 1, abs=1e-6)


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(("settings", "runs"), [(1, 2), (1, 3), (1, 5), (4, 2)])
def test_few_repetitions_hold_nine_of_ten_next_runs(settings: int, runs: int, beside: bool):
    """Two or three runs that happen to agree say little of the next one."""
    random = np.random.default_rng((9, settings, runs, beside))
    found = beside_others.coverage(random, 600, settings, runs, "usual", beside)
    error = math.sqrt(0.9 * 0.1 / (600 * found.given))
    assert beside_others.LEAST - 2 * error <= found.covered <= beside_others.MOST + 2 * error, found
    assert found.given > 0.75


def test_the_goal_is_of_worlds_as_assumed_alone():
    usual = Coverage(True, 1, 2, "usual", 0.87, 1.0, 0.3)
    assert usual.meets_goal is False and len(beside_others.row(usual)) == len(
        beside_others.HEADINGS
    )
    assert Coverage(True, 1, 2, "1.5 times", 0.87, 1.0, 0.3).meets_goal is None
