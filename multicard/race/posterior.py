"""What is known of every cell of a grid from blocks of some: a Gaussian model of the logarithm of the figure.

The figure of a cell is the sum of the effects of its axes, of interactions of pairs of axes, and of an offset of its
own. A block shows it with an offset of its process, the drift of its round (a random walk, common to all cells of the
round), and its own noise. All of it is Gaussian, so that the posterior is linear algebra.

The standard deviations of these parts (`Scales`) are learned by marginal likelihood with a prior around their defaults:
what two cells cannot tell, twenty can. Those of the interactions, which say what cells
that never ran may hold, are unsure for long: draws are from a mixture of posteriors with smaller and larger ones.

A prediction of a cell counts as a measurement of it, with errors that cells with the same settings share: predictions
of one axis rest on the same pairs of runs, and many of them are no surer of it than a single one.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy import linalg

LEVEL_SD = 1.0  # of the level of all cells, and of the effect of an axis: next to nothing is assumed of either
AXIS_SD = 0.5
PREDICTION_SHARES = (0.25, 0.5, 0.25)  # of a prediction's variance: of all cells, of those alike, of its own
SCALE_SPREAD = 0.7  # of the logarithm of a scale around its default
SCALE_STEP = 1.4
LEARNING_STEPS = 3
MIXED_STEPS = (-1, 0, 1, 2)  # of the scales of interactions
BLOCK_ERROR = 0.01  # of a block before there is one
FLOOR = 1e-9  # added to variances, for rounding


@dataclass(frozen=True)
class Block:
    """A measured stretch of steps.

    log_figure: larger is better. error: its standard error from the steps within. process: a number that is another
    for each process of a cell.
    """

    cell: int
    round: int
    log_figure: float
    error: float
    process: int


@dataclass(frozen=True)
class Scales:
    """Standard deviations on the scale of logarithms.

    pair: of all interactions of pairs of axes. own: of a cell's offset. process: between processes of a cell.
    drift: from a round to the next. inflation: of the errors of blocks, a factor, as a machine that is slow for seconds
    makes blocks differ by more than the steps within them show.
    """

    pair: float = 0.03
    own: float = 0.04
    process: float = 0.01
    drift: float = 0.005
    inflation: float = 1.2


@dataclass(frozen=True)
class Posterior:
    """Mean (cells,) and covariance (cells, cells) of the cells' log figures, and the log likelihood of the blocks."""

    mean: np.ndarray
    covariance: np.ndarray
    log_likelihood: float = 0.0

    @property
    def sd(self) -> np.ndarray:
        return np.sqrt(np.maximum(np.diag(self.covariance), 0.0))

    def difference(self, cell: int, other: int) -> tuple[float, float]:
        """The mean and the standard deviation of cell - other."""
        part = self.covariance
        variance = part[cell, cell] + part[other, other] - 2 * part[cell, other]
        return float(self.mean[cell] - self.mean[other]), float(np.sqrt(max(variance, FLOOR)))

    def draws(self, normals: np.ndarray) -> np.ndarray:
        """Draws (n, cells) by as many standard normal ones."""
        jitter = (FLOOR + 1e-12 * float(np.trace(self.covariance))) * np.eye(len(self.mean))
        return self.mean + normals @ linalg.cholesky(self.covariance + jitter)  # the upper factor


class Model:
    """The cells of a grid before and after blocks.

    Args:
        settings: of each cell, by axis.
        predictions: of each cell's log figure, mean and standard deviation; None where there is none.
    """

    def __init__(
        self, settings: Sequence[Mapping[str, object]], predictions: Sequence[tuple[float, float] | None]
    ) -> None:
        axes = sorted({axis for setting in settings for axis in setting})
        alike = np.zeros((len(settings), len(settings)))
        used = 0
        for axis in axes:
            values = [repr(setting.get(axis)) for setting in settings]
            codes = np.unique(values, return_inverse=True)[1]
            if codes.max() > 0:  # an axis with one value tells nothing apart
                alike += codes[:, None] == codes
                used += 1
        self._axes = LEVEL_SD**2 + AXIS_SD**2 * alike
        self._pairs = alike * (alike - 1) / max(used * (used - 1), 1)  # as a share of all pairs of axes
        self._eye = np.eye(len(settings))
        self._predicted = np.array([cell for cell, item in enumerate(predictions) if item is not None], int)
        known = np.array([item for item in predictions if item is not None], float).reshape(-1, 2)
        self._means, sd = known.T
        common, shared, single = PREDICTION_SHARES
        part = np.ix_(self._predicted, self._predicted)
        correlation = common + shared * alike[part] / max(used, 1) + single * self._eye[part]
        self._errors = np.outer(sd, sd) * correlation

    def prior(self, scales: Scales, level: float) -> Posterior:
        """Before any block; `level` is the mean of all cells where there are no predictions."""
        covariance = self._axes + scales.pair**2 * self._pairs + scales.own**2 * self._eye
        if not len(self._predicted):
            return Posterior(np.full(len(covariance), level), covariance)
        level = float(self._means.mean())
        rows = covariance[self._predicted]
        gain = linalg.solve(rows[:, self._predicted] + self._errors, rows, assume_a="pos").T
        return Posterior(level + gain @ (self._means - level), covariance - gain @ rows)

    def posterior(self, blocks: Sequence[Block], scales: Scales) -> Posterior:
        if not blocks:
            return self.prior(scales, 0.0)
        return self._given(_Arrays(blocks), scales)

    def learned(self, blocks: Sequence[Block], scales: Scales, defaults: Scales) -> Scales:
        """The scales by which the blocks are likeliest, up or down from `scales` by at most LEARNING_STEPS."""
        if not blocks:
            return scales
        arrays = _Arrays(blocks)
        best = self._fit(arrays, scales, defaults)
        for _ in range(LEARNING_STEPS):
            before = scales
            for field, factor in itertools.product(fields(Scales), (SCALE_STEP, 1 / SCALE_STEP)):
                tried = replace(scales, **{field.name: getattr(scales, field.name) * factor})
                fit = self._fit(arrays, tried, defaults)
                if fit > best:
                    scales, best = tried, fit
            if scales == before:
                break
        return scales

    def draws(self, blocks: Sequence[Block], scales: Scales, defaults: Scales, normals: np.ndarray) -> np.ndarray:
        """Draws of all cells' figures (n, cells) by as many standard normal ones."""
        factors = [SCALE_STEP**step for step in MIXED_STEPS]
        mixed = [replace(scales, pair=scales.pair * factor, own=scales.own * factor) for factor in factors]
        fits = np.array([_log_prior(tried, defaults) for tried in mixed])
        posteriors = [self.posterior(blocks, tried) for tried in mixed]
        fits += [posterior.log_likelihood for posterior in posteriors]
        shares = np.exp(fits - fits.max())
        ends = np.round(np.cumsum(shares / shares.sum()) * len(normals)).astype(int)
        parts = np.split(normals, ends[:-1])
        return np.concatenate([one.draws(part) for one, part in zip(posteriors, parts, strict=True)])

    def outlook(self, blocks: Sequence[Block], scales: Scales) -> np.ndarray:
        """The covariance (3 cells, 3 cells) of the cells' figures, of a further block of each cell's last process, and
        of a block of a fresh process, all in the round to come; whatever they will show."""
        cells = np.arange(len(self._eye))
        last = np.full(len(cells), -1)
        errors = np.full(len(cells), BLOCK_ERROR)
        if blocks:
            errors[:] = np.median([block.error for block in blocks])
        for block in blocks:
            last[block.cell] = block.process
        for cell in {block.cell for block in blocks}:
            errors[cell] = np.median([block.error for block in blocks if block.cell == cell])
        ahead = max((block.round for block in blocks), default=0) + 1
        prior = np.tile(self.prior(scales, 0.0).covariance, (3, 3))
        covariance = prior.copy()
        covariance[len(cells) :, len(cells) :] += scales.drift**2 * ahead
        own = scales.process**2 + np.square(scales.inflation * errors) + FLOOR
        covariance += np.diag(np.concatenate((np.zeros(len(cells)), own, own)))
        if not blocks:
            return covariance
        arrays = _Arrays(blocks)
        shared = prior[:, arrays.cells]
        shared[len(cells) :] += scales.drift**2 * arrays.rounds
        same = (cells[:, None] == arrays.cells) & (last[:, None] == arrays.processes)
        shared[len(cells) : 2 * len(cells)] += scales.process**2 * same
        factor = linalg.cholesky(prior[np.ix_(arrays.cells, arrays.cells)] + arrays.noise(scales), lower=True)
        seen = linalg.solve_triangular(factor, shared.T, lower=True)
        return covariance - seen.T @ seen

    def _fit(self, arrays: "_Arrays", scales: Scales, defaults: Scales) -> float:
        return self._given(arrays, scales).log_likelihood + _log_prior(scales, defaults)

    def _given(self, arrays: "_Arrays", scales: Scales) -> Posterior:
        prior = self.prior(scales, float(arrays.figures.mean()))
        rows = prior.covariance[arrays.cells]
        noise = arrays.noise(scales)
        residuals = arrays.figures - prior.mean[arrays.cells]
        factor = linalg.cholesky(rows[:, arrays.cells] + noise, lower=True)
        white = linalg.solve_triangular(factor, np.column_stack((residuals, rows)), lower=True)
        shown, seen = white[:, 0], white[:, 1:]
        likelihood = -float(shown @ shown) / 2 - float(np.log(np.diag(factor)).sum())
        return Posterior(prior.mean + seen.T @ shown, prior.covariance - seen.T @ seen, likelihood)


def _log_prior(scales: Scales, defaults: Scales) -> float:
    values = np.array([[getattr(part, field.name) for field in fields(Scales)] for part in (scales, defaults)])
    return -float(np.square(np.log(values[0] / values[1]) / SCALE_SPREAD).sum()) / 2


class _Arrays:
    """Blocks (n,) as arrays."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.cells = np.array([block.cell for block in blocks])
        self.figures = np.array([block.log_figure for block in blocks])
        self.rounds = np.array([block.round for block in blocks], float)
        self.processes = np.array([block.process for block in blocks])
        self._walk = np.minimum(self.rounds[:, None], self.rounds)
        self._process = (self.cells[:, None] == self.cells) & (self.processes[:, None] == self.processes)
        errors = np.array([block.error for block in blocks])
        places = np.unique(self.cells, return_inverse=True)[1]
        usual = np.array([np.median(errors[places == place]) for place in range(places.max() + 1)])[places]
        # An error of few steps is itself unsure, and most so where they show little: the best cell must not drop out
        # by a block that happened to be calm. None is smaller than is usual for its cell, and for all.
        self._variances = np.square(np.maximum(errors, np.maximum(usual, np.median(errors))))

    def noise(self, scales: Scales) -> np.ndarray:
        """The covariance (n, n) of the blocks around their cells' figures."""
        own = np.diag(scales.inflation**2 * self._variances + FLOOR)
        return own + scales.drift**2 * self._walk + scales.process**2 * self._process
