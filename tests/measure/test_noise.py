"""How runs differ: closed forms of the prior and of moderated variances,
and what simulated worlds show of them.
"""

import math

import numpy as np
import pytest
from scipy.special import polygamma

from multicard.measure import noise
from multicard.measure.noise import CPU_SD, PRIOR_FREEDOM, Noise, Spread
from multicard.measure.repeated_runs import half_width, of_values


def setting(*values: float) -> list[tuple[float, float]]:
    return [(value, 0.0) for value in values]


def test_before_any_repetition_a_setting_has_the_noise_of_its_kind_of_machine():
    known = Noise.of_kind(CPU_SD)
    assert known.of(setting(1.0)) == Spread(CPU_SD**2, PRIOR_FREEDOM, 0)
    assert Noise.learnt([setting(1.0), setting(2.0)], CPU_SD) == known


def test_a_moderated_variance_is_its_closed_form():
    known = Noise(Spread(0.04, freedom=3.0, repetitions=40))
    own = setting(0.0, 0.1, 0.2)  # a variance of 0.01 on 2 degrees of freedom
    spread = known.of(own)
    assert spread.variance == pytest.approx((3 * 0.04 + 2 * 0.01) / 5)
    assert spread.freedom == 5
    assert spread.repetitions == 40


def test_a_setting_that_shows_more_noise_is_believed():
    known = Noise(Spread(0.0004, freedom=10.0, repetitions=40))
    assert known.of(setting(-0.2, 0.2)).variance == pytest.approx(0.08)


def test_few_repeated_settings_are_drawn_towards_the_kind_unless_they_refute_it():
    near = Noise.learnt([setting(0.0, 0.02)], 0.02).prior
    assert near.variance == pytest.approx((0.02**2 + 0.0002) / 2)
    far = Noise.learnt([setting(0.0, 0.2)], 0.02)
    assert far.prior.variance == pytest.approx(0.02)
    assert (near.repetitions, near.freedom) == (1, 2)
    assert far.of(setting(0.0, 0.5, 0.7)) == far.prior  # until it is known how settings differ


@pytest.mark.parametrize("value", [1e-8, 0.01, 0.5, 3.0, 100.0, 1e8])
def test_inverse_trigamma(value: float):
    assert float(polygamma(1, noise.inverse_trigamma(value))) == pytest.approx(value, rel=1e-3)


def test_the_prior_of_many_settings_is_found():
    random, freedom, level = np.random.default_rng(2), 6.0, 0.01
    true = freedom * level / random.chisquare(freedom, size=20_000)
    degrees = np.full(20_000, 4)
    seen = true * random.chisquare(4, size=20_000) / 4
    found = noise.fit_prior(seen, degrees)
    assert found == pytest.approx((freedom, level), rel=0.1)


def test_equal_variances_need_no_prior_of_their_own():
    freedom, level = noise.fit_prior(np.full(5, 0.0004), np.full(5, 4))
    assert freedom == math.inf
    assert level == pytest.approx(0.0004)


@pytest.mark.parametrize("exponent", [0, 4, 12])
@pytest.mark.parametrize("settings", [2, 3, 4, 24])
def test_however_little_variances_agree_a_setting_has_an_interval(settings: int, exponent: int):
    """Some repeat to the last digit, others by a factor: the fit
    then knows the prior by less than a degree.
    """
    spans = np.geomspace(10.0**-exponent, 1.0, settings)
    learnt = Noise.learnt([[(0.0, 0.0), (float(span), 0.0)] for span in spans], CPU_SD)
    once, twice = [(0.0, 0.0)], [(0.0, 0.0), (1e-6, 0.0)]
    for runs in (once, twice):
        spread = learnt.of(runs)
        values = [1.0] * len(runs), [1.1] * len(runs)
        ratio = of_values(*values, (spread, spread))
        bounds = ratio.bounds()
        assert bounds is not None and bounds[0] < 1.1 < bounds[1]


def test_repetitions_without_a_difference_do_not_make_variances_disagree():
    """Of four settings that were repeated once, one repeats to the
    last digit: the others are known as before.
    """
    others = [setting(0.0, 0.02), setting(0.0, 0.03), setting(0.0, 0.025)]
    near = Noise.learnt([*others, setting(0.0, 0.01)], CPU_SD)
    same = Noise.learnt([*others, setting(0.0, 0.0)], CPU_SD)
    assert near.prior.freedom == 4 and same.prior.freedom > 3
    same_half, near_half = (half_width(2, known.of(setting(0.0, 0.02))) for known in (same, near))
    assert same_half <= 1.05 * near_half


@pytest.mark.parametrize("settings", [1, 2, 3, 8])
def test_more_repetitions_without_a_difference_never_widen_an_interval(settings: int):
    halves = []
    for repetitions in range(1, 6):
        known = Noise.learnt(
            [setting(*[0.1 * at] * (1 + repetitions)) for at in range(settings)], CPU_SD
        )
        halves.append(half_width(1, known.prior))
    assert halves == sorted(halves, reverse=True)


def test_few_repetitions_that_refute_the_kind_are_known_by_themselves_alone():
    assert Noise.learnt([setting(0.0, 1.0)], CPU_SD).prior.freedom == 1
    assert Noise.learnt([setting(0.0, 0.01)], CPU_SD).prior.freedom == 2
