"""Estimate what changing one swept setting gains, everything else equal, and how that depends.

Settings that agree in all axes except one form a block. A main effect is the mean over blocks of a
difference within them. An interaction is the mean of a difference between such differences. Both
are contrasts Σ w y of the settings' means y, each of n runs. Their variance is Σ w² σ² / n, where
σ² is the variance between runs (Montgomery 2013, Design and Analysis of Experiments, 8th edition,
section 3.5; randomised blocks, chapter 4). All blocks have the same weight, so a grid with holes
uses the blocks it has.

If nothing was repeated, σ² is the variance that a sum of effects leaves unexplained (section 6.5):
interactions count as noise. The variance that is usual for the kind of machine is combined with it,
as in the comparison of single runs.

Losses on held-out rows are compared row by row (`analysis.stats.held_out`), so the variance of a
contrast over the rows is added. Intervals of accuracies are widened by those over the tested
answers, as in the comparison of two settings.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import Any

import numpy as np

from multicard.measure.repeated_runs import MOST_LOG, Spread, Term, combined, student_quantile

from .between_runs import widened
from .held_out import ScoredRows, variance_over_rows
from .intervals import Interval, bonferroni, weighted_sum

Levels = Mapping[str, Any]  # The level of each axis.


@dataclass(frozen=True)
class Point:
    """A measured setting.

    value: its mean, on a scale on which differences count and more is better: -log of seconds.
    spread: how runs differ, on that scale.
    usual: the spread that is usual on such machines before any run was repeated; None if unknown.
    rows: the held-out rows, if the value is -log of their loss. All points have the same rows.
    answers: if the value is an accuracy, returns its interval over the tested answers at a
        confidence.
    """

    levels: Levels
    value: float
    runs: int
    spread: Spread
    usual: Spread | None = None
    rows: ScoredRows | None = None
    answers: Callable[[float], Interval] | None = None


@dataclass(frozen=True)
class Effect:
    """What a level of an axis gains over its base level, on the scale of the points.

    gain: it has no bounds if noise is unknown.
    pairs: the gain of each pair of settings that differ in this axis alone.
    """

    axis: str
    base: Any
    level: Any
    gain: Interval
    pairs: Sequence[float]

    @property
    def blocks(self) -> int:
        return len(self.pairs)


@dataclass(frozen=True)
class Interaction:
    """An effect that differs between two levels of another axis by more than noise.

    gains: what the effect gains at each of the two levels.
    """

    effect: Effect
    axis: str
    gains: Mapping[Any, float]


def main_effects(points: Sequence[Point], bases: Levels) -> list[list[Effect]]:
    """Return the effects of each axis, its best level first, and the most effective axis first.

    The intervals of an axis cover at 95 % together (Bonferroni), because the best of its levels is
    picked. An axis has no effects if no two settings differ in it alone.

    Args:
        bases: the base level of each axis, which its other levels are compared with.
    """
    points, by_axis = _with_noise(points), []
    for axis, base in bases.items():
        levels = dict.fromkeys(point.levels[axis] for point in points if point.levels[axis] != base)
        blocks_by_level = {
            level: blocks for level in levels if (blocks := _blocks(points, {axis: (base, level)}))
        }
        effects = [
            Effect(
                axis,
                base,
                level,
                _contrast(_mean_weights(blocks, (-1, 1)), bonferroni(len(blocks_by_level))),
                [after.value - before.value for before, after in blocks],
            )
            for level, blocks in blocks_by_level.items()
        ]
        by_axis.append(sorted(effects, key=lambda effect: -effect.gain.estimate))
    return sorted(filter(None, by_axis), key=lambda effects: -abs(effects[0].gain.estimate))


def interactions(points: Sequence[Point], effects: Sequence[Effect]) -> list[Interaction]:
    """Return what these effects depend on, the strongest interaction first.

    They hold at 95 % over all candidates (Bonferroni). There are none if nothing was repeated. An
    interaction names the effect of its first axis.
    """
    if not all(point.spread.repetitions for point in points):
        return []
    candidates = []
    for effect, other in combinations(effects, 2):
        for level in dict.fromkeys(point.levels[other.axis] for point in points):
            pairs = {effect.axis: (effect.base, effect.level), other.axis: (other.base, level)}
            if level != other.base and (blocks := _blocks(points, pairs)):
                candidates.append((effect, other, level, blocks))
    strong_interactions = []
    for effect, other, level, blocks in candidates:
        difference = _contrast(_mean_weights(blocks, (1, -1, -1, 1)), bonferroni(len(candidates)))
        if difference.excludes_zero:
            weights_by_level = {other.base: (-1, 0, 1, 0), level: (0, -1, 0, 1)}
            gains = {
                other_level: math.fsum(
                    w * point.value for w, point in _mean_weights(blocks, weights)
                )
                for other_level, weights in weights_by_level.items()
            }
            strong_interactions.append(
                (abs(difference.estimate), Interaction(effect, other.axis, gains))
            )
    return [one for _, one in sorted(strong_interactions, key=lambda pair: -pair[0])]


def _blocks(points: Sequence[Point], pairs: Mapping[str, tuple[Any, Any]]) -> list[list[Point]]:
    """Return the blocks: settings that agree in all axes except the axes of `pairs`.

    A block has each combination of the levels of `pairs`.
    """
    blocks: dict[Any, dict[Any, Point]] = {}
    for point in points:
        rest = frozenset(pair for pair in point.levels.items() if pair[0] not in pairs)
        blocks.setdefault(rest, {})[tuple(point.levels[axis] for axis in pairs)] = point
    corners = list(product(*pairs.values()))
    return [
        [block[corner] for corner in corners]
        for block in blocks.values()
        if {*corners} <= block.keys()
    ]


def _mean_weights(
    blocks: Sequence[Sequence[Point]], weights: Sequence[int]
) -> list[tuple[float, Point]]:
    """Return the weight of each setting in the mean over blocks of a contrast within them."""
    weighted = []
    for block in blocks:
        for weight, point in zip(weights, block, strict=True):
            weighted.append((weight / len(blocks), point))
    return weighted


def _contrast(parts: Sequence[tuple[float, Point]], confidence: float) -> Interval:
    """Return Σ w y with its interval; the variances of several machines add up (Satterthwaite)."""
    estimate = math.fsum(weight * point.value for weight, point in parts)
    spreads = dict.fromkeys(point.spread for _, point in parts)
    if not all(spread.freedom for spread in spreads):
        return Interval(estimate, None, None)
    share_by_spread = {
        spread: math.fsum(w**2 / point.runs for w, point in parts if point.spread == spread)
        for spread in spreads
    }
    terms = [
        Term(spread.variance * share, spread.term.degrees)
        for spread, share in share_by_spread.items()
    ]
    scored_parts = [(weight, point.rows) for weight, point in parts if point.rows is not None]
    if scored_parts:
        over_rows = variance_over_rows(scored_parts)
        if over_rows is None:  # A single row does not show how rows differ.
            return Interval(estimate, None, None)
        terms.append(over_rows)
    over_answers = [
        (weight, point.answers(confidence)) for weight, point in parts if point.answers is not None
    ]
    if over_answers:
        return widened(weighted_sum(over_answers), terms, confidence)
    total_variance = combined(terms)
    half = min(
        student_quantile(confidence, total_variance.degrees) * math.sqrt(total_variance.variance),
        MOST_LOG,
    )
    return Interval(estimate, estimate - half, estimate + half)


def _with_noise(points: Sequence[Point]) -> Sequence[Point]:
    """Return the points with a spread, even if one has no repetition on its machine.

    Then the spread comes from what a sum of effects leaves unexplained, and from what is usual.
    """
    if all(point.spread.repetitions for point in points):
        return points
    levels = dict.fromkeys(chain.from_iterable(point.levels.items() for point in points))
    design = np.array(
        [[1.0, *(point.levels[axis] == level for axis, level in levels)] for point in points]
    )
    values = np.array([point.value for point in points])
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    degrees = len(points) - int(rank)
    unexplained = Spread(
        float(np.square(values - design @ solution).sum()) / max(degrees, 1), degrees, degrees
    )
    return [
        replace(
            point,
            spread=unexplained
            if point.usual is None
            else _combined_spread(point.usual, unexplained),
        )
        for point in points
    ]


def _combined_spread(usual: Spread, unexplained: Spread) -> Spread:
    """Combine the usual spread with what a sum of effects leaves unexplained.

    The result is not below the latter.
    """
    freedom = usual.freedom + unexplained.freedom
    moderated = (
        usual.freedom * usual.variance + unexplained.freedom * unexplained.variance
    ) / freedom
    return Spread(max(moderated, unexplained.variance), freedom, unexplained.repetitions)
