"""What the charts of a panel share: which column is shown how, its words, and the layers that are alike in all."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import altair as alt

from analysis.figures import captions, drawn_rows
from analysis.figures.drawn_rows import Row
from analysis.figures.vega import DASHES, SHAPES, Figure, Spec, calculated, figure, layered, only
from analysis.papers.experiments import Panel

ACROSS = 4  # charts beside each other
MARGIN = 160  # of axes and legend, in points
STRIP = 0.07  # of the height, for each of the crosses at one x
ENDED = "datum.status + (datum.n > 1 ? ' x' + datum.n : '')"  # how a run ended, and how many of them
SHOWN = {"shown": "mean", "shown_low": "low", "shown_high": "high"}  # in the axis' unit


@dataclass(frozen=True)
class Layout:
    """Which swept column is shown how; one with a single value is none of it.

    x: the view's. colour: the experiment's subject, or else the first of the rest. other: the last one.
    """

    x: str
    colour: str | None
    other: str | None

    @property
    def by(self) -> list[str]:
        return [name for name in (self.x, self.colour, self.other) if name is not None]


def layout(panel: Panel) -> Layout:
    view = panel.experiment.view
    rest = [name for name in panel.experiment.series if len(panel.values(name)) > 1]
    rest.sort(key=lambda name: name != view.subject)
    colour, other = [*rest, None, None][:2]
    return Layout(view.x, colour, other)


@dataclass(frozen=True)
class Plot:
    """One measure of a panel: a chart, or several beside each other where `faceted`."""

    panel: Panel
    layout: Layout
    measure: str
    rows: list[Row]
    faceted: bool

    @cached_property
    def reach(self) -> tuple[float, float]:
        """What the axis has to show, without crosses; from 0 but for accuracies."""
        least, most = drawn_rows.reach(self.rows)
        if self.measure == "test_accuracy":
            room = max(0.1 * (most - least), 0.005)
            return max(0.0, least - room), min(1.0, most + room)
        return 0.0, 1.05 * most or 1.0

    @cached_property
    def unit(self) -> captions.Unit:
        return captions.unit(self.measure, self.reach[1])

    @cached_property
    def strip(self) -> float:
        """The height of a cross, in the axis' unit."""
        least, most = self.reach
        return STRIP * (most - least) / self.unit.divisor

    @cached_property
    def crosses(self) -> int:
        """The most of them at one x of one chart."""
        other = self.layout.other if self.faceted else None
        at = Counter((row[self.layout.x], row.get(other or "")) for row in self.rows if row["status"] != "ok")
        return max(at.values(), default=0)

    @property
    def domain(self) -> tuple[float, float]:
        """Of the axis, in its unit, with a strip for the crosses above all else."""
        least, most = (bound / self.unit.divisor for bound in self.reach)
        return least, most + self.crosses * self.strip

    def layered(self, layers: Sequence[alt.Chart], width: int, height: int, **fields: str) -> Spec:
        """The layers over the rows of the measure, in the axis' unit, with further fields."""
        shown = {name: f"datum.{of} / {self.unit.divisor}" for name, of in SHOWN.items()}
        transform = [only("measure", self.measure), *calculated(**shown, **fields)]
        return layered(layers, transform, width, height)

    def y(self, top: float | None = None) -> alt.Y:
        title = captions.axis(self.measure, self.panel.experiment.kind, self.unit)
        scale = alt.Scale(domain=[self.domain[0], top or self.domain[1]], nice=False, zero=False)
        return alt.Y("shown:Q", title=title, scale=scale, axis=alt.Axis(format=self.unit.format, tickCount=6))

    def facets(self, chart: Spec) -> Spec:
        """The chart once for each value of the other column, where they are shown so."""
        name = self.layout.other
        if not self.faceted or name is None:
            return chart
        facet = {
            "field": field(name),
            "type": "nominal",
            "sort": self.order(name),
            "header": {"title": self.title(name)},
        }
        return {"facet": facet, "spec": chart, "columns": ACROSS}

    def title(self, name: str) -> str:
        return captions.column(name, self.panel.runs) + captions.axis_unit(name)

    def order(self, name: str) -> list[str]:
        return [captions.value(value) for value in ordered(self.panel.values(name))]

    def colour(self) -> dict[str, Any]:
        name = self.layout.colour
        return {} if name is None else {"color": self._scaled(alt.Color, name).legend(alt.Legend(symbolOpacity=1))}

    def shape(self) -> dict[str, Any]:
        name = self.layout.colour
        return {} if name is None else {"shape": self._scaled(alt.Shape, name, SHAPES)}

    def dash(self) -> dict[str, Any]:
        name = self.layout.other
        if name is None or self.faceted:
            return {}
        legend = alt.Legend(symbolType="stroke", symbolSize=500, symbolStrokeWidth=1.6)
        return {"strokeDash": self._scaled(alt.StrokeDash, name, [list(dash) for dash in DASHES]).legend(legend)}

    def detail(self) -> dict[str, Any]:
        names = [name for name in (self.layout.colour, self.layout.other) if name is not None]
        return {"detail": [alt.Detail(field(name), type="nominal") for name in names]} if names else {}

    def _scaled(self, channel: Any, name: str, values: Sequence[Any] | None = None) -> Any:
        order = self.order(name)
        chosen: dict[str, Any] = (
            {} if values is None else {"range": [values[index % len(values)] for index in range(len(order))]}
        )
        scale = alt.Scale(domain=order, **chosen)
        return channel(field(name), type="nominal", scale=scale, title=self.title(name), sort=None)

    def tooltips(self) -> list[alt.Tooltip]:
        told = [alt.Tooltip(field(name), type="nominal", title=self.title(name)) for name in self.layout.by]
        unit = f", {self.unit.name}" * bool(self.unit.name)
        titles = ((f"mean{unit}", "shown"), (f"from{unit}", "shown_low"), (f"to{unit}", "shown_high"))
        told += [alt.Tooltip(name, type="quantitative", title=title, format=".4~g") for title, name in titles]
        runs = alt.Tooltip("n", type="quantitative", title="runs")
        return [*told, runs, alt.Tooltip("bar", type="nominal", title="from and to")]


def ordered(values: list[Any]) -> list[Any]:
    """Numbers by size, all else as it was."""
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
    return sorted(values) if numbers else values


def field(name: str) -> str:
    """A column's name as Vega-Lite takes it: a dot would be a way into an object."""
    return name.replace(".", "\\.")


def kept(base: Any, of: str, status: str | None = None) -> Any:
    found = base.transform_filter(alt.FieldEqualPredicate(field="of", equal=of))
    return found if status is None else found.transform_filter(alt.FieldEqualPredicate(field="status", equal=status))


def error_bars(ok: Any, encoding: dict[str, Any], size: int = 7, **mark: Any) -> list[Any]:
    """A rule from the lower to the upper bound, with caps."""
    bounded = ok.transform_filter("isValid(datum.low)")
    tick = {"thickness": 1.2, "size": size, "orient": "horizontal", "clip": True, **mark}
    caps = [bounded.mark_tick(**tick).encode(y=f"{name}:Q", **encoding) for name in ("shown_low", "shown_high")]
    rule = bounded.mark_rule(strokeWidth=1.2, clip=True, **mark)
    return [rule.encode(y="shown_low:Q", y2="shown_high:Q", **encoding), *caps]


def hollow(base: Any, encoding: dict[str, Any]) -> Any:
    """The papers' own figures; their legend is that of an opacity that is the same for all."""
    legend = alt.Legend(title=None, symbolFillColor="transparent", symbolType="circle", symbolStrokeWidth=1.5)
    label = alt.Opacity("paper:O", scale=alt.Scale(range=[1, 0.999]), legend=legend)
    tips = [alt.Tooltip("paper:N"), alt.Tooltip("shown:Q", format=".4~g")]
    points_of = kept(base, of=drawn_rows.PAPER).mark_point(filled=False, size=75, strokeWidth=1.6)
    return points_of.encode(**encoding, opacity=label, tooltip=tips)


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
    """A panel's chart with its title, what is the same for all runs, and how to read it.

    Args:
        by: the swept columns that tell the points apart.
        what: is shown, where it is not the rows' measures.
    """
    experiment = panel.experiment
    measures = [captions.measure(measure, experiment.kind) for measure in dict.fromkeys(row["measure"] for row in rows)]
    title = captions.title(
        [what] if what is not None else measures, [captions.column(column, panel.runs) for column in by]
    )
    title += f" ({panel.apart})" if panel.apart else ""  # as there are other panels
    source = f"{experiment.name}: {experiment.title.rstrip('.')}"
    above = [source, captions.same(panel.runs, by)]
    common, legend = captions.of_marks(panel.runs)
    below = [*dict.fromkeys(notes), *captions.absent(panel.missing), *legend]
    signs = "".join(dict.fromkeys(common + "".join(run["marks"] for run in panel.runs)))
    return figure(name, chart, rows, title, above, below, signs, width + MARGIN)


def explained(panel: Panel, rows: Sequence[Row], paper: Sequence[Any]) -> list[str]:
    """Lines about runs that did not end, and about the papers' figures."""
    told = []
    statuses = list(dict.fromkeys(row["status"] for row in rows if row["status"] != "ok"))
    if statuses:
        told.append(
            f"Crosses: runs that did not end ({', '.join(map(captions.value, statuses))}); no mean has them in it"
        )
    measures = {row["measure"] for row in rows}
    printed = [one for one in paper if one.measure in measures]
    if any(row["of"] == drawn_rows.PAPER for row in rows):
        sources = captions.listed(sorted({one.source for one in printed}))
        told.append(f"Hollow: the papers' own figures ({sources})")
    elif printed and not drawn_rows.comparable(panel):
        told.append("The papers' own figures are not shown beside what was shrunk or ran on CPU ranks")
    return told
