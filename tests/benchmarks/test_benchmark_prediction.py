"""The benchmark of predictions: its goals on the tables that are replayed, and tables of strangers."""

import pytest

from benchmarks import prediction, prediction_replays, prediction_runs
from benchmarks.prediction_replays import Outcome
from multicard.estimate import published

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


def test_a_strangers_table_is_replayed_and_its_defects_named(tmp_path, capsys):
    table = tmp_path / "table.csv"
    lines = [
        f"{count}x Some GPU,{count},{100 * count - 2 * (count > 1)},{100 * count * (1 + (count == 8))}"
        for count in (1, 2, 8)
    ]
    table.write_text("name,gpus,net,broken\n" + "\n".join(lines) + "\n")
    prediction.replay_file(table)
    printed = capsys.readouterr().out
    assert "Some GPU broken: beyond linear: 2.00 times as fast a GPU on 8 as on 2" in printed
    assert "(1 cases)" in printed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu,count\nA,1\n", "needs the columns name and gpus"),
        ("name,gpus,net\nA,1,fast\n", "line 2"),
        ("name,gpus,net\nA,1,100\n", "no row without defects"),
        ("", "needs the columns"),
    ],
)
def test_a_table_of_another_form_is_refused(tmp_path, text, message):
    table = tmp_path / "table.csv"
    table.write_text(text)
    with pytest.raises(SystemExit, match=message):
        prediction.replay_file(table)
    table.write_bytes("name,gpus,café\n".encode("latin-1"))
    for path, reason in ((table, "is not UTF-8"), (tmp_path / "none.csv", "No such file"), (tmp_path, "directory")):
        with pytest.raises(SystemExit, match=f"^--throughput {path}: .*{reason}"):
            prediction.replay_file(path)


def test_a_measured_row_has_what_the_record_of_the_run_says_was_predicted():
    total_s = {"value": 10.0, "low": 9.0, "high": 11.0}
    record = {"total_s": 10.5, "prediction": {"basis": "probed", "about": "1 probe", "total_s": total_s}}
    expected = {"predicted_s": "10.000", "low_s": "9.000", "high_s": "11.000", "total_s": "10.500"}
    assert prediction_runs.row(record) == expected | {"basis": "probed", "about": "1 probe"}
    assert prediction_runs.row({"total_s": 10.5, "prediction": None})["predicted_s"] == ""
