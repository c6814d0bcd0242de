"""A figure of a setting, from those of its runs: the same in every table, figure, ranking and claim."""

import math
from collections.abc import Sequence
from typing import Any

from analysis.runs.load import Run
from multicard.records.figures import FIGURES

ACCURACY, MEMORY = "test_accuracy", "peak_memory_bytes"


def of_setting(runs: Sequence[Run], column: str) -> float | None:
    """A column over the repetitions of a setting: the mean, or what the figure is summed up by.

    None where one of the runs has no such figure: a mean over the others might be that of the lucky ones.
    """
    values = [run[column] for run in runs]
    if not values or None in values:
        return None
    figure = FIGURES.get(column)
    return float(max(values)) if figure and figure.summed == "max" else math.fsum(values) / len(values)


def by_seed(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs of each seed. Those of one seed show how times differ, but hardly how accuracies and losses do."""
    seeds: dict[Any, list[Run]] = {}
    for run in runs:
        seeds.setdefault(run["seed"], []).append(run)
    return list(seeds.values())


def is_exact(runs: Sequence[Run], column: str) -> bool:
    """Whether a column is counted, and not timed: bytes, but for the resident memory of CPU ranks."""
    figure = FIGURES.get(column)
    is_resident = column == MEMORY and any(run["cpu_ranks"] for run in runs)
    return figure is not None and figure.counted and not is_resident
