"""Which swept column of a panel is shown how: along x, by colour, by dashes or a chart of its own.

A chart has room for three. Of more, the rest are joined into one series ("300 px, pinned"); so are columns of which an
experiment excludes most combinations ("dali, nhwc"), which by themselves would say the same twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from analysis.experiments import Panel
from analysis.figures import captions
from analysis.figures.chart_data import Row
from analysis.runs import grouping

JOINT = ", "  # between the columns of one series, and between their values
MOST_JOINED = 4  # combinations that are one series where an experiment excludes others


@dataclass(frozen=True)
class Layout:
    """How the swept columns of a panel are shown; a column with a single value is not.

    x: the view's. colour: the experiment's subject, or else the first of the rest. other: all others.
    Several columns are one name, joined by JOINT.
    """

    panel: Panel
    x: str
    colour: str | None
    other: str | None

    @staticmethod
    def of(panel: Panel, x: str | None = None) -> "Layout":
        """The layout of a panel, along its view's x or another."""
        columns = panel.experiment.series if x is None else panel.experiment.swept
        subject = panel.experiment.view.subject
        series = _tied(panel, [name for name in columns if len(panel.values(name)) > 1])
        series.sort(key=lambda name: subject not in name.split(JOINT))
        colour, *rest = series or [None]
        return Layout(panel, x or panel.experiment.view.x, colour, JOINT.join(filter(None, rest)) or None)

    @property
    def by(self) -> list[str]:
        """The columns that tell the points apart."""
        names = [name for name in (self.x, self.colour, self.other) if name is not None]
        return [column for name in names for column in name.split(JOINT)]

    def values(self, name: str) -> list[Any]:
        """The measured values of a series in the chart's order."""
        columns = name.split(JOINT)
        if len(columns) == 1:
            return captions.ordered(self.panel.values(name))
        orders = [captions.ordered(self.panel.values(column)) for column in columns]
        measured = {tuple(dict(cell)[column] for column in columns) for cell in self.panel.cells}
        return [self.joint(columns, values) for values in product(*orders) if values in measured]

    def order(self, name: str) -> list[str]:
        """The same as texts."""
        return [grouping.typed(value) for value in self.values(name)]

    def joint(self, columns: Sequence[str], values: Sequence[Any]) -> str:
        """Values of several columns in words: "dali, nhwc", "4 GPUs, 300 px"."""
        return JOINT.join(captions.named(*pair, self.panel.runs) for pair in zip(columns, values, strict=True))

    def joined(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with a field for each series of several columns."""
        joint = [name for name in (self.colour, self.other) if name is not None and JOINT in name]
        columns = {name: name.split(JOINT) for name in joint}
        return [
            row | {name: self.joint(parts, [row[part] for part in parts]) for name, parts in columns.items()}
            for row in rows
        ]

    def place(self, row: Row) -> str:
        """The cell of a row in words, without what colours show: "100 px, 2 GPUs"."""
        columns = [*(self.other.split(JOINT) if self.other else []), self.x]
        return self.joint(columns, [row[column] for column in columns])

    def places(self, rows: Sequence[Row]) -> list[str]:
        """The places of the rows, in the chart's order."""
        names = [name for name in (self.other, self.x) if name is not None]
        ranks = {self.place(row): [self.order(name).index(str(row[name])) for name in names] for row in rows}
        return sorted(ranks, key=lambda place: ranks[place])


def _tied(panel: Panel, series: list[str]) -> list[str]:
    """The series, with those joined of which the experiment excludes combinations."""
    for entry in panel.experiment.excluded:
        parts = [name for name in series if {*name.split(JOINT)} & entry.keys()]
        columns = [column for name in parts for column in name.split(JOINT)]
        combinations = {tuple(dict(cell)[column] for column in columns) for cell in panel.cells}
        if len(parts) > 1 and entry.keys() <= {*columns} and len(combinations) <= MOST_JOINED:
            columns.sort(key=lambda column: ("." in column, panel.experiment.series.index(column)))  # groups first
            series = [JOINT.join(columns), *(name for name in series if name not in parts)]
    return series
