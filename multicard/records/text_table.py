"""Formats tables as text for a terminal, Markdown, LaTeX and CSV, for all commands.

The caller formats the cells (`figures.text`). As they may come from a run, this module cleans or
escapes them. An alignment is a string with one letter per column, "l" or "r". By default, columns
of figures are aligned to the right.
"""

import csv
import io
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from html import escape
from itertools import chain, zip_longest
from textwrap import TextWrapper, wrap
from typing import Any, NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text
from tabulate import LATEX_ESCAPE_RULES, tabulate

from multicard.messages import Message

GAP = 2  # Spaces between two columns.
LEAST_WIDTH = 8  # Columns of text are not narrowed below this.
ELLIPSIS = "…"
MOST_ROWS = 200  # A notebook shows at most this many rows of a table.
UNITS = r"(s|ms|us|%|[kMGT]?B|x|[kMG]?J)"
UNIT = rf"( ?{UNITS})?"
BEFORE_UNIT = re.compile(rf"(?<=\d) (?={UNITS}(?!\w))")
UNBREAKABLE_SPACE = "\ue000"  # Stands for a space at which no line may be broken.
TIME = r"\d+:\d\d:\d\d"
NUMBER = rf"[-+±~]?[\d.,]+{UNIT}( ± [\d.,]+{UNIT})?( \((\d+%|[^()]+ to [^()]+)\)\??)?"
FIGURE = re.compile(rf"{NUMBER}|{TIME}( to {TIME})?( ago)?|\d+ of \d+")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


class TextTable(NamedTuple):
    """A table of text: headings and rows, with lines above and below.

    titles: the headings in words, for papers; empty if they are the headings.
    label: the name by which a paper refers to the table; empty if it has none.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    above: Sequence[str] = ()
    below: Sequence[str] = ()
    titles: Sequence[str] = ()
    label: str = ""

    def lines(self, width: int | None) -> list[str]:
        return [
            *folded(self.above, width),
            *text(self.headings, self.rows, width),
            *folded(self.below, width),
        ]

    def html(self) -> str:
        """Format the first MOST_ROWS rows for a notebook; all text is escaped."""
        below = [*self.below]
        hidden_rows = len(self.rows) - MOST_ROWS
        if hidden_rows > 0:
            below.insert(
                0, Message("table.more-rows", f"{hidden_rows:,} more rows", rows=hidden_rows)
            )
        table = self._replace(rows=self.rows[:MOST_ROWS])._tabulated(clean, "html")
        # Notebooks would otherwise align cells to the right.
        table = re.sub(r"<(t[dh])>", r'<\1 style="text-align: left;">', table)
        return "\n".join([*paragraphs(self.above), table, *paragraphs(below)])

    def markdown(self) -> str:
        """Format a pipe table, with the first line above it in bold and the lines below it as a
        list; all text is escaped.
        """
        title, *above = [*map(escape_markdown, filter(None, self.above))] or [""]
        table = self._tabulated(
            lambda cell: "<br>".join(map(escape_markdown, cell.split("\n"))), "pipe"
        )
        below = "\n".join(f"- {escape_markdown(line)}" for line in self.below if line)
        return "\n\n".join(filter(None, [f"**{title}**" if title else "", *above, table, below]))

    def latex(self) -> str:
        """Format a `table` for the package booktabs, with the lines above it as its caption."""
        caption = escape_latex(" ".join(filter(None, self.above)))
        start = [r"\begin{table}", r"\centering"]
        if caption:
            start.append(rf"\caption{{{caption}}}")
        if self.label:
            start.append(rf"\label{{tab:{self.label}}}")
        in_words = self._replace(headings=self.titles or self.headings)
        table = _latex_signs(in_words._tabulated(clean, "latex_booktabs"))
        below = [
            r"\par\footnotesize",
            *(rf"{escape_latex(line)}\par" for line in self.below if line),
        ]
        return "\n".join([*start, table, *below, r"\end{table}"])

    def _tabulated(self, safe: Callable[[str], str], form: str) -> str:
        head, *body = [list(map(safe, row)) for row in (self.headings, *self.rows)]
        sides = (
            ["right" if side == "r" else "left" for side in alignment(self.headings, self.rows)]
            if body
            else None
        )
        return tabulate(
            body, head, form, colalign=sides, disable_numparse=True, preserve_whitespace=True
        )


def paragraphs(lines: Sequence[str]) -> list[str]:
    """Return lines as HTML paragraphs; all text is escaped."""
    return [f"<p>{escape(clean(line))}</p>" for line in lines if line]


def folded(lines: Sequence[str], width: int | None, indent: str = "  ") -> list[str]:
    """Wrap lines at whole words so that they fit into `width` cells; continuations are indented.

    If `width` is None, the lines are not wrapped.
    """
    if width is None:
        return [*lines]
    fill = TextWrapper(
        width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    parts = []
    for line in lines:
        parts.extend(fill.wrap(BEFORE_UNIT.sub(UNBREAKABLE_SPACE, line)) or [line])
    return [part.replace(UNBREAKABLE_SPACE, " ") for part in parts]


def text(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    align: str | None = None,
    wrap: bool = False,
    least_width: int = LEAST_WIDTH,
) -> list[str]:
    """Format rows as lines of aligned columns.

    A cell may have several lines. A row of empty cells is a blank line.

    Args:
        width: the width in cells; None for any width. Lines that are too long are shortened in
            three steps. First, headings of several words are wrapped. Then the widest columns of
            text are cut; figures never are. Then the remaining columns follow in a second block,
            which repeats the first columns, as many as distinguish the rows.
        wrap: wrap columns that are too wide instead of cutting them.
        least_width: columns of text are not narrower than this, or than their heading.
    """
    align = align or alignment(headings, rows)
    cells = [
        [[clean(line) for line in cell.split("\n")] for cell in row] for row in (headings, *rows)
    ]
    if width is not None and _line_width(_narrowed(cells, align, None, least_width)) > width:
        cells[0] = [_in_lines(*column) for column in zip(*cells, strict=True)]
    sizes = _narrowed(cells, align, width, least_width)
    if width is not None and len(sizes) > 2 and _line_width(sizes) > width:
        names = _naming_columns(rows, sizes, width)
        name = max(sizes[0], min(width // 2, max(map(_cell_width, (row[0] for row in cells)))))
        name_sizes = [name] if names == 1 else sizes[:names]
        fitting_columns = 0
        for end in range(names, len(sizes)):
            if _line_width([*name_sizes, *sizes[names:end]]) <= width:
                fitting_columns = end
        first_block = max(names + 1, fitting_columns)
        printed = []
        for places in (range(first_block), (*range(names), *range(first_block, len(sizes)))):
            head, *body = [[row[place] for place in places] for row in (headings, *rows)]
            letters = "".join(align[place] for place in places)
            printed += ["", *text(head, body, width, letters, wrap, least_width)]
        return printed[1:]
    printed = []
    for row in cells:
        columns = []
        for cell, size in zip(row, sizes, strict=True):
            by_line = (_folded(line, size, wrap) for line in cell)
            columns.append(list(chain.from_iterable(by_line)))
        for parts in zip_longest(*columns, fillvalue=""):
            padded = (
                _padded(part, size, side)
                for part, size, side in zip(parts, sizes, align, strict=True)
            )
            printed.append((" " * GAP).join(padded).rstrip())
    return printed


def to_csv(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Format rows as CSV with unrounded values; None is an empty cell."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([headings, *rows])
    return file.getvalue()


def alignment(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align columns of figures ("-" and empty cells included) right, and others left."""
    columns = zip(*rows, strict=True) if rows else [("",)] * len(headings)
    return "".join("r" if _has_figures_only(cells) else "l" for cells in columns)


def _has_figures_only(cells: Sequence[str]) -> bool:
    if not any(cells):
        return False
    return all(not cell or cell == "-" or FIGURE.fullmatch(cell) for cell in cells)


def least_widths(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """Return the width of each column in cells if its text is cut as far as it may be."""
    cells = [[cell.split("\n") for cell in row] for row in (headings, *rows)]
    return _least_widths(cells, alignment(headings, rows), LEAST_WIDTH)


def terminal_width() -> int | None:
    """Return the terminal's width in cells; None if the output goes elsewhere, so that nothing is
    cut.
    """
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def clean(content: str) -> str:
    """Return `content` on one line, without characters that would control a terminal (escapes,
    bidirectional overrides).
    """
    return CONTROL.sub(lambda match: " " if match[0] in "\n\t\r" else "�", content)


def cut(line: str, width: int | None) -> str:
    """Shorten a line to at most `width` cells; None: any width."""
    return (
        line
        if width is None or cell_len(line) <= width
        else set_cell_size(line, width - 1) + ELLIPSIS
    )


def capital(content: str) -> str:
    """Return `content` with its first letter in upper case."""
    return content[:1].upper() + content[1:]


def first_few(texts: Sequence[str], most: int, separator: str = ", ") -> str:
    """Join the first `most` texts, as in "a, b and 3 more"."""
    rest = f" and {len(texts) - most} more" if len(texts) > most else ""
    return separator.join(texts[:most]) + rest


def part_of(part: int, whole: int) -> str:
    """Format how many of some runs count, as in "2 of 3", or "3" if all do."""
    return str(whole) if part == whole else f"{part} of {whole}"


def escape_markdown(content: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|!~&])", r"\\\1", clean(content))


def escape_latex(content: str) -> str:
    """Escape a text; commands in backticks, which LaTeX reads as quotes, are in typewriter type."""
    escaped = "".join(LATEX_ESCAPE_RULES.get(sign, sign) for sign in clean(content))
    return _latex_signs(re.sub("`([^`]*)`", r"\\texttt{\1}", escaped))


def _latex_signs(content: str) -> str:
    return content.replace("±", r"$\pm$").replace("÷", r"$\div$")


def _in_lines(heading: list[str], *below: list[str]) -> list[str]:
    """Wrap a heading so that it is no wider than the cells below it, as far as its words allow."""
    widest = max(map(_cell_width, below), default=_cell_width(heading))
    return (
        wrap(" ".join(heading), max(1, widest), break_long_words=False, break_on_hyphens=False)
        or heading
    )


def _least_widths(cells: Sequence[Sequence[list[str]]], align: str, least_width: int) -> list[int]:
    """Return the least width of each column: the full width of figures, and the width to which text
    may be cut. The first row of `cells` holds the headings.
    """
    least = []
    for column, side in zip(zip(*cells, strict=True), align, strict=True):
        size = max(map(_cell_width, column))
        least.append(size if side == "r" else min(size, max(least_width, _cell_width(column[0]))))
    return least


def _naming_columns(rows: Sequence[Sequence[str]], sizes: Sequence[int], width: int) -> int:
    """Return how many of the first columns distinguish the rows: 1 if that takes too much room."""
    for names in range(1, len(sizes) - 1):
        if names > 1 and _line_width(sizes[:names]) > width // 2:
            break
        if len({tuple(row[:names]) for row in rows}) == len(rows):
            return names
    return 1


def _line_width(sizes: Sequence[int]) -> int:
    return sum(sizes) + GAP * (len(sizes) - 1)


def _cell_width(lines: list[str]) -> int:
    return max(map(cell_len, lines))


def _narrowed(
    cells: Sequence[Sequence[list[str]]], align: str, width: int | None, least_width: int
) -> list[int]:
    """Return the width of each column. If lines are wider than `width`, the widest columns of text
    are narrowed until they fit, or until no column can be narrowed.
    """
    sizes = [max(map(_cell_width, column)) for column in zip(*cells, strict=True)]
    if width is None:
        return sizes
    least = _least_widths(cells, align, least_width)
    available = width - GAP * (len(sizes) - 1)
    sizes = [
        min(size, max(available, narrowest)) for size, narrowest in zip(sizes, least, strict=True)
    ]
    while sum(sizes) > available and (
        narrowable := [i for i, side in enumerate(align) if side == "l" and sizes[i] > least[i]]
    ):
        sizes[max(narrowable, key=lambda i: sizes[i])] -= 1
    return sizes


def _folded(line: str, size: int, wrap: bool) -> list[str]:
    """Wrap a line to the width of its column if `wrap`, and cut it otherwise."""
    if not wrap or cell_len(line) <= size:
        return [cut(line, size)]
    unbreakable = Text(BEFORE_UNIT.sub(UNBREAKABLE_SPACE, line))
    return [
        part.plain.replace(UNBREAKABLE_SPACE, " ")
        for part in unbreakable.wrap(Console(width=size), size)
    ]


def _padded(part: str, size: int, side: str) -> str:
    gap = " " * (size - cell_len(part))
    return gap + part if side == "r" else part + gap


def in_bytes(count: float | None) -> str:
    """Format bytes for a person, in powers of 1000."""
    return "-" if count is None else _in_thousands(count, ("B", "kB", "MB", "GB", "TB"))


def in_joules(count: float) -> str:
    """Format joules for a person."""
    return _in_thousands(count, ("J", "kJ", "MJ", "GJ"))


def _in_thousands(count: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if count < 999.5:  # From 999.5 on, .3g would write 1e+03.
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} {units[-1]}"
