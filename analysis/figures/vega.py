"""Build Vega-Lite specifications: a chart with title and notes, two themes, and image files.

A specification names no colors, only scales and styles. `theme` resolves them, so a page can show a
figure light or dark. Series differ in shape or dash, and bars in lightness, so that they can be
distinguished in print.
"""

import re
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

Spec = dict[str, Any]  # A Vega-Lite specification, or a part of one.
FORMATS = ("svg", "pdf", "png")
PNG_SCALE = 2.0  # Pixels per point.
LETTER_POINTS = 5.6  # The mean width of a letter in the lines above and below a chart.
DATA_NAME = "rows"  # The name of every chart's data set.
FAINT = 0.55  # The opacity of marks that matter less. They are still seen, also on a dark page.
PATH_SIGNS = re.compile(r"[\\.\[\]]")  # They lead into an object in the name of a field.

# The colors of Okabe and Ito (2008). Yellow and black are left out, because a white or a dark page
# would swallow them; Tol's wine is added. The first four also differ in lightness, so that bars can
# be distinguished in grey print.
SERIES_COLORS = {
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
INK_COLORS = {  # The colors of text, notes, grid and page.
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

    name: the name of its file.
    chart: the Vega-Lite specification without data and colors.
    rows: the data shown, in base units (seconds, bytes, shares), and what is drawn (`charts`).
    above: lines below the title: a short summary, then what all runs have in common.
    below: lines below the chart that say how to read it.
    limits: the limits of its runs (`multicard.records.limits`).
    width: the width of the chart in points. Lines of text are hardly wider.
    one_at_a_time: a page shows one of its charts at a time, and the reader chooses which.
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
        """The signs of the limits of its runs."""
        return limits.signs(self.limits)

    @property
    def meanings(self) -> list[tuple[str, str]]:
        """The signs at its title and points with their meanings.

        Lines about runs that are left out follow, without a sign.
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
        """The lines around the chart except the first one, for a page to unfold."""
        return [*self.above[1:], *self.below]

    @property
    def data(self) -> list[dict[str, Any]]:
        return [
            {key: clean(value) if isinstance(value, str) else value for key, value in row.items()}
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
            "data": {"name": DATA_NAME},
            "datasets": {DATA_NAME: self.data},
            "vconcat": [self.chart | ({"title": notes | {"anchor": "start"}} if below else {})],
            "description": f"{self.title}. {self.caption}",
        }


def theme(name: str) -> Spec:
    """Return Vega-Lite's configuration for a "light" or "dark" page; the background is clear."""
    text, notes, grid, page = INK_COLORS[name]
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
        "range": {"category": list(SERIES_COLORS[name])},
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
    """Wrap lines to the width of the figure, because Vega does not wrap text."""
    parts = []
    for line in lines:
        parts.extend(textwrap.wrap(clean(line), letters, break_on_hyphens=False) or [""])
    return parts


def layered(layers: Sequence[alt.Chart], width: int, height: int) -> Spec:
    """Stack layers in one chart.

    Only marks and encodings are built with Altair. It copies a whole chart at each step, which
    would take most of the time.
    """
    marks = [layer.to_dict(validate=False, context={"top_level": False}) for layer in layers]
    for mark in marks:
        mark.pop("data", None)  # Altair writes "empty" if a layer has no data of its own.
    return {"layer": marks, "width": width, "height": height}


def escaped(column: str) -> str:
    """Escape a column's name for Vega-Lite, in which dots and brackets lead into an object."""
    return PATH_SIGNS.sub(r"\\\g<0>", column)


def numbered(name: str, index: int) -> str:
    """Return the name of a figure among several of that name: "losses", "losses-2"."""
    return f"{name}-{index + 1}" if index else name


def cycled(domain: Sequence[str], values: Sequence[Any]) -> alt.Scale:
    """Return a scale that repeats `values` if the domain is longer."""
    return alt.Scale(
        domain=list(domain), range=[values[index % len(values)] for index in range(len(domain))]
    )


def chart(figures: Sequence[Chart]) -> alt.VConcatChart:
    """Combine figures below one another on white, as a chart that Altair shows in a notebook."""
    parts = [figure.spec | {"data": {"values": figure.data}} for figure in figures]
    inner = [
        {key: value for key, value in part.items() if key not in ("$schema", "datasets")}
        for part in parts
    ]
    return alt.VConcatChart.from_dict({"vconcat": inner, "config": ON_WHITE})


def file_format(path: Path) -> str:
    """Return the format that a file's suffix names.

    Raises:
        Refusal: figures cannot be written in that format.
    """
    suffix = path.suffix.removeprefix(".")
    if suffix not in FORMATS:
        sentence = f"--out {path}: a figure is written as .{', .'.join(FORMATS)}"
        raise Refusal(
            "figure.format", sentence, key="--out", value=str(path), formats=list(FORMATS)
        )
    return suffix


def save(figure: Chart, path: Path) -> None:
    """Write a figure on white, in the format of the suffix. The file is complete or absent."""
    suffix = file_format(path)
    scale = {"scale": PNG_SCALE} if suffix == "png" else {}
    content: str | bytes = getattr(vl_convert, f"vegalite_to_{suffix}")(
        figure.spec, config=ON_WHITE, **scale
    )
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
