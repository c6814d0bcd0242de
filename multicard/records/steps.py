"""The steps of a run, from its steps.parquet, as its record counts them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from multicard.measure import formulas
from multicard.messages import Refusal
from multicard.records.schema import AnyRecord, ScriptRecord
from multicard.records.schema_parts import Segment, Statistics

if TYPE_CHECKING:
    import pyarrow as pa

STEPS = "steps.parquet"
COLUMNS = ("epoch", "rank", "step", "step_s")


class Counted:
    """The steps of a run, and those of them that its statistics count: after the warm-up,
    without stalls.

    The warm-up is `warmup_steps` of every segment of a training run, `skip_steps` of a tuning run;
    of a script's `warmup_steps`, and the steps that its record leaves out.

    Attributes:
        steps_s: seconds of each step (steps,), in their order; see `formulas.step_times_s`.
        warmup, stalls: flags of the steps that statistics leave out (steps,).
        measured: flags of the rows of all ranks that they count (ranks x steps,).
    """

    def __init__(self, record: AnyRecord, table: Mapping[str, np.ndarray]) -> None:
        """Args:
        record: with its configuration; of a training run with its segments, of a script with
        `left_out`.
        table: the columns of steps.parquet, a row for each step of each rank;
        empty before the first epoch ended.
        """
        epoch, self._rank, step, step_s = (
            table[name] if table else np.empty(0, dtype=int) for name in COLUMNS
        )
        per_epoch = int(step.max(initial=0)) + 1
        self._table = table
        self.steps_s = formulas.step_times_s(epoch, self._rank, step, step_s)
        self.warmup = _warmup(record, len(self.steps_s))
        self.stalls = formulas.flag_stalled_steps(self.steps_s, per_epoch)
        self._number = epoch.astype(int) * per_epoch + step
        self._per_epoch = per_epoch
        self.measured = ~(self.warmup | self.stalls)[self._number]

    def statistics(self) -> Statistics:
        found = msgspec.convert(
            formulas.statistics(self.steps_s, self.warmup, self.stalls), Statistics
        )
        found.slow_steps = formulas.find_slow_steps(
            self.steps_s, ~(self.warmup | self.stalls), self._per_epoch, self._tokens()
        )
        return found

    def _tokens(self) -> np.ndarray | None:
        """Tokens of each step of all ranks (steps,); None where none are counted."""
        tokens = self._table.get("tokens")
        if tokens is None or not tokens.any():
            return None
        return np.bincount(self._number, tokens, len(self.steps_s))

    def counts(self, number: int) -> bool:
        """True for a step, by its number in the run, that statistics count."""
        return number < len(self.steps_s) and not (self.warmup[number] or self.stalls[number])

    def by_rank(self, column: str) -> list[float]:
        """The sum of a column over the measured steps of each rank (ranks,)."""
        ranks = self._rank[self.measured]
        values = self._table[column][self.measured]
        return np.bincount(ranks, values, self._rank.max(initial=0) + 1).tolist()

    def per_s(self, column: str) -> float | None:
        """Units of a column by second, of all ranks; None where no step was measured."""
        return formulas.throughput_per_s(self.by_rank(column), self.by_rank("step_s"))

    def mean(self, column: str) -> float | None:
        """The mean of a column, a measured step and rank."""
        return float(self._table[column][self.measured].mean()) if self.measured.any() else None


def measured_s(folder: Path, record: AnyRecord) -> np.ndarray:
    """Seconds of each step that statistics count (n,), in their order; see `formulas.step_times_s`.
    A ValueError says that steps.parquet is absent or broken.
    """
    steps = counted(folder, record)
    return steps.steps_s[~(steps.warmup | steps.stalls)]


def table(folder: Path, record: AnyRecord) -> "pa.Table":
    """Return steps.parquet (docs/reference/record.md): a row for each step of each rank.

    `measured` is true if statistics count the step. Raises ValueError as `measured_s` does.
    """
    rows = _read(folder)
    return rows.append_column("measured", [_of(record, rows).measured])


def counted(folder: Path, record: AnyRecord) -> Counted:
    """The steps of a run; a ValueError says that steps.parquet is absent or broken."""
    return _of(record, _read(folder, COLUMNS))


def _of(record: AnyRecord, rows: "pa.Table") -> Counted:
    return Counted(record, {name: rows[name].to_numpy() for name in COLUMNS})


def _read(folder: Path, columns: Sequence[str] | None = None) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / STEPS
    try:
        rows = pq.read_table(path, columns=columns and [*columns])
        return rows.select([*COLUMNS, *(name for name in rows.column_names if name not in COLUMNS)])
    except (OSError, pa.ArrowException, KeyError) as error:
        reason = str(error).splitlines()[0]
        raise Refusal(
            "steps.unreadable",
            f"{path}: no steps can be read ({reason})",
            file=str(path),
            reason=reason,
        ) from None


def _warmup(record: AnyRecord, steps: int) -> np.ndarray:
    """Flags of a run's warm-up (steps,): the first steps of every segment, as caches are cold after
    a restart, and those that a script's record leaves out.
    """
    flags = np.zeros(steps, dtype=bool)
    for segment in record.segments or [Segment(steps=steps)]:
        if segment.steps:  # work that was not saved has no first step of its own
            flags[segment.first_step :][: record.config.get(record.skips) or 0] = True
    return (
        flags | np.isin(np.arange(steps), record.left_out)
        if isinstance(record, ScriptRecord)
        else flags
    )


def redefine(folder: Path, record: AnyRecord) -> None:
    """Derive the statistics of an older record's steps anew, which it has by another definition.

    Without steps.parquet only the counts are left. On one rank both definitions are the same.
    """
    stored = record.steps
    if (
        stored is None
        or stored.definition == formulas.STEP_DEFINITION
        or record.ranks == 1
        or stored.mean is None
    ):
        return
    try:
        anew = counted(folder, record).statistics()
    except ValueError:
        anew = Statistics(count=stored.count, warmup_count=stored.warmup_count)
    setattr(record, record.steps_key, anew)
