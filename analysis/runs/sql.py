"""SQL over runs for `--where` and `--sort`, in a DuckDB that has no access to anything else.

A function of SQL may take any time and memory (`repeat('x', 3e9)`), which DuckDB neither interrupts
nor counts: the query is asked in a forked process, which is ended beyond its bounds.
"""

import difflib
import json
import multiprocessing
import os
import re
import resource
from collections.abc import Mapping, Sequence
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from multicard.messages import Message, Refusal, typed

from .load import Run

NEAREST = 5  # columns that a message names
# Neither a file nor a Python variable is read by an expression, and nothing goes to disk
OPTIONS: dict[str, Any] = {
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
    "threads": "1",
    "temp_directory": "",
}
# for a query
MOST_S = 10.0
MOST_BYTES = 2 << 30
BEYOND_MEMORY = Message(
    "list.too-much-memory",
    f"takes more than {MOST_BYTES >> 30} GB; write a simpler condition",
    gb=MOST_BYTES >> 30,
)
ROW = "row number"  # the table's own column, beside the runs'


def select(runs: Sequence[Run], where: str | None = None, sort: str | None = None) -> list[Run]:
    """The runs for which `where` (an SQL expression over their columns) is true, ordered by `sort`.

    Args:
        sort: columns, each with `desc` where the highest comes first: "gpus, total_s desc".
            Runs without it come last.

    Raises:
        ValueError: an expression that SQL or the columns do not allow, in one line.
    """
    if where is None and sort is None:
        return list(runs)
    if where is not None and not where.strip():
        raise Refusal(
            "list.empty-condition",
            '--where: is empty; write a condition, as `--where "gpus>=2"`',
            key="--where",
        )
    names = column_names(runs)
    order = ", ".join([*([] if sort is None else _order(sort, names)), f'"{ROW}"'])
    mentioned = as_arrow([run.columns for run in runs], _mentioned(f"{where or ''} {order}", names))
    numbers = pa.array(range(len(runs)), pa.int64())
    answer = _within_bounds(
        pa.table([*mentioned.columns, numbers], [*mentioned.column_names, ROW]), where, order
    )
    if isinstance(answer, str):
        reason = _short(answer, names)
        raise Refusal("list.condition", f"--where: {reason}", key="--where", reason=reason)
    return [runs[row] for (row,) in answer]


def _within_bounds(table: pa.Table, where: str | None, order: str) -> list[tuple[int]] | str:
    """The numbers of the rows, or what DuckDB says against
    the query; of what takes too much, a line.
    """
    context = multiprocessing.get_context("fork")
    answer, says = context.Pipe(duplex=False)
    process = context.Process(target=_query, args=(table, where, order, says))
    process.start()
    says.close()
    try:
        if answer.poll(MOST_S):
            return answer.recv()
        return Message(
            "list.too-long",
            f"takes longer than {MOST_S:.0f} s; write a simpler condition",
            s=MOST_S,
        )
    except EOFError:  # ended for its memory
        return BEYOND_MEMORY
    finally:
        process.kill()
        process.join()


def _query(table: pa.Table, where: str | None, order: str, says: Connection) -> None:
    """Answer a query in this process, which is another's copy and has so much memory beyond it."""
    own_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (own_bytes + MOST_BYTES, own_bytes + MOST_BYTES))
    try:  # `filter` takes one expression, and no other query or statement after it
        with duckdb.connect(":memory:", config=OPTIONS) as database:
            rows = database.from_arrow(table)
            rows = rows if where is None else rows.filter(where)
            says.send(rows.order(order).project(f'"{ROW}"').fetchall())
    except (duckdb.OutOfMemoryException, MemoryError):
        says.send(BEYOND_MEMORY)
    except duckdb.Error as error:
        says.send(str(error))


def column_names(runs: Sequence[Run]) -> list[str]:
    """Every column that a run has, in their order; names that SQL cannot tell apart (a, A) once."""
    by_name: dict[str, str] = {}
    # few: most runs have the same columns
    shapes = dict.fromkeys(tuple(run.columns) for run in runs)
    for name in dict.fromkeys(chain.from_iterable(shapes)):
        by_name.setdefault(name.casefold(), name)
    return list(by_name.values())


def known(name: str, names: Sequence[str], option: str) -> str:
    """The column of this name in any case; raises ValueError, with the nearest names,
    where there is none.
    """
    match = next(
        (column for column in names if column.casefold() == name.strip().strip('"').casefold()),
        None,
    )
    if match is None:
        reason = _unknown(name.strip(), names)
        raise Refusal("list.column", f"{option}: {reason}", key=option, reason=reason)
    return match


def _order(sort: str, names: Sequence[str]) -> list[str]:
    terms = []
    for term in sort.split(","):
        match = re.fullmatch(r"\s*(.*?)(?:\s+(asc|desc))?\s*", term, re.IGNORECASE)
        assert match is not None  # the pattern matches every text
        name = known(match[1], names, "--sort").replace('"', '""')
        terms.append(f'"{name}" {match[2] or "asc"} NULLS LAST')
    return terms


def _mentioned(text: str, names: Sequence[str]) -> list[str]:
    """The columns that a query may refer to: not all columns of 10,000 runs have to be loaded."""
    text = text.casefold().replace('""', '"')
    if "*" in text or "columns" in text:  # DuckDB's COLUMNS(*), COLUMNS('dataset.*')
        return list(names)
    return [name for name in names if name.casefold() in text]


def as_arrow(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.Table:
    """Rows as a table of these columns; null where a row lacks one."""
    return pa.table({name: _array([row.get(name) for row in rows]) for name in names})


def _array(values: list[Any]) -> pa.Array:
    """One column: of the type that all of its values have,
    else of their texts (`compile` may be true or null).
    """
    types = {type(value) for value in values if value is not None}
    try:
        if types in (set(), {bool}, {int}):  # without a value: null, which is of every type
            return pa.array(values)
        if types in ({int, float}, {float}):
            return pa.array(values, pa.float64())
    except (OverflowError, pa.ArrowInvalid):
        pass  # an integer beyond 64 bits: its text
    return pa.array(
        [v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string()
    )


def _short(message: str, names: Sequence[str]) -> Message:
    """DuckDB's message without the query around it; where a column is unknown,
    what was probably meant.
    """
    if isinstance(message, Message):
        return message
    unknown = re.search(r'Referenced (?:column|table) "(.*?)" not found', message)
    if unknown is not None:
        reason = _unknown(unknown[1], names)
        said = f"{reason}; a text needs single quotes, as in `--where \"precision='bf16'\"`"
        return Message("list.column-in-condition", said, reason=reason)
    lines = [
        line
        for line in message.split("\n\n", maxsplit=1)[0].splitlines()
        if not line.startswith("LINE ")
    ]
    error = " ".join(" ".join(lines).split())
    if not message.startswith("Parser"):
        return Message("list.database", error, error=error)
    said = f"{error}; write an SQL condition, as `--where \"gpus>=2 and precision='bf16'\"`"
    return Message("list.not-sql", said, error=error)


def _unknown(name: str, names: Sequence[str]) -> Message:
    folded = {column.casefold(): column for column in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=NEAREST, cutoff=0.5)
    containing = [column for column in folded if len(name) > 2 and name.casefold() in column]
    near = [folded[column] for column in dict.fromkeys([*close, *containing])][:NEAREST]
    quoted = ", ".join(f'"{column}"' if "." in column else column for column in near)
    meant = f"; did you mean {quoted}?" if near else ""
    listed = f"`{typed('-m analysis')} list --csv FILE` writes all columns"
    return Message(
        "list.no-column", f'no column "{name}"{meant} ({listed})', column=name, near=near
    )
