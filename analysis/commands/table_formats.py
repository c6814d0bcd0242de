"""The formats of `table`: text for a terminal, Markdown, CSV and LaTeX."""

import textwrap
from collections.abc import Callable, Sequence

from analysis.commands.table import Table
from multicard.records import text_table
from multicard.records.text_table import escape_latex, escape_markdown


def _text(table: Table) -> str:
    width = text_table.terminal_width()
    lines = text_table.text(table.headings, table.texts, width)
    notes = [textwrap.fill(note, width, subsequent_indent="  ") for note in table.notes] if width else table.notes
    return "\n".join([table.title, "", *lines, "", *notes])


def _markdown(table: Table) -> str:
    notes = [f"- {escape_markdown(note)}" for note in table.notes]
    content = text_table.markdown(table.headings, table.texts)
    return "\n".join([f"**{escape_markdown(table.title)}**", "", content, "", *notes])


def _latex(table: Table) -> str:
    """A `table` for the package booktabs."""
    notes = [rf"{escape_latex(note)}\par" for note in table.notes]
    caption = rf"\caption{{{escape_latex(table.title)}}}"
    content = text_table.latex(table.headings, table.texts)
    lines = [r"\begin{table}", r"\centering", caption, content, r"\par\footnotesize", *notes, r"\end{table}"]
    return "\n".join(lines)


def to_csv(tables: Sequence[Table]) -> str:
    """All panels in one file, with a first column `panel` where there are several; numbers in full."""
    names = dict.fromkeys(name for table in tables for row in table.rows for name in row)
    filled = [name for name in names if any(row.get(name) is not None for table in tables for row in table.rows)]
    several = len(tables) > 1
    rows = [[*([table.title] * several), *(row.get(name) for name in filled)] for table in tables for row in table.rows]
    return text_table.to_csv([*(["panel"] * several), *filled], rows).rstrip("\n")


def _joined(render: Callable[[Table], str]) -> Callable[[Sequence[Table]], str]:
    return lambda tables: "\n\n".join(map(render, tables))


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": _joined(_text),
    "markdown": _joined(_markdown),
    "csv": to_csv,
    "latex": _joined(_latex),
}
