"""Predicted against measured: errors, coverage, and verdicts on memory."""

import re
from pathlib import Path
from typing import Any

import pytest

from analysis.commands import predictions
from analysis.runs import load
from multicard.messages import Message
from multicard.records.limits import KINDS
from tests.analysis.conftest import Said
from tests.helpers import records
from tests.helpers.messages import says, told
from tests.helpers.records import write_all as write

ERRORS = (0.1, -0.2, 0.05, 0.25)  # with half-widths of 15 %, the second and the fourth lie outside
HALF_WIDTH = 0.15


def scaled(folder: Path, **changes: Any) -> Path:
    """Four runs whose figures were all predicted too high by ERRORS."""
    of_runs = [records.prediction("scaled", error, HALF_WIDTH, fits="yes") for error in ERRORS]
    return write(
        folder,
        *(records.vision(seed=seed, prediction=of) | changes for seed, of in enumerate(of_runs)),
    )


def printed(said: Said, *words: object) -> list[list[str]]:
    """The cells of each line that the command prints."""
    return [re.split(r"\s{2,}", line) for line in said("predictions", *words).splitlines()]


def test_errors_bias_and_coverage_are_those_by_hand(tmp_path: Path, said: Said):
    write(tmp_path / "probed", records.vision(prediction=records.prediction("probed", 0.02, 0.1)))
    known = records.prediction(memory_basis="measured in 2 of this cell's runs")
    write(tmp_path / "known", records.vision(prediction=known))
    runs = scaled(tmp_path / "scaled")
    by_hand = ["4", "15.0%", "15.0%", "+5.0%", "50%", "15% to 85%", "±15.0%"]
    lines = printed(said, runs)
    for figure, basis in (
        ("step", "scaled"),
        ("total", "scaled"),
        ("energy", "scaled"),
        ("memory", "computed"),
    ):
        assert [figure, basis, *by_hand] in lines
    assert ["memory", "measured", "1", "10.0%"] in [
        line[:4] for line in printed(said, tmp_path / "known")
    ]
    both = printed(said, runs, tmp_path / "probed")
    assert ["step", "probed", "1", "2.0%", "2.0%", "+2.0%", "100%", "21% to 100%", "±10.0%"] in both
    assert ["step", "all", "5", "10.0%", "12.4%", "+4.4%", "60%", "23% to 88%", "±15.0%"] in both


def test_what_says_nothing_of_a_prediction_is_left_out_with_the_reason(tmp_path: Path, said: Said):
    own = {"prediction": records.prediction(fits="no")}
    write(
        tmp_path,
        records.vision(**own, seed=0),
        records.vision(**own, seed=1, gpu=records.gpu(by="python")),
        records.vision(**own, seed=2, load=records.load(others_cores=8.0)),
        records.vision(**own, seed=3, status="diverged"),
        records.vision(seed=4, prediction={"basis": "unknown", "about": "no record like it"}),
        records.vision(seed=5),
        records.vision(**own, device="cpu", seed=6),
    )
    compared = predictions.compare(load.read_runs([tmp_path]).runs)
    assert [each.column for each in compared.figures if each.run["seed"] in (1, 2)] == [
        "peak_memory_bytes"
    ] * 2
    assert {each.run["seed"] for each in compared.figures if each.column == "step_s"} == {0, 6}
    assert {
        each.run["seed"] for each in compared.figures if each.column == "peak_memory_bytes"
    } == {0, 1, 2}
    assert set(compared.left_out.values()) == {1}
    lines = said("predictions", tmp_path)
    for mark in KINDS:
        reason = f"times and energy left out, {mark.says!s}"
        told_so = (
            Message("predictions.no-times", reason, reason=str(mark.says)) in compared.left_out
        )
        assert told_so == (mark.column in ("disturbed", "loaded"))
    assert says(lines, "predictions.ended", status="diverged")
    assert says(lines, "predictions.unknown-times", about="no record like it")
    assert says(lines, "predictions.none") and says(lines, "predictions.cpu-memory")
    assert [one.facts["runs"] for one in told(lines) if one.code == "predictions.left-out"] == [
        1
    ] * 6


def test_times_if_others_stay_as_busy_are_compared_where_they_did(tmp_path: Path):
    """In a record of 16 cores, of steps of 0.1 s and 100 s in all."""
    as_busy = {"busy": 0.5, "step_s": {"value": 0.11, "low": 0.08, "high": 0.14}}
    as_busy["total_s"] = {"value": 130.0, "low": 110.0, "high": 150.0}
    own = {"prediction": records.prediction("probed", marks="&", as_busy=as_busy)}
    write(
        tmp_path,
        records.vision(**own, seed=0, load=records.load(others_cores=9.0)),
        records.vision(**own, seed=1, load=records.load(others_cores=12.0)),  # busier
        records.vision(**own, seed=2),  # nobody
        records.vision(
            **own, seed=3, load=records.load(others_cores=9.0), gpu=records.gpu(by="python")
        ),
    )
    compared = predictions.compare(load.read_runs([tmp_path]).runs)
    found = [each for each in compared.figures if each.basis == "probed& as busy"]
    assert [(each.run["seed"], each.column, each.inside) for each in found] == [
        (0, "step_s", True),
        (0, "total_s", False),
    ]
    assert found[1].error == pytest.approx(0.3)
    assert sum(compared.left_out.values()) == 2  # seeds 1 and 3; the run alone is compared as any
    assert {each.run["seed"] for each in compared.figures if each.basis == "probed&"} == {2}
    assert says(
        "\n".join(predictions.output(load.read_runs([tmp_path]).runs, [tmp_path]).lines(None)),
        "predict.loaded",
    )


def test_verdicts_stand_beside_what_ran_out_of_memory(tmp_path: Path, said: Said):
    ends = [
        ("yes", "ok"),
        ("yes", "ok"),
        ("yes", "oom"),
        ("tight", "ok"),
        ("no", "oom"),
        ("no", "oom"),
    ]
    runs = [
        records.vision(seed=seed, status=status, prediction=records.prediction(fits=fits))
        for seed, (fits, status) in enumerate(ends)
    ]
    on_cpu = records.vision(device="cpu", prediction=records.prediction(fits="yes"))
    shared = records.vision(
        gpu=records.gpu(by="python"), prediction=records.prediction(fits="yes"), status="oom"
    )
    lines = printed(said, write(tmp_path, *runs, on_cpu, shared))
    assert ["yes", "2", "1"] in lines and ["tight", "1", "0"] in lines and ["no", "0", "2"] in lines


@pytest.mark.parametrize(
    "prediction", [None, {"basis": "unknown", "about": "all records were disturbed"}]
)
def test_runs_without_a_prediction_are_refused_with_the_remedy(
    tmp_path: Path, refused: Said, prediction: dict[str, Any] | None
):
    write(tmp_path, records.vision(prediction=prediction))
    line = refused("predictions", tmp_path, "--csv", tmp_path / "p.csv")
    assert says(line, "predictions.nothing", folders=str(tmp_path)) and says(
        line, "predictions.remedy"
    )
    assert predictions.REMEDY.remedies == ["-m gpus=1,2"]
    assert ("all records were disturbed" in line) == (prediction is not None) and not (
        tmp_path / "p.csv"
    ).exists()
