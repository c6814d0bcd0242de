"""Runs on other data, on other cores or beside others are no repetitions, wherever runs are grouped
or compared; and `compare`, `claims` and `best` say the same of the same runs.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis import experiments
from analysis.__main__ import main
from analysis.claims import judging, measures, render, special_forms
from analysis.claims.comparison import Readings
from analysis.commands import best, compare, compared_cells, list_runs
from analysis.experiments import Panel
from analysis.figures import draw
from analysis.report import runs_section
from analysis.runs import grouping, load
from analysis.runs.details import read_details as details
from analysis.runs.grouping import of_setting
from analysis.runs.load import FoundRuns, Run
from analysis.stats.between_runs import RepeatedRuns
from multicard.config import schema
from multicard.config.roles import Role
from multicard.measure import formulas
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from tests.analysis.conftest import Said
from tests.helpers import grids, messages, records
from tests.helpers.messages import says


def write(folder: Path, *contents: dict[str, Any]) -> list[Run]:
    return load.read_runs([records.write_all(folder, *contents, step_columns=STEPS)]).runs


def on(data: str | None = "aaa", **changes: Any) -> dict[str, Any]:
    return records.vision(**changes) | {"data": data and records.data(data)}


def sizes(groups: dict[grouping.Cell, list[Run]]) -> list[int]:
    return sorted(len(runs) for runs in groups.values())


STEPS = records.steps([[0.1]] * 40, per_epoch=20)
PHOTOS = {"dataset": "images", "dataset__root": "a"}


def test_the_content_makes_a_setting_and_its_place_does_not(tmp_path: Path):
    runs = write(
        tmp_path,
        on(**PHOTOS),
        on(**PHOTOS | {"dataset__root": "elsewhere"}, seed=1),
        on("bbb", **PHOTOS, seed=2),
    )
    assert sizes(grouping.by_setting(runs)) == sizes(grouping.by_setting(runs, mix=True)) == [1, 2]
    assert [len(ranking.runs) for ranking in best.rankings(runs, mix=True)] == [2, 1]
    assert "data" in list_runs.differing(runs)
    refused = records.vision(status="refused") | {"data": None, "config": {}}
    (pair,) = compared_cells.compare(
        *[write(tmp_path, on(), on("bbb"), refused)] * 2, ["data"], common=False, mix=False
    )
    assert pair.sides == ("data=aaa", "data=bbb")  # what was refused has no data
    assert len(draw.DRAW_GENERAL["phases"](runs)[0].rows) // 4 >= 2


def test_older_records_group_as_before(tmp_path: Path):
    older = [on(None, **PHOTOS | {"dataset__root": str(seed)}, seed=seed) for seed in (0, 1)]
    for record in older:
        del record["data"], record["cores"], record["load"], record["beside"]
    runs = write(tmp_path, *older)
    assert sizes(grouping.by_setting(runs)) == [2] and "data" not in list_runs.differing(runs)


def test_two_sweeps_on_other_data_are_refused_or_compared_by_it(
    tmp_path: Path, said: Said, refused: Said
):
    write(tmp_path / "a", on("aaa"))
    write(tmp_path / "b", on("bbb"))
    write(tmp_path / "old", on(None))
    line = refused("compare", tmp_path / "a", tmp_path / "b")
    assert says(line, "compare.other-work", key="data", a="aaa", b="bbb")
    printed = said("compare", tmp_path / "a", tmp_path / "b", "--by", "data")
    assert says(printed, "compare.differs", name="data", a="aaa", b="bbb")
    # it does not say: as before
    printed = said("compare", tmp_path / "old", tmp_path / "b")
    assert says(printed, "compare.differs", name="data", a="nothing", b="bbb")


@pytest.mark.parametrize(
    ("change", "mixture"),
    [({"threads": 8}, "threads=1 or 8"), ({"beside": 2}, "beside_others=false or true")],
)
def test_cores_and_company_make_other_settings(
    change: dict[str, Any], mixture: str, tmp_path: Path
):
    runs = write(tmp_path / "a", on(), on(seed=1), on(seed=2) | change)
    assert sizes(grouping.by_setting(runs)) == [1, 2]
    assert sizes(grouping.by_setting(runs, without=schema.keys(Role.ranks))) == [1, 2]
    assert sizes(grouping.by_setting(runs, mix=True)) == [3]
    (ranking,) = best.rankings(runs)
    assert len(ranking.settings) == 2
    with messages.refused("compare.mixed", mixture=mixture):
        compared_cells.compare(runs, write(tmp_path / "b", on()), [], False, False)


def speedups(runs: list[Run]) -> list[float]:
    """Those of the report's table of runs, as far as they have one."""
    grid = runs_section.runs_table(details(runs), RepeatedRuns(runs), mix=False)
    (column,) = [column for column in grid.columns if column.name == "speedup"]
    return [value for value in column.values or () if value is not None]


def test_more_ranks_with_other_threads_are_one_setting(tmp_path: Path):
    machine = [on(gpus=gpus, threads=8 // gpus, total_s=80.0 / gpus) for gpus in (1, 2, 4)]
    runs = write(tmp_path / "machine", *machine)
    assert sizes(grouping.by_setting(runs, without=schema.keys(Role.ranks))) == [3]
    cluster = [on(gpus=gpus, threads=2, total_s=90.0 / gpus) for gpus in (1, 2, 4)]
    both = write(tmp_path / "both", *machine[:2], *cluster[:1], *cluster[2:])
    by_total = grouping.by_setting(both, without=schema.keys(Role.ranks))
    assert sizes(by_total) == [1, 3]  # 8 threads in all, and the run with 2
    per_rank = [
        on(gpus=gpus, threads=threads, seed=threads) for gpus in (1, 2, 4) for threads in (2, 4)
    ]
    assert sizes(
        grouping.by_setting(write(tmp_path / "c", *per_rank), without=schema.keys(Role.ranks))
    ) == [3, 3]
    assert speedups(runs) == [2.0, 4.0]


def test_the_base_has_the_share_of_the_machine_most_like_the_runs(tmp_path: Path):
    runs = write(
        tmp_path,
        on(total_s=100.0, threads=8),
        on(total_s=300.0, threads=3, seed=1),
        on(total_s=900.0, threads=8, seed=2, beside=1),
        on(gpus=4, total_s=25.0, threads=2),
    )
    assert speedups(runs) == [4.0]


def panels(runs: list[Run]) -> list[list[int]]:
    found = experiments.panels(experiments.load_experiment("table2"), runs)
    return [[len(of_cell) for of_cell in panel.cells.values()] for panel in found]


def test_a_panel_of_an_experiment_has_one_data_set_and_no_mixed_cell(tmp_path: Path):
    grid = [
        {"precision": precision, "gpus": gpus} for precision in ("fp32", "fp16") for gpus in (1, 2)
    ]
    of_data = [
        on(data, **cell, seed=seed) for seed, data in enumerate(("aaa", "bbb")) for cell in grid
    ]
    packed = [on(**cell, threads=n, seed=n) for n in (1, 4) for cell in grid]
    scaled = [on(**cell, threads=4 // cell["gpus"], seed=n) for n in (1, 4) for cell in grid]
    assert (
        panels(write(tmp_path / "data", *of_data))
        == panels(write(tmp_path / "cores", *packed))
        == [[1] * 4] * 2
    )
    assert panels(write(tmp_path / "scaled", *scaled)) == [[2] * 4]
    apart = [
        panel.apart
        for panel in experiments.panels(
            experiments.load_experiment("table2"), load.read_runs([tmp_path / "cores"]).runs
        )
    ]
    assert apart == ["threads=1", "threads=4"]


def test_an_efficiency_that_cannot_be_is_marked_in_figures_reports_and_tables(tmp_path: Path):
    cells = [("fp32", 1, 100.0), ("fp32", 2, 40.0), ("fp16", 1, 80.0), ("fp16", 2, 41.0)]
    runs = write(tmp_path / "r", *(on(precision=p, gpus=n, total_s=s) for p, n, s in cells))
    (figure,) = draw.DRAW_GENERAL["efficiency"](runs)
    shares = [
        row for row in figure.rows if row["measure"] == "efficiency" and row["of"] == "measured"
    ]
    assert [row["signs"] for row in shares] == ["", "?", "", ""]
    assert DOUBTFUL_MEANING in figure.caption
    grid = runs_section.runs_table(details(runs), RepeatedRuns(runs), mix=False)
    assert (DOUBTFUL, DOUBTFUL_MEANING) in grid.marks
    (efficiency,) = [column for column in grid.columns if column.name == "parallel_efficiency"]
    assert sorted(efficiency.texts) == ["-", "-", "125%?", "98%"]
    assert main(["table", "table2", str(tmp_path / "r"), "--csv", str(tmp_path / "t.csv")]) == 0
    rows = [line.split(",") for line in (tmp_path / "t.csv").read_text().splitlines()]
    marks = {(row[0], row[1]): row[-1] for row in rows[1:] if row[2] == "ok"}
    assert {cell for cell, sign in marks.items() if sign.endswith("?")} == {("fp32", "2")}


def test_a_claim_says_which_figure_cannot_be(tmp_path: Path):
    times_s = {("ddp_ds", 1): 100.0, ("ddp_ds", 2): 30.0, ("ddp_rr", 1): 100.0, ("ddp_rr", 2): 55.0}
    runs = write(
        tmp_path,
        *(
            on(gpus=gpus, strategy=strategy, seed=seed, total_s=total_s + seed / 100)
            for (strategy, gpus), total_s in times_s.items()
            for seed in range(8)
        ),
    )
    judged = {verdict.claim.name: verdict for verdict in judging.judge(runs)}
    figures = [judged[name].figures[0] for name in ("ddp-ds-scales", "ddp-rr-does-not")]
    assert [(figure.doubtful, figure.text.endswith("?")) for figure in figures] == [
        (True, True),
        (False, False),
    ]
    assert f"?  {DOUBTFUL_MEANING}" in " ".join(render.verdict_table(list(judged.values()), 1000))


def test_a_short_name_is_a_keys_last_part_unless_two_keys_share_it():
    keys = (
        "model.width",
        "dataset.image_size",
        "precision.name",
        "model.rows",
        "dataset.rows",
        "gpus",
    )
    assert (
        " ".join(grouping.short_names(keys).values())
        == "width image_size precision model.rows dataset.rows gpus"
    )


TIMES_S = {"fp64": 400.0, "fp32": 392.0, "fp16": 180.0}  # fp32 and fp64 are not told apart
SEEDS = (0, 1, 2)
Sides = tuple[list[Run], list[Run]]


def timed(record: dict[str, Any], total_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a run of this time, each of whose steps takes a thousandth of it,
    and its steps.
    """
    steps_s = np.full(20, total_s / 1000)
    return record | {"total_s": total_s, "step_s": formulas.statistics(steps_s, 1)}, records.steps(
        steps_s
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> FoundRuns:
    """Table 2 on 1 and 2 GPUs, three times, of runs that differ by 1 %; one failed, one has no
    accuracy, and another setting was repeated that differs more.
    """
    folder, experiment, random = (
        tmp_path_factory.mktemp("runs"),
        experiments.load_experiment("table2"),
        np.random.default_rng(3),
    )
    for precision, time_s in TIMES_S.items():
        for gpus in (1, 2):
            for seed in SEEDS:
                record = grids.record(
                    experiment, {"precision": precision, "gpus": gpus, "seed": seed}
                )
                content, steps = timed(record, time_s / gpus * math.exp(0.01 * random.normal()))
                peak = 10**9 * (4 + seed)
                content["peak_memory_bytes"] = {
                    "max": peak,
                    "per_rank": [peak],
                    "kind": "cuda_allocated",
                }
                if (precision, gpus, seed) == ("fp16", 1, 2):
                    content |= {"status": "failed", "cause": {"message": "boom"}, "total_s": 1.0}
                if (precision, gpus, seed) == ("fp16", 2, 2):
                    content["test_accuracy"] = None
                records.write(folder / f"{precision}-{gpus}-{seed}", content, steps)
    for seed in range(4):
        content, steps = timed(records.vision(lr=0.077, seed=seed), 90.0 * (1 + 0.05 * seed))
        records.write(folder / f"other-{seed}", content, steps)
    return load.read_runs([folder])


@pytest.fixture(scope="module")
def panel(found: FoundRuns) -> Panel:
    (own,) = experiments.panels(experiments.load_experiment("table2"), found.runs)
    return own


def ok(found: FoundRuns, precision: str, gpus: int) -> list[Run]:
    of_cell = [run for run in found.runs if (run["precision"], run["gpus"]) == (precision, gpus)]
    return [run for run in of_cell if run["status"] == "ok" and run["lr"] != 0.077]


def test_verdicts_and_intervals_of_ratios_are_the_same(found: FoundRuns):
    cells = compared_cells.compare(found.runs, found.runs, ["precision"], common=True, mix=False)
    repeated, readings, verdicts = RepeatedRuns(found.runs), Readings(found.runs), set()
    for cell in cells:
        if dict(cell.cell)["lr"] == 0.077:
            continue
        sides: Sides = compared_cells.ok_runs(cell.a), compare.ok_runs(cell.b)
        assert cell.step is not None
        of_claims = measures.MEASURES["time"].interval(
            measures.Sides(sides[1], sides[0], 0.95, readings)
        )
        assert of_claims.estimate == pytest.approx(cell.step.ratio)
        assert [of_claims.low, of_claims.high] == pytest.approx(cell.step.bounds())
        steps = measures.MEASURES["iteration"].interval(
            measures.Sides(sides[1], sides[0], 0.95, readings)
        )
        assert [steps.low, steps.high] == pytest.approx(cell.step.bounds())
        assert repeated.cheaper("total_s", *sides) == (cell.verdict == compared_cells.SLOWER)
        assert repeated.cheaper("total_s", *reversed(sides)) == (
            cell.verdict == compared_cells.FASTER
        )
        verdicts.add(cell.verdict)
    assert len(cells) == 6 and verdicts > {compared_cells.SLOWER}
    assert len(verdicts) > 1  # fp32 and fp64 are not told apart


def test_a_setting_has_no_figure_where_one_of_its_runs_has_none_and_the_highest_peak(
    found: FoundRuns, panel: Panel
):
    runs, others = ok(found, "fp16", 2), ok(found, "fp32", 2)
    assert (
        of_setting(runs, "test_accuracy") is None
        and of_setting(others, "test_accuracy") is not None
    )
    assert not best.Limits(accuracy=0.01).keep(runs) and best.Limits(accuracy=0.01).keep(others)
    with messages.refused("claim.no-column", column="test_accuracy"):
        special_forms.accuracy(measures.Sides(runs, others, 0.95, Readings(found.runs)))
    # one of the former's failed, which held most
    runs, others = ok(found, "fp16", 1), ok(found, "fp32", 1)
    assert panel.repeated.figure(runs, "peak_memory_bytes") == measures.Interval(5e9, None, None)
    claimed = special_forms.peak_memory(measures.Sides(others, runs, 0.95, Readings(found.runs)))
    assert (
        claimed.estimate == pytest.approx(6 / 5) and claimed.low is not None and claimed.low < 6 / 5
    )
