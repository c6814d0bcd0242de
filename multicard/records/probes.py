"""Probes: runs with `probe=true`, which end as soon as their mean step is known. They are no results."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from multicard.measure import formulas, series
from multicard.records.steps import COLUMNS


def is_probe(record: dict[str, Any], folder: Path) -> bool:
    """Whether a record, of whatever status, is that of a probe; one that was refused has no configuration."""
    config = record.get("config")
    return bool((config.get("probe") or {}).get("enabled")) if config else folder.name.endswith("-probe")


def ended(ranks: list[dict[str, Any]], table: Any) -> dict[str, Any] | None:
    """The record's `probe`; None where the run is none, or did not come to its end.

    Args:
        ranks: the files of the ranks; table: the steps of all (an Arrow table), or None.
    """
    told = ranks[0].get("probe") if ranks else None
    if told is None or table is None:
        return None
    epoch, rank, step, step_s = (table[name].to_numpy() for name in COLUMNS)
    seconds = formulas.step_times_s(epoch, rank, step, step_s)
    later = np.arange(len(seconds)) % (int(step.max()) + 1) > 0  # not the first of an epoch
    rest = seconds[later] if later.any() else seconds
    mean = series.mean_step(rest)
    return told | asdict(mean)
