"""Main effects and interactions: closed forms, simulations of what is called one, and what is said of them."""

import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from analysis.commands.best import known_rankings
from analysis.figures.effect_charts import what_matters
from analysis.report.blocks import Paragraph, Plot
from analysis.report.sections import NO_GAIN, of_effects
from analysis.runs import load
from analysis.stats.effects import Point, interactions, main_effects
from multicard.measure.repeated_runs import Spread
from tests.helpers import records

BASES = {"a": 0, "b": 0}
KNOWN = Spread(0.01, 10, prior_degrees=0)


def grid(values: dict[tuple[int, int], float], spread: Spread = KNOWN, runs: int = 2) -> list[Point]:
    return [Point({"a": a, "b": b}, value, runs, spread) for (a, b), value in values.items()]


def test_an_effect_is_the_mean_over_blocks_with_the_variance_of_a_contrast():
    points = grid({(0, 0): 0.0, (1, 0): 0.4, (0, 1): 0.1, (1, 1): 0.9})
    (a,), (b,) = main_effects(points, BASES)
    assert (a.axis, a.gain.estimate, a.blocks) == ("a", pytest.approx(0.6), 2)
    half = 2.2281389 * math.sqrt(0.01 * 4 * (1 / 2) ** 2 / 2)  # t of 10 degrees of freedom; four means of two runs
    assert (a.gain.low, a.gain.high) == pytest.approx((0.6 - half, 0.6 + half)) and a.gain.is_told
    assert b.gain.estimate == pytest.approx(0.3)
    machines = [
        *points[:2],
        *(Point(each.levels, each.value, 2, Spread(0.04, 5, prior_degrees=0)) for each in points[2:]),
    ]
    gain = main_effects(machines, {"a": 0})[0][0].gain
    parts = [(0.01 / 4, 10), (0.04 / 4, 5)]  # Satterthwaite
    degrees = sum(v for v, _ in parts) ** 2 / sum(v**2 / d for v, d in parts)
    assert degrees == pytest.approx(7.5758, abs=1e-4)
    assert gain.high is not None and gain.high - 0.6 == pytest.approx(2.3287 * math.sqrt(0.0125), rel=1e-3)


def test_a_grid_with_holes_uses_the_blocks_there_are_and_the_best_of_several_levels_has_a_wider_interval():
    points = grid({(0, 0): 0.0, (1, 0): 0.4, (2, 0): 0.2, (0, 1): 0.1, (2, 1): 0.3, (3, 2): 9.0})
    (one, two), (b,) = main_effects(points, BASES)
    assert [(one.level, one.blocks), (two.level, two.blocks)] == [(1, 1), (2, 2)]
    assert one.gain.high is not None and one.gain.high - 0.4 == pytest.approx(2.6338 * math.sqrt(0.01), rel=1e-4)
    assert (b.level, b.blocks) == (1, 2)  # b=2 differs from all others in a too
    assert main_effects(grid({(0, 0): 0.0, (1, 1): 1.0}), BASES) == []


def test_without_repetitions_noise_is_what_blocks_differ_by():
    """The paired t interval of two blocks, which differ by 0.4, has one degree of freedom."""
    values = {(0, 0): 0.0, (1, 0): 0.4, (0, 1): 0.1, (1, 1): 0.9}
    points = grid(values, Spread(), runs=1)
    (a,), _ = main_effects(points, BASES)
    assert a.gain.high is not None and a.gain.high - 0.6 == pytest.approx(12.7062 * 0.4 / 2, rel=1e-4)
    assert not a.gain.is_told and interactions(points, [a]) == []
    single = main_effects(grid({(0, 0): 0.0, (1, 0): 0.4}, Spread()), {"a": 0})
    assert single[0][0].gain.low is None


def test_effects_and_interactions_of_noise_are_called_so_in_5_percent_of_the_sweeps():
    random, wrong = np.random.default_rng(3), {"effects": 0, "interactions": 0}
    for _ in range(400):
        cells = list(product((0, 1, 2), (0, 1)))
        logs = random.normal(0, 0.03, (len(cells), 3))
        spread = Spread(float(logs.var(axis=1, ddof=1).mean()), 2 * len(cells), prior_degrees=0)
        points = grid(dict(zip(cells, logs.mean(axis=1).tolist(), strict=True)), spread, runs=3)
        by_axis = main_effects(points, BASES)
        wrong["effects"] += any(one.gain.is_told for own in by_axis for one in own if own[0].axis == "a")
        wrong["interactions"] += bool(interactions(points, [own[0] for own in by_axis]))
    assert max(wrong.values()) <= 0.07 * 400 and min(wrong.values()) > 0


def test_gains_and_what_they_depend_on_are_said_in_words(tmp_path: Path):
    times_s = {("nchw", 1): 100.0, ("nchw", 2): 90.0, ("nhwc", 1): 80.0, ("nhwc", 2): 45.0}
    for (layout, gpus), time_s in times_s.items():
        for repetition, drift in enumerate((0.99, 1.01)):
            record = records.vision(layout=layout, gpus=gpus, total_s=time_s * drift)
            records.write(tmp_path / f"{layout}{gpus}{repetition}", record)
    runs = load.read([tmp_path]).runs
    time, accuracy = what_matters(known_rankings(runs))
    (layout,), (gpus,) = time.by_axis
    assert (time.change(layout), time.change(gpus)) == ("layout=nhwc, not nchw", "gpus=2, not 1")
    assert time.gain(layout).startswith("1.58x faster (1.5") and time.gain(gpus).startswith("1.41x faster (1.3")
    sentence = "layout=nhwc, not nchw: 1.25x faster with gpus=1, but 2.00x faster with gpus=2"
    assert time.interactions == [sentence]
    assert accuracy.gain(accuracy.by_axis[0][0]) == "no difference (-0.0 points to +0.0 points)"
    blocks = of_effects(known_rankings(runs)).blocks
    assert [block.figure.name for block in blocks if isinstance(block, Plot)] == ["effects"]
    single = of_effects(known_rankings(runs[::2])).blocks
    assert any(isinstance(block, Paragraph) and "repeat=3" in block.text for block in single)
    assert Paragraph(f"It depends: {sentence}.") in blocks and Paragraph(NO_GAIN, quiet=True) in blocks
