"""A table as Markdown, CSV or LaTeX."""

import csv
import io
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from analysis.commands.table import Table
from multicard.records import text_table

LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def text(tables: Sequence[Table]) -> str:
    width = text_table.terminal_width()
    blocks = [[one.title, "", *text_table.text(one.headings, _texts(one), width), "", *one.notes] for one in tables]
    return "\n\n".join("\n".join(block) for block in blocks)


def markdown(tables: Sequence[Table]) -> str:
    return "\n\n".join(map(_markdown, tables))


def to_csv(tables: Sequence[Table]) -> str:
    """All panels in one, apart by a first column where there are several: figures in full, in the columns' units."""
    several = len(tables) > 1
    names = list(dict.fromkeys(name for one in tables for row in one.rows for name in row))
    kept = [name for name in names if any(row.get(name) is not None for one in tables for row in one.rows)]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([*(["panel"] * several), *kept])
    for one in tables:
        writer.writerows([*([one.title] * several), *(row.get(name) for name in kept)] for row in one.rows)
    return file.getvalue().rstrip("\n")


def latex(tables: Sequence[Table]) -> str:
    """A `table` each, for the package booktabs."""
    return "\n\n".join(map(_latex, tables))


FORMATS: dict[str, Callable[[Sequence[Table]], str]] = {
    "text": text,
    "markdown": markdown,
    "csv": to_csv,
    "latex": latex,
}


def write(path: Path, content: str) -> None:
    """The whole file or none of it."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(content + "\n")
    part.replace(path)


def _texts(table: Table) -> list[list[str]]:
    return [[row[name] for name in table.headings] for row in table.texts]


def _right(table: Table) -> list[bool]:
    """Which columns are of figures, and so stand to the right."""
    rows = _texts(table)
    return [all(row[i] == "-" or text_table.FIGURE.match(row[i]) for row in rows) for i in range(len(table.headings))]


def _markdown(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(re.sub(r"([|<>*_`\[\]\\])", r"\\\1", cell) for cell in cells) + " |"

    rule = "| " + " | ".join("---:" if right else "---" for right in _right(table)) + " |"
    body = [line(table.headings), rule, *map(line, _texts(table))]
    return "\n".join([f"**{table.title}**", "", *body, "", *(f"- {note}" for note in table.notes)])


def _latex(table: Table) -> str:
    def line(cells: Sequence[str]) -> str:
        return " & ".join(map(_escaped, cells)) + r" \\"

    columns = "".join("r" if right else "l" for right in _right(table))
    notes = [rf"  {_escaped(note)}\par" for note in table.notes]
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            rf"  \caption{{{_escaped(table.title)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            "    " + line(table.headings),
            r"    \midrule",
            *("    " + line(row) for row in _texts(table)),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\footnotesize",
            *notes,
            r"\end{table}",
        ]
    )


def _escaped(cell: str) -> str:
    plain = "".join(LATEX.get(sign, sign) for sign in cell)
    return plain.replace("±", r"$\pm$").replace("÷", r"$\div$")
