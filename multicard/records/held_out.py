"""The losses of a tuning run's held-out rows one by one, from its held_out.parquet.

| column | type | meaning |
|---|---|---|
| row | integer | index of the row in the data set, or in its test files |
| loss | number | summed over the row's labelled tokens, in nats; of a pair its DPO loss |
| tokens | integer | labelled tokens of the row; 1 of a pair |
| int4_loss | number | `loss` of the model once it is quantised; of method=qat and full alone |

It is of the last evaluation: the sum of `loss` / the sum of `tokens` is the record's held-out loss,
and that of `int4_loss` is its loss in int4.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FILE = "held_out.parquet"
# columns
LOSS = "loss"
INT4_LOSS = "int4_loss"


@dataclass(frozen=True, eq=False)
class RowLosses:
    """Held-out rows in ascending order: index, summed loss in nats and labelled tokens,
    each (rows,).
    """

    row: np.ndarray
    loss: np.ndarray
    tokens: np.ndarray

    @property
    def mean(self) -> float:
        """The mean loss of a token, in nats."""
        return float(self.loss.sum() / self.tokens.sum())


def read(folder: Path, losses: str = LOSS) -> RowLosses | None:
    """The rows of a run; None without a file of them, or with one that is no such table.

    Args:
        losses: the column of their losses.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(folder / FILE, columns=["row", losses, "tokens"]).sort_by("row")
    # Arrow opens no path that is no UTF-8
    except (OSError, pa.ArrowException, KeyError, UnicodeError):
        return None
    if any(column.null_count for column in table.columns):
        return None
    row, tokens = (table[name].to_numpy().astype(np.int64) for name in ("row", "tokens"))
    loss = table[losses].to_numpy().astype(float)
    is_sound = len(np.unique(row)) == len(row) and np.isfinite(loss).all() and tokens.sum() > 0
    return RowLosses(row, loss, tokens) if is_sound else None
