"""The cells of CSV and TSV, read to the letter: a stray quote swallows the lines up to the next
one, which no reader of tables says.
"""

import csv
import io
import sys
from collections.abc import Sequence
from typing import NamedTuple

from multicard.records.separated_text import SeparatedText


class CellLine(NamedTuple):
    """The cells of a row, and the line of the file on which it begins."""

    line: int
    cells: list[str]


class OpenQuoteError(ValueError):
    """A quote that does not end its cell, or that ends it rows later.

    line: on which the row begins. reason: what is wrong with it.
    """

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(f"line {line}: {reason}")
        self.line = line
        self.reason = reason


class SeparatedCells(NamedTuple):
    """The rows of a table with its header. are_quotes_letters: as in most TSV."""

    rows: list[CellLine]
    are_quotes_letters: bool = False


def separated_cells(found: SeparatedText) -> SeparatedCells:
    """The rows of a table. The quotes of a table with tabs are those of CSV, or plain letters.

    Raises:
        OpenQuoteError: a quote would swallow rows, or may.
    """
    if found.delimiter != "\t":
        return SeparatedCells(_quoted(found))
    plain = _plain(found)
    try:
        quoted = _quoted(found)
    except OpenQuoteError:
        if not _is_even(plain):
            raise
        return SeparatedCells(plain, are_quotes_letters=True)
    across = next((row for row in quoted if any("\n" in cell for cell in row.cells)), None)
    if across is not None and _is_even(plain):
        raise OpenQuoteError(across.line, "a quoted cell holds lines that are rows by themselves")
    return SeparatedCells(quoted)


def _plain(found: SeparatedText) -> list[CellLine]:
    """Lines whose quotes are letters."""
    lines = found.text.replace("\r\n", "\n").split("\n")
    return [
        CellLine(number, line.split(found.delimiter))
        for number, line in enumerate(lines, start=found.lines_before + 1)
        if line
    ]


def _is_even(rows: Sequence[CellLine]) -> bool:
    return len({len(row.cells) for row in rows}) == 1


def _quoted(found: SeparatedText) -> list[CellLine]:
    csv.field_size_limit(sys.maxsize)  # of 128 KiB: a conversation may be longer
    reader = csv.reader(io.StringIO(found.text, newline=""), delimiter=found.delimiter, strict=True)
    rows = list[CellLine]()
    while True:
        line = found.lines_before + reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise OpenQuoteError(line, str(error)) from None
        if cells is None:
            return rows
        if cells:
            rows.append(CellLine(line, cells))
