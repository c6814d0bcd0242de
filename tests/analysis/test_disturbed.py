"""A disturbed run is in no mean time of its setting, wherever that is shown;
what it learned counts.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from analysis import answers, experiments
from analysis.answers import Answer
from analysis.commands import best
from analysis.commands import table as paper_tables
from analysis.commands.ranking import Limits
from analysis.figures import chart_data, draw
from analysis.figures.effect_charts import what_matters
from analysis.report.runs_section import runs_table
from analysis.runs import details, load
from analysis.runs.load import Run
from analysis.stats.between_runs import RepeatedRuns
from analysis.table_columns import Column
from multicard.measure import formulas
from multicard.records import table as table_at_end
from tests.helpers import records
from tests.helpers.messages import find, says

KINDS: dict[str, dict[str, Any]] = {
    "loaded": {"load": records.load(others_cores=12.0)},
    "on its GPU": {"gpu": records.gpu(by="python")},
    "stalled": {"step_s": formulas.statistics([0.1] * 10, 1) | {"stalled_count": 1}},
}
CALM_S, SLOW_S = {1: (100.0, 102.0), 2: (60.0, 61.0)}, 300.0
PHASES = {"data": 0.01, "h2d": 0.01, "forward": 0.02, "backward": 0.05, "optimizer": 0.01}


@pytest.fixture(params=KINDS)
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> list[Run]:
    """Cells of Table 2 on 1 and 2 GPUs, two runs each, and a third on 2 that was disturbed and took
    five times as long; it learned less, and needed more memory.
    """
    for gpus, seconds in CALM_S.items():
        for seed, total_s in enumerate((*seconds, SLOW_S) if gpus == 2 else seconds):
            is_slow = total_s == SLOW_S
            steps_s = [total_s / 1000] * 100
            own = {"step_s": formulas.statistics(steps_s, 1), "images_per_s": 1e5 / total_s}
            own |= records.accurate(0.96 if is_slow else 0.99)
            own |= {"peak_memory_bytes": {"max": 7_000_000_000 if is_slow else 5_000_000_000}}
            own |= {"phases_s": {name: share * total_s for name, share in PHASES.items()}}
            own |= KINDS[request.param] if is_slow else {}
            record = records.vision(gpus=gpus, seed=seed, total_s=total_s, precision="fp32") | own
            records.write(tmp_path / f"{gpus}-{seed}", record, records.steps(steps_s))
    return load.read_runs([tmp_path]).runs


def texts(lines: Any) -> str:
    return "\n".join(map(str, lines))


def column(columns: Any, name: str) -> Column:
    (found,) = [one for one in columns if one.name == name]
    return found


def answered(runs: list[Run]) -> Answer:
    (answer,) = answers.answers(runs)
    return answer


def test_best_counts_it_for_what_it_learned_alone(runs: list[Run]):
    printed = texts(best.output(runs, None, Limits(), False, answers.sentences).lines(None))
    assert says(printed, "runs.left-out", runs=1, of=5)
    (ranking,) = best.rankings(runs)
    first = ranking.best
    assert (first.cost, first.gpus, len(first.counted), len(first.runs)) == (60.5, 2, 2, 3)
    assert first.accuracy == pytest.approx(0.98)  # of three runs
    assert column(ranking.columns(), "n").texts == ["2 of 3", "2"]
    assert column(ranking.columns(["memory"]), "peak_memory_bytes").values[0] == 7e9
    assert answered(runs).sentence.count("answer.run") == 1
    assert find(str(answered(runs).comparison.lead), "answer.run").facts["n"] == [2, 2]


def test_effects_and_speed_ups_are_those_of_best(runs: list[Run]):
    (ranking,) = best.rankings(runs)
    ratio = ranking.settings[1].cost / ranking.best.cost
    (time, _) = what_matters([ranking])
    assert [point.runs for point in time.points] == [2, 2]
    (figure,), _ = draw.make("efficiency", runs)
    (row,) = [
        row
        for row in figure.rows
        if row["measure"] == "speedup" and row["of"] == "measured" and row["ranks"] == 2
    ]
    assert (row["mean"], row["n"]) == (pytest.approx(ratio), 2)
    assert says(texts(figure.left_out), "runs.left-out", runs=1, of=5)
    (phases,), _ = draw.make("phases", runs)
    assert {row["n"] for row in phases.rows} == {2} and says(
        texts(phases.left_out), "runs.left-out"
    )
    (trade_off,), _ = draw.make("trade_off", runs)
    assert says(texts(trade_off.left_out), "runs.left-out")


def test_the_rows_of_the_page_are_those_of_best(runs: list[Run]):
    grid = runs_table(details.read_details(runs), RepeatedRuns(runs), mix=False)
    whole = [at for at, parent in enumerate(grid.parents) if parent is None]
    assert [column(grid.columns, "total_s").values[at] for at in whole] == [101.0, 60.5]
    assert [column(grid.columns, "runs").texts[at] for at in whole] == ["2", "2 of 3"]
    assert column(grid.columns, "speedup").values[whole[1]] == pytest.approx(101 / 60.5)
    assert column(grid.columns, "test_accuracy").values[whole[1]] == pytest.approx(0.98)
    assert says(texts(grid.marks), "runs.left-out", runs=1, of=5)


def test_tables_and_charts_of_the_papers_leave_it_out(runs: list[Run], tmp_path: Path):
    records.write(tmp_path / "other", records.vision(precision="fp16", gpus=1, total_s=200.0))
    experiment = experiments.load_experiment("table2")
    (panel,) = experiments.panels(experiment, load.read_runs([tmp_path]).runs)
    (table,) = paper_tables.tables(experiment, [panel])
    measured = [(row["total_s"], row["runs"]) for row in table.rows if row["total_s"]]
    assert measured == [(101.0, 2), (60.5, 2), (200.0, 1)]
    assert says(texts(table.notes), "runs.left-out", runs=1, of=6)
    assert [(row["mean"], row["n"]) for row in chart_data.mean_rows(panel, "total_s")] == measured
    assert [row["n"] for row in chart_data.mean_rows(panel, "test_accuracy")] == [2, 3, 1]


def test_the_table_at_the_end_of_a_sweep_leaves_it_out(runs: list[Run]):
    ended = [records.as_run(msgspec.to_builtins(run.record())) for run in runs]
    printed = texts(table_at_end.lines(ended, None))
    assert says(printed, "runs.left-out", runs=1, of=5)
    assert "2 of 3" in printed and "60.5 ± " in printed and "1.67 (83%)" in printed


def test_a_setting_without_calm_runs_has_those_that_there_are(runs: list[Run]):
    slow = [run for run in runs if run["gpus"] == 1 or run["total_s"] == SLOW_S]
    (ranking,) = best.rankings(slow)
    assert [(one.gpus, one.cost) for one in ranking.settings] == [(1, 101.0), (2, SLOW_S)]
    assert not says(
        texts(best.output(slow, None, Limits(), False, answers.sentences).lines(None)),
        "runs.left-out",
    )
