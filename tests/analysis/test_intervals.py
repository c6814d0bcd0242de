"""Intervals of proportions and of few repetitions: published examples, tables, and what they cover."""

import math

import pytest

from analysis.stats import intervals
from analysis.stats.intervals import Interval


@pytest.mark.parametrize(
    ("right", "count", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_interval_is_that_of_newcombes_table_1(right: int, count: int, low: float, high: float):
    interval = intervals.wilson(right, count, 0.95)
    assert interval.estimate == right / count
    assert (interval.low, interval.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


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
    interval = intervals.difference(intervals.wilson(*a, 0.95), intervals.wilson(*b, 0.95))
    assert interval.estimate == pytest.approx(a[0] / a[1] - b[0] / b[1])
    assert (interval.low, interval.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_intervals_of_several_comparisons_are_wider():
    assert intervals.bonferroni(1) == pytest.approx(0.95) and intervals.bonferroni(5) == pytest.approx(0.99)
    assert intervals.normal_quantile(intervals.bonferroni(5)) == pytest.approx(2.5758, abs=1e-4)


def test_means_and_ratios_of_few_runs_have_students_interval():
    values = [1.0, 1.2, 1.1]
    half = 4.302652729749464 * 0.1 / math.sqrt(3)
    interval = intervals.mean(values, 0.95, "3 runs")
    assert (interval.low, interval.high) == (pytest.approx(1.1 - half, rel=1e-9), pytest.approx(1.1 + half, rel=1e-9))
    assert intervals.mean([7.0]).low is None
    with pytest.raises(ValueError, match="no value"):
        intervals.mean([])
    with pytest.raises(ValueError, match="two values"):
        intervals.student_quantile(0.95, 0)
    ratio = intervals.exact_ratio(values, [2.2], 0.95, "1 and 3 runs")
    assert ratio.estimate == pytest.approx(0.5)
    assert ratio.high == pytest.approx(0.5 * math.exp(half / 1.1), rel=1e-3)


def test_a_single_value_has_no_interval_unless_it_is_exact():
    assert intervals.mean([1.0], 0.95, "1 run").low is None
    assert intervals.exact_ratio([4.0], [2.0], 0.95, "exact") == Interval(2.0, 2.0, 2.0, "exact")
    assert intervals.difference(Interval(2.0, None, None, "1 run"), Interval(1.0, 0.5, 1.5, "")).low is None
    with pytest.raises(ValueError, match="it is 0"):
        intervals.exact_ratio([1.0], [0.0], 0.95, "exact")
