"""What the charts of an experiment share: which column is shown how, the layers alike in all, and the text around."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt

from analysis import same_setting
from analysis.experiments import Panel
from analysis.figures import captions, chart_data
from analysis.figures.chart_data import PAPER, Row
from analysis.figures.chart_layout import JOINT, Layout
from analysis.figures.vega import DASHES, SHAPES, Figure, Spec, calculated, cycled, escaped, figure, layered, only
from analysis.runs import grouping
from papers.printed import PrintedFigure

ACROSS = 4  # charts beside each other
MARGIN = 160  # of axes and legend, in points
STRIP = 0.07  # of the height, for each of the crosses at one x
ENDED = "datum.status + (datum.n > 1 ? ' x' + datum.n : '')"  # how runs ended, and how many


@dataclass(frozen=True)
class PanelChart:
    """One measure of a panel as a chart, or as several beside each other where `faceted`."""

    panel: Panel
    layout: Layout
    measure: str
    rows: list[Row]
    faceted: bool = False

    @cached_property
    def axis_limits(self) -> tuple[float, float]:
        """Limits of the axis without crosses; from 0 except for accuracies."""
        least, most = chart_data.axis_limits(self.rows)
        if self.measure == "test_accuracy":
            room = max(0.1 * (most - least), 0.005)
            return max(0.0, least - room), min(1.0, most + room)
        return 0.0, 1.05 * most or 1.0

    @cached_property
    def unit(self) -> captions.Unit:
        return captions.unit(self.measure, self.axis_limits[1])

    @cached_property
    def strip(self) -> float:
        """Height of a cross, in the axis' unit."""
        least, most = self.axis_limits
        return STRIP * (most - least) / self.unit.divisor

    @cached_property
    def crosses(self) -> int:
        """The most crosses at one x of one chart."""
        other = self.layout.other if self.faceted else None
        places = Counter((row[self.layout.x], row.get(other or "")) for row in self.rows if row["status"] != "ok")
        return max(places.values(), default=0)

    @property
    def domain(self) -> tuple[float, float]:
        """Limits of the axis in its unit, with a strip for the crosses at the top."""
        least, most = (bound / self.unit.divisor for bound in self.axis_limits)
        return least, most + self.crosses * self.strip

    def has(self, of: str) -> bool:
        return any(row["of"] == of for row in self.rows)

    def order(self, name: str) -> list[str]:
        return self.layout.order(name)

    def title(self, name: str) -> str:
        return JOINT.join(captions.column_axis(column, self.panel.runs) for column in name.split(JOINT))

    # Encodings

    def y(self, top: float | None = None) -> alt.Y:
        title = captions.axis(self.measure, self.panel.experiment.kind, self.unit)
        scale = alt.Scale(domain=[self.domain[0], top or self.domain[1]], nice=False, zero=False)
        return alt.Y("shown:Q", title=title, scale=scale, axis=alt.Axis(format=self.unit.format, tickCount=6))

    def colour(self) -> dict[str, Any]:
        name = self.layout.colour
        return {} if name is None else {"color": self._channel(alt.Color, name).legend(alt.Legend(symbolOpacity=1))}

    def shape(self) -> dict[str, Any]:
        name = self.layout.colour
        return {} if name is None else {"shape": self._channel(alt.Shape, name, SHAPES)}

    def dash(self) -> dict[str, Any]:
        name = self.layout.other
        if name is None or self.faceted:
            return {}
        legend = alt.Legend(symbolType="stroke", symbolSize=500, symbolStrokeWidth=1.6)
        return {"strokeDash": self._channel(alt.StrokeDash, name, [list(dash) for dash in DASHES]).legend(legend)}

    def _channel(self, channel: Any, name: str, values: Sequence[Any] | None = None) -> Any:
        order = self.order(name)
        scale = alt.Scale(domain=order) if values is None else cycled(order, values)
        return channel(escaped(name), type="nominal", scale=scale, title=self.title(name), sort=None)

    def detail(self) -> dict[str, Any]:
        names = [name for name in (self.layout.colour, self.layout.other) if name is not None]
        return {"detail": [alt.Detail(escaped(name), type="nominal") for name in names]} if names else {}

    def tooltips(self) -> list[alt.Tooltip]:
        columns = [alt.Tooltip(escaped(name), type="nominal", title=self.title(name)) for name in self.layout.by]
        unit = f", {self.unit.name}" * bool(self.unit.name)
        titles = ((f"mean{unit}", "shown"), (f"from{unit}", "shown_low"), (f"to{unit}", "shown_high"))
        values = [alt.Tooltip(name, type="quantitative", title=title, format=".4~g") for title, name in titles]
        runs = alt.Tooltip("n", type="quantitative", title="runs")
        return [*columns, *values, runs, alt.Tooltip("bar", type="nominal", title="from and to")]

    # Specifications

    def spec(self, layers: Sequence[alt.Chart], width: int, height: int, **fields: str) -> Spec:
        """The layers over the rows of the measure, in the axis' unit, once for each value of the other column where
        the chart is faceted.

        Args:
            fields: further fields of the rows, by Vega expressions.
        """
        transform = [only("measure", self.measure), *in_unit(self.unit), *calculated(**fields)]
        return self.facets(layered(layers, transform, width, height))

    def facets(self, chart: Spec) -> Spec:
        """The chart once for each value of the other column, where it is faceted."""
        name = self.layout.other
        if not self.faceted or name is None:
            return chart
        header = {"title": self.title(name)}
        facet = {"field": escaped(name), "type": "nominal", "sort": self.order(name), "header": header}
        return {"facet": facet, "spec": chart, "columns": ACROSS}


def in_unit(unit: captions.Unit) -> list[Spec]:
    """Transforms that add mean and bounds in the axis' unit."""
    columns = {"shown": "mean", "shown_low": "low", "shown_high": "high"}
    return calculated(**{name: f"datum.{column} / {unit.divisor}" for name, column in columns.items()})


def where(base: Any, of: str, status: str | None = None) -> Any:
    """The chart's rows of one sort, and of one status."""
    chart = base.transform_filter(alt.FieldEqualPredicate(field="of", equal=of))
    return chart if status is None else chart.transform_filter(alt.FieldEqualPredicate(field="status", equal=status))


def error_bars(ok: Any, encoding: dict[str, Any], size: int = 7, **mark: Any) -> list[Any]:
    """A rule from the lower to the upper bound, with caps."""
    bounded = ok.transform_filter("isValid(datum.low)")
    tick = {"thickness": 1.2, "size": size, "orient": "horizontal", "clip": True, **mark}
    caps = [bounded.mark_tick(**tick).encode(y=f"{name}:Q", **encoding) for name in ("shown_low", "shown_high")]
    rule = bounded.mark_rule(strokeWidth=1.2, clip=True, **mark)
    return [rule.encode(y="shown_low:Q", y2="shown_high:Q", **encoding), *caps]


def paper_points(base: Any, encoding: dict[str, Any]) -> Any:
    """The papers' own figures, hollow; they have a legend by an opacity that is the same for all."""
    legend = alt.Legend(title=None, symbolFillColor="transparent", symbolType="circle", symbolStrokeWidth=1.5)
    label = alt.Opacity("paper:O", scale=alt.Scale(range=[1, 0.999]), legend=legend)
    points = where(base, PAPER).mark_point(filled=False, size=75, strokeWidth=1.6)
    tooltip = [alt.Tooltip("paper:N"), alt.Tooltip("shown:Q", format=".4~g")]
    return points.encode(**encoding, opacity=label, tooltip=tooltip)


def draw_measures(
    panel: Panel,
    name: str,
    layout: Layout,
    rows_of: Callable[[str], list[Row]],
    spec_of: Callable[[PanelChart], Spec],
    notes_of: Callable[[list[Row]], list[str]],
    width: int,
    measures: Sequence[str] = (),
    faceted: bool = False,
) -> Figure | None:
    """A figure with a chart for each measure that was measured; None without any row.

    Args:
        rows_of: the rows of a measure.
        spec_of: the specification of its chart.
        notes_of: further lines below the figure.
        width: of one chart, in points.
        measures: those of the panel's view by default.
    """
    rows, notes, charts, limits = [], [], [], {}
    kind = panel.experiment.kind
    for measure in measures or panel.experiment.view.measures:
        chart = PanelChart(panel, layout, measure, layout.joined(rows_of(measure)), faceted)
        if charts and not any(row["status"] == "ok" and "mean" in row for row in chart.rows):
            notes.append(f"No run has {captions.measure(measure, kind)}")
        elif chart.rows:
            rows += chart.rows
            limits[measure] = chart.rows, chart.axis_limits
            charts.append(spec_of(chart))
    if not rows:
        return None
    across = min(ACROSS, len(layout.values(layout.other))) if faceted and layout.other else len(charts)
    notes = [*chart_data.bar_notes(limits, kind), *notes, *notes_of(rows)]
    return around(panel, name, {"vconcat" if faceted else "hconcat": charts}, rows, layout.by, notes, across * width)


def around(
    panel: Panel,
    name: str,
    chart: Spec,
    rows: list[Row],
    by: Sequence[str],
    notes: Sequence[str],
    width: int,
    what: str | None = None,
) -> Figure:
    """A panel's chart with its title, what all runs have in common, and how to read it.

    Args:
        by: the swept columns that tell the points apart.
        what: is shown, where it is not the rows' measures.
    """
    experiment = panel.experiment
    measures = [captions.measure(measure, experiment.kind) for measure in dict.fromkeys(row["measure"] for row in rows)]
    columns = [captions.column(column, panel.runs) for column in by]
    title = f"{what or captions.listed(measures)} by {captions.listed(columns)}"
    title = title[:1].upper() + title[1:] + (f" ({panel.apart})" if panel.apart else "")  # where there are more panels
    above = [f"{experiment.name}: {experiment.title.rstrip('.')}", captions.common_settings(panel.runs, by)]
    _, legend = captions.marks(panel.runs)
    papers = same_setting.notes(panel, _printed(panel, rows))
    papers = [f"{line[:1].upper()}{line[1:]}" for line in papers]
    hollow = ["Hollow: the papers' own figures"] if any(row["of"] == PAPER for row in rows) else []
    below = [*dict.fromkeys(notes), *captions.missing_cells(panel.missing), *legend, *hollow, *papers]
    return figure(name, chart, rows, title, above, below, grouping.marks(panel.runs), width + MARGIN)


def _printed(panel: Panel, rows: Sequence[Row]) -> list[PrintedFigure]:
    """The papers' figures among the rows."""
    measures = dict.fromkeys(row.get("printed", row["measure"]) for row in rows if row["of"] == PAPER)
    return [figure for measure in measures for figure in same_setting.beside(panel, measure).values()]


def crosses_note(rows: Sequence[Row]) -> list[str]:
    """A line about the runs that did not end ok."""
    statuses = list(dict.fromkeys(grouping.typed(row["status"]) for row in rows if row["status"] != "ok"))
    return [f"Crosses: runs that did not end ({', '.join(statuses)}); no mean has them in it"] if statuses else []
