"""Intervals by split conformal prediction over groups that were left out (Vovk et al. 2005; by groups: Dunn et al.
2023, J. Am. Stat. Assoc. 118:2491).

A model that never saw a group predicts its members; how far off it was, over the spread that is expected of each, are
the group's scores. Their quantiles are the interval of a member of a new group. A group counts once, however many
members it has: near duplicates would else stand for all groups.
"""

from collections.abc import Mapping, Sequence

import numpy as np


def quantiles(scores: Mapping[str, Sequence[float]], confidence: float) -> tuple[float, float]:
    """The lower and the upper quantile of signed scores, each group with a weight of 1.

    Raises:
        ValueError: fewer than two groups, which say nothing of a new one.
    """
    if len(scores) < 2:
        raise ValueError("an interval needs at least two groups that were left out")
    values = np.concatenate([np.asarray(group, float) for group in scores.values()])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in scores.values()])
    tail = (1 - confidence) / 2
    return -_upper(-values, weights, tail), _upper(values, weights, tail)


def _upper(values: np.ndarray, weights: np.ndarray, tail: float) -> float:
    """The least value that leaves no more than `tail` of the weight above it."""
    order = np.argsort(values)
    above = weights.sum() - np.cumsum(weights[order])
    return float(values[order][np.argmax(above <= tail * weights.sum() + 1e-12)])
