"""Reads the losses of a tuning run's held-out rows from its held_out.parquet.

| column | type | meaning |
|---|---|---|
| row | integer | index of the row in the data set, or in its test files |
| loss | number | sum over the row's labelled tokens, in nats; for a pair, its DPO loss |
| tokens | integer | number of labelled tokens of the row; 1 for a pair |
| int4_loss | number | `loss` of the quantised model; only with method=qat and full |

The losses are those of the last evaluation. The record's held-out loss is the sum of `loss` divided
by the sum of `tokens`, and its loss in int4 is computed likewise from `int4_loss`.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = "held_out.parquet"
# Names of columns.
LOSS = "loss"
INT4_LOSS = "int4_loss"


@dataclass(frozen=True, eq=False)
class RowLosses:
    """Held-out rows in ascending order: index, summed loss in nats, and labelled tokens. All arrays
    have shape (rows,).
    """

    row: np.ndarray
    loss: np.ndarray
    tokens: np.ndarray

    @property
    def mean(self) -> float:
        """The mean loss per token, in nats."""
        return float(self.loss.sum() / self.tokens.sum())


def read_row_losses(folder: Path, losses: str = LOSS) -> RowLosses | None:
    """Read the rows of a run; None if the file is absent or not such a table.

    Args:
        losses: the column of the losses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(folder / FILE, columns=["row", losses, "tokens"]).sort_by("row")
    # Arrow raises UnicodeError for a path that is invalid UTF-8.
    except (OSError, pa.ArrowException, KeyError, UnicodeError):
        return None
    if any(column.null_count for column in table.columns):
        return None
    row, tokens = (table[name].to_numpy().astype(np.int64) for name in ("row", "tokens"))
    loss = table[losses].to_numpy().astype(float)
    is_sound = len(np.unique(row)) == len(row) and np.isfinite(loss).all() and tokens.sum() > 0
    return RowLosses(row, loss, tokens) if is_sound else None
