"""The numbers that the papers print, as far as they are known: a row of `figures.csv` each.

Its column `how` says whether a figure is printed or worked out of a printed one, whose rounding leaves it between `low`
and `high`. Figures that can only be read off a plot are left out, and so are those that were not available: most of
Tables 2 and 3, and Table 5. Another row is all it takes to show a figure beside yours.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from analysis.papers.experiments import typed_value

FILE = Path(__file__).with_name("figures.csv")
HARDWARE = "NVIDIA H100"  # of both papers
GAIN = "gain_percent"  # a measure: how much faster than the base, which the paper worked out of its own times


@dataclass(frozen=True)
class PrintedFigure:
    """A figure of a paper.

    cell: swept columns to the values that it is for, as far as it names them.
    measure: a column of the records, or GAIN.
    low, high: equal where it is one number; else a printed range, or what rounding leaves open.
    """

    experiment: str
    cell: dict[str, Any]
    measure: str
    low: float
    high: float
    source: str
    hardware: str = HARDWARE

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    @property
    def exact(self) -> bool:
        return self.low == self.high


def figures(experiment: str, measure: str | None = None) -> list[PrintedFigure]:
    """The printed figures of an experiment, all or of one measure."""
    return [figure for figure in _all() if figure.experiment == experiment and measure in (None, figure.measure)]


def at(candidates: Iterable[PrintedFigure], cell: Mapping[str, Any]) -> PrintedFigure | None:
    """The figure for exactly this cell."""
    return next((figure for figure in candidates if figure.cell == dict(cell)), None)


def gains(experiment: str, measure: str, base: Mapping[str, Any]) -> list[tuple[PrintedFigure, float, float]]:
    """Each printed gain with the least and the most that the paper's own times give for it, in percent.

    Gains whose times are not known are left out.
    """
    known = figures(experiment, measure)
    checked = []
    for gain in figures(experiment, GAIN):
        own, other = at(known, gain.cell), at(known, gain.cell | {**base})
        if own is not None and other is not None:
            checked.append((gain, 100 * (other.low / own.high - 1), 100 * (other.high / own.low - 1)))
    return checked


@cache
def _all() -> tuple[PrintedFigure, ...]:
    with FILE.open(newline="") as lines:
        return tuple(
            PrintedFigure(
                experiment=row["experiment"],
                cell={key: typed_value(text) for key, text in (word.split("=") for word in row["cell"].split())},
                measure=row["measure"],
                low=float(row["low"]),
                high=float(row["high"] or row["low"]),
                source=f"{row['paper']}, {row['where']}",
            )
            for row in csv.DictReader(lines)
        )
