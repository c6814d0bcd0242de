"""`compare`, `claims` and `best`, of the same runs: they say the same."""

import math
from typing import Any

import numpy as np
import pytest

from analysis import experiments
from analysis.claims import measures
from analysis.claims.comparison import Readings
from analysis.commands import best, compare
from analysis.experiments import Panel
from analysis.runs import load
from analysis.runs.grouping import of_setting
from analysis.runs.load import Found, Run
from analysis.stats.between_runs import RepeatedRuns
from multicard.measure import formulas
from tests.helpers import grids, records

TIMES_S = {"fp64": 400.0, "fp32": 392.0, "fp16": 180.0}  # fp32 and fp64 are not told apart
SEEDS = (0, 1, 2)
Sides = tuple[list[Run], list[Run]]


def timed(record: dict[str, Any], total_s: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record of a run of this time, each of whose steps takes a thousandth of it, and its steps."""
    steps_s = np.full(20, total_s / 1000)
    return record | {"total_s": total_s, "step_s": formulas.statistics(steps_s, 1)}, records.steps(steps_s)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Table 2 on 1 and 2 GPUs, three times, of runs that differ by 1 %; one failed, one has no accuracy, and another
    setting was repeated that differs more."""
    folder, experiment, random = tmp_path_factory.mktemp("runs"), experiments.load("table2"), np.random.default_rng(3)
    for precision, time_s in TIMES_S.items():
        for gpus in (1, 2):
            for seed in SEEDS:
                record = grids.record(experiment, {"precision": precision, "gpus": gpus, "seed": seed})
                content, steps = timed(record, time_s / gpus * math.exp(0.01 * random.normal()))
                peak = 10**9 * (4 + seed)
                content["peak_memory_bytes"] = {"max": peak, "per_rank": [peak], "kind": "cuda_allocated"}
                if (precision, gpus, seed) == ("fp16", 1, 2):
                    content |= {"status": "failed", "cause": {"message": "boom"}, "total_s": 1.0}
                if (precision, gpus, seed) == ("fp16", 2, 2):
                    content["test_accuracy"] = None
                records.write(folder / f"{precision}-{gpus}-{seed}", content, steps)
    for seed in range(4):
        content, steps = timed(records.vision(lr=0.077, seed=seed), 90.0 * (1 + 0.05 * seed))
        records.write(folder / f"other-{seed}", content, steps)
    return load.read([folder])


@pytest.fixture(scope="module")
def panel(found: Found) -> Panel:
    (own,) = experiments.panels(experiments.load("table2"), found.runs)
    return own


def ok(found: Found, precision: str, gpus: int) -> list[Run]:
    of_cell = [run for run in found.runs if (run["precision"], run["gpus"]) == (precision, gpus)]
    return [run for run in of_cell if run["status"] == "ok" and run["lr"] != 0.077]


def test_verdicts_and_intervals_of_ratios_are_the_same(found: Found):
    cells = compare.compare(found.runs, found.runs, ["precision"], common=True, mix=False)
    repeated, readings, verdicts = RepeatedRuns(found.runs), Readings(found.runs), set()
    for cell in cells:
        if dict(cell.cell)["lr"] == 0.077:
            continue
        sides: Sides = compare.ok_runs(cell.a), compare.ok_runs(cell.b)
        assert cell.step is not None
        of_claims = measures.MEASURES["time"].interval(measures.Sides(sides[1], sides[0], 0.95, readings))
        assert of_claims.estimate == pytest.approx(cell.step.ratio)
        assert [of_claims.low, of_claims.high] == pytest.approx(cell.step.bounds())
        steps = measures.MEASURES["iteration"].interval(measures.Sides(sides[1], sides[0], 0.95, readings))
        assert [steps.low, steps.high] == pytest.approx(cell.step.bounds())
        assert repeated.cheaper("total_s", *sides) == (cell.verdict == compare.SLOWER)
        assert repeated.cheaper("total_s", *reversed(sides)) == (cell.verdict == compare.FASTER)
        verdicts.add(cell.verdict)
    assert len(cells) == 6 and verdicts > {compare.SLOWER}
    assert len(verdicts) > 1  # fp32 and fp64 are not told apart


def test_a_setting_has_no_figure_where_one_of_its_runs_has_none_and_the_highest_peak(found: Found, panel: Panel):
    runs, others = ok(found, "fp16", 2), ok(found, "fp32", 2)
    assert of_setting(runs, "test_accuracy") is None and of_setting(others, "test_accuracy") is not None
    assert not best.Limits(accuracy=0.01).keep(runs) and best.Limits(accuracy=0.01).keep(others)
    with pytest.raises(ValueError, match="a record has no test_accuracy"):
        measures.accuracy(measures.Sides(runs, others, 0.95, Readings(found.runs)))
    runs, others = ok(found, "fp16", 1), ok(found, "fp32", 1)  # one of the former's failed, which held most
    assert panel.repeated.figure(runs, "peak_memory_bytes") == measures.Interval(5e9, None, None)
    claimed = measures.peak_memory(measures.Sides(others, runs, 0.95, Readings(found.runs)))
    assert claimed.estimate == pytest.approx(6 / 5) and claimed.low is not None and claimed.low < 6 / 5
