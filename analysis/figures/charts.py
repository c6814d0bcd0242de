"""Lay out all figures in one way: a tidy table, with a chart for each value of its field `chart`.

Besides its data, a row has what is drawn, in the unit of its chart: `shown`, `shown_low`,
`shown_high`, a `label`, and the limits `least` and `most` of the chart's axis. Its field `series`
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

# The size of a chart, in points, in a figure of at most two charts.
WIDTH = 340
HEIGHT = 240
# The size of a chart in a figure of more charts.
SMALL_WIDTH = 225
SMALL_HEIGHT = 110
MAX_ACROSS = 5  # The most charts that stand beside each other.
MAX_TICKS = 8  # The most ticks of an axis of numbers.
CROSS_HEIGHT = 0.07  # Each cross at one x takes this share of the height.
FIGURE_ROOM = 1.2  # An axis is longer than the longest bar, so that its figure has room.
# A mark of the papers, from `low` to `high`, may cover the place where a bar's figure begins. The
# figure then begins beyond the mark.
IS_COVERED = (
    "datum.low < datum.end + 0.15 * datum.most && datum.high > datum.end - 0.03 * datum.most"
)
END_BESIDE_PAPER = (
    f"isValid(datum.low) && {IS_COVERED} ? datum.high + 0.03 * datum.most : datum.end"
)
MAX_LETTERS = 38  # The most letters in a line of a chart's heading.
LINE_BREAK = " | "  # It separates the lines of a chart's heading.
LABEL_LETTERS = 48  # The most letters in a line that names a setting; a phone is as wide.
# Breaks the labels of a legend, in which the end may be what differs, between words.
LEGEND_LABEL = (
    f"split(trim(replace(datum.label, regexp('(.{{1,{LABEL_LETTERS}}})( +|$)', 'g'), '$1\\n')),"
    " '\\n')"
)
MAX_LARGE_POINTS = 25  # With more values along x, points are smaller.
# The mark of a run that did not end ok.
CROSS_MARK = {"shape": "M-1,-1L1,1M1,-1L-1,1", "size": 40, "strokeWidth": 2, "opacity": 1}
# Fields of a row: its series, which of a measure's charts it is in, and the place of its bar.
SERIES = "series"
PART = "part"
PLACE = "at"

Encoding = dict[str, Any]


def by_series(order: Sequence[str], *channels: str, field: str = SERIES) -> Encoding:
    """Encode a field as `color`, `shape` and `strokeDash`.

    If there are several values, all channels share one legend.
    """
    if not order:
        return {}
    options = {"type": "nominal", "title": None, "sort": None}
    legend = alt.Legend(symbolOpacity=1, labelExpr=LEGEND_LABEL) if len(order) > 1 else None
    scales = {
        "color": alt.Scale(domain=list(order)),
        "shape": cycled(order, SHAPES),
        "strokeDash": cycled(order, [list(dash) for dash in DASHES]),
    }
    kinds = {"color": alt.Color, "shape": alt.Shape, "strokeDash": alt.StrokeDash}
    return {
        name: kinds[name](field=field, scale=scales[name], legend=legend, **options)
        for name in channels
    }


def with_drawn_values(
    rows: Sequence[Row], x: str = "", are_bars: bool = False, titles: dict[str, str] | None = None
) -> list[Row]:
    """Add to the rows what is drawn, in the unit and within the limits of their measure.

    Args:
        x: the field along which crosses at one value stand below each other.
        are_bars: crosses stand at the foot of the chart instead of its top, and the axis ends where
            the bars do.
        titles: the titles of charts by measure, with a place for the unit. By default,
            `captions.axis` gives them.
    """
    drawn_rows = []
    for measure in dict.fromkeys(row["measure"] for row in rows):
        defaults: Row = {"status": "ok", PART: "", SERIES: ""}
        measure_rows = [defaults | row for row in rows if row["measure"] == measure]
        least, most = chart_data.axis_limits(measure_rows, measure)
        unit = captions.unit(measure, most)
        title = titles[measure].format(unit.name) if titles else captions.axis(measure, unit)
        crosses = Counter((row[PART], row.get(x)) for row in measure_rows if row["status"] != "ok")
        strip = CROSS_HEIGHT * (most - least)
        top_end = most + strip * max(crosses.values(), default=0)
        limits = {} if are_bars else {"least": least, "most": top_end}
        numbers = Counter[Any]()
        for row in measure_rows:
            value = row.get("mean")
            label = row.get("signs") or ""
            position = (row[PART], row.get(x))
            low = row.get("low")
            high = row.get("high")
            low, high = (None if end is None else min(max(end, least), most) for end in (low, high))
            if row["status"] != "ok":
                numbers[position] += 1
                value = 0.0 if are_bars else top_end - (numbers[position] - 0.5) * strip
                status_text = row["status"] + (f" x{row['n']}" if row["n"] > 1 else "")
                label = status_text if are_bars else f"{row[SERIES]} {status_text}".strip()
            figures = {"shown": value, "shown_low": low, "shown_high": high, **limits}
            scaled = {
                name: None if end is None else end / unit.divisor for name, end in figures.items()
            }
            drawn_rows.append(row | {"chart": heading(title, row[PART]), "label": label} | scaled)
    return drawn_rows


def heading(*lines: str, letters: int = MAX_LETTERS) -> str:
    """Join the lines of a chart's heading; lines of more letters than a chart's are broken."""
    parts = []
    for line in lines:
        parts.extend(textwrap.wrap(line, letters))
    return LINE_BREAK.join(parts)


def facets(
    layers: Sequence[alt.Chart],
    rows: Sequence[Row],
    columns: int,
    width: int = WIDTH,
    height: int = HEIGHT,
    free: str = "y",
) -> Spec:
    """Draw the layers as a chart for each value of `chart`.

    Args:
        free: the axis that each chart has for itself, from `least` to `most`; empty if all charts
            share both axes.
    """
    charts = list(dict.fromkeys(row["chart"] for row in rows))
    limits = (
        alt.Chart().transform_aggregate(least="min(least)", most="max(most)").mark_rule(opacity=0)
    )
    end_fields = (
        {"y": "least:Q", "y2": "most:Q"} if free == "y" else {"x": "least:Q", "x2": "most:Q"}
    )
    limit_layers = [limits.encode(**end_fields)] if free and "least" in rows[0] else []
    header = {
        "title": None,
        "labelAnchor": "start",
        "labelExpr": f"split(datum.label, '{LINE_BREAK}')",
        "labelPadding": 4,
    }
    resolve: Spec = {"axis": {"x": "independent"} | ({"y": "independent"} if free == "y" else {})}
    return {
        "facet": {"field": "chart", "type": "nominal", "sort": charts, "header": header},
        "columns": max(1, min(columns, len(charts))),
        "spec": layered([*limit_layers, *layers], width, height),
        "resolve": resolve | ({"scale": {free: "independent"}} if free else {}),
    }


def filtered(base: Any, of: str, status: str | None = None) -> Any:
    chart = base.transform_filter(alt.FieldEqualPredicate(field="of", equal=of))
    return (
        chart
        if status is None
        else chart.transform_filter(alt.FieldEqualPredicate(field="status", equal=status))
    )


def tooltips(*texts: str, interval: bool = True) -> list[alt.Tooltip]:
    """Return tooltips of a row's text fields, its mean with its interval, and its number of runs.

    The mean and the interval are in the unit of the chart.
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
        axis=alt.Axis(**{"tickCount": 6, "format": captions.PLAIN_FORMAT} | axis),
    )


def number_axis(name: str, values: Sequence[float], title: str) -> alt.X:
    """Return a horizontal axis of whole numbers, with a tick at each if there are few."""
    ticks = values[:: -(-len(values) // MAX_TICKS)]
    room = 0.08 * (values[-1] - values[0]) or 1
    scale = alt.Scale(domain=[values[0] - room, values[-1] + room], nice=False, zero=False)
    axis = alt.Axis(values=list(ticks), format="d", grid=False)
    return alt.X(name, type="quantitative", title=title, scale=scale, axis=axis)


def line_layers(
    rows: Sequence[Row], x: alt.X, order: Sequence[str], band: bool = False
) -> list[Any]:
    """Draw the series of `order` as lines with points.

    Intervals, ideals, printed figures and crosses are drawn too, if the rows have them.

    Args:
        band: draw intervals as a band along the line.
    """
    base = alt.Chart().encode(x=x, y=y_axis(), detail=f"{SERIES}:N")
    ok_points = filtered(base, MEASURED, "ok")
    colour, shape, dash = (by_series(order, name) for name in ("color", "shape", "strokeDash"))
    name = x.shorthand.replace("\\", "")
    layers = []
    if any(row["of"] == IDEAL for row in rows):
        layers.append(
            filtered(base, IDEAL).mark_line(style="ideal", interpolate="monotone", clip=True)
        )
    if band and any(row.get("low") is not None for row in rows):
        area = ok_points.transform_filter("isValid(datum.low)").mark_area(opacity=0.15)
        layers.append(area.encode(y="shown_low:Q", y2="shown_high:Q", **colour))
    layers.append(ok_points.mark_line(strokeWidth=1.6).encode(**colour, **dash))
    layers += [] if band else intervals(ok_points, rows, colour)
    are_small = len({row.get(name) for row in rows}) > MAX_LARGE_POINTS
    points = ok_points.mark_point(filled=True, size=12 if are_small else 50, opacity=1)
    layers.append(points.encode(**colour, **shape, tooltip=tooltips(SERIES, x.shorthand)))
    if any(row["label"] and row["status"] == "ok" for row in rows):
        layers.append(
            ok_points.mark_text(dx=6, dy=-8, align="left", fontSize=13).encode(text="label:N")
        )
    layers += paper_points(base, rows, colour | shape)
    if any(row["status"] != "ok" for row in rows):
        unended = filtered(base, MEASURED).transform_filter("datum.status != 'ok'")
        layers.append(unended.mark_point(**CROSS_MARK).encode(**colour))
        layers.append(unended.mark_text(align="right", dx=-8, fontSize=10).encode(text="label:N"))
    return layers


def bars_per_group(rows: Sequence[Row], order: Sequence[str]) -> int:
    """Return the number of bars in a group: one, unless a place has bars of several series."""
    return (
        len(order)
        if len({(row[PLACE], row[SERIES]) for row in rows}) > len({row[PLACE] for row in rows})
        else 1
    )


def bar_layers(
    rows: Sequence[Row], order: Sequence[str], places: Sequence[str], si: bool
) -> list[Any]:
    """Draw bars from the left in groups, with intervals, printed figures and their own figures.

    Crosses of runs that did not end ok stand at the foot of the chart.

    Args:
        order: the series in their order.
        places: the groups: the values of `PLACE` in their order.
        si: write figures with k, M and G.
    """
    offset = alt.YOffset(f"{SERIES}:N", scale=alt.Scale(domain=list(order)))
    group_offset: Encoding = {"yOffset": offset} if bars_per_group(rows, order) > 1 else {}
    axis = alt.Axis(tickCount=4, format=captions.SI_FORMAT if si else captions.PLAIN_FORMAT)
    x = alt.X("shown:Q", title=None, axis=axis, scale=alt.Scale(nice=False))
    base = alt.Chart().encode(
        x=x, y=alt.Y(f"{PLACE}:N", sort=list(places), title=None), **group_offset
    )
    ok_bars = filtered(base, MEASURED, "ok")
    colour = by_series(order, "color")
    end = "isValid(datum.low) ? datum.shown_high : datum.shown"
    with_end = base.transform_calculate(end=end)
    if any(row["of"] == PAPER for row in rows):
        paper_ends = {
            side: f"datum.of == '{PAPER}' ? datum.shown_{side} : null" for side in ("low", "high")
        }
        with_end = with_end.transform_calculate(**paper_ends).transform_joinaggregate(
            most="max(end)", groupby=["chart"]
        )
        with_end = with_end.transform_joinaggregate(
            low="max(low)", high="max(high)", groupby=[PLACE, SERIES]
        )
        with_end = with_end.transform_calculate(end=END_BESIDE_PAPER)
    number = f"format(datum.shown, '{'.3~s' if si else ',.3~r'}') + datum.label"
    text = filtered(with_end, MEASURED, "ok").transform_calculate(text=number)
    room_layer = alt.Chart().transform_calculate(end=end).transform_aggregate(end="max(end)")
    room_layer = (
        room_layer.transform_calculate(end=f"{FIGURE_ROOM} * datum.end")
        .mark_rule(opacity=0)
        .encode(x="end:Q")
    )
    layers = [room_layer, ok_bars.mark_bar().encode(**colour, tooltip=tooltips(SERIES, PLACE))]
    layers.append(text.mark_text(align="left", dx=4, fontSize=10).encode(x="end:Q", text="text:N"))
    bounds = {"x": "shown_low:Q", "x2": "shown_high:Q"}
    if any(row.get("low") is not None for row in rows):
        layers.append(
            ok_bars.transform_filter("isValid(datum.low)").mark_rule(style="plain").encode(**bounds)
        )
    # The marks stand on a ground of the page's color: a longer bar would hide them.
    if any(row["of"] == PAPER for row in rows):
        papers = filtered(base, PAPER)
        layers.append(papers.mark_rule(style="page", strokeWidth=5).encode(**bounds))
        layers.append(papers.mark_point(style="page", filled=True, size=150))
        layers.append(papers.mark_rule(strokeWidth=1.2).encode(**bounds, **colour))
    if any(row["status"] != "ok" for row in rows):
        unended = base.transform_filter("datum.status != 'ok'")
        layers.append(unended.mark_point(**CROSS_MARK).encode(**colour))
        layers.append(unended.mark_text(align="left", dx=8, fontSize=10).encode(text="label:N"))
    return [*layers, *paper_points(base, rows, colour)]


def intervals(ok: Any, rows: Sequence[Row], encoding: Encoding) -> list[Any]:
    if all(row.get("low") is None for row in rows):
        return []
    interval_rules = ok.transform_filter("isValid(datum.low)").mark_rule(strokeWidth=1.2)
    return [interval_rules.encode(y="shown_low:Q", y2="shown_high:Q", **encoding)]


def paper_points(base: Any, rows: Sequence[Row], encoding: Encoding) -> list[Any]:
    """Draw the papers' own figures as hollow points.

    An opacity that looks the same for all of them gives them a legend.
    """
    if all(row["of"] != PAPER for row in rows):
        return []
    legend = alt.Legend(
        title=None, symbolFillColor="transparent", symbolType="circle", symbolStrokeWidth=1.5
    )
    label = alt.Opacity("paper:O", scale=alt.Scale(range=[1, 0.999]), legend=legend)
    points = filtered(base, PAPER).mark_point(filled=False, size=75, strokeWidth=1.6)
    tooltip = [alt.Tooltip("paper:N"), alt.Tooltip("shown:Q", format=".4~g")]
    return [points.encode(**encoding, opacity=label, tooltip=tooltip)]
