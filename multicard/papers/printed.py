"""Read the papers' printed figures, notes and settings.

Values that are only plotted are unknown and left out. Nothing that is printed is corrected. If the
papers contradict themselves, a note says so.
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
# Measures that compare two cells, in percent.
SPEEDUP_1GPU = "speedup_1gpu_percent"  # The time on 1 GPU / the time.
SPEEDUP = "speedup_base_percent"  # The base's time / the time.
GAIN = "gain_percent"  # The speedup over the base, less 100.
SAVED = "saved_percent"  # The share of the base's time that is saved.
HARDWARE = "NVIDIA H100"  # Both papers used it.
METRIC = "metric:"  # Precedes the name of a profile's metric.
# Table 4, the text data sets: its sizes are in figures.csv, its words in table4.csv.
DATASETS = "table4"


@cache
def rows(name: str, folder: Path = FOLDER) -> list[dict[str, str]]:
    """Return the rows of a table in a folder, by default this one."""
    with (folder / f"{name}.csv").open(newline="") as lines:
        return list(csv.DictReader(lines))


# ---- Figures and notes


@dataclass(frozen=True)
class PrintedFigure:
    """A figure of a paper.

    Attributes:
        paper, where: Where a reader finds it. `both papers` if they agree. experiment: The name of
        a file in conf/experiment, or DATASETS. cell: The swept columns and values to which the
        figure belongs, as far as the paper says. measure: A column of the records, a comparison
        (GAIN ...), METRIC with a name, or a fact that
            ends with its unit.
        low, high: The printed range. They are equal for a single number. how: `printed`; `derived`,
        a printed ratio less 100; or `secondhand`, from a summary by others. note: The code of a
        note, or "".
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
        """The value with its unit and the cell."""
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
    """Return all figures, including the figures of others' summaries."""
    return tuple(_figure(row) for row in rows("figures"))


def _figure(row: dict[str, str]) -> PrintedFigure:
    words = (word.split("=") for word in row["cell"].split())
    cell = {key: msgspec.yaml.decode(value) for key, value in words}
    return msgspec.convert(
        row | {"cell": cell, "high": row["high"] or row["low"]}, PrintedFigure, strict=False
    )


def figures(experiment: str, measure: str | None = None) -> list[PrintedFigure]:
    """Return the figures that the papers print for an experiment, all or of one measure.

    Figures from others' summaries are left out.
    """
    return [
        figure
        for figure in everything()
        if figure.experiment == experiment
        and measure in (None, figure.measure)
        and figure.how != "secondhand"
    ]


def at(candidates: Iterable[PrintedFigure], cell: Mapping[str, Any]) -> PrintedFigure | None:
    """Return the figure for exactly this cell if it is a single number."""
    return next(
        (figure for figure in candidates if figure.cell == dict(cell) and figure.exact), None
    )


@dataclass(frozen=True)
class SourcedFigures:
    """The figures of one source, as texts by the name of their measure.

    The source is a paper, or a summary by others (`secondhand`).
    """

    source: str
    secondhand: bool
    by_measure: dict[str, list[str]]

    @property
    def text(self) -> str:
        return "; ".join(f"{name} {', '.join(texts)}" for name, texts in self.by_measure.items())


def elsewhere(experiment: str, shown: Iterable[PrintedFigure]) -> list[SourcedFigures]:
    """Return the figures of an experiment that its table does not show, by source."""
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
    """A note on printed figures. Its code is in notes.csv."""

    code: str
    is_misprint: bool
    says: str


def footnotes(experiment: str) -> list[Footnote]:
    """Return the notes on an experiment's figures: first explanations, then misprints."""
    return [
        Footnote(note["code"], note["kind"] == "misprint", note["says"])
        for note in rows("notes")
        if experiment in note["under"].split()
    ]


# ---- Settings


class Instead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An experiment's value in place of the printed one.

    If it is `comparable`, the figures may be compared nevertheless.
    """

    value: Any
    why: str
    comparable: bool = False


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Columns and their values. A list is an axis.

    Attributes:
        printed: Values that the papers print.
        chosen: Values that the experiment chose because the papers print none.
        kept: Defaults that no table names.
        instead: Values that differ from the printed ones.
        beyond: Cells of the experiment that the papers do not have.
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
    """The content of settings.yaml.

    Attributes:
        hardware, memory_gib, versions: The papers' node, its memory and its packages.
        extract: A part of the file that experiments share.
        kinds, experiments: The settings by kind of run and by experiment.
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
    """Return the settings of an experiment, including the settings of its kind."""
    common = papers().kinds[kind]
    experiment_settings = papers().experiments.get(experiment, Settings())
    chosen_values = common.chosen | experiment_settings.chosen
    kept_values = common.kept | experiment_settings.kept
    return Settings(
        common.printed | experiment_settings.printed,
        chosen_values,
        kept_values,
        common.instead | experiment_settings.instead,
        experiment_settings.beyond,
    )


@cache
def in_full(experiment: str) -> str:
    """Return a sentence on the time, disk and memory of an experiment on the papers' node.

    It scales the papers' times by epochs, rows and GPUs. It is "" for other experiments.
    """
    return next((row["takes"] for row in rows("in_full") if row["experiment"] == experiment), "")
