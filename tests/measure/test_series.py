"""The mean of steps that are alike: what its interval covers,
against closed forms and simulations.
"""

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from analysis.stats import between_runs
from analysis.stats.between_runs import Spread
from multicard.measure.repeated_runs import Term
from multicard.measure.series import count_warm_up_steps, mean_step, mean_variance


def autocorrelated(
    random: np.random.Generator, count: int, mean: float, phi: float, spread: float = 0.1
) -> np.ndarray:
    """Steps (count,) of an AR(1) process around `mean`,
    each with a standard deviation of `spread` of it.
    """
    noise = random.normal(size=count) * math.sqrt(1 - phi**2)
    noise[0] /= math.sqrt(1 - phi**2)
    return mean * (1 + spread * lfilter([1.0], [1.0, -phi], noise))


@pytest.mark.parametrize(("count", "trials"), [(30, 700), (100, 500), (500, 300)])
@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6])
def test_the_interval_over_steps_covers_the_ratio(phi: float, count: int, trials: int):
    random, hits, shown = np.random.default_rng(7), 0, 0
    for _ in range(trials):
        a, b = (autocorrelated(random, count, mean, phi) for mean in (0.1, 0.12))
        bounds = between_runs.ratio([a], [b], (Spread(), Spread())).bounds()
        shown += bounds is not None
        hits += bounds is not None and bounds[0] <= 1.2 <= bounds[1]
    assert hits / shown >= 0.93
    assert shown / trials > (0.5 if (count, phi) == (30, 0.6) else 0.95)


@pytest.mark.parametrize("count", [30, 100])
def test_few_steps_that_are_much_alike_are_called_too_few(count: int):
    random, trials = np.random.default_rng(7), 400
    steps = [autocorrelated(random, count, 0.1, 0.9) for _ in range(trials)]
    intervals = [
        between_runs.ratio([a], [b], (Spread(), Spread())).bounds()
        for a, b in zip(steps[::2], steps[1::2], strict=True)
    ]
    assert sum(bounds is None for bounds in intervals) / (trials / 2) > (
        0.9 if count == 30 else 0.5
    )
    wrong = sum(bounds is not None and not bounds[0] <= 1 <= bounds[1] for bounds in intervals)
    assert wrong / (trials / 2) <= 0.06


def test_the_variance_of_the_mean_has_its_closed_forms():
    random = np.random.default_rng(3)
    for phi in (0.0, 0.5, 0.8):
        term = mean_variance(autocorrelated(random, 10_000, 1.0, phi))
        assert term is not None
        inflation = (1 + phi) / (1 - phi)
        assert term.variance == pytest.approx(0.01 * inflation / 10_000, rel=0.25)
        assert term.degrees + 1 == pytest.approx(10_000 / inflation, rel=0.25)
    assert mean_variance(np.ones(7)) is None  # too few
    assert mean_variance(np.full(50, 0.1)) == Term(0.0, 49)


def test_periodic_steps_and_noise_over_a_slow_drift_are_seen():
    random, covered = np.random.default_rng(5), 0
    alternating = mean_variance(np.tile([1.0, 2.0], 50))
    assert alternating is not None and alternating.variance <= 0.25 / 100 * 1.1
    for _ in range(300):
        steps = autocorrelated(random, 500, 1.0, 0.9, 0.05) + 0.1 * random.normal(size=500)
        term = mean_variance(steps)
        assert term is not None
        covered += abs(steps.mean() - 1) <= 1.97 * math.sqrt(term.variance)
    assert covered / 300 >= 0.88  # the lag-1 correlation alone gives 0.73


@pytest.mark.parametrize("warm", [3, 10, 60])
def test_the_warm_up_is_found(warm: int):
    random = np.random.default_rng(4)
    cuts = []
    for _ in range(100):
        steps = autocorrelated(random, 400, 0.1, 0.3, 0.05)
        steps[:warm] += np.linspace(0.3, 0.05, warm)
        cuts.append(count_warm_up_steps(steps))
    assert np.mean([0.8 * warm <= cut for cut in cuts]) >= 0.95 and np.median(cuts) <= warm + 10
    flat = [count_warm_up_steps(autocorrelated(random, 400, 0.1, 0.0)) for _ in range(100)]
    assert np.mean(flat) <= 40  # a tenth: noise costs little
    assert (
        count_warm_up_steps(np.array([9.0, 1.0, 1.1, 1.0, 1.1, 1.0])) == 1
        and count_warm_up_steps(np.array([2.0])) == 0
    )


@pytest.mark.parametrize(("phi", "covered"), [(0.0, 0.92), (0.5, 0.92), (0.9, 0.88)])
def test_the_interval_of_the_mean_step_covers_it(phi: float, covered: float):
    random, hits, trials = np.random.default_rng(9), 0, 400
    for _ in range(trials):
        steps = autocorrelated(random, 600, 0.1, phi)
        steps[:12] *= 3
        mean = mean_step(steps)
        assert mean.steps + mean.warmup_steps == 600 and mean.warmup_steps >= 10
        hits += (
            mean.half_width is not None and abs(mean.step_s - 0.1) <= mean.half_width * mean.step_s
        )
    assert hits / trials >= covered


def test_a_slow_drift_leaves_no_narrow_interval():
    random = np.random.default_rng(2)
    for count in (100, 1000):
        for _ in range(50):
            steps = 0.1 * (1 + 0.01 * random.normal(size=count) + np.linspace(0.0, 0.1, count))
            half_width = mean_step(steps).half_width
            assert half_width is None or half_width > 0.01
    assert mean_step(np.linspace(1.0, 2.0, 10)).half_width is None
    assert mean_step(np.full(30, 0.1)).half_width == pytest.approx(0.0, abs=1e-9)
