"""Compare held-out losses row by row.

Losses differ far more between rows than between settings: a long or odd row is hard for every
setting. So two settings are compared by their differences on the same rows. With L_r the summed
loss of a row and T_r its tokens, the mean m = ΣL / ΣT is a ratio. A row moves log m by
u_r = L_r / ΣL - T_r / ΣT (delta method). A contrast of several settings is Σ w log m; a difference
of two is one. Over the rows, its variance is

    n / (n - 1) Σ_r (Σ w u_r)²    on 1 / Σ (T_r / ΣT)² - 1 degrees of freedom,

so that a few long rows count as few (Kish 1965, Survey Sampling, section 8.2).

This variance covers only the draw of the rows. Another seed would train to another loss, and all
rows would share that difference. `between_runs` adds how seeds differ.
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

FEW_ROWS = 50  # With fewer held-out rows, quality is hardly measured.
# The rows belong to the evaluation in the record if their mean and its loss differ by less than
# this share.
MEAN_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False)
class ScoredRows:
    """The held-out rows of a setting, with their losses averaged over its seeds.

    rows: a key that is equal for settings that were evaluated on the same tokens of the same rows.
    tokens, losses: of each row (rows,), as in held_out.parquet.
    """

    rows: Hashable
    tokens: np.ndarray
    losses: np.ndarray

    @cached_property
    def influence(self) -> np.ndarray:
        """How much each row moves the logarithm of the mean loss (rows,)."""
        return self.losses / self.losses.sum() - self.tokens / self.tokens.sum()


def variance_over_rows(parts: Sequence[tuple[float, ScoredRows]]) -> Term | None:
    """Return the variance, over the draw of the rows, of Σ w log m (see the module).

    The result is None if the settings have different rows, or a single one.
    """
    all_rows = [rows for _, rows in parts]
    first = all_rows[0]
    number = len(first.tokens)
    if (
        number < 2
        or any(setting_rows.rows != first.rows for setting_rows in all_rows)
        or min(setting_rows.losses.sum() for setting_rows in all_rows) <= 0
    ):
        return None
    contrast = sum(weight * rows.influence for weight, rows in parts)
    shares = first.tokens / first.tokens.sum()
    degrees = max(1.0, 1 / float(np.square(shares).sum()) - 1)
    return Term(number / (number - 1) * float(np.square(contrast).sum()), degrees)


class HeldOutLosses:
    """Reads the held-out rows of settings; each file is read once."""

    def __init__(self) -> None:
        self._of_run: dict[Path, RowLosses | None] = {}
        self._of_setting: dict[tuple[Path, ...], ScoredRows | None] = {}

    def of(self, runs: Sequence[Run]) -> ScoredRows | None:
        """Return the rows of a setting.

        The result is None if one of its runs has none, or if its runs have different rows.
        """
        folders = tuple(run.folder for run in runs)
        if folders not in self._of_setting:
            self._of_setting[folders] = self._read_setting(runs)
        return self._of_setting[folders]

    def _read_setting(self, runs: Sequence[Run]) -> ScoredRows | None:
        keys = set[Hashable]()
        by_run = dict[Path, RowLosses]()
        for run in runs:
            losses = self._read_run(run)
            if losses is None:
                return None
            keys.add((run[DATA], losses.row.tobytes(), losses.tokens.tobytes()))
            by_run[run.folder] = losses
        if len(keys) > 1:
            return None
        seeds = [
            np.mean([by_run[run.folder].loss for run in seed_runs], axis=0)
            for seed_runs in by_seed(runs)
        ]
        return ScoredRows(keys.pop(), by_run[runs[0].folder].tokens, np.mean(seeds, axis=0))

    def _read_run(self, run: Run) -> RowLosses | None:
        """Return the rows of a run, if they belong to the evaluation whose loss is recorded."""
        if run.folder not in self._of_run:
            loss = run[HELD_OUT]
            column = held_out.INT4_LOSS if by_int4.is_judged_by_int4(run) else held_out.LOSS
            row_losses = None if loss is None else held_out.read_row_losses(run.folder, column)
            is_same_evaluation = row_losses is not None and math.isclose(
                row_losses.mean, loss or 0.0, rel_tol=MEAN_TOLERANCE
            )
            self._of_run[run.folder] = row_losses if is_same_evaluation else None
        return self._of_run[run.folder]
