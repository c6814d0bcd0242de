"""Read the rows of CSV and TSV strictly: a stray quote would swallow lines up to the next one."""

import csv
import io
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from multicard.messages import Refusal
from multicard.records.separated_text import decoded, separated_text


class CellLine(NamedTuple):
    """The cells of a row, and the line of the file on which it begins."""

    line: int
    cells: list[str]


def read_csv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of CSV, and nothing ignored.

    The file may name its delimiter. Otherwise it is the one that the header has most often.
    """
    separated = separated_text(content)
    if separated.delimiter == "\t":
        return _rows_of_tabs(separated.text, separated.lines_before), {}
    return _rows_by_header(
        _split_quoted(separated.text, separated.delimiter, separated.lines_before),
        separated.delimiter,
    ), {}


def read_tsv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of TSV, and nothing ignored. Its quotes may be CSV's, or plain letters.

    Raises:
        Refusal: the file can be read in both ways, with different rows.
    """
    return _rows_of_tabs(decoded(content), 0), {}


def _rows_of_tabs(text: str, lines_before: int) -> list[dict[str, str | None]]:
    plain_lines = _split_at_tabs(text, lines_before)
    try:
        quoted_lines = _split_quoted(text, "\t", lines_before)
    except Refusal:
        if not _has_equal_lengths(plain_lines):
            raise
        return _rows_by_header(plain_lines, "\t")
    row_across_lines = next(
        (row for row in quoted_lines if any("\n" in cell for cell in row.cells)), None
    )
    if row_across_lines is not None and _has_equal_lengths(plain_lines):
        raise _open_quote_refusal(
            row_across_lines.line, "a quoted cell holds lines that are rows by themselves"
        )
    return _rows_by_header(quoted_lines, "\t")


def _split_at_tabs(text: str, lines_before: int) -> list[CellLine]:
    """Split lines at tabs. Quotes are plain letters."""
    lines = text.replace("\r\n", "\n").split("\n")
    return [
        CellLine(number, line.split("\t"))
        for number, line in enumerate(lines, start=lines_before + 1)
        if line
    ]


def _has_equal_lengths(rows: Sequence[CellLine]) -> bool:
    return len({len(row.cells) for row in rows}) == 1


def _split_quoted(text: str, delimiter: str, lines_before: int) -> list[CellLine]:
    csv.field_size_limit(sys.maxsize)  # A conversation may be longer than the default of 128 KiB.
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows = list[CellLine]()
    while True:
        line = lines_before + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise _open_quote_refusal(line, str(error)) from None
        if cells is None:
            return rows
        if cells:
            rows.append(CellLine(line, cells))


def _open_quote_refusal(line: int, reason: str) -> Refusal:
    return Refusal(
        "llm.csv-quotes",
        f"the row of line {line} has a quote that does not end its cell ({reason}); "
        "quote the cell and double its own quotes, or give JSON lines",
        line=line,
        reason=reason,
    )


def _rows_by_header(lines: Sequence[CellLine], delimiter: str) -> list[dict[str, str | None]]:
    """Return the rows by the names of the header.

    Columns without a name are left out if they are empty.
    """
    if not lines:
        return []
    names = lines[0].cells
    for number, row in enumerate(lines[1:], start=1):
        if len(row.cells) > len(names):
            raise Refusal(
                "llm.csv-cells",
                f"row {number} has more cells than the header has columns; quote cells that hold"
                f" {delimiter!r}",
                row=number,
                line=row.line,
            )
    repeated_names = sorted({name for name in names if names.count(name) > 1})
    if "" in repeated_names:
        unnamed_places = [place for place, name in enumerate(names) if not name]
        if not any(_has_cells(row, unnamed_places) for row in lines[1:]):
            repeated_names.remove("")
    if repeated_names:
        raise Refusal(
            "llm.csv-header",
            f"line {lines[0].line}: the header has the column {repeated_names[0]!r} twice; name"
            " each once",
            line=lines[0].line,
            column=repeated_names[0],
        )
    rows = list[dict[str, str | None]]()
    for row in lines[1:]:
        cells = [*row.cells, *[None] * (len(names) - len(row.cells))]
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


def _has_cells(row: CellLine, places: Sequence[int]) -> bool:
    """Tell whether one of a row's cells at these places is filled."""
    return any(row.cells[place] for place in places if place < len(row.cells))
