"""The benchmark of identical runs: how they are dealt to two sides, and what its judges see."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.runs import load
from analysis.runs.load import Run
from benchmarks import identical
from multicard.measure import formulas
from tests.helpers import records


def runs_of(folder: Path, kind: str, factors: list[float]) -> list[Run]:
    """Runs whose steps and total time are this many times the usual ones, in their order."""
    random = np.random.default_rng(4)
    for repetition, factor in enumerate(factors, 1):
        step_s = 0.1 * factor * (1 + 0.01 * random.normal(size=60))
        stored = {"step_s" if kind == "vision" else "iteration_s": formulas.statistics([*step_s], 1)}
        own: dict[str, Any] = {"repetition": repetition, "total_s": 100.0 * factor, **stored}
        record = (records.vision if kind == "vision" else records.llm)("cpu", **own)
        records.write(folder / kind / f"{repetition:02}", record, records.steps(step_s))
    return load.read([folder / kind]).runs


def test_sides_are_measured_by_turns_and_dealt_in_every_way(tmp_path: Path):
    runs = runs_of(tmp_path, "vision", [1.0] * 6)
    three = [*identical.deals(runs, 3)]
    numbers = [tuple(tuple(run["repetition"] for run in side) for side in sides) for sides in three]
    assert numbers == [((1, 3, 5), (2, 4, 6)), ((1, 3, 6), (2, 4, 5)), ((1, 4, 5), (2, 3, 6)), ((1, 4, 6), (2, 3, 5))]
    assert len([*identical.deals(runs, 2)]) == 3 * 2  # three windows of four runs
    assert [*identical.deals(runs, 5)] == []


@pytest.mark.parametrize("kind", ["vision", "llm"])
def test_equal_runs_are_seldom_told_apart_and_different_ones_always(kind: str, tmp_path: Path):
    random = np.random.default_rng(5)
    equal = runs_of(tmp_path / "equal", kind, [math.exp(0.01 * random.normal()) for _ in range(10)])
    counts = identical.told_apart(equal, kind)
    assert set(counts) >= {"compare", "claims, time", "best"}
    assert all(sum(apart for apart, _ in ways) <= 0.1 * 50 for ways in counts.values())
    assert [ways for _, ways in counts["best"]] == [14, 20, 16]
    different = runs_of(tmp_path / "different", kind, [1.0, 1.3] * 5)
    a, b = next(identical.deals(different, 5))
    judged = {name: judge(a, b) for name, judge in identical.judges(kind).items()}
    assert judged == {name: name != "claims, accuracy" for name in judged}
    (heading, step, *_) = identical.report(kind, different)
    assert heading == f"{kind}: 10 runs of one configuration" and "step_s differs by 13.8% from run" in step
