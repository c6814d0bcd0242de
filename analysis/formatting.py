"""What a person reads: aligned columns, and figures with their units.

Not rich's tables, which take 12 s for 10,000 rows. Text from a run is shown as it is but for control characters.
"""

import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.cells import cell_len, set_cell_size

from multicard.records.table import in_bytes

GAP = "  "
LEAST = 8  # a column of text is not cut below so many cells
CUT = "…"
NUMBER = re.compile(r"[-+±~]?[\d.,]+( ?(s|%|[kMGT]?B|x|J|kJ|MJ))?")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text from a record on one line, without what would drive the terminal (escapes, bidirectional overrides)."""
    return CONTROL.sub(lambda found: " " if found[0] in "\n\t\r" else "�", text)


def value(column: str, found: Any) -> str:
    """A column's value by the unit in its name; "-" where there is none."""
    if found is None:
        return "-"
    if isinstance(found, bool):
        return str(found).lower()
    if not isinstance(found, int | float):
        return clean(str(found))
    return _number(column, found)


def _number(column: str, found: float) -> str:
    if column.endswith("_bytes"):
        return in_bytes(found)
    if column.endswith("_per_s"):
        return f"{found:,.0f}"
    if column.endswith("_s"):
        return seconds(found)
    if column.endswith("_joules"):
        return joules(found)
    if column.endswith("accuracy"):
        return f"{found:.2%}"
    return str(found) if isinstance(found, int) else f"{found:.4g}"


def seconds(count: float) -> str:
    """Seconds to a tenth from 10 s on, else to four digits."""
    return f"{count:,.1f}" if count >= 10 else f"{count:.4g}"


def joules(count: float) -> str:
    for unit in ("J", "kJ"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} MJ"


def width() -> int | None:
    """Of the terminal; None where the output goes elsewhere, so that nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], limit: int | None = None) -> list[str]:
    """The lines of a table. Columns of figures stand to the right; where the lines are longer than `limit`, the widest
    columns of text are cut, never a figure."""
    sizes = [max(map(cell_len, column)) for column in zip(headings, *rows, strict=True)]
    right = [bool(rows) and all(row[i] == "-" or NUMBER.fullmatch(row[i]) for row in rows) for i in range(len(sizes))]
    if limit is not None:
        _shrink(sizes, [not figures for figures in right], headings, limit)
    return [_line(row, sizes, right) for row in (headings, *rows)]


def _shrink(sizes: list[int], text: Sequence[bool], headings: Sequence[str], limit: int) -> None:
    least = [max(LEAST, cell_len(heading)) for heading in headings]
    while sum(sizes) + len(GAP) * (len(sizes) - 1) > limit:
        open_to_it = [i for i in range(len(sizes)) if text[i] and sizes[i] > least[i]]
        if not open_to_it:
            return  # the terminal wraps the lines
        sizes[max(open_to_it, key=lambda i: sizes[i])] -= 1


def _line(row: Sequence[str], sizes: Sequence[int], right: Sequence[bool]) -> str:
    cells = []
    for text, size, figures in zip(row, sizes, right, strict=True):
        used = cell_len(text)
        if used > size:
            text, used = set_cell_size(text, size - 1) + CUT, size  # noqa: PLW2901
        cells.append(" " * (size - used) + text if figures else text + " " * (size - used))
    return GAP.join(cells).rstrip()


def say(lines: Iterable[str]) -> None:
    """Print all at once: 10,000 lines one by one take a second."""
    print("\n".join(lines))
