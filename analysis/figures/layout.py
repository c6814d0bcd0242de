"""Which swept column of a panel is shown how: along x, by colour, by dashes or a chart of its own.

A chart has room for three. Of more, the rest are joined into one series ("300 px, pinned"); so are columns of which an
experiment excludes most combinations ("dali, nhwc"), which by themselves would say the same twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import altair as alt

from analysis import same_setting
from analysis.experiments import Panel
from analysis.figures import captions
from analysis.figures.chart_data import PAPER, Row
from analysis.figures.charts import Series, by_colour, by_dash, number_axis, tooltips
from analysis.figures.vega import Figure, Spec, escaped, figure
from analysis.runs import grouping

JOINT = ", "  # between the columns of one series, and between their values
MOST_JOINED = 4  # combinations that are one series where an experiment excludes others
MOST_DASHES = 2  # values that dashes can show
MARGIN = 160  # points, of axes and legend


@dataclass(frozen=True)
class Layout:
    """How the swept columns of a panel are shown; a column with a single value is not.

    x: the view's. colour: the experiment's subject, or else the first of the rest. other: all others, by dashes, or by
    charts where `faceted`. Several columns are one name, joined by JOINT.
    """

    panel: Panel
    x: str
    colour: str | None
    other: str | None
    faceted: bool = False

    @staticmethod
    def of(panel: Panel, x: str | None = None, most_dashes: int = MOST_DASHES) -> "Layout":
        """The layout of a panel, along its view's x or another.

        Args:
            most_dashes: values of the other column that dashes show; more are charts beside each other.
        """
        columns = panel.experiment.series if x is None else panel.experiment.swept
        subject = panel.experiment.view.subject
        series = _tied(panel, [name for name in columns if len(panel.values(name)) > 1])
        series.sort(key=lambda name: subject not in name.split(JOINT))
        colour, *rest = series or [None]
        other = JOINT.join(filter(None, rest)) or None
        layout = Layout(panel, x or panel.experiment.view.x, colour, other)
        faceted = other is not None and len(layout.values(other)) > most_dashes
        return Layout(panel, layout.x, colour, other, faceted)

    @property
    def by(self) -> list[str]:
        """The columns that tell the points apart."""
        names = [name for name in (self.x, self.colour, self.other) if name is not None]
        return [column for name in names for column in name.split(JOINT)]

    @property
    def parts(self) -> int:
        """The number of charts of a measure."""
        return len(self.values(self.other)) if self.faceted and self.other is not None else 1

    def values(self, name: str) -> list[Any]:
        """The measured values of a series in the chart's order."""
        columns = name.split(JOINT)
        if len(columns) == 1:
            return captions.ordered(self.panel.values(name))
        orders = [captions.ordered(self.panel.values(column)) for column in columns]
        measured = {tuple(dict(cell)[column] for column in columns) for cell in self.panel.cells}
        return [self._joint(columns, values) for values in product(*orders) if values in measured]

    def order(self, name: str) -> list[str]:
        """The same as texts."""
        return [grouping.typed(value) for value in self.values(name)]

    def title(self, name: str) -> str:
        return JOINT.join(captions.column_axis(column, self.panel.runs) for column in name.split(JOINT))

    def _joint(self, columns: Sequence[str], values: Sequence[Any]) -> str:
        """Values of several columns in words: "dali, nhwc", "4 GPUs, 300 px"."""
        return JOINT.join(captions.named(*pair, self.panel.runs) for pair in zip(columns, values, strict=True))

    def joined(self, rows: Sequence[Row]) -> list[Row]:
        """The rows in the order of their charts, with a field for each series of several columns."""
        joint = [name for name in (self.colour, self.other) if name is not None and JOINT in name]
        columns = {name: name.split(JOINT) for name in joint}
        whole = [
            row | {name: self._joint(parts, [row[part] for part in parts]) for name, parts in columns.items()}
            for row in rows
        ]
        if self.faceted and self.other is not None:
            order, other = self.order(self.other), self.other
            whole.sort(key=lambda row: order.index(row[other]))
        return whole

    def part(self, row: Row) -> str:
        """The value of the other column in words, where each has a chart of its own."""
        return self._words(row, self.other) if self.faceted and self.other else ""

    def series_words(self, row: Row) -> list[str]:
        """The values of a row's series in words: "fp32", "2 GPUs"; joined columns have no room."""
        names = (self.colour, None if self.faceted else self.other)
        return [self._words(row, name) for name in names if name is not None and JOINT not in name]

    def _words(self, row: Row, name: str) -> str:
        return row[name] if JOINT in name else captions.named(name, row[name], self.panel.runs)

    def place(self, row: Row) -> str:
        """The cell of a row in words, without what colours show: "100 px, 2 GPUs"."""
        columns = [*(self.other.split(JOINT) if self.other else []), self.x]
        return self._joint(columns, [row[column] for column in columns])

    def places(self, rows: Sequence[Row]) -> list[str]:
        """The places of the rows, in the chart's order."""
        names = [name for name in (self.other, self.x) if name is not None]
        ranks = {self.place(row): [self.order(name).index(str(row[name])) for name in names] for row in rows}
        return sorted(ranks, key=lambda place: ranks[place])

    # Encodings

    def series(self, offset: Any = None) -> Series:
        """Colours and shapes, and dashes where they show the other column.

        Args:
            offset: channel that puts bars of different colours beside each other, for bars.
        """
        dashed = None if self.faceted else self.other
        names = [name for name in (self.colour, self.other) if name is not None]
        detail = [alt.Detail(escaped(name), type="nominal") for name in names]
        columns = [alt.Tooltip(escaped(name), type="nominal", title=self.title(name)) for name in self.by]
        return Series(
            **({} if self.colour is None else by_colour(self.colour, self.order(self.colour), self.title(self.colour))),
            dash={} if dashed is None else by_dash(dashed, self.order(dashed), self.title(dashed)),
            detail=self._offset(offset) if offset is not None else {"detail": detail} if detail else {},
            tooltips=tooltips(columns),
        )

    def _offset(self, channel: Any) -> dict[str, Any]:
        if self.colour is None:
            return {}
        scale = alt.Scale(domain=self.order(self.colour))
        offset = channel(escaped(self.colour), type="nominal", scale=scale)
        return {"xOffset" if channel is alt.XOffset else "yOffset": offset}

    def x_axis(self, rows: Sequence[Row]) -> alt.X:
        """Along numbers with a tick at each where there are few, else along names."""
        values = sorted({row[self.x] for row in rows}) if self.x == "epoch" else self.values(self.x)
        if captions.is_numeric(values):
            return number_axis(escaped(self.x), values, self.title(self.x))
        axis = alt.Axis(labelAngle=0)
        return alt.X(escaped(self.x), type="nominal", sort=self.order(self.x), title=self.title(self.x), axis=axis)

    # Text

    def figure(
        self, name: str, chart: Spec, rows: list[Row], notes: Sequence[str], width: int, what: str = ""
    ) -> Figure:
        """A panel's chart with its title, what all runs have in common, and how to read it.

        Args:
            what: is shown, where it is not the rows' measures.
        """
        panel, experiment = self.panel, self.panel.experiment
        measures = dict.fromkeys(row["measure"] for row in rows)
        shown = what or captions.listed([captions.measure(measure, experiment.kind) for measure in measures])
        title = f"{shown} by {captions.listed([captions.column(column, panel.runs) for column in self.by])}"
        title = title[:1].upper() + title[1:] + (f" ({panel.apart})" if panel.apart else "")  # where there are more
        above = [f"{experiment.name}: {experiment.title.rstrip('.')}", captions.common_settings(panel.runs, self.by)]
        printed = dict.fromkeys(row["printed"] for row in rows if row["of"] == PAPER)
        beside = [figure for measure in printed for figure in same_setting.beside(panel, measure).values()]
        papers = [f"{line[:1].upper()}{line[1:]}" for line in same_setting.notes(panel, beside)]
        hollow = ["Hollow: the papers' own figures"] * bool(printed)
        _, legend = captions.marks(panel.runs)
        below = [*dict.fromkeys(notes), *captions.missing_cells(panel.missing), *legend, *hollow, *papers]
        return figure(name, chart, rows, title, above, below, grouping.marks(panel.runs), width + MARGIN)


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
