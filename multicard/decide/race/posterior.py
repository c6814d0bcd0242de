"""Estimate the figures of all cells of a grid from blocks of some of them.

The model is a Gaussian process on the logarithm of the figure. A cell's figure is the sum of the
effects of its axes, of interactions of pairs of axes, and of an offset of the cell. A block shows
the figure with an offset of its process, the drift of its round (a random walk, common to all cells
of the round), and noise. The scales of these parts are learned by marginal likelihood, with a prior
around their defaults (`DEFAULTS`): twenty cells can tell what two cannot. The scales of the
interactions decide what cells that never ran may hold, and stay unsure for long. Draws are
therefore from a mixture of posteriors with smaller and larger ones.

An estimate of a cell counts as a measurement of it. Cells with the same settings share part of the
error, because estimates of one axis rest on the same pairs of runs. Many of them are therefore no
surer of the axis than a single one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize
from threadpoolctl import ThreadpoolController

from multicard.decide.race.blocks import Block, own_noise, variances

# Standard deviations of the level of all cells, and of the effect of an axis. Both are wide, so
# that next to nothing is assumed.
LEVEL_SD = 1.0
AXIS_SD = 0.5
# Scales are standard deviations of logarithms: of all interactions of pairs of axes, of a cell's
# offset, between processes of a cell, and from one round to the next. The last scale is a factor on
# the errors of blocks: on a machine that is slow for seconds, blocks differ by more than the steps
# within them show.
PAIR, OWN, PROCESS, DRIFT, INFLATION = range(5)
DEFAULTS = (0.03, 0.1, 0.01, 0.005, 1.2)
SCALE_SPREAD = 0.7  # Standard deviation of the logarithm of a scale around its default.
# The logarithm of a scale moves at most this far: with larger scales, rounding drowns the rest.
MOST_APART = 3.0
MIXED_FACTORS = (1.0, 1 / 1.4, 1.4, 1.96)  # Factors on the scales of interactions.
# If processes differ by more than UNEVEN, they differ more in some cells than in others. The cells
# in front have shown less of it, so the scale that fits all cells is too small for them.
UNEVEN = 0.03
UNEVEN_FACTOR = 1.6
# Parts of an estimate's variance: common to all cells, common to similar cells, and its own.
PRIOR_SHARES = (0.25, 0.5, 0.25)
FRESH = 10**6  # The number of a process that has not run.
BLOCK_ERROR = 0.01  # The error of a block before there is one.
# If a block misses the estimate of its cell by this many standard deviations, the estimates with
# that basis are forgotten.
FORGOTTEN = 4.0
FLOOR = 1e-9  # Added to variances against rounding.
# The matrices have some hundred rows: with several threads, waiting for one another would take
# several times as long as computing.
on_one_thread = ThreadpoolController().wrap(limits=1, user_api="blas")


class Prior(NamedTuple):
    """An estimate of a cell's log figure before the race, and its basis."""

    mean: float
    sd: float
    basis: str = ""


class DesignRow(NamedTuple):
    """One row of the model: a cell's figure, a block of a process, or an estimate.

    A block has a process of 0 or more, and an estimate has `estimate` 1. Fields may be arrays of
    many rows. `inflated` and `exact` are the variance of the row's noise with and without the
    inflation of block errors.
    """

    cell: Any
    round: Any = 0.0
    process: Any = -1.0
    inflated: Any = 0.0
    exact: Any = 0.0
    estimate: Any = 0.0


@dataclass(frozen=True)
class Posterior:
    """Mean (n,) and covariance (n, n) of log figures."""

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
        """Return draws (n, cells) from as many standard normal ones."""
        jitter = (FLOOR + 1e-12 * float(np.trace(self.covariance))) * np.eye(len(self.mean))
        return self.mean + normals @ cholesky(self.covariance + jitter)  # the upper factor


class Model:
    """The cells of a grid before and after blocks.

    Args:
        settings: of each cell, by axis.
        priors: of each cell, or None if it has no estimate.

    Attributes:
        effects: the number of main effects: 1 for the level, and 1 for each value of an axis after
            the first.
        log_scales: the logarithms of the scales, as learned.
    """

    def __init__(
        self, settings: Sequence[Mapping[str, object]], priors: Sequence[Prior | None]
    ) -> None:
        self._cells = cells = len(settings)
        self._figures = [DesignRow(cell) for cell in range(cells)]
        self._priors = {cell: prior for cell, prior in enumerate(priors) if prior is not None}
        axes = sorted(set[str]().union(*settings))
        codes = [
            np.unique([repr(own.get(axis)) for own in settings], return_inverse=True)[1]
            for axis in axes
        ]
        # An axis with one value distinguishes nothing.
        used = [each for each in codes if each.max() > 0]
        self.effects = 1 + sum(int(each.max()) for each in used)
        alike = sum((each[:, None] == each for each in used), np.zeros((cells, cells)))
        # The pairs of axes in which two cells agree, as a share of all pairs.
        pairs = alike * (alike - 1) / max(len(used) * (len(used) - 1), 1)
        sd = np.array([0.0 if prior is None else prior.sd for prior in priors])
        common, shared, single = PRIOR_SHARES
        errors = np.outer(sd, sd) * (
            common + shared * alike / max(len(used), 1) + single * np.eye(cells)
        )
        self._parts = np.stack((LEVEL_SD**2 + AXIS_SD**2 * alike, pairs, errors))
        self._default_log_scales = np.log(DEFAULTS)
        self.log_scales = self._default_log_scales

    def has_estimate(self, cell: int) -> bool:
        """Return True if the cell has an estimate that is still believed."""
        return cell in self._priors

    def misses(self, block: Block) -> bool:
        """Return True if the block misses the estimate of its cell by far."""
        prior = self._priors.get(block.cell)
        if prior is None:
            return False
        apart = abs(block.log_figure - prior.mean)
        return apart > FORGOTTEN * math.hypot(prior.sd, block.error, block.slowed)

    def forget(self, cell: int) -> None:
        """Forget the estimate of a cell, which was wrong, and all estimates with its basis."""
        prior = self._priors.get(cell)
        if prior is not None:
            self._priors = {
                cell: other for cell, other in self._priors.items() if other.basis != prior.basis
            }

    @on_one_thread
    def learn(self, blocks: Sequence[Block]) -> None:
        """Learn the scales that maximize the likelihood of the blocks times the scales' prior."""
        if not blocks:
            return
        rows, figures, _ = self._seen(blocks)
        fixed, scaled = self._between(rows, rows)

        def loss(log_scales: np.ndarray) -> tuple[float, np.ndarray]:
            parts = np.exp(2 * log_scales)[:, None, None] * scaled
            factor = cholesky(fixed + parts.sum(axis=0), lower=True)
            inverse = cho_solve((factor, True), np.eye(len(figures)))
            weights = inverse @ figures
            value = float(figures @ weights) / 2 + float(np.log(np.diag(factor)).sum())
            gradient = np.einsum("kij,ij->k", parts, inverse - np.outer(weights, weights))
            apart = (log_scales - self._default_log_scales) / SCALE_SPREAD
            return value + float(apart @ apart) / 2, gradient + apart / SCALE_SPREAD

        bounds = [
            (default - MOST_APART, default + MOST_APART) for default in self._default_log_scales
        ]
        self.log_scales = minimize(
            loss, self.log_scales, jac=True, method="L-BFGS-B", bounds=bounds
        ).x
        if self.is_uneven:
            factored = float(self.log_scales[PROCESS]) + math.log(UNEVEN_FACTOR)
            self.log_scales[PROCESS] = min(factored, bounds[PROCESS][1])

    @property
    def is_uneven(self) -> bool:
        """True if processes of a cell were found to differ by far more than is usual."""
        return bool(self.log_scales[PROCESS] > math.log(UNEVEN))

    @on_one_thread
    def posterior(self, blocks: Sequence[Block]) -> Posterior:
        """Return the posterior of the figures of all cells."""
        return self._given(blocks, self._figures, self.log_scales)[0]

    @on_one_thread
    def drawn(self, blocks: Sequence[Block], normals: np.ndarray) -> tuple[Posterior, np.ndarray]:
        """Return the posterior, and draws of all cells' figures (n, cells).

        The draws are from posteriors with several scales of interactions, in proportion to how
        likely each is.

        Args:
            blocks: the measured blocks.
            normals: standard normal draws (n, cells).
        """
        posteriors = []
        log_shares = []
        for factor in MIXED_FACTORS:
            log_scales = self.log_scales.copy()
            log_scales[[PAIR, OWN]] += math.log(factor)
            posterior, log_likelihood = self._given(blocks, self._figures, log_scales)
            apart = (log_scales - self._default_log_scales) / SCALE_SPREAD
            posteriors.append(posterior)
            log_shares.append(log_likelihood - float(apart @ apart) / 2)
        shares = np.exp(np.array(log_shares) - max(log_shares))
        ends = np.round(np.cumsum(shares / shares.sum()) * len(normals)).astype(int)
        parts = zip(posteriors, np.split(normals, ends[:-1]), strict=True)
        return posteriors[0], np.concatenate([posterior.draws(part) for posterior, part in parts])

    @on_one_thread
    def outlook(self, blocks: Sequence[Block]) -> np.ndarray:
        """Return the covariance (3 cells, 3 cells) of the figures and of two blocks of each cell.

        The first block is of the cell's last process, the second of a new process. Both are in the
        next round.
        """
        ahead = max((block.round for block in blocks), default=0) + 1
        last = {block.cell: block.process for block in blocks}
        every = [block.error for block in blocks] or [BLOCK_ERROR]
        own = own_noise(blocks)
        expected: list[float] = []
        for cell in range(self._cells):
            errors = [block.error for block in blocks if block.cell == cell] or every
            expected.append(float(np.median(errors)) ** 2 * own.get(cell, 1.0))
        going_on = [
            DesignRow(cell, ahead, last.get(cell, FRESH), own) for cell, own in enumerate(expected)
        ]
        fresh = [DesignRow(cell, ahead, FRESH, own) for cell, own in enumerate(expected)]
        return self._given(blocks, [*self._figures, *going_on, *fresh], self.log_scales)[
            0
        ].covariance

    def _given(
        self, blocks: Sequence[Block], asked: Sequence[DesignRow], log_scales: np.ndarray
    ) -> tuple[Posterior, float]:
        """Return the posterior of other rows given blocks and estimates, and the log likelihood."""
        rows, figures, level = self._seen(blocks)
        factor = cholesky(self._covariance(rows, rows, log_scales), lower=True)
        shared = np.column_stack((figures, self._covariance(rows, asked, log_scales)))
        white = solve_triangular(factor, shared, lower=True)
        shown = white[:, 0]
        known = white[:, 1:]
        covariance = self._covariance(asked, asked, log_scales) - known.T @ known
        log_likelihood = -float(shown @ shown) / 2 - float(np.log(np.diag(factor)).sum())
        return Posterior(level + known.T @ shown, covariance), log_likelihood

    def _seen(self, blocks: Sequence[Block]) -> tuple[list[DesignRow], np.ndarray, float]:
        """Return the rows of estimates and blocks, their figures above a level, and the level."""
        rows = [DesignRow(cell, estimate=1.0) for cell in self._priors]
        for block, variance in zip(blocks, variances(blocks), strict=True):
            inflated, exact = (0.0, variance) if block.is_full else (variance, 0.0)
            exact += block.slowed**2
            rows.append(DesignRow(block.cell, block.round, block.process, inflated, exact))
        estimates = [prior.mean for prior in self._priors.values()]
        measured = [block.log_figure for block in blocks]
        level = float(np.mean(estimates or measured or [0.0]))
        return rows, np.array([*estimates, *measured]) - level, level

    def _covariance(
        self, rows: Sequence[DesignRow], columns: Sequence[DesignRow], log_scales: np.ndarray
    ) -> np.ndarray:
        fixed, scaled = self._between(rows, columns)
        return fixed + np.tensordot(np.exp(2 * log_scales), scaled, 1)

    def _between(
        self, rows: Sequence[DesignRow], columns: Sequence[DesignRow]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the covariance of rows and columns in two parts.

        The first (n, m) depends on no scale. The second (5, n, m) is multiplied by each scale's
        square.
        """
        down, across = (
            DesignRow(*np.array(each, float).reshape(-1, len(DesignRow._fields)).T)
            for each in (rows, columns)
        )
        axes, pairs, errors = self._parts[
            :, down.cell.astype(int)[:, None], across.cell.astype(int)
        ]
        same = down.cell[:, None] == across.cell
        in_process = same & (down.process[:, None] == across.process) & (across.process >= 0)
        drift = np.minimum(down.round[:, None], across.round)
        inflated = np.zeros(same.shape)
        fixed = axes + errors * np.outer(down.estimate, across.estimate)
        if rows is columns:
            inflated, fixed = np.diag(down.inflated), fixed + np.diag(down.exact + FLOOR)
        return fixed, np.stack((pairs, same, in_process, drift, inflated))
