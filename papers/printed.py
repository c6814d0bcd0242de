"""The figures that the papers print: a row of `figures.csv` each, and what to know of them, in `notes.yaml`.

Values that are only plotted are not known, and not there.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FILE = Path(__file__).with_name("figures.csv")
NOTES = Path(__file__).with_name("notes.yaml")
HARDWARE = "NVIDIA H100"  # of both papers
# Measures that compare two cells, in percent: the time on 1 GPU, or of the base, / the time; that less 100; and the
# share of the base's time that is saved
SPEEDUP_1GPU, SPEEDUP, GAIN, SAVED = "speedup_1gpu_percent", "speedup_base_percent", "gain_percent", "saved_percent"
METRIC = "metric:"  # begins a measure of profiles, before the metric's name
DATASETS = "table4"  # Table 4, the sizes of the data sets, which nothing measures


@dataclass(frozen=True)
class PrintedFigure:
    """A figure of a paper.

    paper, where: as a reader would look it up; `both papers` where they agree.
    experiment: a file of conf/experiment, or DATASETS.
    cell: swept columns to the values that it is for, as far as it names them.
    measure: a column of the records, a comparison (GAIN ...), METRIC and a name, or a fact with its unit at the end.
    low, high: equal where it is one number, else a printed range.
    how: `printed`; `derived`, a printed ratio less 100; `secondhand`, not of the papers but of a summary by others.
    note: a code of `notes.yaml`, or empty.
    """

    paper: str
    where: str
    experiment: str
    cell: dict[str, Any]
    measure: str
    low: float
    high: float
    how: str
    unit: str
    note: str = ""
    hardware: str = HARDWARE

    @property
    def source(self) -> str:
        return f"{self.where} of {self.paper}"

    @property
    def value(self) -> float:
        return (self.low + self.high) / 2

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def text(self) -> str:
        """Its value, with its unit and the cell."""
        factor, unit = (100, "%") if self.unit == "share" else (1, self.unit)
        ends = [f"{factor * end:,.10g}" for end in dict.fromkeys((self.low, self.high))]
        cell = " ".join(f"{key}={str(value).lower()}" for key, value in self.cell.items())
        unit = "" if unit in self.name.split() else f" {unit}"
        return f"{' to '.join(ends)}{unit}" + f" ({cell})" * bool(cell)

    @property
    def name(self) -> str:
        """The measure in words, without its unit."""
        measure = self.measure.removeprefix(METRIC).removeprefix("dataset.").replace("_percent", "")
        return re.sub(f"_{re.escape(self.unit.lower())}$", "", measure).replace("_", " ")


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A note on figures with its code, and on each experiment that it stands `under`."""

    under: list[str]
    says: str
    misprint: bool = False

    @property
    def text(self) -> str:
        return f"misprint: {self.says}" if self.misprint else self.says


def figures(experiment: str, measure: str | None = None) -> list[PrintedFigure]:
    """Figures that the papers print for an experiment, all or of one measure; not those of others' summaries."""
    return [
        figure
        for figure in everything()
        if figure.experiment == experiment and measure in (None, figure.measure) and figure.how != "secondhand"
    ]


def elsewhere(experiment: str, shown: Iterable[PrintedFigure]) -> list[str]:
    """Lines with what is printed for an experiment outside of the tables' cells that are shown, a line a source;
    what others say of the papers is said to be theirs."""
    in_columns = {figure.measure for figure in shown}
    by_source: dict[str, dict[str, list[str]]] = {}
    for figure in everything():
        is_shown = figure.measure in in_columns and figure.exact
        if figure.experiment == experiment and figure.how != "derived" and not is_shown:
            start = "not the paper, but" if figure.how == "secondhand" else "paper:"
            by_source.setdefault(f"{start} {figure.source}", {}).setdefault(figure.name, []).append(figure.text)
    return [
        f"{source}: {'; '.join(f'{name} ' + ', '.join(texts) for name, texts in measures.items())}"
        for source, measures in by_source.items()
    ]


def at(candidates: Iterable[PrintedFigure], cell: Mapping[str, Any]) -> PrintedFigure | None:
    """The figure for exactly this cell, where it is a single number."""
    return next((figure for figure in candidates if figure.cell == dict(cell) and figure.exact), None)


@cache
def everything() -> tuple[PrintedFigure, ...]:
    """All rows of the file."""
    with FILE.open(newline="") as lines:
        return tuple(_figure(row) for row in csv.DictReader(lines))


def _figure(row: dict[str, str]) -> PrintedFigure:
    words = (word.split("=") for word in row["cell"].split())
    cell = {key: msgspec.yaml.decode(value) for key, value in words}
    return msgspec.convert(row | {"cell": cell, "high": row["high"] or row["low"]}, PrintedFigure, strict=False)


@cache
def notes() -> dict[str, Note]:
    """By code, the misprints last."""
    content = msgspec.yaml.decode(NOTES.read_bytes(), type=dict[str, dict[str, Note]])
    misprints = {code: msgspec.structs.replace(note, misprint=True) for code, note in content["misprints"].items()}
    return content["notes"] | misprints


def footnotes(experiment: str) -> list[str]:
    """Notes on the figures printed for an experiment, misprints and contradictions last."""
    return [note.text for note in notes().values() if experiment in note.under]
