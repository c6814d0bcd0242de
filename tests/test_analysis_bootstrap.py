"""Intervals of ratios: what they cover, against closed forms and simulations."""

import numpy as np
import pytest

from analysis.stats import bootstrap


def autocorrelated(random: np.random.Generator, count: int, mean: float, phi: float, spread: float = 0.1) -> np.ndarray:
    """Steps (count,) of an AR(1) process around `mean`, each with a standard deviation of `spread` of it."""
    noise = random.normal(size=count) * np.sqrt(1 - phi**2)
    noise[0] /= np.sqrt(1 - phi**2)
    for index in range(1, count):
        noise[index] += phi * noise[index - 1]
    return mean * (1 + spread * noise)


@pytest.mark.parametrize(("phi", "count"), [(0.0, 100), (0.5, 200), (0.8, 400)])
def test_the_interval_covers_the_ratio_of_autocorrelated_steps(phi: float, count: int):
    random, hits, trials = np.random.default_rng(7), 0, 400
    for _ in range(trials):
        a, b = autocorrelated(random, count, 0.1, phi), autocorrelated(random, count, 0.12, phi)
        ratio = bootstrap.ratio([a], [b])
        assert ratio.low is not None and ratio.high is not None
        hits += ratio.low <= 1.2 <= ratio.high
    assert 0.89 <= hits / trials <= 0.98  # 0.95 is meant; the binomial's own 95 % are 0.929 to 0.971


def test_blocks_of_one_step_would_be_far_too_narrow():
    random, hits = np.random.default_rng(7), 0
    for _ in range(200):
        a, b = autocorrelated(random, 400, 0.1, 0.8), autocorrelated(random, 400, 0.1, 0.8)
        ratio = bootstrap.ratio([a], [b], block=1)
        hits += ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
    assert hits / 200 < 0.75


def test_the_interval_covers_where_runs_differ_from_one_another():
    random, hits, trials, widths = np.random.default_rng(7), 0, 200, []
    for _ in range(trials):
        sides = [
            [autocorrelated(random, 100, 0.1 * (1 + 0.05 * random.normal()), 0.3) for _ in range(6)] for _ in range(2)
        ]
        ratio = bootstrap.ratio(*sides)
        hits += ratio.low is not None and ratio.high is not None and ratio.low <= 1 <= ratio.high
        widths.append((ratio.high or np.nan) - (ratio.low or np.nan))
    assert hits / trials >= 0.92  # it errs to the wide side
    known = 2 * 2.228 * 0.05 * np.sqrt(2 / 6)  # Student's interval of 6 and 6 runs that differ by 5 %
    assert np.mean(widths) < 1.4 * known


def test_independent_steps_have_the_interval_of_their_standard_error():
    random = np.random.default_rng(3)
    a, b = random.normal(1.0, 0.1, 1000), random.normal(1.0, 0.1, 1000)
    ratio = bootstrap.ratio([a], [b], block=1)
    error = np.sqrt(a.var() / 1000 / a.mean() ** 2 + b.var() / 1000 / b.mean() ** 2) * ratio.ratio
    assert ratio.low == pytest.approx(ratio.ratio - 1.96 * error, abs=0.15 * error)
    assert ratio.high == pytest.approx(ratio.ratio + 1.96 * error, abs=0.15 * error)


def test_a_ratio_is_of_means_of_runs_and_the_same_every_time():
    a, b = [np.full(10, 1.0), np.full(90, 3.0)], [np.full(20, 5.0)]
    assert bootstrap.ratio(a, b).ratio == 2.5
    assert bootstrap.ratio(a, b) == bootstrap.ratio(a, b)
    same = bootstrap.ratio(b, b)
    assert (same.ratio, same.low, same.high) == (1.0, 1.0, 1.0)
    assert bootstrap.ratio([np.ones(7)], b).low is None
    with pytest.raises(ValueError, match="no sample"):
        bootstrap.ratio([np.empty(0)], b)


def test_few_units_are_spread_like_students_t():
    assert bootstrap.small_sample_factor(1) == 1.0
    assert bootstrap.small_sample_factor(11) == pytest.approx(
        np.sqrt(1.1) * 2.2281 / 1.96, rel=0.02
    )  # t of 10 degrees of freedom
    assert bootstrap.small_sample_factor(10**6) == pytest.approx(1.0, abs=1e-5)


def test_blocks_are_as_long_as_steps_are_alike():
    random = np.random.default_rng(5)
    lengths = [bootstrap.block_length(autocorrelated(random, 1000, 0.1, phi)) for phi in (0.0, 0.5, 0.9)]
    assert lengths[0] <= 3 and lengths[0] < lengths[1] < lengths[2]
    # AR(1) has G / g = 2 phi / (1 - phi²): (3/2 (2 phi / (1 - phi²))²)^(1/3) n^(1/3), Politis and White's example
    expected = (1.5 * (2 * 0.5 / 0.75) ** 2) ** (1 / 3) * 10
    assert lengths[1] == pytest.approx(expected, rel=0.35)
    assert bootstrap.block_length(np.ones(50)) == 1
    assert bootstrap.block_length(np.tile([1.0, 2.0], 50)) >= 1
