"""The steps of a run, from its steps.parquet, as its record counts them."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from multicard.measure import formulas
from multicard.records.schema import AnyRecord, ScriptRecord, VisionRecord
from multicard.records.schema_parts import Segment, Statistics

if TYPE_CHECKING:
    import pyarrow as pa

STEPS = "steps.parquet"
COLUMNS = ("epoch", "rank", "step", "step_s")


def measured_s(folder: Path, record: AnyRecord) -> np.ndarray:
    """Seconds of each step after the warm-up (n,), in their order; see `formulas.step_times_s`.

    The warm-up is `warmup_steps` of every segment of a training run, `skip_steps` of a tuning run;
    of a script's `warmup_steps`, and the steps that its record leaves out.

    Raises:
        ValueError: steps.parquet is absent or broken.
    """
    rows = _read(folder, COLUMNS)
    return _step_times_s(rows)[~_left_out(record, rows)]


def step_times_s(folder: Path) -> np.ndarray:
    """Seconds of each step (n,), in their order; see `formulas.step_times_s`.

    Raises:
        ValueError: steps.parquet is absent or broken.
    """
    return _step_times_s(_read(folder, COLUMNS))


def table(folder: Path, record: AnyRecord) -> "pa.Table":
    """steps.parquet (docs/record.md), a row for each step of each rank; `warmup` is true where statistics leave it out.

    Raises:
        ValueError: steps.parquet is absent or broken.
    """
    rows = _read(folder)
    epoch, step = (rows[name].to_numpy().astype(int) for name in ("epoch", "step"))
    number = epoch * (step.max(initial=0) + 1) + step
    return rows.append_column("warmup", [_left_out(record, rows)[number]])


def _step_times_s(rows: "pa.Table") -> np.ndarray:
    return formulas.step_times_s(*(rows[name].to_numpy() for name in COLUMNS))


def _left_out(record: AnyRecord, rows: "pa.Table") -> np.ndarray:
    """Flags of the steps that statistics leave out (steps,): the warm-up, and stalls."""
    seconds = _step_times_s(rows)
    stalls = formulas.stalled(seconds, int(rows["step"].to_numpy().max(initial=0)) + 1)
    return warmup(record, len(seconds)) | stalls


def _read(folder: Path, columns: Sequence[str] | None = None) -> "pa.Table":
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / STEPS
    try:
        rows = pq.read_table(path, columns=columns and [*columns])
        return rows.select([*COLUMNS, *(name for name in rows.column_names if name not in COLUMNS)])
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ValueError(f"{path}: no steps can be read ({str(error).splitlines()[0]})") from None


def warmup(record: AnyRecord, steps: int) -> np.ndarray:
    """Flags of a run's warm-up (steps,)."""
    if isinstance(record, VisionRecord):
        return is_warmup(steps, record.segments or [Segment(steps=steps)], record.config.get("warmup_steps") or 0)
    numbers = np.arange(steps)
    flags = numbers < (record.config.get(record.skips) or 0)
    return flags | np.isin(numbers, record.left_out) if isinstance(record, ScriptRecord) else flags


def is_warmup(steps: int, segments: Sequence[Segment], warmup_steps: int) -> np.ndarray:
    """Flags of warm-up (steps,): the first steps of every segment, as caches are cold after a restart."""
    flags = np.zeros(steps, dtype=bool)
    for segment in segments:
        if segment.steps:  # work that was not saved has no first step of its own
            flags[segment.first_step :][:warmup_steps] = True
    return flags


def redefine(folder: Path, record: AnyRecord) -> None:
    """Derive the statistics of an older record's steps anew, which it has by another definition.

    Without steps.parquet only the counts are left. On one rank both definitions are the same.
    """
    stored = record.steps
    if stored is None or stored.definition == formulas.STEP_DEFINITION or record.ranks == 1 or stored.mean is None:
        return
    try:
        figures = formulas.statistics(measured_s(folder, record), 0)
    except ValueError:
        figures = {"count": stored.count}
    anew = msgspec.convert(figures | {"warmup_count": stored.warmup_count}, Statistics)
    setattr(record, record.steps_key, anew)
