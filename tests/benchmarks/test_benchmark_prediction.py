"""The fit of growth with GPUs; the golden of `benchmarks.prediction --times` has the replays."""

import math

import numpy as np
import pytest

from benchmarks import prediction
from benchmarks import prediction_replays as replays
from multicard.estimate import published, scaling
from multicard.estimate.scaling import Growth

KNOWN = Growth(threshold=0.1, slope=1.0, constant=0.01)


def simulated(families, rng, workloads=6, noise=1.0):
    """Cases of KNOWN growth, with errors of families and of cases that grow with d."""
    cases = []
    for family in range(families):
        shift = rng.normal(0, 0.5)
        for workload in range(workloads):
            d = rng.gamma(0.6, 0.12)
            error = noise * (scaling.NOISE + scaling.NOISE_SLOPE * d) * (shift + rng.normal(0, 1))
            far = math.expm1(KNOWN.log_ratio(d, 8) + error)
            cases.append(replays.Case(f"family {family}", f"workload {workload}", d, far))
    return cases


def test_a_known_growth_is_recovered():
    found = replays.fit(simulated(40, np.random.default_rng(0), noise=0.0))
    assert (found.threshold, found.slope, found.constant) == pytest.approx((0.1, 1.0, 0.01), abs=1e-3)


def test_intervals_cover_families_that_were_left_out_in_simulation():
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(12):
        model = replays.fitted(simulated(8, rng))
        inside += [model.low <= replays.score(model, case) <= model.high for case in simulated(6, rng)]
    assert len(inside) == 12 * 36 and 0.83 <= np.mean(inside) <= 0.97


def test_each_group_counts_once_in_a_conformal_quantile():
    scores = {"a": [0.0] * 1000, "b": [-1.0, 1.0], "c": [-2.0, 2.0]}
    assert replays.quantiles(scores, 0.9) == (-2.0, 2.0)
    assert replays.quantiles(scores, 0.6) == (-1.0, 1.0)


def test_the_stated_growth_follows_from_the_published_table():
    follows = replays.fitted(replays.cases(published.sound()))
    for name in ("threshold", "slope", "constant", "low", "high"):
        assert getattr(scaling.PUBLISHED, name) == pytest.approx(getattr(follows, name), abs=2e-3), name


def test_the_model_of_a_row_never_saw_its_family(monkeypatch):
    rows = prediction.lambda_fp16(published.sound())
    before = replays.scaling_far([row for row in rows if row.family == "A100"])
    others = tuple(row for row in published.sound() if row.family != "A100")
    monkeypatch.setattr(published, "sound", lambda: others)
    assert replays.scaling_far([row for row in rows if row.family == "A100"]) == before != []
