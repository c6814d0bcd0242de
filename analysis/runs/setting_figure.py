"""A figure of a setting, from those of its runs: the same in every table, figure, ranking and claim."""

import math
from collections.abc import Sequence
from typing import Any

from analysis.runs.load import Run

ACCURACY, MEMORY = "test_accuracy", "peak_memory_bytes"


def of_setting(runs: Sequence[Run], column: str) -> float | None:
    """The mean of a column over the repetitions of a setting; of peak memory the highest, which must fit.

    None where one of the runs has no such figure: a mean over the others might be that of the lucky ones.
    """
    values = [run[column] for run in runs]
    if not values or None in values:
        return None
    return float(max(values)) if column == MEMORY else math.fsum(values) / len(values)


def by_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of each seed. Those of one seed show how times differ, but hardly how accuracies and losses do."""
    seeds: dict[Any, list[Run]] = {}
    for run in runs:
        seeds.setdefault(run["seed"], []).append(run)
    return list(seeds.values())


def is_exact(runs: Sequence[Run], column: str) -> bool:
    """Whether a column is counted, and not timed: bytes, but for the resident memory of CPU ranks."""
    return column.endswith("_bytes") and not (column == MEMORY and any(run["cpu_ranks"] for run in runs))
