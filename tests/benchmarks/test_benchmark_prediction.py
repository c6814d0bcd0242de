"""The fit of growth with GPUs; the golden of `benchmarks.prediction --times` has the replays."""

import math

import numpy as np
import pytest

from benchmarks import prediction
from benchmarks import prediction_replays as replays
from multicard.estimate import published, scaling
from multicard.estimate.scaling import Growth


def test_a_known_growth_is_recovered():
    known, rng = Growth(threshold=0.1, slope=1.0, constant=0.01), np.random.default_rng(0)
    growth_2 = rng.gamma(0.6, 0.12, 240)
    every = enumerate(growth_2)
    rows = [replays.Case(f"family {n % 40}", f"{n}", d, math.expm1(known.log_ratio(d, 8))) for n, d in every]
    found = replays.fit(rows)
    assert (found.threshold, found.slope, found.constant) == pytest.approx((0.1, 1.0, 0.01), abs=1e-3)


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
