"""What is known of every cell of a grid from blocks of some: a Gaussian model of the logarithm of the figure.

The figure of a cell is the sum of the effects of its axes, of interactions of pairs of axes, and of an offset of its
own. A block shows it with an offset of its process, the drift of its round (a random walk, common to all cells of the
round), and its own noise. All of it is Gaussian, so that the posterior is linear algebra.

The standard deviations of these parts (`Scales`) are learned by marginal likelihood with a prior around their defaults:
what two cells cannot tell, twenty can. Those of the interactions, which say what cells that never ran may hold, are
unsure for long: draws are from a mixture of posteriors with smaller and larger ones.

Blocks of some cells scatter several times as much as the steps within them tell, those of others do not, as a machine's
slow spells are longer than a block. So each cell has a factor of its own (`Learned.scatter`), a scaled inverse
chi-squared variable around 1 (Gelman et al. 2013, Bayesian Data Analysis, section 2.6) that is found by expectation
maximisation. A few blocks tell little of it: the posteriors of the mixture have factors drawn from what is known.

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
SCATTER_DEGREES = 3.0  # of freedom, of a cell's scatter before its blocks: it differs by 2.6 times, up or down
SCATTER_STEPS = 3  # of expectation maximisation, from what was learned before
SCATTER_DRAWS = 3  # by scales of interactions
BLOCK_ERROR = 0.01  # of a block before there is one
FLOOR = 1e-9  # added to variances, for rounding


@dataclass(frozen=True)
class Block:
    """A measured stretch of steps.

    log_figure: larger is better. error: its standard error from the steps within. process: a number that is another
    for each process of a cell. is_full: of a full run, which is longer than a machine's slow spells, so that its steps
    tell all of its error.
    """

    cell: int
    round: int
    log_figure: float
    error: float
    process: int
    is_full: bool = False


@dataclass(frozen=True)
class Scales:
    """Standard deviations on the scale of logarithms.

    pair: of all interactions of pairs of axes. own: of a cell's offset. process: between processes of a cell.
    drift: from a round to the next. inflation: of the errors of blocks, a factor, as a machine that is slow for seconds
    makes blocks differ by more than the steps within them show.
    """

    pair: float = 0.03
    own: float = 0.1
    process: float = 0.01
    drift: float = 0.005
    inflation: float = 1.2


@dataclass(frozen=True)
class Learned:
    """What blocks tell of themselves.

    scatter: the variance (cells,) of each cell's blocks by that which their errors and the inflation say; full runs
        have none.
    """

    scales: Scales
    scatter: np.ndarray


@dataclass(frozen=True)
class Posterior:
    """Mean (cells,) and covariance (cells, cells) of the cells' log figures."""

    mean: np.ndarray
    covariance: np.ndarray

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

    def posterior(self, blocks: Sequence[Block], learned: Learned) -> Posterior:
        if not blocks:
            return self.prior(learned.scales, 0.0)
        return self._given(_Arrays(blocks, learned.scatter), learned.scales)

    def unlearned(self, scales: Scales) -> Learned:
        """Before any block."""
        return Learned(scales, np.ones(len(self._eye)))

    def learned(self, blocks: Sequence[Block], learned: Learned, defaults: Scales) -> Learned:
        """The scales by which the blocks are likeliest, up or down from those of `learned` by at most LEARNING_STEPS;
        then each cell's scatter."""
        if not blocks:
            return learned
        scales, arrays = learned.scales, _Arrays(blocks, learned.scatter)
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
        scatter = learned.scatter
        for _ in range(SCATTER_STEPS):
            scatter = self._scatter(_Arrays(blocks, scatter), scales)
        return Learned(scales, scatter)

    def draws(self, blocks: Sequence[Block], learned: Learned, defaults: Scales, normals: np.ndarray) -> np.ndarray:
        """Draws of all cells' figures (n, cells) by as many standard normal ones: from posteriors with other scales of
        interactions and other scatter, by how likely these are."""
        scales, rng = learned.scales, np.random.default_rng(len(blocks))
        factors = [SCALE_STEP**step for step in MIXED_STEPS]
        mixed = [replace(scales, pair=scales.pair * factor, own=scales.own * factor) for factor in factors]
        if blocks:
            fits = np.array([self._fit(_Arrays(blocks, learned.scatter), tried, defaults) for tried in mixed])
        else:
            fits = np.array([_log_prior(tried, defaults) for tried in mixed])
        shares = np.repeat(np.exp(fits - fits.max()), SCATTER_DRAWS)
        ends = np.round(np.cumsum(shares / shares.sum()) * len(normals)).astype(int)
        degrees, drawn = scatter_degrees(blocks, len(self._eye)), []
        for number, part in enumerate(np.split(normals, ends[:-1])):
            scatter = learned.scatter * degrees / rng.chisquare(degrees)
            drawn.append(self.posterior(blocks, Learned(mixed[number // SCATTER_DRAWS], scatter)).draws(part))
        return np.concatenate(drawn)

    def outlook(self, blocks: Sequence[Block], learned: Learned) -> np.ndarray:
        """The covariance (3 cells, 3 cells) of the cells' figures, of a further block of each cell's last process, and
        of a block of a fresh process, all in the round to come; whatever they will show."""
        cells, scales = np.arange(len(self._eye)), learned.scales
        last = np.full(len(cells), -1)
        errors = np.full(len(cells), BLOCK_ERROR)
        if blocks:
            errors[:] = np.median([block.error for block in blocks])
        for block in blocks:
            last[block.cell] = block.process
        for cell in {block.cell for block in blocks}:
            errors[cell] = np.median([block.error for block in blocks if block.cell == cell])
        errors *= np.sqrt(learned.scatter)
        ahead = max((block.round for block in blocks), default=0) + 1
        prior = np.tile(self.prior(scales, 0.0).covariance, (3, 3))
        covariance = prior.copy()
        covariance[len(cells) :, len(cells) :] += scales.drift**2 * ahead
        own = scales.process**2 + np.square(scales.inflation * errors) + FLOOR
        covariance += np.diag(np.concatenate((np.zeros(len(cells)), own, own)))
        if not blocks:
            return covariance
        arrays = _Arrays(blocks, learned.scatter)
        shared = prior[:, arrays.cells]
        shared[len(cells) :] += scales.drift**2 * arrays.rounds
        same = (cells[:, None] == arrays.cells) & (last[:, None] == arrays.processes)
        shared[len(cells) : 2 * len(cells)] += scales.process**2 * same
        factor = linalg.cholesky(prior[np.ix_(arrays.cells, arrays.cells)] + arrays.noise(scales), lower=True)
        seen = linalg.solve_triangular(factor, shared.T, lower=True)
        return covariance - seen.T @ seen

    def _fit(self, arrays: "_Arrays", scales: Scales, defaults: Scales) -> float:
        """The logarithm of the likelihood of blocks by these scales, times their prior's density."""
        prior = self.prior(scales, float(arrays.figures.mean()))
        covariance = prior.covariance[np.ix_(arrays.cells, arrays.cells)] + arrays.noise(scales)
        factor = linalg.cholesky(covariance, lower=True, overwrite_a=True, check_finite=False)
        residuals = arrays.means(scales) - prior.mean[arrays.cells]
        shown = linalg.solve_triangular(factor, residuals, lower=True, check_finite=False)
        likelihood = -float(shown @ shown) / 2 - float(np.log(np.diag(factor)).sum())
        return likelihood + _log_prior(scales, defaults)

    def _scatter(self, arrays: "_Arrays", scales: Scales) -> np.ndarray:
        """Each cell's scatter: a step of expectation maximisation from that of `arrays`."""
        prior, own = self.prior(scales, float(arrays.figures.mean())), arrays.own(scales)
        covariance = prior.covariance[np.ix_(arrays.cells, arrays.cells)] + arrays.noise(scales)
        weights = linalg.inv(covariance)
        mean = own * (weights @ (arrays.means(scales) - prior.mean[arrays.cells]))
        variance = own - own**2 * np.diag(weights)
        unscaled = own / arrays.scatter[arrays.cells]
        seen = np.bincount(arrays.cells, arrays.are_short * (mean**2 + variance) / unscaled, minlength=len(self._eye))
        short = np.bincount(arrays.cells, arrays.are_short, minlength=len(self._eye))
        return (SCATTER_DEGREES + seen) / (SCATTER_DEGREES + short)

    def _given(self, arrays: "_Arrays", scales: Scales) -> Posterior:
        prior = self.prior(scales, float(arrays.figures.mean()))
        rows = prior.covariance[arrays.cells]
        noise = arrays.noise(scales)
        residuals = arrays.means(scales) - prior.mean[arrays.cells]
        factor = linalg.cholesky(rows[:, arrays.cells] + noise, lower=True)
        white = linalg.solve_triangular(factor, np.column_stack((residuals, rows)), lower=True)
        shown, seen = white[:, 0], white[:, 1:]
        return Posterior(prior.mean + seen.T @ shown, prior.covariance - seen.T @ seen)


def scatter_degrees(blocks: Sequence[Block], cells: int) -> np.ndarray:
    """Degrees of freedom (cells,) of what is known of each cell's scatter."""
    short = np.array([block.cell for block in blocks if not block.is_full], int)
    return SCATTER_DEGREES + np.bincount(short, minlength=cells)


def _log_prior(scales: Scales, defaults: Scales) -> float:
    values = np.array([[getattr(part, field.name) for field in fields(Scales)] for part in (scales, defaults)])
    return -float(np.square(np.log(values[0] / values[1]) / SCALE_SPREAD).sum()) / 2


class _Arrays:
    """Blocks (n,) as arrays.

    Args:
        scatter: see `Learned`.
    """

    def __init__(self, blocks: Sequence[Block], scatter: np.ndarray) -> None:
        self.cells = np.array([block.cell for block in blocks])
        self.figures = np.array([block.log_figure for block in blocks])
        self.rounds = np.array([block.round for block in blocks], float)
        self.processes = np.array([block.process for block in blocks])
        self._walk = np.minimum(self.rounds[:, None], self.rounds)
        self._process = (self.cells[:, None] == self.cells) & (self.processes[:, None] == self.processes)
        self.are_short = ~np.array([block.is_full for block in blocks])
        self.scatter = scatter
        errors = np.array([block.error for block in blocks])
        kinds = np.unique(2 * self.cells + self.are_short, return_inverse=True)[1]
        usual = np.array([np.median(errors[kinds == kind]) for kind in range(kinds.max() + 1)])[kinds]
        for part in (self.are_short, ~self.are_short):
            usual[part] = np.maximum(usual[part], np.median(errors[part]) if part.any() else 0.0)
        # An error of few steps is itself unsure, and most so where they show little: the best cell must not drop out
        # by a block that happened to be calm. None is smaller than is usual for its cell, and for all.
        self._variances = np.square(np.maximum(errors, usual))

    def means(self, scales: Scales) -> np.ndarray:
        """The logarithms (n,) of mean figures: logarithms scatter around that of their mean by half a variance less."""
        return self.figures - self.own(scales) / 2

    def own(self, scales: Scales) -> np.ndarray:
        """The variance (n,) of each block alone."""
        factors = np.where(self.are_short, scales.inflation**2 * self.scatter[self.cells], 1.0)
        return factors * self._variances + FLOOR

    def noise(self, scales: Scales) -> np.ndarray:
        """The covariance (n, n) of the blocks around their cells' figures."""
        return np.diag(self.own(scales)) + scales.drift**2 * self._walk + scales.process**2 * self._process
