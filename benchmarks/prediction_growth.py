"""Derivation of `estimate.time.scaling.PUBLISHED` from published tables: a fit, and its conformal interval."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from multicard.estimate.published import Series
from multicard.estimate.time.scaling import CONFIDENCE, FAR, FASTER_LIMIT, NOISE, NOISE_SLOPE, Growth

THRESHOLDS, SLOPES = (0, 0.02, 0.05, 0.1, 0.15, 0.2), (0.25, 0.5, 0.75, 1, 1.25, 1.5)
CONSTANTS = (0, 0.005, 0.01, 0.015)
FIT_NOISE = 0.01  # in place of NOISE, so that the many cases with a small d count


@dataclass(frozen=True)
class Case:
    """A row of a table: T(2) / T(1) - 1 and T(8) / T(1) - 1 of a workload on a family of GPUs."""

    family: str
    workload: str
    growth_2: float
    growth_8: float


def cases(rows: Sequence[Series]) -> list[Case]:
    """Of the rows with 1, 2 and 8 GPUs."""
    growth = ((row, row.sample_s) for row in rows if {1, 2, 8} <= row.rates.keys())
    return [Case(row.family, row.workload, t[2] / t[1] - 1, t[8] / t[1] - 1) for row, t in growth]


def fit(rows: Sequence[Case]) -> Growth:
    """The model that the cases support, without its interval.

    The mean of the three figures over a grid, each point weighted by its likelihood (Laplace's distribution, of the
    scale FIT_NOISE + NOISE_SLOPE |d|). A family counts once a workload, however many of its nodes were measured.
    """
    growth_2 = np.array([case.growth_2 for case in rows])
    target = np.log1p([case.growth_8 for case in rows])
    same = [(case.family, case.workload) for case in rows]
    weights = np.array([1 / same.count(name) for name in same]) / (FIT_NOISE + NOISE_SLOPE * np.abs(growth_2))
    points = np.array([(t, s, c) for t in THRESHOLDS for s in SLOPES for c in CONSTANTS])
    limit, gain, base = points.T[:, :, None]
    predicted = np.log1p(np.maximum(growth_2, FASTER_LIMIT) + gain * np.maximum(growth_2 - limit, 0.0) + base)
    log_likelihood = -(np.abs(predicted - target) * weights).sum(axis=1)
    likelihood = np.exp(log_likelihood - log_likelihood.max())
    return Growth(*(likelihood @ points / likelihood.sum()).tolist())


def calibrated(rows: Sequence[Case]) -> Growth:
    """`fit`, with the interval of split conformal prediction over families (Vovk et al. 2005; by groups: Dunn et al.
    2023, J. Am. Stat. Assoc. 118:2491): each is scored by a fit without it."""
    scores: dict[str, list[float]] = {}
    for family in sorted({case.family for case in rows}):
        others = fit([case for case in rows if case.family != family])
        scores[family] = [score(others, case) for case in rows if case.family == family]
    low, high = quantiles(scores, CONFIDENCE)
    return replace(fit(rows), low=low, high=high)


def score(growth: Growth, case: Case) -> float:
    """log T(8) over the predicted, in units of the scale that grows with d."""
    error = math.log1p(case.growth_8) - growth.log_ratio(case.growth_2, FAR)
    return error / (NOISE + NOISE_SLOPE * abs(case.growth_2))


def quantiles(scores: Mapping[str, Sequence[float]], confidence: float) -> tuple[float, float]:
    """The lower and the upper quantile of signed scores. A group has a weight of 1, however many members it has: near
    duplicates would else stand for all groups."""
    values = np.concatenate([np.asarray(group, float) for group in scores.values()])
    weights = np.concatenate([np.full(len(group), 1 / len(group)) for group in scores.values()])
    tail = (1 - confidence) / 2
    return -_upper(-values, weights, tail), _upper(values, weights, tail)


def _upper(values: np.ndarray, weights: np.ndarray, tail: float) -> float:
    """The least value that leaves no more than `tail` of the weight above it."""
    order = np.argsort(values)
    above = weights.sum() - np.cumsum(weights[order])
    return float(values[order][np.argmax(above <= tail * weights.sum() + 1e-12)])
