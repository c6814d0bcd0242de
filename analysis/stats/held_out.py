"""Held-out losses compared row by row.

Rows differ far more in their losses than settings do, and alike in all settings: a long or odd row
is hard for each. So two settings are compared by their differences on the same rows. With L_r the
summed loss of a row and T_r its tokens, the mean m = ΣL / ΣT is a ratio; a row moves log m by u_r =
L_r / ΣL - T_r / ΣT (delta method). A contrast Σ w log m of several settings,
of which the difference of two is one, has over the rows the variance

    n / (n - 1) Σ_r (Σ w u_r)²    on 1 / Σ (T_r / ΣT)² - 1 degrees of freedom,

so that a few long rows count as few (Kish 1965, Survey Sampling, section 8.2).

This is of the draw of the rows alone. Another seed would train to another loss, by an amount that
all rows share: how seeds differ is added by whoever compares (`between_runs`).
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from multicard.measure.noise import Term
from multicard.records import held_out
from multicard.records.held_out import RowLosses

from ..runs import by_int4
from ..runs.grouping import DATA, HELD_OUT, by_seed
from ..runs.load import Run

FEW_ROWS = 50  # below which quality is hardly measured
# relative difference of the rows' mean from the record's loss,
# up to which they are of one evaluation
AGREES = 1e-3


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The held-out rows of a setting with their losses, the mean over its seeds.

    rows: which they are: equal of settings that were evaluated on the same tokens of the same rows.
    tokens, losses: of each row (rows,), as held_out.parquet has them.
    """

    rows: Hashable
    tokens: np.ndarray
    losses: np.ndarray

    @cached_property
    def influence(self) -> np.ndarray:
        """By how much each row moves the logarithm of the mean loss (rows,)."""
        return self.losses / self.losses.sum() - self.tokens / self.tokens.sum()


def variance_over_rows(parts: Sequence[tuple[float, ScoredRows]]) -> Term | None:
    """The variance, over the draw of the rows, of a sum of weights times logarithms of mean losses.

    None where the settings have other rows, or a single one.
    """
    scored = [rows for _, rows in parts]
    first = scored[0]
    number = len(first.tokens)
    if (
        number < 2
        or any(one.rows != first.rows for one in scored)
        or min(one.losses.sum() for one in scored) <= 0
    ):
        return None
    contrast = sum(weight * rows.influence for weight, rows in parts)
    shares = first.tokens / first.tokens.sum()
    degrees = max(1.0, 1 / float(np.square(shares).sum()) - 1)
    return Term(number / (number - 1) * float(np.square(contrast).sum()), degrees)


class HeldOutLosses:
    """The held-out rows of settings; each file is read once."""

    def __init__(self) -> None:
        self._of_run: dict[Path, RowLosses | None] = {}
        self._of_setting: dict[tuple[Path, ...], ScoredRows | None] = {}

    def of(self, runs: Sequence[Run]) -> ScoredRows | None:
        """The rows of a setting; None where one of its runs has none,
        or its runs have different ones.
        """
        folders = tuple(run.folder for run in runs)
        if folders not in self._of_setting:
            self._of_setting[folders] = self._scored(runs)
        return self._of_setting[folders]

    def _scored(self, runs: Sequence[Run]) -> ScoredRows | None:
        keys = set[Hashable]()
        by_run = dict[Path, RowLosses]()
        for run in runs:
            losses = self._losses(run)
            if losses is None:
                return None
            keys.add((run[DATA], losses.row.tobytes(), losses.tokens.tobytes()))
            by_run[run.folder] = losses
        if len(keys) > 1:
            return None
        seeds = [
            np.mean([by_run[run.folder].loss for run in same], axis=0) for same in by_seed(runs)
        ]
        return ScoredRows(keys.pop(), by_run[runs[0].folder].tokens, np.mean(seeds, axis=0))

    def _losses(self, run: Run) -> RowLosses | None:
        """The rows of a run, where they are of the evaluation whose loss its record has."""
        if run.folder not in self._of_run:
            loss = run[HELD_OUT]
            column = held_out.INT4_LOSS if by_int4.is_judged_so(run) else held_out.LOSS
            found = None if loss is None else held_out.read(run.folder, column)
            is_of_it = found is not None and math.isclose(found.mean, loss or 0.0, rel_tol=AGREES)
            self._of_run[run.folder] = found if is_of_it else None
        return self._of_run[run.folder]
