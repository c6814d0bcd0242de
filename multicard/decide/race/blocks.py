"""Blocks of a race's cells, and how far off the figure of each may be."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multicard.measure import noise


@dataclass(frozen=True)
class Block:
    """A measured stretch of steps of a cell's process; `error` is the standard error from the steps
    within. Those of a full run, which is longer than a machine's slow spells,
    tell all of its error.

    busy: share of the cores that others had meanwhile.
    slowed: by how much others may have lowered the log figure; its error grows by it.
    """

    cell: int
    round: int
    log_figure: float
    error: float
    process: int
    is_full: bool = False
    busy: float = 0.0
    slowed: float = 0.0


def variances(blocks: Sequence[Block]) -> np.ndarray:
    """The variance (n,) of each block by its steps, and by how much its cell's blocks differ."""
    own = own_noise(blocks)
    factors = [1.0 if block.is_full else own.get(block.cell, 1.0) for block in blocks]
    return _by_steps(blocks) * factors


def own_noise(blocks: Sequence[Block]) -> dict[int, float]:
    """Cells whose blocks differ more than those of the others, and by what factor on the variance.

    Some cells have slow and fast spells of their own, which the steps of a short block hardly show.
    With the scale that fits all cells, such a cell looks best whenever its blocks happened to be
    fast. Blocks of one process are compared, as processes differ by themselves; what is common to
    all cells is drift, or a scale that the model learns. A cell's own variance is drawn towards
    those of the others by as much as these are alike (Smyth 2004, see `multicard.measure.noise`).
    """
    known = _by_steps(blocks)
    squares: dict[int, float] = defaultdict(float)
    degrees = Counter[int]()
    by_process: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, block in enumerate(blocks):
        if not block.is_full and not block.slowed:
            by_process[block.cell, block.process].append(place)
    for (cell, _), places in by_process.items():
        if len(places) > 1:
            figures = np.array([blocks[place].log_figure for place in places])
            scatter = float(np.square(figures - figures.mean()).sum())
            squares[cell] += scatter / float(known[places].mean())
            degrees[cell] += len(places) - 1
    cells = [*squares]
    if len(cells) < noise.LEAST_SETTINGS:
        return {}
    freedom = np.array([degrees[cell] for cell in cells])
    ratios = np.array([squares[cell] for cell in cells]) / freedom
    prior_freedom, level = noise.fit_prior(ratios, freedom)
    if math.isinf(prior_freedom):
        return {}
    moderated = (prior_freedom * level + freedom * ratios) / (prior_freedom + freedom)
    factors = moderated / max(level, noise.LEAST_VARIANCE)
    return {cell: float(factor) for cell, factor in zip(cells, factors, strict=True) if factor > 1}


def _by_steps(blocks: Sequence[Block]) -> np.ndarray:
    """The variance (n,) of each block by the steps within it.

    An error of few steps is itself unsure, and most so where they show little: the best cell must
    not drop out by a block that happened to be calm. None is smaller than is usual for its cell,
    and for all.
    """
    errors = np.array([block.error for block in blocks])
    kinds = [[block.is_full for block in blocks], [(block.is_full, block.cell) for block in blocks]]
    usual = [
        {kind: np.median(errors[[other == kind for other in every]]) for kind in {*every}}
        for every in kinds
    ]
    least = [[medians[kind] for kind in every] for medians, every in zip(usual, kinds, strict=True)]
    return np.square(np.max([errors, *least], axis=0))
