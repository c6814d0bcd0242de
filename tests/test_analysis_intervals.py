"""Intervals of proportions and of few repetitions: published examples, tables, and what they cover."""

import math

import numpy as np
import pytest

from analysis.stats import bootstrap, intervals
from analysis.stats.intervals import Interval


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_that_of_newcombes_table_1(right: int, count: int, low: float, high: float):
    found = intervals.wilson(right, count, 0.95)
    assert found.estimate == right / count
    assert (found.low, found.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


@pytest.mark.parametrize(
    ("a", "b", "low", "high"),
    [
        ((56, 70), (48, 80), 0.0524, 0.3339),
        ((9, 10), (3, 10), 0.1705, 0.8090),
        ((6, 7), (2, 7), 0.0582, 0.8062),
        ((5, 56), (0, 29), -0.0381, 0.1926),
        ((0, 10), (0, 20), -0.1611, 0.2775),
        ((10, 10), (0, 10), 0.6075, 1.0),
    ],
)
def test_the_difference_is_that_of_newcombes_method_10(a: tuple[int, int], b: tuple[int, int], low: float, high: float):
    found = intervals.difference(intervals.wilson(*a, 0.95), intervals.wilson(*b, 0.95))
    assert found.estimate == pytest.approx(a[0] / a[1] - b[0] / b[1])
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


@pytest.mark.parametrize(("p", "q", "count"), [(0.98, 0.97, 360), (0.5, 0.6, 48), (0.99, 0.99, 10_000)])
def test_both_cover_what_they_say(p: float, q: float, count: int):
    random, trials = np.random.default_rng(11), 2000
    ours, theirs = random.binomial(count, p, trials), random.binomial(count, q, trials)
    single = [intervals.wilson(int(right), count, 0.95) for right in ours]
    pairs = [
        intervals.difference(a, intervals.wilson(int(r), count, 0.95)) for a, r in zip(single, theirs, strict=True)
    ]
    shares = [np.mean([covers(one, truth) for one in found]) for found, truth in ((single, p), (pairs, p - q))]
    assert all(0.93 <= share <= 0.985 for share in shares), shares


def covers(found: Interval, truth: float) -> bool:
    return found.low is not None and found.high is not None and found.low <= truth <= found.high


@pytest.mark.parametrize(
    ("confidence", "freedom", "table"),
    [
        *[(0.95, 1, 12.706), (0.95, 2, 4.303), (0.95, 3, 3.182), (0.95, 9, 2.262), (0.95, 30, 2.042)],
        *[(0.99, 1, 63.657), (0.99, 2, 9.925), (0.99, 3, 5.841), (0.99, 10, 3.169), (0.998, 5, 5.893)],
    ],
)
def test_students_quantile_is_the_tables(confidence: float, freedom: int, table: float):
    assert intervals.student(confidence, freedom) == pytest.approx(table, rel=0.01)
    with pytest.raises(ValueError, match="two values"):
        intervals.student(confidence, 0)


def test_several_intervals_are_wider_each():
    assert intervals.together(1) == pytest.approx(0.95) and intervals.together(5) == pytest.approx(0.99)
    assert intervals.normal(intervals.together(5)) == pytest.approx(2.5758, abs=1e-4)


def test_means_and_ratios_of_few_runs_have_students_interval():
    values = [1.0, 1.2, 1.1]
    half = 4.3027 * 0.1 / math.sqrt(3)
    found = intervals.mean(values, 0.95, "3 runs")
    assert (found.low, found.high) == (pytest.approx(1.1 - half, abs=1e-3), pytest.approx(1.1 + half, abs=1e-3))
    apart = intervals.means_apart(values, [2.0, 2.0, 2.0], 0.95, "3 runs")
    assert (apart.estimate, apart.high) == (pytest.approx(-0.9), pytest.approx(-0.9 + half, abs=1e-3))
    ratio = intervals.ratio(values, [2.2], 0.95, "1 and 3 runs", exact=True)
    assert ratio.estimate == pytest.approx(0.5)
    assert ratio.high == pytest.approx(0.5 * math.exp(half / 1.1), rel=1e-3)


def test_ranks_that_scatter_alike_have_students_pooled_interval():
    top, bottom = [5.0 * math.e**0.1, 5.0 * math.e**-0.1], [math.e**0.1, math.e**-0.1]
    found = intervals.alike(top, bottom, 0.95, "2 ranks")
    half = 4.3027 * math.sqrt(0.04 / 2 * (1 / 2 + 1 / 2))  # 4 squares of 0.1, by 2 degrees of freedom
    assert found.estimate == pytest.approx(5.0)
    assert found.low == pytest.approx(5.0 * math.exp(-half), rel=1e-4)
    assert intervals.alike([1.0], [2.0], 0.95, "1 rank").low is None
    assert intervals.alike([1.0], [2.0, 2.1], 0.95, "1 and 2 ranks").low is not None
    with pytest.raises(ValueError, match="it is 0"):
        intervals.alike([1.0], [0.0], 0.95, "1 rank")


def test_a_single_value_has_no_interval_unless_it_is_exact():
    assert intervals.mean([1.0], 0.95, "1 run").low is None
    assert intervals.means_apart([1.0], [2.0, 2.1], 0.95, "1 and 2 runs").high is None
    assert intervals.ratio([4.0], [2.0], 0.95, "1 run") == Interval(2.0, None, None, "1 run")
    assert intervals.ratio([4.0], [2.0], 0.95, "exact", exact=True) == Interval(2.0, 2.0, 2.0, "exact")
    assert intervals.difference(Interval(2.0, None, None, "1 run"), Interval(1.0, 0.5, 1.5, "")).low is None
    with pytest.raises(ValueError, match="it is 0"):
        intervals.ratio([1.0], [0.0], 0.95, "exact", exact=True)


def test_a_resampled_interval_is_the_bootstraps_and_stretched_beyond_95_percent():
    random = np.random.default_rng(2)
    a, b = random.normal(1.0, 0.1, 500), random.normal(2.0, 0.1, 500)
    plain, at_95 = bootstrap.ratio([a], [b], block=1), intervals.resampled([b], [a], 0.95, "steps", block=1)
    assert (at_95.estimate, at_95.low, at_95.high) == pytest.approx((plain.ratio, plain.low, plain.high))
    wide = intervals.resampled([b], [a], 0.99, "steps", block=1)
    assert at_95.low is not None and wide.low is not None and wide.estimate == at_95.estimate
    stretched = math.log(wide.low / wide.estimate) / math.log(at_95.low / at_95.estimate)
    assert stretched == pytest.approx(2.576 / 1.960, rel=0.005)
    seeds = [random.normal(1.0, 0.01, 50) for _ in range(3)]
    few, fewer = (intervals.resampled(seeds, seeds, confidence, "steps") for confidence in (0.95, 0.99))
    assert few.low is not None and fewer.low is not None
    assert math.log(fewer.low) / math.log(few.low) == pytest.approx(9.925 / 4.303, rel=0.01)
    with pytest.raises(ValueError, match="took no time"):
        intervals.resampled([np.zeros(20)], [a], 0.95, "steps")


def test_intervals_of_several_cells_cover_together():
    """Of 8 comparisons without a difference, all intervals have it, in 95 % of the cases or more."""
    random, hits, trials = np.random.default_rng(5), 0, 50
    for _ in range(trials):
        pairs = random.normal(1.0, 0.1, (8, 2, 60))
        found = [intervals.resampled([a], [b], intervals.together(8), "steps", block=1) for a, b in pairs]
        hits += all(covers(one, 1.0) for one in found)
    assert hits / trials >= 0.88  # each at 95 % would give 0.66
