"""Probes: runs with `probe=true`, which end as soon as their mean step is known. They are no results."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from multicard.measure import formulas, series
from multicard.records.rank_files import RankReport
from multicard.records.schema_parts import ProbeEnd
from multicard.records.steps import COLUMNS


def is_probe(config: dict[str, Any], folder: str | Path = "") -> bool:
    """True of a probe, however it ended.

    Args:
        config: of its record; empty where it was refused, as its folder then says it alone.
    """
    return bool((config.get("probe") or {}).get("enabled")) if config else Path(folder).name.endswith("-probe")


def ended(reports: Sequence[RankReport], table: Any) -> ProbeEnd | None:
    """The record's `probe`, by the steps of all ranks; None where it has none.

    Args:
        reports: of the ranks of a run that ended by itself. table: of the steps of all (Arrow).
    """
    probe = reports[0].probe if reports else None
    if probe is None or table is None:
        return None
    epoch, rank, step, step_s = (table[name].to_numpy() for name in COLUMNS)
    seconds = formulas.step_times_s(epoch, rank, step, step_s)
    counts = np.arange(len(seconds)) % (int(step.max()) + 1) > 0  # without the first of each epoch
    counts[probe.left_out] = False  # of a race: what followed its pauses
    mean = series.mean_step(seconds[counts] if counts.any() else seconds)
    return ProbeEnd(probe.ended_by, steps_per_epoch=probe.steps_per_epoch, **asdict(mean))


def sentence(probe: ProbeEnd, total_s: float | None) -> str:
    """How a probe ended, in a line."""
    known = "" if probe.half_width is None else f" ± {probe.half_width:.1%}"
    counted = f"{probe.steps} steps, {total_s or 0.0:.1f} s"
    return f"[probe] step {probe.step_s:.4g} s{known}, {counted}; ended by {probe.ended_by}"
