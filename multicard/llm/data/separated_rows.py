"""The rows of CSV and TSV."""

from collections.abc import Sequence
from typing import Any

from multicard.messages import Refusal
from multicard.records.separated_cells import CellLine, OpenQuoteError, separated_cells
from multicard.records.separated_text import SeparatedText, decoded, separated_text


def read_csv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """The rows of CSV, by the delimiter that it names or that its header has most often,
    and nothing ignored.
    """
    return _read(separated_text(content)), {}


def read_tsv(content: bytes) -> tuple[list[Any], dict[str, int]]:
    """The rows of TSV, and nothing that is ignored. Its quotes are those of CSV, or plain letters.

    Raises:
        Refusal: the file can be read in both ways, which give different rows.
    """
    return _read(SeparatedText(decoded(content), "\t", 0)), {}


def _read(found: SeparatedText) -> list[dict[str, str | None]]:
    try:
        return _rows(separated_cells(found).rows, found.delimiter)
    except OpenQuoteError as error:
        raise Refusal(
            "llm.csv-quotes",
            f"the row of line {error.line} has a quote that does not end its cell"
            f" ({error.reason}); quote the cell and double its own quotes, or give JSON lines",
            line=error.line,
            reason=error.reason,
        ) from None


def _rows(found: Sequence[CellLine], delimiter: str) -> list[dict[str, str | None]]:
    """The rows by the names of the header. Columns without a
    name and with nothing in them are left out.
    """
    if not found:
        return []
    names = found[0].cells
    for number, row in enumerate(found[1:], start=1):
        if len(row.cells) > len(names):
            raise Refusal(
                "llm.csv-cells",
                f"row {number} has more cells than the header has columns; quote cells that hold"
                f" {delimiter!r}",
                row=number,
                line=row.line,
            )
    twice = sorted({name for name in names if names.count(name) > 1})
    if "" in twice:
        unnamed = [place for place, name in enumerate(names) if not name]
        if not any(_has_cells(row, unnamed) for row in found[1:]):
            twice.remove("")
    if twice:
        raise Refusal(
            "llm.csv-header",
            f"line {found[0].line}: the header has the column {twice[0]!r} twice; name each once",
            line=found[0].line,
            column=twice[0],
        )
    rows = list[dict[str, str | None]]()
    for row in found[1:]:
        cells = [*row.cells, *[None] * (len(names) - len(row.cells))]
        rows.append(dict(zip(names, cells, strict=True)))
    return rows


def _has_cells(row: CellLine, places: Sequence[int]) -> bool:
    """Whether one of a row's cells at these places is filled."""
    return any(row.cells[place] for place in places if place < len(row.cells))
