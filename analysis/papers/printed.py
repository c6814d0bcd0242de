"""What the papers printed as numbers, as far as it is at hand: `figures.csv`, one figure a row.

`how` says where a figure comes from: `printed`, or worked out of a printed one, which its rounding leaves between `low`
and `high`. What is not there was not at hand, and is left out rather than read off a plot: most of Tables 2 and 3, and
Table 5. A row more is all that it takes to show it beside yours.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

FILE = Path(__file__).with_name("figures.csv")
HARDWARE = "NVIDIA H100"  # of both papers
GAIN = "gain_percent"  # a measure: by how much faster than the base, which the paper worked out of its own times
METRIC = "metric:"  # before a measure that is a metric of the profile, in seconds over the whole run and all ranks


@dataclass(frozen=True)
class Paper:
    """A printed figure.

    cell: swept columns to the values it is for; the columns that it does not say are not in it.
    measure: a column of `analysis.columns`, GAIN, or METRIC and the profile's name.
    low, high: the same where it was printed as one number; a printed range, or what rounding leaves open, else.
    """

    experiment: str
    cell: dict[str, Any]
    measure: str
    low: float
    high: float
    hardware: str
    source: str
    how: str

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    @property
    def exact(self) -> bool:
        return self.low == self.high


def figures(experiment: str, measure: str | None = None) -> list[Paper]:
    """The figures printed of an experiment, all or of one measure."""
    return [one for one in _all() if one.experiment == experiment and measure in (None, one.measure)]


def at(found: Iterable[Paper], cell: Mapping[str, Any]) -> Paper | None:
    """The one for exactly this cell."""
    return next((one for one in found if one.cell == dict(cell)), None)


def gains(experiment: str, measure: str, subject: str, base: Any) -> list[tuple[Paper, float, float]]:
    """Each printed gain, with the least and the most that the paper's own times give for it, in percent.

    Those whose times are not at hand are left out.
    """
    known = figures(experiment, measure)
    found = []
    for one in figures(experiment, GAIN):
        own, other = at(known, one.cell), at(known, one.cell | {subject: base})
        if own is not None and other is not None:
            found.append((one, 100 * (other.low / own.high - 1), 100 * (other.high / own.low - 1)))
    return found


@cache
def _all() -> tuple[Paper, ...]:
    with FILE.open(newline="") as lines:
        return tuple(_paper(row) for row in csv.DictReader(lines))


def _paper(row: dict[str, str]) -> Paper:
    cell: dict[str, Any] = {}
    for word in row["cell"].split():
        key, _, text = word.partition("=")
        cell[key] = OmegaConf.from_dotlist([f"value={text}"]).value
    low = float(row["low"])
    source = f"{row['paper']}, {row['where']}"
    high = float(row["high"] or low)
    return Paper(row["experiment"], cell, row["measure"], low, high, HARDWARE, source, row["how"])
