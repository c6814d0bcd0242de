"""The papers' printed figures, notes and settings.

Values that are only plotted are not known, and not there. Nothing that is printed is corrected:
where it contradicts itself, a note says so.
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).parent
# Measures that compare two cells, in percent: the time on 1 GPU, or of the base, / the time; that
# less 100; and the share of the base's time that is saved
SPEEDUP_1GPU = "speedup_1gpu_percent"
SPEEDUP = "speedup_base_percent"
GAIN = "gain_percent"
SAVED = "saved_percent"
HARDWARE = "NVIDIA H100"  # of both papers
METRIC = "metric:"  # begins a measure of profiles, before the metric's name
# Table 4, the text data sets: its sizes are in figures.csv, its words in table4.csv
DATASETS = "table4"


@cache
def rows(name: str, folder: Path = FOLDER) -> list[dict[str, str]]:
    """The rows of a table of a folder, by default this one."""
    with (folder / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


# Figures and notes


@dataclass(frozen=True)
class PrintedFigure:
    """A figure of a paper.

    paper, where: as a reader would look it up; `both papers` where they agree.
    experiment: a file of conf/experiment, or DATASETS.
    cell: swept columns to the values that it is for, as far as it names them.
    measure: a column of the records, a comparison (GAIN ...), METRIC and a name, or a fact with its
    unit at the end.
    low, high: equal where it is one number, else a printed range.
    how: `printed`; `derived`, a printed ratio less 100; `secondhand`, not of the papers but of a
    summary by others.
    note: the code of a note, or empty.
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
        value = f"{' to '.join(ends)}{unit}"
        return f"{value} ({cell})" if cell else value

    @property
    def name(self) -> str:
        """The measure in words, without its unit."""
        measure = self.measure.removeprefix(METRIC).removeprefix("dataset.").replace("_percent", "")
        return (
            re.sub(f"_{re.escape(self.unit.lower())}$", "", measure)
            .replace("1gpu", "1 GPU")
            .replace("_", " ")
        )


@cache
def everything() -> tuple[PrintedFigure, ...]:
    """All figures, those of others' summaries too."""
    return tuple(_figure(row) for row in rows("figures"))


def _figure(row: dict[str, str]) -> PrintedFigure:
    words = (word.split("=") for word in row["cell"].split())
    cell = {key: msgspec.yaml.decode(value) for key, value in words}
    return msgspec.convert(
        row | {"cell": cell, "high": row["high"] or row["low"]}, PrintedFigure, strict=False
    )


def figures(experiment: str, measure: str | None = None) -> list[PrintedFigure]:
    """Figures that the papers print for an experiment, all or of one measure;
    not those of others' summaries.
    """
    return [
        figure
        for figure in everything()
        if figure.experiment == experiment
        and measure in (None, figure.measure)
        and figure.how != "secondhand"
    ]


def at(candidates: Iterable[PrintedFigure], cell: Mapping[str, Any]) -> PrintedFigure | None:
    """The figure for exactly this cell, where it is a single number."""
    return next(
        (figure for figure in candidates if figure.cell == dict(cell) and figure.exact), None
    )


@dataclass(frozen=True)
class SourcedFigures:
    """The figures of a source, as texts by the name of their measure; of the papers,
    or `secondhand`.
    """

    source: str
    secondhand: bool
    by_measure: dict[str, list[str]]

    @property
    def text(self) -> str:
        return "; ".join(f"{name} {', '.join(texts)}" for name, texts in self.by_measure.items())


def elsewhere(experiment: str, shown: Iterable[PrintedFigure]) -> list[SourcedFigures]:
    """The figures, by their source, that a table of an experiment does not show."""
    in_columns = {figure.measure for figure in shown}
    by_source: dict[tuple[str, bool], SourcedFigures] = {}
    for figure in everything():
        is_shown = figure.measure in in_columns and figure.exact
        if figure.experiment != experiment or figure.how == "derived" or is_shown:
            continue
        source = (figure.source, figure.how == "secondhand")
        figures = by_source.setdefault(source, SourcedFigures(*source, {}))
        figures.by_measure.setdefault(figure.name, []).append(figure.text)
    return list(by_source.values())


@dataclass(frozen=True)
class Footnote:
    """A note on printed figures, by its code in notes.csv."""

    code: str
    is_misprint: bool
    says: str


def footnotes(experiment: str) -> list[Footnote]:
    """Notes on the figures printed for an experiment, misprints and contradictions last."""
    return [
        Footnote(note["code"], note["kind"] == "misprint", note["says"])
        for note in rows("notes")
        if experiment in note["under"].split()
    ]


# Settings


class Instead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment's value in place of the printed one;
    `comparable` if its figures may be compared all the same.
    """

    value: Any
    why: str
    comparable: bool = False


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns and their values; a list is an axis. kept: defaults that no table names. beyond:
    cells of the experiment that the papers do not have.
    """

    printed: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    kept: dict[str, Any] = {}
    instead: dict[str, Instead] = {}
    beyond: tuple[dict[str, Any], ...] = ()

    @property
    def all(self) -> dict[str, Any]:
        return self.chosen | self.printed | self.kept


class Papers(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """settings.yaml.

    hardware, memory_gib, versions: the papers' node, its memory and packages.
    extract: a part of the file that experiments share. kinds,
    experiments: settings by kind of run and by experiment.
    """

    hardware: str
    memory_gib: dict[str, float]
    versions: dict[str, str]
    extract: dict[str, Any]
    kinds: dict[str, Settings]
    experiments: dict[str, Settings]


@cache
def papers() -> Papers:
    return msgspec.yaml.decode((FOLDER / "settings.yaml").read_bytes(), type=Papers)


def settings(kind: str, experiment: str) -> Settings:
    """The settings of an experiment, with those of its kind."""
    common = papers().kinds[kind]
    own = papers().experiments.get(experiment, Settings())
    chosen = common.chosen | own.chosen
    kept = common.kept | own.kept
    return Settings(
        common.printed | own.printed, chosen, kept, common.instead | own.instead, own.beyond
    )


@cache
def in_full(experiment: str) -> str:
    """A sentence on the time, disk and memory of an experiment on the papers' node, by the papers'
    times, scaled by epochs, rows and GPUs; empty for an experiment that is not theirs.
    """
    return next((row["takes"] for row in rows("in_full") if row["experiment"] == experiment), "")
