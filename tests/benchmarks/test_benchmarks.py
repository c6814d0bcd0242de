"""The formulas of the benchmarks, in closed form, and what they compare."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from analysis.runs import load
from analysis.runs.load import Run
from benchmarks import identical, prediction, race, step
from benchmarks.race import MadeGrid, Replay, WorldKind, replay
from benchmarks.step import StepVariant, bytes_an_image
from multicard.decide.race.outcome import RaceVerdict
from multicard.estimate import published, scaling
from multicard.estimate.scaling import Growth
from multicard.measure import formulas
from tests.helpers import records


class Block(nn.Module):
    use_res_connect = True

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU6())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images + self.layers(images)


def test_bytes_of_a_step_count_each_tensor_as_often_as_it_is_read_or_written():
    values = 3 * 8 * 8  # in each tensor of this block
    fused, unfused = (
        bytes_an_image(Block().to("meta"), 8, 2, fused=fused) for fused in (True, False)
    )
    assert fused == 2 * values * (3 + 3 + 8 + 3)
    assert unfused == fused + 2 * values * 5
    strided = nn.Conv2d(3, 5, 2, stride=2).to("meta")
    assert bytes_an_image(strided, 8, 4, fused=False) == 4 * (3 * 3 * 64 + 3 * 5 * 16)


@pytest.mark.parametrize(
    ("words", "modes"),
    [
        ("", [None]),
        ("--compile", [None, "default"]),
        (
            "--compile reduce-overhead max-autotune --only-compiled",
            ["reduce-overhead", "max-autotune"],
        ),
    ],
)
def test_the_modes_of_steps_are_those_asked_for(words: str, modes: list[str | None]):
    args = step.options().parse_args(
        [*words.split(), "--precisions", "fp32", "--pointwise", "convolution", "linear"]
    )
    linear = [StepVariant("fp32", "nhwc", mode, "linear", "convolution") for mode in modes]
    plain = [
        StepVariant("fp32", layout, mode, "convolution", "convolution")
        for layout in ("nchw", "nhwc")
        for mode in modes
    ]
    assert sorted(step.cells(args), key=str) == sorted(linear + plain, key=str)


def test_a_known_growth_is_recovered():
    known, rng = Growth(threshold=0.1, slope=1.0, constant=0.01), np.random.default_rng(0)
    growth_2 = rng.gamma(0.6, 0.12, 240)
    every = enumerate(growth_2)
    rows = [
        prediction.Case(f"family {n % 40}", f"{n}", d, math.expm1(known.log_ratio(d, 8)))
        for n, d in every
    ]
    found = prediction.fit(rows)
    assert (found.threshold, found.slope, found.constant) == pytest.approx(
        (0.1, 1.0, 0.01), abs=1e-3
    )


def test_each_group_counts_once_in_a_conformal_quantile():
    scores = {"a": [0.0] * 1000, "b": [-1.0, 1.0], "c": [-2.0, 2.0]}
    assert prediction.quantiles(scores, 0.9) == (-2.0, 2.0)
    assert prediction.quantiles(scores, 0.6) == (-1.0, 1.0)


def test_the_stated_growth_follows_from_the_published_table():
    follows = prediction.fitted(prediction.cases(published.sound_series()))
    for name in ("threshold", "slope", "constant", "low", "high"):
        assert getattr(scaling.PUBLISHED, name) == pytest.approx(
            getattr(follows, name), abs=2e-3
        ), name


def test_the_model_of_a_row_never_saw_its_family(monkeypatch):
    rows = prediction.lambda_fp16()
    before = prediction.scaling_far([row for row in rows if row.family == "A100"])
    others = tuple(row for row in published.sound_series() if row.family != "A100")
    monkeypatch.setattr(published, "sound_series", lambda: others)
    assert prediction.scaling_far([row for row in rows if row.family == "A100"]) == before != []


def test_the_interval_of_a_line_through_two_counts_holds_nine_of_ten_times_of_nodes_that_were_left_out():
    needed = [
        prediction.needed_extension(case)
        for case in prediction.line_cases(published.sound_series())
    ]
    assert scaling.EXTENDED == pytest.approx(prediction.fitted_extension(needed), abs=0.05)
    for known, wanted in prediction.LINES:
        reached = prediction.line_reached(known, wanted)
        assert reached.figures["cases"] >= 200
        assert 0.88 <= reached.figures["covered"] <= 0.95
        assert 0.88 <= reached.figures["covered_as_shipped"] <= 0.95
        assert reached.figures["median"] <= 0.02
        assert reached.met


def test_the_least_extension_of_a_line_is_that_at_which_its_interval_reaches_the_time():
    cases = [
        (case, prediction.needed_extension(case))
        for case in prediction.line_cases(published.sound_series())[::10]
    ]
    outside = [(case, needed) for case, needed in cases if needed > 0]
    assert outside
    for case, needed in outside:
        for factor, held in ((0.999, False), (1.001, True)):
            assert bool(prediction.covered([case.outcome(factor * needed)])) is held


def test_what_races_reach_and_whether_it_is_the_goal():
    def ended(loss, share, dropped_wrongly=False, sure=0.98):
        return Replay(
            loss, share, share, 20, 30, dropped_wrongly, not dropped_wrongly, RaceVerdict(0, sure)
        )

    near, far, long, unsure = (
        ended(0.0, 0.1),
        ended(0.03, 0.1, True),
        ended(0.0, 0.2),
        ended(0.0, 0.1, sure=0.9),
    )
    sweeps = [0.01, 0.02, 0.03, 0.0]
    reached = race.figures([near] * 9 + [unsure] * 10 + [far], sweeps, 0.15)
    assert (reached.near, reached.near_low, reached.near_high) == pytest.approx(
        (0.95, 0.764, 0.991), abs=1e-3
    )
    assert (reached.by_sweep, reached.worst, reached.dropped_wrongly) == pytest.approx(
        (0.75, 0.03, 0.05)
    )
    assert (reached.share, reached.share_90, reached.of_sweep) == pytest.approx((0.1, 0.1, 0.1))
    assert (reached.started, reached.blocks) == (20, 30)
    assert (reached.covered, reached.sure, reached.right, reached.met) == (0.95, 0.5, 0.9, True)
    assert len(race.row("grid", reached)) == len(race.HEADER)
    reached = race.figures([unsure], sweeps, 0.15)
    assert (reached.sure, reached.right, reached.met) == (0, None, True)
    assert race.figures([near] * 18 + [far] * 2, sweeps, 0.15).met is False
    assert race.figures([long] * 20, sweeps, 0.15).met is False
    assert race.figures([long] * 20, sweeps, None).met is None


def test_a_cell_that_drops_out_and_is_better_than_the_winner_is_counted():
    """The cell that is in fact the best by far is slow for as long as the race lasts."""
    grid = MadeGrid(WorldKind(between_runs=0.0), seed=2)
    best = int(grid.truth.argmax())
    honest = replay(grid, seed=2)
    assert honest.covered and not honest.dropped_wrongly
    steps_s = grid.steps_s
    grid.steps_s = lambda cell, *rest: steps_s(cell, *rest) * (1.5 if cell == best else 1.0)
    wrong = replay(grid, seed=2)
    assert wrong.loss > 0 and wrong.dropped_wrongly


def runs_of(folder: Path, kind: str, factors: list[float]) -> list[Run]:
    """Runs whose steps and total time are this many times the usual ones, in their order."""
    random = np.random.default_rng(4)
    for repetition, factor in enumerate(factors, 1):
        step_s = 0.1 * factor * (1 + 0.01 * random.normal(size=60))
        stored = {
            "step_s" if kind == "vision" else "iteration_s": formulas.statistics([*step_s], 1)
        }
        own: dict[str, Any] = {"repetition": repetition, "total_s": 100.0 * factor, **stored}
        record = (records.vision if kind == "vision" else records.llm)("cpu", **own)
        records.write(folder / kind / f"{repetition:02}", record, records.steps(step_s))
    return load.read_runs([folder / kind]).runs


def test_sides_are_measured_by_turns_and_dealt_in_every_way(tmp_path: Path):
    runs = runs_of(tmp_path, "vision", [1.0] * 6)
    three = [*identical.deals(runs, 3)]
    numbers = [tuple(tuple(run["repetition"] for run in side) for side in sides) for sides in three]
    assert numbers == [
        ((1, 3, 5), (2, 4, 6)),
        ((1, 3, 6), (2, 4, 5)),
        ((1, 4, 5), (2, 3, 6)),
        ((1, 4, 6), (2, 3, 5)),
    ]
    assert len([*identical.deals(runs, 2)]) == 3 * 2  # three windows of four runs
    assert [*identical.deals(runs, 5)] == []


@pytest.mark.parametrize("kind", ["vision", "llm"])
def test_equal_runs_are_seldom_told_apart_and_different_ones_always(kind: str, tmp_path: Path):
    random = np.random.default_rng(5)
    equal = runs_of(tmp_path / "equal", kind, [math.exp(0.01 * random.normal()) for _ in range(10)])
    counts = identical.count_false_verdicts(equal, kind)
    assert set(counts) >= {"compare", "claims, time", "best"}
    assert all(sum(apart for apart, _ in ways) <= 0.1 * 50 for ways in counts.values())
    assert [ways for _, ways in counts["best"]] == [14, 20, 16]
    different = runs_of(tmp_path / "different", kind, [1.0, 1.3] * 5)
    a, b = next(identical.deals(different, 5))
    judged = {name: judge(a, b) for name, judge in identical.judges(kind).items()}
    assert judged == {name: name != "claims, accuracy" for name in judged}
    assert identical.spread(different, "step_s") == pytest.approx(0.138, abs=5e-4)
    assert len(identical.report(kind, different)) == 4 + len(judged)
