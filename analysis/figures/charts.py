"""One layout for all figures: a tidy table drawn with the same
layers in a chart for each value of its field `chart`.

Beside its data a row has what is drawn of it, in the unit of its chart: `shown`, `shown_low` and
`shown_high`, the limits `least` and `most` of the chart's axis, and a `label`. Its field `series`
says which line or group of bars it belongs to. A phone shows the same specification with one chart
per row.
"""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import altair as alt

from . import captions, chart_data
from .chart_data import IDEAL, MEASURED, PAPER, Row
from .vega import DASHES, SHAPES, Spec, cycled, layered

# points, of a chart among at most two
WIDTH = 340
HEIGHT = 240
# of a chart among more
SMALL_WIDTH = 225
SMALL_HEIGHT = 110
MOST_ACROSS = 5  # charts beside each other
MOST_TICKS = 8  # along numbers
STRIP = 0.07  # of the height, for each of the crosses at one x
ROOM = 1.2  # of the longest bar, so that its figure has room
# Where a bar's figure begins: beyond a mark of the papers
# (from `low` to `high`) that would cover it
COVERED = "datum.low < datum.end + 0.15 * datum.most && datum.high > datum.end - 0.03 * datum.most"
BESIDE_PAPER = f"isValid(datum.low) && {COVERED} ? datum.high + 0.03 * datum.most : datum.end"
MOST_LETTERS = 38  # in a line of a chart's heading
LINE = " | "  # between the lines of a chart's heading
SMALL_FROM = 25  # values along x, from which their points are smaller
# A run that did not end ok
CROSS = {"shape": "M-1,-1L1,1M1,-1L-1,1", "size": 40, "strokeWidth": 2, "opacity": 1}
# Fields of a row: its series, which of a measure's charts it is in, and of a bar where it stands
SERIES = "series"
PART = "part"
AT = "at"

Encoding = dict[str, Any]


def by_series(order: Sequence[str], *channels: str, field: str = SERIES) -> Encoding:
    """A field as `color`, `shape` and `strokeDash`,
    with one legend where there are several values.
    """
    if not order:
        return {}
    options = {"type": "nominal", "title": None, "sort": None}
    legend = alt.Legend(symbolOpacity=1) if len(order) > 1 else None
    scales = {
        "color": alt.Scale(domain=list(order)),
        "shape": cycled(order, SHAPES),
        "strokeDash": cycled(order, [list(dash) for dash in DASHES]),
    }
    kinds = {"color": alt.Color, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    return {
        name: kinds[name](field, scale=scales[name], legend=legend, **options) for name in channels
    }


def drawn(
    rows: Sequence[Row], x: str = "", are_bars: bool = False, titles: dict[str, str] | None = None
) -> list[Row]:
    """The rows with what is drawn of them, in the unit and within the limits of their measure.

    Args:
        x: field along which crosses at one value stand below each other.
        are_bars: whether crosses stand at the foot of the chart, instead of its top, and it ends
            where bars do.
        titles: of charts by measure, with a place for the unit,
            instead of those of `captions.axis`.
    """
    shown = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        absent: Row = {"status": "ok", PART: "", SERIES: ""}
        own = [absent | row for row in rows if row["measure"] == measure]
        least, most = chart_data.axis_limits(own, measure)
        unit = captions.unit(measure, most)
        title = titles[measure].format(unit.name) if titles else captions.axis(measure, unit)
        crosses = Counter((row[PART], row.get(x)) for row in own if row["status"] != "ok")
        strip = STRIP * (most - least)
        top = most + strip * max(crosses.values(), default=0)
        limits = {} if are_bars else {"least": least, "most": top}
        numbers = Counter[Any]()
        for row in own:
            value = row.get("mean")
            label = row.get("signs") or ""
            place = (row[PART], row.get(x))
            low = row.get("low")
            high = row.get("high")
            low, high = (None if end is None else min(max(end, least), most) for end in (low, high))
            if row["status"] != "ok":
                numbers[place] += 1
                value = 0.0 if are_bars else top - (numbers[place] - 0.5) * strip
                ended = row["status"] + (f" x{row['n']}" if row["n"] > 1 else "")
                label = ended if are_bars else f"{row[SERIES]} {ended}".strip()
            figures = {"shown": value, "shown_low": low, "shown_high": high, **limits}
            divided = {
                name: None if end is None else end / unit.divisor for name, end in figures.items()
            }
            shown.append(row | {"chart": heading(title, row[PART]), "label": label} | divided)
    return shown


def heading(*lines: str) -> str:
    """The heading of a chart from its lines, which are broken
    where they are longer than a chart is wide.
    """
    parts = []
    for line in lines:
        parts.extend(textwrap.wrap(line, MOST_LETTERS))
    return LINE.join(parts)


def facets(
    layers: Sequence[alt.Chart],
    rows: Sequence[Row],
    columns: int,
    width: int = WIDTH,
    height: int = HEIGHT,
    free: str = "y",
) -> Spec:
    """The layers as a chart for each value of `chart`. `free` is the axis that each has for itself,
    from `least` to `most`; empty where all share it.
    """
    charts = list(dict.fromkeys(row["chart"] for row in rows))
    limits = (
        alt.Chart().transform_aggregate(least="min(least)", most="max(most)").mark_rule(opacity=0)
    )
    ends = {"y": "least:Q", "y2": "most:Q"} if free == "y" else {"x": "least:Q", "x2": "most:Q"}
    limited = [limits.encode(**ends)] if free and "least" in rows[0] else []
    header = {
        "title": None,
        "labelAnchor": "start",
        "labelExpr": f"split(datum.label, '{LINE}')",
        "labelPadding": 4,
    }
    resolve: Spec = {"axis": {"x": "independent"} | ({"y": "independent"} if free == "y" else {})}
    return {
        "facet": {"field": "chart", "type": "nominal", "sort": charts, "header": header},
        "columns": max(1, min(columns, len(charts))),
        "spec": layered([*limited, *layers], width, height),
        "resolve": resolve | ({"scale": {free: "independent"}} if free else {}),
    }


def where(base: Any, of: str, status: str | None = None) -> Any:
    chart = base.transform_filter(alt.FieldEqualPredicate(field="of", equal=of))
    return (
        chart
        if status is None
        else chart.transform_filter(alt.FieldEqualPredicate(field="status", equal=status))
    )


def tooltips(*texts: str, interval: bool = True) -> list[alt.Tooltip]:
    """Text fields of a row, its mean and interval in the unit of its chart,
    and its number of runs.
    """
    titles = {"shown": "mean"} | ({"shown_low": "from", "shown_high": "to"} if interval else {})
    values = [
        alt.Tooltip(name, type="quantitative", title=title, format=".4~g")
        for name, title in titles.items()
    ]
    runs = [alt.Tooltip("n", type="quantitative", title="runs")]
    bounds = [alt.Tooltip("bar:N", title="from and to")] if interval else []
    return [*(alt.Tooltip(f"{text}:N") for text in texts), *values, *runs, *bounds]


def y_axis(**axis: Any) -> alt.Y:
    scale = alt.Scale(zero=False, nice=False)
    return alt.Y(
        "shown:Q",
        title=None,
        scale=scale,
        axis=alt.Axis(**{"tickCount": 6, "format": captions.PLAIN} | axis),
    )


def number_axis(name: str, values: Sequence[float], title: str) -> alt.X:
    """A horizontal axis of whole numbers, with a tick at each where there are few."""
    ticks = values[:: -(-len(values) // MOST_TICKS)]
    room = 0.08 * (values[-1] - values[0]) or 1
    scale = alt.Scale(domain=[values[0] - room, values[-1] + room], nice=False, zero=False)
    axis = alt.Axis(values=list(ticks), format="d", grid=False)
    return alt.X(name, type="quantitative", title=title, scale=scale, axis=axis)


def line_layers(
    rows: Sequence[Row], x: alt.X, order: Sequence[str], band: bool = False
) -> list[Any]:
    """Lines with points, intervals (as a band along the line if asked), ideals, printed figures and
    crosses, as far as rows have them, of the series in this order.
    """
    base = alt.Chart().encode(x=x, y=y_axis(), detail=f"{SERIES}:N")
    ok = where(base, MEASURED, "ok")
    colour, shape, dash = (by_series(order, name) for name in ("color", "shape", "strokeDash"))
    name = x.shorthand.replace("\\", "")
    layers = []
    if any(row["of"] == IDEAL for row in rows):
        layers.append(
            where(base, IDEAL).mark_line(style="ideal", interpolate="monotone", clip=True)
        )
    if band and any(row.get("low") is not None for row in rows):
        area = ok.transform_filter("isValid(datum.low)").mark_area(opacity=0.15)
        layers.append(area.encode(y="shown_low:Q", y2="shown_high:Q", **colour))
    layers.append(ok.mark_line(strokeWidth=1.6).encode(**colour, **dash))
    layers += [] if band else intervals(ok, rows, colour)
    small = len({row.get(name) for row in rows}) > SMALL_FROM
    points = ok.mark_point(filled=True, size=12 if small else 50, opacity=1)
    layers.append(points.encode(**colour, **shape, tooltip=tooltips(SERIES, x.shorthand)))
    if any(row["label"] and row["status"] == "ok" for row in rows):
        layers.append(ok.mark_text(dx=6, dy=-8, align="left", fontSize=13).encode(text="label:N"))
    layers += paper_points(base, rows, colour | shape)
    if any(row["status"] != "ok" for row in rows):
        unended = where(base, MEASURED).transform_filter("datum.status != 'ok'")
        layers.append(unended.mark_point(**CROSS).encode(**colour))
        layers.append(unended.mark_text(align="right", dx=-8, fontSize=10).encode(text="label:N"))
    return layers


def abreast(rows: Sequence[Row], order: Sequence[str]) -> int:
    """The bars in a group: one of each series, or a single one where no place has several."""
    return (
        len(order)
        if len({(row[AT], row[SERIES]) for row in rows}) > len({row[AT] for row in rows})
        else 1
    )


def bar_layers(
    rows: Sequence[Row], order: Sequence[str], places: Sequence[str], si: bool
) -> list[Any]:
    """Bars from the left in groups (`places`, the values of `AT`), with intervals, printed figures,
    and their figures beside them, with k, M, G where `si`; what did not end stands at the foot.
    `order`: of the series.
    """
    offset = alt.YOffset(f"{SERIES}:N", scale=alt.Scale(domain=list(order)))
    beside: Encoding = {"yOffset": offset} if abreast(rows, order) > 1 else {}
    axis = alt.Axis(tickCount=4, format=captions.SI if si else captions.PLAIN)
    x = alt.X("shown:Q", title=None, axis=axis, scale=alt.Scale(nice=False))
    base = alt.Chart().encode(x=x, y=alt.Y(f"{AT}:N", sort=list(places), title=None), **beside)
    ok = where(base, MEASURED, "ok")
    colour = by_series(order, "color")
    end = "isValid(datum.low) ? datum.shown_high : datum.shown"
    ended = base.transform_calculate(end=end)
    if any(row["of"] == PAPER for row in rows):
        sides = {
            side: f"datum.of == '{PAPER}' ? datum.shown_{side} : null" for side in ("low", "high")
        }
        ended = ended.transform_calculate(**sides).transform_joinaggregate(
            most="max(end)", groupby=["chart"]
        )
        ended = ended.transform_joinaggregate(
            low="max(low)", high="max(high)", groupby=[AT, SERIES]
        )
        ended = ended.transform_calculate(end=BESIDE_PAPER)
    number = f"format(datum.shown, '{'.3~s' if si else ',.3~r'}') + datum.label"
    text = where(ended, MEASURED, "ok").transform_calculate(text=number)
    room = alt.Chart().transform_calculate(end=end).transform_aggregate(end="max(end)")
    room = (
        room.transform_calculate(end=f"{ROOM} * datum.end").mark_rule(opacity=0).encode(x="end:Q")
    )
    layers = [room, ok.mark_bar().encode(**colour, tooltip=tooltips(SERIES, AT))]
    layers.append(text.mark_text(align="left", dx=4, fontSize=10).encode(x="end:Q", text="text:N"))
    bounds = {"x": "shown_low:Q", "x2": "shown_high:Q"}
    if any(row.get("low") is not None for row in rows):
        layers.append(
            ok.transform_filter("isValid(datum.low)").mark_rule(style="plain").encode(**bounds)
        )
    # on a ground of the page's colour: a longer bar would hide its own
    if any(row["of"] == PAPER for row in rows):
        papers = where(base, PAPER)
        layers.append(papers.mark_rule(style="page", strokeWidth=5).encode(**bounds))
        layers.append(papers.mark_point(style="page", filled=True, size=150))
        layers.append(papers.mark_rule(strokeWidth=1.2).encode(**bounds, **colour))
    if any(row["status"] != "ok" for row in rows):
        unended = base.transform_filter("datum.status != 'ok'")
        layers.append(unended.mark_point(**CROSS).encode(**colour))
        layers.append(unended.mark_text(align="left", dx=8, fontSize=10).encode(text="label:N"))
    return [*layers, *paper_points(base, rows, colour)]


def intervals(ok: Any, rows: Sequence[Row], encoding: Encoding) -> list[Any]:
    if all(row.get("low") is None for row in rows):
        return []
    bounded = ok.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2)
    return [bounded.encode(y="shown_low:Q", y2="shown_high:Q", **encoding)]


def paper_points(base: Any, rows: Sequence[Row], encoding: Encoding) -> list[Any]:
    """The papers' own figures, hollow; they have a legend
    by an opacity that is the same for all.
    """
    if all(row["of"] != PAPER for row in rows):
        return []
    legend = alt.Legend(
        title=None, symbolFillColor="transparent", symbolType="circle", symbolStrokeWidth=1.5
    )
    label = alt.Opacity("paper:O", scale=alt.Scale(range=[1, 0.999]), legend=legend)
    points = where(base, PAPER).mark_point(filled=False, size=75, strokeWidth=1.6)
    tooltip = [alt.Tooltip("paper:N"), alt.Tooltip("shown:Q", format=".4~g")]
    return [points.encode(**encoding, opacity=label, tooltip=tooltip)]
