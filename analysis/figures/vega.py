"""What all figures have in common: title and notes around a chart, the colours of a theme, and files.

A specification holds no colour of its own, only names of scales and styles that `theme` gives a meaning: a page can
show the same figure light or dark. Series differ in shape or dash, bars in lightness too: they are told apart in print.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from multicard.records.run_folder import replacing
from multicard.records.text_table import clean

FORMATS = ("svg", "pdf", "png")
PNG_SCALE = 2.0  # pixels a point
LETTER = 5.6  # points, the mean width of a letter in the lines above and below a chart

# Okabe and Ito 2008, without yellow and black, which a white or a dark page would swallow, and with Tol's wine: the
# first four differ in lightness too, so that bars can be told apart in grey print
SERIES = {
    "light": ("#0072B2", "#E69F00", "#009E73", "#882255", "#D55E00", "#56B4E9", "#CC79A7", "#8C8C8C"),
    "dark": ("#3D9BE0", "#F0B429", "#2BC39A", "#C96BA0", "#F2743B", "#8CD0F7", "#EDB7D8", "#A6A6A6"),
}
INK = {"light": ("#1A1A1A", "#555555", "#DDDDDD", "#FFFFFF"), "dark": ("#EEEEEE", "#B5B5B5", "#444444", "#1A1A1A")}
# text, notes, grid, page
SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "triangle-right", "cross", "triangle-left")
DASHES = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (12, 4), (4, 1), (1, 3), (9, 2, 2, 2, 2, 2))
DATA = "rows"  # of every chart
Spec = dict[str, Any]  # Vega-Lite
SALTIRE = "M-1,-1L1,1M1,-1L-1,1"  # of a run that did not end


@dataclass(frozen=True)
class Figure:
    """A chart, ready to be shown or saved.

    name: of its file.
    spec: Vega-Lite with its data; without colours, which `theme` has.
    rows: the data shown, in base units (seconds, bytes, shares).
    marks: the signs of its runs (`analysis.marks`).
    caption: what stands above and below it, for a page or a reader that does not see it.
    """

    name: str
    title: str
    spec: dict[str, Any]
    rows: list[dict[str, Any]]
    marks: str
    caption: str


def theme(name: str) -> dict[str, Any]:
    """The configuration of Vega-Lite, "light" or "dark", that gives a figure its colours; the page's own background.

    Raises:
        ValueError: another name.
    """
    if name not in SERIES:
        raise ValueError(f"no theme {name}; there are {', '.join(SERIES)}")
    text, notes, grid, page = INK[name]
    return {
        "background": "transparent",
        "font": "sans-serif",
        "view": {"stroke": None},
        "range": {"category": list(SERIES[name])},
        "axis": {
            "labelColor": text,
            "titleColor": text,
            "titleFontWeight": "normal",
            "titleFontSize": 12,
            "labelFontSize": 11,
            "labelLimit": 260,
            "domainColor": notes,
            "tickColor": notes,
            "gridColor": grid,
        },
        "axisX": {"labelFlush": False, "labelOverlap": True},
        "legend": {"labelColor": text, "titleColor": text, "labelFontSize": 11, "labelLimit": 420, "titleLimit": 420}
        | {
            "symbolBaseStrokeColor": text,
            "symbolBaseFillColor": text,
            "titleFontWeight": "normal",
            "titleFontSize": 12,
            "symbolSize": 70,
        },
        "header": {"labelColor": text, "titleColor": text, "titleFontWeight": "normal", "labelFontSize": 11}
        | {"labelLimit": 300, "titleFontSize": 12},
        "title": {"color": text, "fontSize": 15, "subtitleColor": notes, "subtitleFontSize": 11.5}
        | {"subtitlePadding": 5, "offset": 14},
        "text": {"color": text},
        "style": {
            "notes": {"fill": notes, "fontSize": 11, "fontWeight": "normal"},
            "ideal": {"color": "#8C8C8C", "stroke": "#8C8C8C", "strokeWidth": 0.8},
            "plain": {"color": text, "stroke": text},
            "part": {"stroke": page, "strokeWidth": 0.8},
            "on_dark": {"color": page},
            "on_light": {"color": INK["light"][0]},
            "heading": {"fill": text, "fontSize": 12, "fontWeight": "bold"},
        },
    }


def figure(
    name: str,
    chart: Spec,
    rows: Sequence[dict[str, Any]],
    title: str,
    above: Sequence[str],
    below: Sequence[str],
    marks: str = "",
    width: int = 700,
) -> Figure:
    """A chart without data of its own, with its data and the words around it.

    Args:
        above: lines below the title; what is the same for all that is shown.
        below: lines below the chart; how to read it.
        width: of the chart, in points: no line of text is much wider.
    """
    data = [{key: _plain(value) for key, value in row.items()} for row in rows]
    across = max(int(width / LETTER), 95)
    start = {"anchor": "start"}
    head = {"text": _wrapped([title], across * 7 // 10), "subtitle": _wrapped(above, across), **start}
    foot = {"text": _wrapped(below, across), "orient": "bottom", "style": "notes", "offset": 10, **start}
    spec = {
        "$schema": alt.SCHEMA_URL,
        "title": head,
        "data": {"name": DATA},
        "datasets": {DATA: data},
        "vconcat": [chart | {"title": foot} if below else chart],
    }
    caption = " ".join(f"{line.rstrip('.')}." for line in (title, *above, *below))
    return Figure(name, title, spec | {"description": caption}, data, marks, caption)


def layered(layers: Sequence[alt.Chart], transform: Sequence[Spec], width: int, height: int) -> Spec:
    """Marks over one another, of rows that are transformed once for all of them.

    Altair makes marks and encodings; what holds them together is put together here, for Altair copies all that is in a
    chart at each step, which takes longer than all else together.
    """
    marks = [layer.to_dict(validate=False, context={"top_level": False}) for layer in layers]
    for mark in marks:
        mark.pop("data", None)  # Altair says "empty" where a layer has none of its own
    return {
        "layer": marks,
        "transform": list(transform),
        "width": width,
        "height": height,
    }


def only(field: str, value: str) -> Spec:
    """A transform that keeps rows with this value."""
    return {"filter": {"field": field, "equal": value}}


def calculated(**fields: str) -> list[Spec]:
    """Transforms that add fields to rows, by Vega's expressions."""
    return [{"calculate": expression, "as": name} for name, expression in fields.items()]


def _wrapped(lines: Sequence[str], across: int) -> list[str]:
    """Lines as Vega takes them, none of them longer than a figure is wide: it does not wrap by itself."""
    return [part for line in lines for part in textwrap.wrap(clean(line), across) or [""]]


def _plain(value: Any) -> Any:
    return clean(value) if isinstance(value, str) else value


def save(drawn: Figure, path: Path) -> None:
    """Write a figure as `path` ends, on white; the file is whole or absent.

    Raises:
        ValueError: another ending than those of FORMATS.
    """
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"{path}: a figure is written as .{', .'.join(FORMATS)}")
    config = theme("light") | {"background": "white"}
    if kind == "svg":
        content: bytes = vl_convert.vegalite_to_svg(drawn.spec, config=config).encode()
    elif kind == "pdf":
        content = vl_convert.vegalite_to_pdf(drawn.spec, config=config)
    else:
        content = vl_convert.vegalite_to_png(drawn.spec, scale=PNG_SCALE, config=config)
    with replacing(path) as file:
        file.write(content)
