"""Read the rows of CSV and TSV strictly: a stray quote would swallow lines up to the next one."""

from collections.abc import Sequence
from typing import Any

from multicard.messages import Refusal
from multicard.records.separated_cells import CellLine, OpenQuoteError, separated_cells
from multicard.records.separated_text import SeparatedText, decoded, separated_text


def read_csv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of CSV, and nothing ignored.

    The file may name its delimiter. Otherwise it is the one that the header has most often.
    """
    return _read(separated_text(content)), {}


def read_tsv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """Return the rows of TSV, and nothing ignored. Its quotes may be CSV's, or plain letters.

    Raises:
        Refusal: the file can be read in both ways, with different rows.
    """
    return _read(SeparatedText(decoded(content), "\t", 0)), {}


def _read(text: SeparatedText) -> list[dict[str, str | None]]:
    try:
        return _rows_by_header(separated_cells(text).rows, text.delimiter)
    except OpenQuoteError as error:
        raise Refusal(
            "llm.csv-quotes",
            f"the row of line {error.line} has a quote that does not end its cell"
            f" ({error.reason}); quote the cell and double its own quotes, or give JSON lines",
            line=error.line,
            reason=error.reason,
        ) from None


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
