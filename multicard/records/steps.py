"""Reads the steps of a run from its steps.parquet, and computes their statistics."""

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
    """The steps of a run, with flags for the steps that its statistics cover.

    Statistics leave out stalls and the warm-up. The warm-up is the first `warmup_steps` (tuning:
    `skip_steps`) of every segment. For a script, the steps in its record's `left_out` are added.

    Attributes:
        steps_s: seconds of each step in order (steps,); see `formulas.step_times_s`.
        warmup, stalls: flags of the steps that statistics leave out (steps,).
        measured: flags of the rows of all ranks that statistics cover (ranks x steps,).
    """

    def __init__(self, record: AnyRecord, table: Mapping[str, np.ndarray]) -> None:
        """Args:
        record: a record with its configuration, its segments, and for a script `left_out`.
        table: the columns of steps.parquet, with a row for each step of each rank; empty if no
            epoch has ended.
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
        statistics = msgspec.convert(
            formulas.statistics(self.steps_s, self.warmup, self.stalls), Statistics
        )
        statistics.slow_steps = formulas.find_slow_steps(
            self.steps_s, ~(self.warmup | self.stalls), self._per_epoch, self._tokens()
        )
        return statistics

    def _tokens(self) -> np.ndarray | None:
        """Return the tokens of each step over all ranks (steps,); None if none are counted."""
        tokens = self._table.get("tokens")
        if tokens is None or not tokens.any():
            return None
        return np.bincount(self._number, tokens, len(self.steps_s))

    def counts(self, number: int) -> bool:
        """Return whether statistics cover a step, given by its number in the run."""
        return number < len(self.steps_s) and not (self.warmup[number] or self.stalls[number])

    def by_rank(self, column: str) -> list[float]:
        """Sum a column over the measured steps of each rank (ranks,)."""
        ranks = self._rank[self.measured]
        values = self._table[column][self.measured]
        return np.bincount(ranks, values, self._rank.max(initial=0) + 1).tolist()

    def per_s(self, column: str) -> float | None:
        """Return the rate of a column per second over all ranks; None if no step was measured."""
        return formulas.throughput_per_s(self.by_rank(column), self.by_rank("step_s"))

    def mean(self, column: str) -> float | None:
        """Return the mean of a column per measured step and rank."""
        return float(self._table[column][self.measured].mean()) if self.measured.any() else None


def measured_s(folder: Path, record: AnyRecord) -> np.ndarray:
    """Return the seconds of each step that statistics cover, in order (n,).

    Raises:
        ValueError: steps.parquet is absent or broken.
    """
    steps = counted(folder, record)
    return steps.steps_s[~(steps.warmup | steps.stalls)]


def steps_table(folder: Path, record: AnyRecord) -> "pa.Table":
    """Return steps.parquet (docs/reference/record.md), with a row for each step of each rank.

    The added column `measured` is true if statistics cover the row.

    Raises:
        ValueError: steps.parquet is absent or broken.
    """
    rows = _read_table(folder)
    return rows.append_column("measured", [_counted_rows(record, rows).measured])


def counted(folder: Path, record: AnyRecord) -> Counted:
    """Return the steps of a run; a ValueError says that steps.parquet is absent or broken."""
    return _counted_rows(record, _read_table(folder, COLUMNS))


def _counted_rows(record: AnyRecord, rows: "pa.Table") -> Counted:
    return Counted(record, {name: rows[name].to_numpy() for name in COLUMNS})


def _read_table(folder: Path, columns: Sequence[str] | None = None) -> "pa.Table":
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
            f"{path}: the steps cannot be read ({reason})",
            file=str(path),
            reason=reason,
        ) from None


def _warmup(record: AnyRecord, steps: int) -> np.ndarray:
    """Return flags of a run's warm-up (steps,).

    They mark the first steps of every segment, because caches are cold after a restart, and the
    steps that a script's record leaves out.
    """
    flags = np.zeros(steps, dtype=bool)
    for segment in record.segments or [Segment(steps=steps)]:
        if segment.steps:  # A segment whose work was not saved has no steps in the table.
            flags[segment.first_step :][: record.config.get(record.skips) or 0] = True
    return (
        flags | np.isin(np.arange(steps), record.left_out)
        if isinstance(record, ScriptRecord)
        else flags
    )


def redefine(folder: Path, record: AnyRecord) -> None:
    """Compute the step statistics of an older record anew, because their definition has changed.

    Without steps.parquet, only the counts remain. On one rank, both definitions agree.
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
        statistics = counted(folder, record).statistics()
    except ValueError:
        statistics = Statistics(count=stored.count, warmup_count=stored.warmup_count)
    setattr(record, record.steps_key, statistics)
