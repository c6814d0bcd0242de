"""Blocks of a race's cells, and the error of each."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from multicard.measure import noise


@dataclass(frozen=True)
class Block:
    """A measured stretch of steps of a cell's process.

    Attributes:
        error: standard error of `log_figure` from the steps within. A full run is longer than a
            machine's slow spells, so its steps show all of its error.
        busy: share of the cores that other processes used meanwhile.
        slowed: by how much other load may have lowered `log_figure`. The error grows by it.
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
    """Return the variance of each block (n,), from its steps and from its cell's other blocks."""
    factor_of_cell = own_noise(blocks)
    factors = [1.0 if block.is_full else factor_of_cell.get(block.cell, 1.0) for block in blocks]
    return _by_steps(blocks) * factors


def own_noise(blocks: Sequence[Block]) -> dict[int, float]:
    """Return a factor on the variance for each cell whose blocks differ more than other cells' do.

    Some cells have slow and fast spells of their own, which the steps of a short block hardly show.
    With one scale for all cells, such a cell would look best whenever its blocks happened to be
    fast. Only blocks of one process are compared, because processes also differ. Scatter that all
    cells share is drift, or a scale that the model learns. A cell's variance is shrunk towards the
    other cells' variances, the more so the more similar these are (Smyth 2004, see
    `multicard.measure.noise`).
    """
    step_variances = _by_steps(blocks)
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
            squares[cell] += scatter / float(step_variances[places].mean())
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
    """Return the variance of each block (n,) from the steps within it.

    An error from few steps is itself unsure, above all if it is small. The best cell must not drop
    out because of a block that happened to be calm. No error is therefore smaller than the median
    of its cell, or than the median of all cells.
    """
    errors = [block.error for block in blocks]
    by_kind = _usual_errors(errors, [block.is_full for block in blocks])
    by_cell = _usual_errors(errors, [(block.is_full, block.cell) for block in blocks])
    return np.square(np.max([errors, by_kind, by_cell], axis=0))


def _usual_errors(errors: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Return, for each block, the median error of the blocks in its group."""
    errors_of_group: dict[Hashable, list[float]] = defaultdict(list)
    for group, error in zip(groups, errors, strict=True):
        errors_of_group[group].append(error)
    medians = {group: float(np.median(members)) for group, members in errors_of_group.items()}
    return [medians[group] for group in groups]
