"""Main effects and interactions of swept settings: what changing one setting alone gains,
everything else equal.

Settings that agree in all axes but one are a block. An effect is the mean over blocks of a
difference within them, and so is an interaction, of such differences: both are contrasts Σ w y of
the settings' means y, of n runs each, with the variance Σ w² σ² / n, where σ² is how runs differ
(Montgomery 2013, Design and Analysis of Experiments, 8th edition, section 3.5; randomised blocks,
chapter 4). Blocks count alike, so that a grid with holes uses those it has.

Where nothing was repeated, σ² is what a sum of effects leaves unexplained (section 6.5):
interactions count as noise. What is usual for the kind of machine is beside it,
as where single runs of two settings are compared.

Losses on held-out rows are compared row by row (`analysis.stats.held_out`): the variance of a
contrast over the rows is added.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, product
from typing import Any

import numpy as np

from multicard.measure.repeated_runs import MOST_LOG, Spread, Term, combined, student_quantile

from .held_out import ScoredRows, variance_over_rows
from .intervals import Interval, bonferroni

Levels = Mapping[str, Any]  # by axis


@dataclass(frozen=True)
class Point:
    """A measured setting.

    value: its mean, on a scale on which differences count and more is better: -log of seconds.
    spread: on that scale.
    usual: the spread of runs on such machines, before any was repeated; None where that is not
    known.
    rows: the held-out rows whose loss the value is -log of, the same of all points;
    None of other figures.
    """

    levels: Levels
    value: float
    runs: int
    spread: Spread
    usual: Spread | None = None
    rows: ScoredRows | None = None


@dataclass(frozen=True)
class Effect:
    """The gain of a level of an axis over its base, on the scale of the points;
    without bounds where noise is unknown.

    blocks: number of pairs of settings that differ in this axis alone.
    """

    axis: str
    base: Any
    level: Any
    gain: Interval
    blocks: int


@dataclass(frozen=True)
class Interaction:
    """An effect that differs between two levels of another axis by more than noise,
    with its gain at each.
    """

    effect: Effect
    axis: str
    gains: Mapping[Any, float]


def main_effects(points: Sequence[Point], bases: Levels) -> list[list[Effect]]:
    """The effects of each axis, its best level first; the axis of the largest best effect first.

    Together, the intervals of an axis cover at 95 % (Bonferroni), since the best of its levels is
    picked. An axis in which no two settings differ alone has none.

    Args:
        bases: the level of each axis that the others are compared with.
    """
    points, by_axis = _with_noise(points), []
    for axis, base in bases.items():
        levels = dict.fromkeys(point.levels[axis] for point in points if point.levels[axis] != base)
        known = {
            level: blocks for level in levels if (blocks := _blocks(points, {axis: (base, level)}))
        }
        effects = [
            Effect(
                axis,
                base,
                level,
                _contrast(_mean(blocks, (-1, 1)), bonferroni(len(known))),
                len(blocks),
            )
            for level, blocks in known.items()
        ]
        by_axis.append(sorted(effects, key=lambda effect: -effect.gain.estimate))
    return sorted(filter(None, by_axis), key=lambda effects: -abs(effects[0].gain.estimate))


def interactions(points: Sequence[Point], effects: Sequence[Effect]) -> list[Interaction]:
    """What these effects depend on, the strongest first, at 95 % over all that is looked at
    (Bonferroni); none where nothing was repeated. Of two axes, the effect of the first is named.
    """
    if not all(point.spread.repetitions for point in points):
        return []
    candidates = []
    for effect, other in combinations(effects, 2):
        for level in dict.fromkeys(point.levels[other.axis] for point in points):
            pairs = {effect.axis: (effect.base, effect.level), other.axis: (other.base, level)}
            if level != other.base and (blocks := _blocks(points, pairs)):
                candidates.append((effect, other, level, blocks))
    found = []
    for effect, other, level, blocks in candidates:
        difference = _contrast(_mean(blocks, (1, -1, -1, 1)), bonferroni(len(candidates)))
        if difference.is_told:
            ends = {other.base: (-1, 0, 1, 0), level: (0, -1, 0, 1)}
            gains = {
                end: math.fsum(w * point.value for w, point in _mean(blocks, own))
                for end, own in ends.items()
            }
            found.append((abs(difference.estimate), Interaction(effect, other.axis, gains)))
    return [one for _, one in sorted(found, key=lambda pair: -pair[0])]


def _blocks(points: Sequence[Point], pairs: Mapping[str, tuple[Any, Any]]) -> list[list[Point]]:
    """The settings that agree in all axes but those of `pairs`,
    and have each combination of their levels.
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


def _mean(blocks: Sequence[Sequence[Point]], weights: Sequence[int]) -> list[tuple[float, Point]]:
    """The weights of settings in the mean over blocks of a contrast within them."""
    weighted = []
    for block in blocks:
        for weight, point in zip(weights, block, strict=True):
            weighted.append((weight / len(blocks), point))
    return weighted


def _contrast(parts: Sequence[tuple[float, Point]], confidence: float) -> Interval:
    """Σ w y with its interval; the variances of several machines add up (Satterthwaite)."""
    estimate = math.fsum(weight * point.value for weight, point in parts)
    spreads = dict.fromkeys(point.spread for _, point in parts)
    if not all(spread.freedom for spread in spreads):
        return Interval(estimate, None, None)
    shares = {
        one: math.fsum(w**2 / point.runs for w, point in parts if point.spread == one)
        for one in spreads
    }
    terms = [Term(spread.variance * share, spread.term.degrees) for spread, share in shares.items()]
    scored = [(weight, point.rows) for weight, point in parts if point.rows is not None]
    if scored:
        over_rows = variance_over_rows(scored)
        if over_rows is None:  # a single row does not show how rows differ
            return Interval(estimate, None, None)
        terms.append(over_rows)
    total = combined(terms)
    half = min(student_quantile(confidence, total.degrees) * math.sqrt(total.variance), MOST_LOG)
    return Interval(estimate, estimate - half, estimate + half)


def _with_noise(points: Sequence[Point]) -> Sequence[Point]:
    """The points; where one has no repetition on its machine, with what a sum of effects leaves
    unexplained and what is usual where that is known.
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
    left = Spread(
        float(np.square(values - design @ solution).sum()) / max(degrees, 1), degrees, degrees
    )
    return [
        replace(point, spread=left if point.usual is None else _beside(point.usual, left))
        for point in points
    ]


def _beside(usual: Spread, left: Spread) -> Spread:
    """What is usual, moderated by what a sum of effects leaves unexplained,
    and no less than that.
    """
    freedom = usual.freedom + left.freedom
    moderated = (usual.freedom * usual.variance + left.freedom * left.variance) / freedom
    return Spread(max(moderated, left.variance), freedom, left.repetitions)
