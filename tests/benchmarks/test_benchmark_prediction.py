"""The benchmark of predictions: its goals on the tables that are replayed."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks import prediction, prediction_replays, prediction_runs
from benchmarks import prediction_growth as growth
from benchmarks.prediction_replays import Outcome
from multicard.estimate import published
from multicard.estimate.time import scaling
from multicard.estimate.time.scaling import Growth

HEAD = "entry,words,gpus,predicted_s,low_s,high_s,total_s,basis,about\n"


def test_errors_and_intervals_of_outcomes():
    outcomes = [Outcome(1.1, 1.0, 1.21, 1.0), Outcome(1.0, 0.5, 2.0, 1.0), Outcome(0.8, 0.7, 0.9, 1.0)]
    assert prediction_replays.errors(outcomes) == pytest.approx((0.1, 0.1))
    assert prediction_replays.covered(outcomes) == pytest.approx(2 / 3)


def test_steps_on_eight_gpus_are_predicted_for_families_never_seen():
    outcomes = prediction_replays.scaling_far(prediction.lambda_fp16(published.sound()))
    median, mean = prediction_replays.errors(outcomes)
    assert len(outcomes) == 58 and median <= 0.015 and mean <= 0.031  # the goal of 3 % is missed: the row says so
    assert prediction_replays.half_width(outcomes) <= 0.08 and 0.88 <= prediction_replays.covered(outcomes) <= 0.95
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
            cases.append(growth.Case(f"family {family}", f"workload {workload}", d, far))
    return cases


def test_a_known_growth_is_recovered():
    cases = simulated(40, np.random.default_rng(0))
    exact = [replace(case, growth_8=math.expm1(Growth(0.1, 1.0, 0.01).log_ratio(case.growth_2, 8))) for case in cases]
    fitted = growth.fit(exact)
    assert (fitted.threshold, fitted.slope, fitted.constant) == pytest.approx((0.1, 1.0, 0.01), abs=1e-3)


def test_intervals_cover_families_that_were_left_out_in_simulation():
    rng = np.random.default_rng(1)
    inside = []
    for _ in range(12):
        model = growth.calibrated(simulated(8, rng))
        inside += [model.low <= growth.score(model, case) <= model.high for case in simulated(6, rng)]
    assert len(inside) == 12 * 36 and 0.83 <= np.mean(inside) <= 0.97


def test_each_group_counts_once_in_a_conformal_quantile():
    scores = {"a": [0.0] * 1000, "b": [-1.0, 1.0], "c": [-2.0, 2.0]}
    assert growth.quantiles(scores, 0.9) == (-2.0, 2.0)
    assert growth.quantiles(scores, 0.6) == (-1.0, 1.0)


def test_the_stated_growth_follows_from_the_published_table():
    follows = growth.calibrated(growth.cases(published.sound()))
    for name in ("threshold", "slope", "constant", "low", "high"):
        assert getattr(scaling.PUBLISHED, name) == pytest.approx(getattr(follows, name), abs=2e-3), name


def test_the_model_of_a_row_never_saw_its_family(monkeypatch):
    rows = prediction.lambda_fp16(published.sound())
    before = prediction_replays.scaling_far([row for row in rows if row.family == "A100"])
    others = tuple(row for row in published.sound() if row.family != "A100")
    monkeypatch.setattr(published, "sound", lambda: others)
    assert prediction_replays.scaling_far([row for row in rows if row.family == "A100"]) == before != []


def test_precisions_are_predicted_as_well_as_asked():
    assert [row.verdict for row in prediction.precision_rows()] == ["yes", "yes"]


def test_times_of_the_papers_are_inside_their_intervals():
    outcomes = prediction_replays.papers_totals()
    assert len(outcomes) == 10 and prediction_replays.covered(outcomes) == 1
    assert prediction_replays.errors(outcomes)[0] < 0.032  # the goal of 2 % is missed: the row says so
    assert prediction.papers_row().verdict == "no"


def test_totals_are_those_of_the_measured_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "RUNS", tmp_path / "runs.csv")
    assert "not measured" in prediction.totals_row().reached
    cells = [f"train_vision,,{1 + number % 2},100,90,110,{95 if number else 120},probed,a" for number in range(30)]
    prediction.RUNS.write_text(HEAD + "\n".join([*cells, "train_vision,,1,,,,50,unknown,why"]) + "\n")
    row = prediction.totals_row()
    kinds = "15 train_vision on 1, 15 train_vision on 2; 1 not predicted"
    assert row.reached == f"5.3%, 97% covered, once calibrated 100% (30 runs: {kinds})" and row.verdict == "no"


def test_intervals_are_calibrated_by_the_runs_before():
    runs = [Outcome(100.0, 90.0, 110.0, 130.0)] * 10 + [Outcome(100.0, 80.0, 110.0, 130.0)]
    (last,) = prediction_replays.calibrated(runs)  # all ten were 3 sides above
    assert (last.low, last.high) == (40.0, 130.0) and prediction_replays.covered([last]) == 1.0
    assert prediction_replays.calibrated(runs[:10]) == []


def test_cells_to_measure_are_enough_and_of_both_kinds():
    cells = [*prediction_runs.cells()]
    assert len({*cells}) == len(cells) >= 30
    assert {(entry, words[-2]) for entry, words in cells} == {
        (entry, f"gpus={gpus}") for entry in ("train_vision", "tune_llm") for gpus in (1, 2)
    }


def test_a_measured_row_has_what_the_record_of_the_run_says_was_predicted():
    total_s = {"value": 10.0, "low": 9.0, "high": 11.0}
    record = {"total_s": 10.5, "prediction": {"basis": "probed", "about": "1 probe", "total_s": total_s}}
    expected = {"predicted_s": "10.000", "low_s": "9.000", "high_s": "11.000", "total_s": "10.500"}
    assert prediction_runs.row(record) == expected | {"basis": "probed", "about": "1 probe"}
    assert prediction_runs.row({"total_s": 10.5, "prediction": None})["predicted_s"] == ""
