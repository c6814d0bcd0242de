"""Find the rows in a JSON value, in the forms that pandas and exports of databases write.

A value is a list of rows, an object that holds such a list, or a table by columns. A table is read
only if the value cannot mean anything else: an object may also be a single row with lists in its
columns.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from multicard.llm.data import columns as names
from multicard.llm.data.columns import READ, is_filled
from multicard.llm.data.roles import ROLE_KEYS, with_lower_keys
from multicard.messages import Refusal
from multicard.records import part_names
from multicard.records.part_names import PartKind

FoundRows = tuple[list[Any], dict[str, int]]

HEADERS = ("columns", "header", "headers", "fields", "column_names")
KNOWN_NAMES = {*READ, *names.DIALOGUE}


def rows_of(value: Any) -> FoundRows:
    """Return the rows of a JSON value, and a count of everything beside them."""
    if isinstance(value, list):
        return without_header(value), {}
    if isinstance(value, dict):
        table = table_of(value) or _rows_of_columns(value)
        if table is not None:
            return table
        if any(_is_of_row(name, inner) for name, inner in value.items()):
            return [value], {}  # The object is a single row.
        tables = [name for name, rows in value.items() if _is_table(rows)]
        if len(tables) == 1:
            return value[tables[0]], _count_beside(value, tables)
        if len(tables) > 1:
            return _rows_of_splits(value, tables), _count_beside(value, tables)
        if value and not any(isinstance(inner, dict) for inner in value.values()):
            return [value], {}
    raise Refusal("llm.no-list", "it holds no list of rows, as [{...}, ...]")


def table_of(value: Mapping[str, Any]) -> FoundRows | None:
    """Return the rows of an object that cannot be a single row, in a list or alone; else None."""
    return _rows_of_cells(value) or _rows_of_objects(value)


def without_header(rows: list[Any]) -> list[Any]:
    """Return the rows of a list of lists whose first one names the columns.

    Any other list is returned unchanged.
    """
    header: Any = rows[0] if len(rows) > 1 else None
    if not _is_header(header):
        return rows
    known_columns = [name for name in header if _is_known(name)]
    fits = all(isinstance(row, list) and len(row) == len(header) for row in rows)
    if not fits or len(known_columns) < 2:
        return rows
    return [dict(zip(header, row, strict=True)) for row in rows[1:]]


def _is_known(name: str) -> bool:
    return name.lower().strip() in KNOWN_NAMES


def _is_of_row(name: str, inner: Any) -> bool:
    """Tell whether a column and its value belong to a single row."""
    return _is_known(name) and (not _is_table(inner) or name.lower().strip() in names.SEGMENTS)


def _count_beside(value: Mapping[str, Any], read_names: Sequence[str]) -> dict[str, int]:
    return {name: 1 for name, inner in value.items() if name not in read_names and is_filled(inner)}


def _is_header(value: Any) -> TypeGuard[list[str]]:
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(name, str) and name for name in value)
        and len({*value}) == len(value)
    )


def _are_lists(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)


def _rows_of_cells(value: Mapping[str, Any]) -> FoundRows | None:
    """Read pandas' orient=split: the names of the columns, and the cells of each row."""
    headers = [name for name, inner in value.items() if _is_headers(name, inner)]
    tables = [name for name, inner in value.items() if _are_lists(inner)]
    if len(headers) != 1 or len(tables) != 1:
        return None
    header = value[headers[0]]
    cells = value[tables[0]]
    for number, row in enumerate(cells, start=1):
        if len(row) != len(header):
            raise Refusal(
                "llm.json-cells",
                f"row {number} of {tables[0]} has {len(row)} cells, but {headers[0]} names"
                f" {len(header)} columns; give each row as many cells",
                row=number,
                cells=len(row),
                columns=len(header),
            )
    counts_beside = _count_beside(value, [*headers, *tables])
    if value.get("index") == [*range(len(cells))]:
        del counts_beside["index"]  # pandas only counted the rows.
    return [dict(zip(header, row, strict=True)) for row in cells], counts_beside


def _is_headers(name: str, inner: Any) -> bool:
    return name.lower().strip() in HEADERS and _is_header(inner)


def _rows_of_columns(value: Mapping[str, Any]) -> FoundRows | None:
    """Read an object with a list for each column. A row is one place in all lists."""
    lists = {name: inner for name, inner in value.items() if isinstance(inner, list)}
    known_columns = [name for name in value if _is_known(name)]
    if not all(name in lists and _is_column(name, lists[name]) for name in known_columns):
        return None
    if not known_columns and (
        len(lists) < max(2, len(value)) or any(map(_is_table, lists.values()))
    ):
        return None
    counts = {len(lists[name]) for name in known_columns or lists}
    if len(counts) != 1 or 0 in counts:
        return None
    count = counts.pop()
    read_columns = [name for name, inner in lists.items() if len(inner) == count]
    if len(read_columns) == 1 and not _holds_rows_alone(read_columns[0], lists[read_columns[0]]):
        return None
    rows = [{name: lists[name][place] for name in read_columns} for place in range(count)]
    return rows, _count_beside(value, read_columns)


def _is_column(name: str, values: Sequence[Any]) -> bool:
    """Tell whether a list is a column, rather than one row's messages, segments or tools."""
    if any(isinstance(inner, dict) for inner in values):
        return False
    is_of_turns = name.lower().strip() in (*names.CONVERSATION, *names.HISTORY)
    return not is_of_turns or _are_lists(values)


def _holds_rows_alone(name: str, values: Any) -> bool:
    name_in_lower_case = name.lower().strip()
    return name_in_lower_case in names.TEXT or (
        name_in_lower_case in names.CONVERSATION and _are_lists(values)
    )


def _rows_of_objects(value: Mapping[str, Any]) -> FoundRows | None:
    """Read an object of objects: by columns, as pandas writes it, or by the keys of rows."""
    objects = [*value.values()]
    if not objects or not all(isinstance(inner, dict) and inner for inner in objects):
        return None
    if any({*ROLE_KEYS} & with_lower_keys(inner).keys() for inner in objects):
        return None
    inner_names = set[str]().union(*objects)
    is_numbered = all(name.isdigit() for name in inner_names)
    is_by_rows = any(map(_is_known, inner_names))
    if any(map(_is_known, value)) == is_by_rows:
        is_by_rows = not is_numbered and all(name.isdigit() for name in value)
    return _rows_by_key(value) if is_by_rows else _rows_by_number(value, inner_names)


def _rows_by_key(value: Mapping[str, Any]) -> FoundRows | None:
    """Read an object with a row under each key; None for an object that holds only one."""
    row_numbers = [str(place) for place in range(len(value))]
    if [*value] == row_numbers:
        return [*value.values()], {}
    if len(value) == 1:
        return None
    return [*value.values()], {"keys of rows": len(value)}


def _rows_by_number(value: Mapping[str, Any], numbers: set[str]) -> FoundRows | None:
    """Read an object that holds, for each column, the cells by the numbers of their rows."""
    is_even = all(inner.keys() == numbers for inner in value.values())
    if not is_even or not all(number.isdigit() for number in numbers):
        return None
    first = next(iter(value.values()))
    return [{name: inner[key] for name, inner in value.items()} for key in first], {}


def _rows_of_splits(value: Mapping[str, Any], tables: Sequence[str]) -> list[Any]:
    """Return the rows of several lists that are named like splits, each with its `split`.

    Raises:
        Refusal: the lists are not splits.
    """
    parts = [part_names.parsed(name) for name in tables]
    has_training = any(part is not None and part.kind is PartKind.train for part in parts)
    rows = list[dict[str, Any]]()
    for name in tables:
        rows += [{**row, "split": name} for row in value[name]]
    has_split = any(any("split" in row for row in value[name]) for name in tables)
    if None in parts or not has_training or has_split:
        raise Refusal(
            "llm.several-lists",
            f"it holds several lists of rows ({', '.join(tables)}); give a file with one list",
            lists=list(tables),
        )
    return rows


def _is_table(value: Any) -> bool:
    """Tell whether a value is a list of rows, rather than the messages of a single row.

    Messages are objects with a role.
    """
    if not (isinstance(value, list) and value and all(isinstance(row, dict) for row in value)):
        return False
    return not all({*ROLE_KEYS} & with_lower_keys(row).keys() for row in value)
