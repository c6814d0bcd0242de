"""Records of schema_version 1 that commit 857b27b wrote, against what its analysis said of them.

Steps of several ranks are by the slowest rank's clock since then (tests/analysis/test_compare.py).
"""

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from analysis import experiments
from analysis.__main__ import main
from analysis.commands import table
from analysis.figures import chart_data, draw
from analysis.runs import load

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXPECTED = FIXTURES / "records_v1_expected"
RUNS = "records_v1"
INTERVAL = re.compile(r"-?[\d.]+ to -?[\d.]+")


@pytest.fixture(autouse=True)
def _beside_the_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES)  # folders are listed as they were: relative


def expected(name: str) -> Any:
    return json.loads((EXPECTED / name).read_text())


def figures(text: str) -> list[list[str]]:
    """The words of each row of the tables in `text`, without intervals, which are compared by their own tests."""
    return [INTERVAL.sub("", line).split() for line in text.splitlines() if re.match(r" +\d+ ", line)]


def test_runs_are_listed_with_the_same_columns(tmp_path: Path):
    assert main(["list", RUNS, "--json", str(tmp_path / "list.json")]) == 0
    content = json.loads((tmp_path / "list.json").read_text())
    assert content["skipped"] == []
    assert [{name: value for name, value in run.items() if value is not None} for run in content["runs"]] == expected(
        "list.json"
    )


def test_sweeps_are_compared_with_the_same_figures(capsys: pytest.CaptureFixture[str]):
    assert main(["compare", f"{RUNS}/vision", f"{RUNS}/nhwc", "--by", "layout"]) == 0
    rows, like = figures(capsys.readouterr().out), figures((EXPECTED / "compare.txt").read_text())
    assert [row[:4] for row in rows] == [row[:4] for row in like] and len(like) == 2
    assert all("undecided:" in row for row in rows)  # of one run a side, whose steps alone called them slower


def test_settings_are_ranked_with_the_same_figures(capsys: pytest.CaptureFixture[str]):
    assert main(["best", RUNS, "--goal", "time"]) == 0
    text = (EXPECTED / "best.txt").read_text()
    assert figures(capsys.readouterr().out) == figures(text) and len(figures(text)) == 7


@pytest.mark.parametrize("name", [path.stem.removeprefix("table_") for path in sorted(EXPECTED.glob("table_*.csv"))])
def test_tables_have_the_same_figures(name: str, capsys: pytest.CaptureFixture[str]):
    """What was measured; experiments have more axes, and leave out cells that cannot be, since then."""
    assert main(["table", name, RUNS, "--all", "--format", "csv"]) == 0
    texts = capsys.readouterr().out, (EXPECTED / f"table_{name}.csv").read_text()
    tables = [list(csv.DictReader(text.splitlines())) for text in texts]
    measured, like = [[row for row in table if row["status"] != "not measured"] for table in tables]
    assert [{key: row[key] for key in like[0]} for row in measured] == like


def test_claims_have_the_same_figures(tmp_path: Path):
    """Of single runs they are undecided since then, a time has its evaluations, and tuning experiments are in fp32."""
    assert main(["claims", RUNS, "--json", str(tmp_path / "claims.json")]) == 0
    claims = {claim["name"]: claim for claim in json.loads((tmp_path / "claims.json").read_text())["claims"]}
    assert [claim["name"] for claim in claims.values() if claim["figures"]] == [
        c["name"] for c in expected("claims.json")
    ]
    for wanted in expected("claims.json"):
        claim = claims[wanted["name"]]
        assert (claim["n"], claim["marks"]) == (wanted["n"], wanted["marks"])
        assert claim["unlike"] == [choice for choice in wanted["unlike"] if choice != "precision=bf16"]
        assert claim["verdict"] == "undecided"
        for figure, like in zip(claim["figures"], wanted["figures"], strict=True):
            assert (figure["what"], figure["runs"]) == (like["what"], like["runs"])
            assert like["where"] in figure["where"]  # of memory, the template is an axis since then
            assert (figure["low"], figure["high"]) == (None, None)
    memory, iteration = (
        claims[f"up-to-{name}"]["figures"][0]["estimate"] for name in ("39-percent-memory", "47-percent-time")
    )
    assert memory == pytest.approx(1.6044462370369383) and iteration == pytest.approx(88.23495285613294)
    (slower, _) = claims["nhwc-over-nchw"]["figures"]
    total_s = [
        json.loads(path.read_text())["total_s"]
        for name in ("vision", "nhwc")
        for path in Path(RUNS, name).glob("gpus=1*/result.json")
    ]
    assert slower["estimate"] == pytest.approx(100 * (total_s[0] / total_s[1] - 1))


def test_figures_of_them_have_the_bars_of_their_steps():
    """They have no `definition` and no `repetition`; the figures hold the tables' means."""
    runs = load.read([Path(RUNS)]).runs
    assert {run["repetition"] for run in runs} == {None}
    measured = []
    for name in ("layout", "templates", "peak_memory"):
        experiment = experiments.load(name)
        for panel in experiments.panels(experiment, runs):
            (figure,) = draw.experiment_figures(experiment, [panel])
            rows = {row[experiment.view.measures[0]] for row in table.tables(experiment, [panel])[0].rows}
            means = {row["mean"] for row in figure.rows if row["measure"] == experiment.view.measures[0] and "n" in row}
            assert means == rows - {None}
            measured += [row["bar"] for row in figure.rows if "bar" in row]
    assert set(measured) == {None, chart_data.OF_STEPS}


@pytest.mark.slow
def test_runs_are_reported_with_the_same_figures(tmp_path: Path):
    assert main(["report", RUNS, "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    columns = {column["key"]: column["texts"] for column in json.loads(data[1])["grids"]["runs"]["columns"]}
    texts = {
        key: content["all"] if "all" in content else [content["of"][index] for index in content["at"]]
        for key, content in columns.items()
    }
    assert {key: texts.get(key) for key in expected("report.json")} == expected("report.json")
    assert "bound by compute: computing is 47% of a step of 30.5 ms" in page  # of the profiled run
