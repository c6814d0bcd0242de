"""Vega-Lite specifications: title and notes around a chart, the light and dark themes,
and image files.

A specification names no colour, only scales and styles that `theme` resolves, so that a page can
show a figure light or dark. Series differ in shape or dash, and bars in lightness,
so that they can be told apart in print.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt
import vl_convert

from multicard.messages import Refusal
from multicard.records import limits
from multicard.records.comparable import DOUBTFUL, DOUBTFUL_MEANING
from multicard.records.run_folder import replacing
from multicard.records.schema_parts import Limit
from multicard.records.text_table import clean

Spec = dict[str, Any]  # Vega-Lite
FORMATS = ("svg", "pdf", "png")
PNG_SCALE = 2.0  # pixels per point
LETTER_POINTS = 5.6  # mean width of a letter in the lines above and below a chart
DATA = "rows"  # name of the data set of every chart

# Okabe and Ito 2008, without yellow and black, which a white or a dark page would swallow, and with
# Tol's wine: the first four differ in lightness too, so that bars can be told apart in grey print
SERIES = {
    "light": (
        "#0072B2",
        "#E69F00",
        "#009E73",
        "#882255",
        "#D55E00",
        "#56B4E9",
        "#CC79A7",
        "#8C8C8C",
    ),
    "dark": (
        "#3D9BE0",
        "#F0B429",
        "#2BC39A",
        "#C96BA0",
        "#F2743B",
        "#8CD0F7",
        "#EDB7D8",
        "#A6A6A6",
    ),
}
INK = {  # text, notes, grid, page
    "light": ("#1A1A1A", "#555555", "#DDDDDD", "#FFFFFF"),
    "dark": ("#EEEEEE", "#B5B5B5", "#444444", "#1A1A1A"),
}
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "triangle-right",
    "cross",
    "triangle-left",
)
DASHES = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3), (12, 4), (4, 1), (1, 3), (9, 2, 2, 2, 2, 2))


@dataclass(frozen=True)
class Chart:
    """A chart with its data and the text around it, ready to be shown or saved.

    name: of its file.
    chart: Vega-Lite without data and colours.
    rows: the data shown, in base units (seconds, bytes, shares), with what is drawn of it
    (`charts`).
    above: lines below the title: in short what it shows, then what all runs have in common.
    below: lines below the chart: how to read it.
    limits: of its runs (`multicard.records.limits`).
    width: of the chart, in points: no line of text is much wider.
    one_at_a_time: a page has its charts one by one, of which the reader chooses.
    left_out: lines about runs that count for none of its times.
    """

    name: str
    title: str
    chart: Spec
    rows: Sequence[dict[str, Any]]
    above: Sequence[str] = ()
    below: Sequence[str] = ()
    limits: tuple[Limit, ...] = ()
    width: int = 0
    one_at_a_time: bool = False
    left_out: Sequence[str] = ()

    @property
    def marks(self) -> str:
        """The signs of what limits its runs."""
        return limits.signs(self.limits)

    @property
    def meanings(self) -> list[tuple[str, str]]:
        """The signs of its title and its points, with what they mean; runs that are left out,
        without a sign.
        """
        at_points = set()
        for row in self.rows:
            at_points.update(row.get("signs") or "")
        doubtful = [(DOUBTFUL, DOUBTFUL_MEANING)] if DOUBTFUL in at_points else []
        return [*doubtful, *limits.meanings(self.limits), *(("", line) for line in self.left_out)]

    @property
    def caption(self) -> str:
        """The text above and below the chart, for readers who cannot see it."""
        return " ".join(
            f"{line.rstrip('.')}." for line in (*self.above, *self.below, *self.left_out)
        )

    @property
    def explanation(self) -> list[str]:
        """The lines around the chart without the first, for a page to unfold."""
        return [*self.above[1:], *self.below]

    @property
    def data(self) -> list[dict[str, Any]]:
        return [
            {key: clean(one) if isinstance(one, str) else one for key, one in row.items()}
            for row in self.rows
        ]

    @property
    def spec(self) -> Spec:
        letters = max(int(self.width / LETTER_POINTS), 95)
        heading = {
            "text": _wrapped([self.title], letters * 7 // 10),
            "subtitle": _wrapped(self.above, letters),
        }
        below = [*self.below, *self.left_out]
        notes = {
            "text": _wrapped(below, letters),
            "orient": "bottom",
            "style": "notes",
            "offset": 10,
        }
        return {
            "$schema": alt.SCHEMA_URL,
            "title": heading | {"anchor": "start"},
            "data": {"name": DATA},
            "datasets": {DATA: self.data},
            "vconcat": [self.chart | ({"title": notes | {"anchor": "start"}} if below else {})],
            "description": f"{self.title}. {self.caption}",
        }


def theme(name: str) -> Spec:
    """Vega-Lite's configuration for a "light" or "dark" page, whose background shows through."""
    text, notes, grid, page = INK[name]
    words = {
        "labelColor": text,
        "titleColor": text,
        "titleFontWeight": "normal",
        "labelFontSize": 11,
    }
    words |= {"titleFontSize": 12}
    symbols = {"symbolBaseStrokeColor": text, "symbolBaseFillColor": text, "symbolSize": 70}
    return {
        "background": "transparent",
        "font": "sans-serif",
        "view": {"stroke": None},
        "range": {"category": list(SERIES[name])},
        "axis": (
            words | {"labelLimit": 260, "domainColor": notes, "tickColor": notes, "gridColor": grid}
        ),
        "axisX": {"labelFlush": False, "labelOverlap": True},
        "legend": words | symbols | {"labelLimit": 420, "titleLimit": 420},
        "header": words | {"labelLimit": 300},
        "title": (
            {"color": text, "fontSize": 15, "offset": 14}
            | {"subtitleColor": notes, "subtitleFontSize": 11.5, "subtitlePadding": 5}
        ),
        "text": {"color": text},
        "style": {
            "notes": {"fill": notes, "fontSize": 11, "fontWeight": "normal"},
            "ideal": {"color": "#8C8C8C", "stroke": "#8C8C8C", "strokeWidth": 0.8},
            "plain": {"color": text, "stroke": text},
            "part": {"stroke": page, "strokeWidth": 0.8},
            "page": {"color": page, "fill": page, "stroke": page, "opacity": 1},
        },
    }


ON_WHITE = theme("light") | {"background": "white"}


def _wrapped(lines: Sequence[str], letters: int) -> list[str]:
    """Lines no longer than the figure is wide: Vega does not wrap text."""
    parts = []
    for line in lines:
        parts.extend(textwrap.wrap(clean(line), letters, break_on_hyphens=False) or [""])
    return parts


def layered(layers: Sequence[alt.Chart], width: int, height: int) -> Spec:
    """Layers over one another.

    Only marks and encodings are Altair's: it copies a whole chart at each step,
    which would take most of the time.
    """
    marks = [layer.to_dict(validate=False, context={"top_level": False}) for layer in layers]
    for mark in marks:
        mark.pop("data", None)  # "empty" where a layer has no data of its own
    return {"layer": marks, "width": width, "height": height}


def escaped(column: str) -> str:
    """A column's name as Vega-Lite takes it: a dot would lead into an object."""
    return column.replace(".", "\\.")


def numbered(name: str, index: int) -> str:
    """The name of a figure among several of that name: "losses", "losses-2"."""
    return f"{name}-{index + 1}" if index else name


def cycled(domain: Sequence[str], values: Sequence[Any]) -> alt.Scale:
    """A scale that repeats `values` where the domain is longer."""
    return alt.Scale(
        domain=list(domain), range=[values[index % len(values)] for index in range(len(domain))]
    )


def chart(figures: Sequence[Chart]) -> alt.VConcatChart:
    """Figures below one another on white, as a chart that Altair shows in a notebook."""
    parts = [figure.spec | {"data": {"values": figure.data}} for figure in figures]
    inner = [
        {key: value for key, value in part.items() if key not in ("$schema", "datasets")}
        for part in parts
    ]
    return alt.VConcatChart.from_dict({"vconcat": inner, "config": ON_WHITE})


def file_format(path: Path) -> str:
    """The format that a file's suffix names, or a refusal."""
    suffix = path.suffix.removeprefix(".")
    if suffix not in FORMATS:
        sentence = f"--out {path}: a figure is written as .{', .'.join(FORMATS)}"
        raise Refusal(
            "figure.format", sentence, key="--out", value=str(path), formats=list(FORMATS)
        )
    return suffix


def save(figure: Chart, path: Path) -> None:
    """Write a figure on white, in the format of the suffix; the file is complete or absent."""
    suffix = file_format(path)
    scale = {"scale": PNG_SCALE} if suffix == "png" else {}
    content: str | bytes = getattr(vl_convert, f"vegalite_to_{suffix}")(
        figure.spec, config=ON_WHITE, **scale
    )
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
