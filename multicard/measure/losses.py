"""Losses that are NaN or infinite: how many there were, and whether a run ended in them."""

from collections.abc import Mapping, Sequence
from math import isfinite

import numpy as np


def end_finite(losses: Sequence[float]) -> bool:
    """True where the last of these losses is a finite number, or there is none."""
    return not losses or isfinite(losses[-1])


def judge(table: Mapping[str, np.ndarray], finite: np.ndarray) -> tuple[int, tuple[int, int, int] | None]:
    """The number of losses that are not finite, and epoch, step and rank where a run diverged.

    A run diverged where the last loss of a rank is not finite. Losses from which it recovered are only counted.

    Args:
        table: epoch, step of the epoch and rank of each loss (losses,).
        finite: whether it is a finite number (losses,).
    """
    epoch, step, rank = (table[name] for name in ("epoch", "step", "rank"))
    starts = []
    for number in np.unique(rank):
        rows = np.flatnonzero(rank == number)
        rows = rows[np.lexsort((step[rows], epoch[rows]))]
        finite_rows = np.flatnonzero(finite[rows])
        trailing = rows[finite_rows[-1] + 1 :] if len(finite_rows) else rows
        starts += [(int(epoch[row]), int(step[row]), int(number)) for row in trailing[:1]]
    return int((~finite).sum()), min(starts, default=None)
