"""How sure the effects of settings are: accuracies over few answers, and speed-ups that more GPUs
cannot give.
"""

import math
from itertools import product
from pathlib import Path

import pytest

from analysis.commands.best import known_rankings
from analysis.figures.effect_charts import WorkEffects, what_matters
from analysis.runs import load
from analysis.runs.grouping import ACCURACY
from analysis.stats.intervals import Interval, difference, weighted_sum
from tests.helpers import records


def effects_of(folder: Path, measure: str) -> WorkEffects:
    found = what_matters(known_rankings(load.read_runs([folder]).runs))
    (effects,) = (one for one in found if one.measure == measure)
    return effects


def accuracies(folder: Path, gap: float, images: int, seeds: int = 1) -> None:
    """Pairs of settings whose accuracies all differ by `gap`, to the last answer."""
    for precision, lr, seed in product(("fp32", "bf16"), (0.1, 0.2), range(seeds)):
        share = 0.5 + gap * (precision == "bf16")
        record = records.vision(precision=precision, lr=lr, seed=seed)
        name = f"{precision}-{lr}-{seed}"
        records.write(folder / name, record | records.accurate(share, images))


@pytest.mark.parametrize("seeds", [1, 3])
@pytest.mark.parametrize(("images", "is_sure"), [(80, False), (8000, True)])
def test_an_effect_on_accuracy_is_as_sure_as_the_tested_answers(
    tmp_path: Path, images: int, is_sure: bool, seeds: int
):
    """Pairs that agree show nothing about other answers."""
    accuracies(tmp_path, 0.0625, images, seeds)
    (gain,) = (
        axis_effects[0].gain
        for axis_effects in effects_of(tmp_path, ACCURACY).by_axis
        if axis_effects[0].axis == "precision"
    )
    assert gain.estimate == pytest.approx(0.0625)
    assert gain.excludes_zero == is_sure
    # The mean over two pairs has the variance of one accuracy.
    least_half = 1.96 * math.sqrt(0.5 * 0.5 / (seeds * images))
    assert gain.high is not None and gain.high - gain.estimate > 0.95 * least_half


def test_an_accuracy_over_no_known_answers_has_no_interval(tmp_path: Path):
    accuracies(tmp_path, 0.0625, 0)
    gains = [axis_effects[0].gain for axis_effects in effects_of(tmp_path, ACCURACY).by_axis]
    assert gains and all(gain.low is None for gain in gains)


def test_intervals_of_a_weighted_sum_are_those_of_a_difference():
    a = Interval(0.9, 0.85, 0.92)
    b = Interval(0.5, 0.4, 0.65)
    assert weighted_sum([(1, a), (-1, b)]) == difference(a, b)
    symmetric = weighted_sum([(2, Interval(1, 0, 2)), (-3, Interval(1, 0, 2))])
    half = math.hypot(2, 3)
    assert (symmetric.low, symmetric.high) == pytest.approx((-1 - half, -1 + half))
    assert weighted_sum([(1, a), (-1, Interval(0.5, None, None))]).low is None


@pytest.mark.parametrize(("speed_up", "is_doubted"), [(1.9, False), (2.5, True)])
def test_a_speed_up_that_more_gpus_cannot_give_is_marked(
    tmp_path: Path, speed_up: float, is_doubted: bool
):
    for precision, gpus in product(("fp32", "bf16"), (1, 2)):
        # The speed-up of bf16 is never doubtful: only some of the pairs are.
        factor = 1.0 if gpus == 1 else speed_up if precision == "fp32" else 1.5
        record = records.vision(precision=precision, gpus=gpus, total_s=100.0 / factor)
        records.write(tmp_path / f"{precision}{gpus}", record)
    figure = effects_of(tmp_path, "total_s").figure("effects")
    signs = {row["change"].partition("=")[0]: row["signs"] for row in figure.rows}
    assert signs == {"gpus": "?" if is_doubted else "", "precision": ""}
    assert [sign for sign, _ in figure.meanings] == ["?"] * is_doubted
