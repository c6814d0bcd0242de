"""The record's `profile`: metrics of the profiled steps, the cost of profiling, and copies against those counted."""

from pathlib import Path
from typing import Any

import msgspec

from multicard.config.base import ProfileWindow
from multicard.config.keys import require
from multicard.observe.profiles.metrics import Profile, read
from multicard.observe.profiles.names import COPIES, RUN
from multicard.records.schema import AnyRecord
from multicard.records.schema_parts import ProfileCopies, ProfileCost, ProfileTable


def of_run(folder: Path, ranks: list[dict[str, Any]], record: AnyRecord) -> ProfileTable:
    """The record's `profile`, by the window that each rank gives (`capture`) and the record with its steps; with
    `error` alone if the profiler left nothing readable."""
    if "error" in ranks[0]:
        return ProfileTable(error=ranks[0]["error"])
    files = sorted(path for path in (folder / "profile").iterdir() if path.name.endswith((".json.gz", ".nsys-rep")))
    steps = [rank["steps"] for rank in ranks]
    try:
        profile = read(files)
        recorded = [rank.steps for rank in profile.ranks]
        problem = f"{folder / 'profile'}: holds {recorded} steps, by rank, not the window's {steps}"
        require(recorded == steps, problem)
    except ValueError as error:
        return ProfileTable(error=str(error))
    table = msgspec.convert(profile.as_dict(), ProfileTable)
    table.files = [str(path.relative_to(folder)) for path in files]
    table.first_step, table.steps = ranks[0]["first_step"], steps[0]
    source = "the profiler's window"
    if ranks[0].get("window") == ProfileWindow.start:
        table.window, table.ended = ProfileWindow.start.value, ", ".join(sorted({rank["ended"] for rank in ranks}))
    else:
        inside_s = max(rank["window_s"] for rank in ranks) / steps[0]
        outside_s = record.steps and record.steps.mean
        # the cost of profiling: a step in the window over an unprofiled step of the run
        table.step_s = ProfileCost(inside_s, outside_s, outside_s and inside_s / outside_s)
        source += ", scaled by steps"
    counted = None if record.transfer_bytes is None else sum(rank["counted_h2d_bytes"] for rank in ranks)
    table.h2d = _h2d_bytes(profile, counted, _scale(table, record), source)
    return table


def add_copies(record: AnyRecord) -> None:
    """Add what the profile says to the record's `transfer_bytes`: bytes of copies from the devices and within them,
    summed over ranks; nothing where the profiler saw no device, or its window does not tell of the whole run.
    """
    table, moved = record.profile, record.transfer_bytes
    if table is None or moved is None:  # nobody counts what a script copies
        return
    sizes = {row.metric: row.bytes or 0 for row in table.rows or () if row.rank is None}
    scale = _scale(table, record) if COPIES["DtoH"] in sizes else None
    if scale is not None and table.h2d:
        moved.d2h, moved.d2d = round(sizes[COPIES["DtoH"]] * scale), round(sizes[COPIES["DtoD"]] * scale)
        moved.source = f"{moved.source}; d2h and d2d: {table.h2d.source}"


def _scale(table: ProfileTable, record: AnyRecord) -> float | None:
    """Factor from the profiler's window to the whole run; None where the window does not tell."""
    if table.window == ProfileWindow.start:
        return 1.0 if table.ended == RUN else None
    counts = record.steps
    return ((counts.count or 0) + (counts.warmup_count or 0)) / table.steps if counts and table.steps else None


def _h2d_bytes(profile: Profile, counted: int | None, scale: float | None, source: str) -> ProfileCopies:
    """Bytes from host to device in the window, summed over ranks: `counted` by the loop, and profiled; `scale` is that
    to the whole run."""
    profiled = next((row.bytes for row in profile.rank_rows(None) if row.metric == COPIES["HtoD"]), None)
    return ProfileCopies(
        counted_bytes=counted,
        profiled_bytes=profiled,
        disagreement=(profiled - counted) / counted if profiled is not None and counted else None,
        whole_run_bytes=None if profiled is None or scale is None else round(profiled * scale),
        source=source,
    )
