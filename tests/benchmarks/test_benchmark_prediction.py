"""The benchmark of predictions: its goals on the tables that are replayed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import prediction
from benchmarks import prediction_replays as replays
from benchmarks.prediction_replays import Outcome
from multicard.estimate import published, scaling
from multicard.estimate.scaling import Growth

HEAD = "entry,words,gpus,predicted_s,low_s,high_s,total_s,basis,about\n"


def test_errors_and_intervals_of_outcomes():
    outcomes = [Outcome(1.1, 1.0, 1.21, 1.0), Outcome(1.0, 0.5, 2.0, 1.0), Outcome(0.8, 0.7, 0.9, 1.0)]
    assert replays.errors(outcomes) == pytest.approx((0.1, 0.1))
    assert replays.covered(outcomes) == pytest.approx(2 / 3)


def test_steps_on_eight_gpus_are_predicted_for_families_never_seen():
    outcomes = replays.scaling_far(prediction.lambda_fp16(published.sound()))
    median, mean = replays.errors(outcomes)
    assert len(outcomes) == 58 and median <= 0.015 and mean <= 0.031  # the goal of 3 % is missed: the row says so
    assert replays.half_width(outcomes) <= 0.08 and 0.88 <= replays.covered(outcomes) <= 0.95
    assert prediction.scaling_row(outcomes).verdict == "no"


def simulated(families, rng, workloads=6):
    """Cases of a known growth, with an error of a family and of a case that grow with d."""
    cases = []
    for family in range(families):
        shift = rng.normal(0, 0.5)
        for workload in range(workloads):
            d = rng.gamma(0.6, 0.12)
            error = (scaling.NOISE + scaling.NOISE_SLOPE * d) * (shift + rng.normal(0, 1))
            far = math.exp(Growth(0.1, 1.0, 0.01).log_ratio(d, 8) + error) - 1
            cases.append(replays.Case(f"family {family}", f"workload {workload}", d, far))
    return cases


def test_a_known_growth_is_recovered():
    cases = simulated(40, np.random.default_rng(0))
    exact = [replace(case, growth_8=math.expm1(Growth(0.1, 1.0, 0.01).log_ratio(case.growth_2, 8))) for case in cases]
    fitted = replays.fit(exact)
    assert (fitted.threshold, fitted.slope, fitted.constant) == pytest.approx((0.1, 1.0, 0.01), abs=1e-3)


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


def test_precisions_are_predicted_as_well_as_asked():
    assert [prediction.precision_row(probed).verdict for probed in (False, True)] == ["yes", "yes"]


def test_times_of_the_papers_are_inside_their_intervals():
    outcomes = replays.papers_totals()
    assert len(outcomes) == 10 and replays.covered(outcomes) == 1
    assert replays.errors(outcomes)[0] < 0.032  # the goal of 2 % is missed: the row says so
    assert prediction.papers_row().verdict == "no"


def test_totals_are_those_of_the_measured_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "RUNS", tmp_path / "runs.csv")
    cells = [f"train_vision,,{1 + number % 2},100,90,110,{95 if number else 120},probed,a" for number in range(30)]
    prediction.RUNS.write_text(HEAD + "\n".join([*cells, "train_vision,,1,,,,50,unknown,why"]) + "\n")
    row = prediction.totals_row()
    kinds = "15 train_vision on 1, 15 train_vision on 2; 1 not predicted"
    assert row.reached == f"5.3%, 97% covered, once calibrated 100% (30 runs: {kinds})" and row.verdict == "no"


def test_intervals_are_calibrated_by_the_runs_before():
    runs = [Outcome(100.0, 90.0, 110.0, 130.0)] * 10 + [Outcome(100.0, 80.0, 110.0, 130.0)]
    (last,) = replays.calibrated(runs)  # all ten were 3 sides above
    assert (last.low, last.high) == (40.0, 130.0) and replays.covered([last]) == 1.0
    assert replays.calibrated(runs[:10]) == []
