"""The picture of a dashboard, from its specification: each section with its panels, each report with its figure.

SVG with the colours of the reader's light or dark theme.
"""

import textwrap
from collections.abc import Sequence
from typing import Any
from xml.sax.saxutils import escape

from analysis.dashboard.specification import WORKSPACE, View, sections_of

WIDTH, MARGIN, GAP = 960, 16, 12  # pixels
PANELS_ACROSS, REPORTS_ACROSS, CARD_HEIGHT, HEADING_HEIGHT = 3, 2, 66, 34
LINE_HEIGHT, GLYPH_WIDTH = 17, 60
LETTER = 7.2  # pixels of the widest usual letter mix at 13 pixels
STYLE = """
:root{--page:#ffffff;--card:#f6f8fa;--edge:#d0d7de;--text:#1f2328;--quiet:#59636e;--one:#0969da;--two:#1a7f37;--three:#bc4c00}
@media(prefers-color-scheme:dark){:root{--page:#0d1117;--card:#161b22;--edge:#3d444d;--text:#f0f6fc;--quiet:#9198a1;--one:#4493f8;--two:#3fb950;--three:#db6d28}}
.page{fill:var(--page)}.card{fill:var(--card);stroke:var(--edge)}.axis{stroke:var(--edge);fill:none}
text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-size:13px;fill:var(--text)}
.heading{font-size:16px;font-weight:600}.quiet{fill:var(--quiet)}
.one{--ink:var(--one)}.two{--ink:var(--two)}.three{--ink:var(--three)}
.line{fill:none;stroke:var(--ink);stroke-width:1.8}.bar,.dot{fill:var(--ink)}
""".strip()


def picture(views: Sequence[View]) -> str:
    """The SVG file."""
    parts: list[str] = []
    y = MARGIN
    for view in views:
        for section in sections_of(view) if view.type == WORKSPACE else []:
            count = len(section["panels"])
            parts.append(_heading(y, section["name"], f"{count} panels" + ", open at first" * section["isOpen"]))
            y += HEADING_HEIGHT
            cards = [(_glyph(panel["viewType"]), _title(panel)) for panel in section["panels"]]
            parts += _cards(y, cards, PANELS_ACROSS)
            y += _height(len(cards), PANELS_ACROSS)
    reports = [view for view in views if view.type != WORKSPACE]
    if reports:
        parts.append(_heading(y, "Reports", "one for each experiment of the papers"))
        y += HEADING_HEIGHT
        parts += _cards(y, [(_glyph(_first_panel(view)), view.title) for view in reports], REPORTS_ACROSS)
        y += _height(len(reports), REPORTS_ACROSS)
    label = escape(f"Sections and reports of the dashboard {views[0].title}", {'"': "&quot;"})
    start = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" role="img" aria-label="{label}">'
    page = f'<rect class="page" width="{WIDTH}" height="{y}"/>'
    return "\n".join([start, f"<style>{STYLE}</style>", page, *parts, "</svg>"]) + "\n"


def _heading(y: int, text: str, quiet: str) -> str:
    words = f'<tspan class="heading">{escape(text)}</tspan><tspan class="quiet" dx="10">{escape(quiet)}</tspan>'
    return f'<text x="{MARGIN}" y="{y + 21}">{words}</text>'


def _height(count: int, across: int) -> int:
    return -(-count // across) * (CARD_HEIGHT + GAP) + GAP


def _cards(y: int, cards: Sequence[tuple[str, str]], across: int) -> list[str]:
    """Cards in rows, each with a glyph and up to three lines of text."""
    drawn = []
    card_width = (WIDTH - 2 * MARGIN - (across - 1) * GAP) // across
    for index, (glyph, text) in enumerate(cards):
        row, column = divmod(index, across)
        left, top = MARGIN + column * (card_width + GAP), y + row * (CARD_HEIGHT + GAP)
        lines = textwrap.wrap(text, int((card_width - GLYPH_WIDTH - 2 * GAP) / LETTER), max_lines=3, placeholder=" …")
        first = CARD_HEIGHT / 2 - LINE_HEIGHT * (len(lines) - 1) / 2 + 5
        spans = [
            f'<text x="{GLYPH_WIDTH + GAP}" y="{first + LINE_HEIGHT * number:g}">{escape(line)}</text>'
            for number, line in enumerate(lines)
        ]
        box = f'<rect class="card" width="{card_width}" height="{CARD_HEIGHT}" rx="6"/>'
        whole = f"<title>{escape(text)}</title>"
        drawn.append(f'<g transform="translate({left},{top})">{whole}{box}{glyph}{"".join(spans)}</g>')
    return drawn


def _title(panel: dict[str, Any]) -> str:
    config = panel["config"]
    if panel["viewType"] == "Parameter Importance":
        return f"Which setting matters for {config['targetKey']}"
    if panel["viewType"] == "Weave":
        return f"Table {config['panel2Config']['exp']['fromOp']['inputs']['key']['val']}"
    return config["chartTitle"]


def _first_panel(view: View) -> str:
    """The kind of panel that a report shows first."""
    grids = (block["metadata"] for block in view.spec["blocks"] if block["type"] == "panel-grid")
    return next(grids)["panelBankSectionConfig"]["panels"][0]["viewType"]


def _glyph(kind: str) -> str:
    """A small chart of a kind of panel, in a box of 48 by 40 pixels at the left of a card."""
    axis = '<path class="axis" d="M0,0V40H48"/>'
    return f'<g transform="translate({GAP},{(CARD_HEIGHT - 40) // 2})">{axis}{GLYPHS.get(kind, "")}</g>'


def _bars(*widths: int) -> str:
    colours = ("one", "two", "three")
    return "".join(
        f'<rect class="bar {colours[index % 3]}" x="1" y="{4 + 12 * index}" width="{width}" height="8"/>'
        for index, width in enumerate(widths)
    )


def _dots(colour: str, *places: tuple[int, int]) -> str:
    return "".join(f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="3"/>' for x, y in places)


def _path(colour: str, way: str) -> str:
    return f'<path class="line {colour}" d="{way}"/>'


_CELLS = [(x, y) for y in (2, 13, 24) for x in (3, 18, 33)]
_GRID = "".join(f'<rect class="line one" x="{x}" y="{y}" width="14" height="8"/>' for x, y in _CELLS)
GLYPHS = {
    "Run History Line Plot": _path("one", "M2,6C12,30 28,32 46,34") + _path("two", "M2,2C14,18 28,24 46,26"),
    "Bar Chart": _bars(22, 44, 31),
    "Scatter Plot": _dots("one", (8, 8), (18, 18), (38, 30)) + _dots("two", (14, 6), (26, 14), (42, 20)),
    "Parallel Coordinates Plot": '<path class="axis" d="M16,0V40M32,0V40M47,0V40"/>'
    + _path("one", "M1,8L16,30L32,12L47,34")
    + _path("three", "M1,30L16,10L32,26L47,6"),
    "Parameter Importance": _bars(44, 26, 10),
    "Weave": _GRID,
}
