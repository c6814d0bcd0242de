"""Run SQL over runs for `--where` and `--sort`, in a DuckDB that can access nothing else.

An SQL function may take any time and memory (`repeat('x', 3e9)`), and DuckDB neither interrupts nor
counts that. So the query runs in a forked process, which is killed beyond its bounds.
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

MAX_SUGGESTIONS = 5  # The most columns that a message names.
# An expression can read neither files nor Python variables, and nothing is written to disk.
DATABASE_OPTIONS: dict[str, Any] = {
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
    "threads": "1",
    "temp_directory": "",
}
# The bounds of a query.
MAX_QUERY_S = 10.0
MAX_QUERY_BYTES = 2 << 30
TOO_MUCH_MEMORY = Message(
    "list.too-much-memory",
    f"takes more than {MAX_QUERY_BYTES >> 30} GB; write a simpler condition",
    gb=MAX_QUERY_BYTES >> 30,
)
ROW_NUMBER = "row number"  # A column that is added to the runs' own columns.


def select(runs: Sequence[Run], where: str | None = None, sort: str | None = None) -> list[Run]:
    """Return the runs for which an SQL expression is true, in the order of `sort`.

    Args:
        where: an SQL expression over the columns of the runs.
        sort: columns, with `desc` if the highest comes first: "gpus, total_s desc". Runs that lack
            a column come last.

    Raises:
        ValueError: SQL or the columns do not allow an expression. The message is one line.
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
    order_terms = ", ".join([*([] if sort is None else _order_by(sort, names)), f'"{ROW_NUMBER}"'])
    table = as_arrow(
        [run.columns for run in runs], _mentioned_columns(f"{where or ''} {order_terms}", names)
    )
    numbers = pa.array(range(len(runs)), pa.int64())
    answer = _matching_rows(
        pa.table([*table.columns, numbers], [*table.column_names, ROW_NUMBER]), where, order_terms
    )
    if isinstance(answer, str):
        reason = _shortened_message(answer, names)
        raise Refusal("list.condition", f"--where: {reason}", key="--where", reason=reason)
    return [runs[row] for (row,) in answer]


def _matching_rows(table: pa.Table, where: str | None, order: str) -> list[tuple[int]] | str:
    """Return the numbers of the matching rows, or a message why the query failed."""
    context = multiprocessing.get_context("fork")
    answer_receiver, answer_sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer_query, args=(table, where, order, answer_sender))
    process.start()
    answer_sender.close()
    try:
        if answer_receiver.poll(MAX_QUERY_S):
            return answer_receiver.recv()
        return Message(
            "list.too-long",
            f"takes longer than {MAX_QUERY_S:.0f} s; write a simpler condition",
            s=MAX_QUERY_S,
        )
    except EOFError:  # The process exceeded its memory and ended without an answer.
        return TOO_MUCH_MEMORY
    finally:
        process.kill()
        process.join()


def _answer_query(
    table: pa.Table, where: str | None, order: str, answer_sender: Connection
) -> None:
    """Answer a query in this forked process, which may use MAX_QUERY_BYTES beyond its own size."""
    process_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf(
        "SC_PAGE_SIZE"
    )
    resource.setrlimit(
        resource.RLIMIT_AS, (process_bytes + MAX_QUERY_BYTES, process_bytes + MAX_QUERY_BYTES)
    )
    try:  # `filter` takes one expression, so no other query or statement can follow it.
        with duckdb.connect(":memory:", config=DATABASE_OPTIONS) as database:
            rows = database.from_arrow(table)
            rows = rows if where is None else rows.filter(where)
            answer_sender.send(rows.order(order).project(f'"{ROW_NUMBER}"').fetchall())
    except (duckdb.OutOfMemoryException, MemoryError):
        answer_sender.send(TOO_MUCH_MEMORY)
    except duckdb.Error as error:
        answer_sender.send(str(error))


def column_names(runs: Sequence[Run]) -> list[str]:
    """Return every column that a run has. Names that differ only in case (a, A) appear once."""
    by_name: dict[str, str] = {}
    # There are few shapes, because most runs have the same columns.
    shapes = dict.fromkeys(tuple(run.columns) for run in runs)
    for name in dict.fromkeys(chain.from_iterable(shapes)):
        by_name.setdefault(name.casefold(), name)
    return list(by_name.values())


def known(name: str, names: Sequence[str], option: str) -> str:
    """Return the column of this name, in any case.

    Raises:
        ValueError: there is none. The message names the nearest columns.
    """
    match = next(
        (column for column in names if column.casefold() == name.strip().strip('"').casefold()),
        None,
    )
    if match is None:
        reason = _unknown_column(name.strip(), names)
        raise Refusal("list.column", f"{option}: {reason}", key=option, reason=reason)
    return match


def _order_by(sort: str, names: Sequence[str]) -> list[str]:
    terms = []
    for term in sort.split(","):
        match = re.fullmatch(r"\s*(.*?)(?:\s+(asc|desc))?\s*", term, re.IGNORECASE)
        assert match is not None  # The pattern matches every text.
        name = known(match[1], names, "--sort").replace('"', '""')
        terms.append(f'"{name}" {match[2] or "asc"} NULLS LAST')
    return terms


def _mentioned_columns(text: str, names: Sequence[str]) -> list[str]:
    """Return the columns that a query may refer to, so that only these have to be loaded."""
    text = text.casefold().replace('""', '"')
    if "*" in text or "columns" in text:  # DuckDB's COLUMNS(*), COLUMNS('dataset.*')
        return list(names)
    return [name for name in names if name.casefold() in text]


def as_arrow(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> pa.Table:
    """Return rows as a table of these columns, with null if a row lacks one."""
    return pa.table({name: _typed_array([row.get(name) for row in rows]) for name in names})


def _typed_array(values: list[Any]) -> pa.Array:
    """Return one column.

    It has the type that all of its values share. If there is none, it holds their texts: `compile`
    may be true or null.
    """
    types = {type(value) for value in values if value is not None}
    try:
        if types in (set(), {bool}, {int}):  # Without values, the column is of Arrow's null type.
            return pa.array(values)
        if types in ({int, float}, {float}):
            return pa.array(values, pa.float64())
    except (OverflowError, pa.ArrowInvalid):
        pass  # An integer beyond 64 bits becomes text.
    return pa.array(
        [v if v is None or isinstance(v, str) else json.dumps(v) for v in values], pa.string()
    )


def _shortened_message(message: str, names: Sequence[str]) -> Message:
    """Return DuckDB's message without the query, and near columns if one is unknown."""
    if isinstance(message, Message):
        return message
    match = re.search(r'Referenced (?:column|table) "(.*?)" not found', message)
    if match is not None:
        reason = _unknown_column(match[1], names)
        text = f"{reason}; a text needs single quotes, as in `--where \"precision='bf16'\"`"
        return Message("list.column-in-condition", text, reason=reason)
    message_lines = [
        line
        for line in message.split("\n\n", maxsplit=1)[0].splitlines()
        if not line.startswith("LINE ")
    ]
    error = " ".join(" ".join(message_lines).split())
    if not message.startswith("Parser"):
        return Message("list.database", error, error=error)
    text = f"{error}; write an SQL condition, as `--where \"gpus>=2 and precision='bf16'\"`"
    return Message("list.not-sql", text, error=error)


def _unknown_column(name: str, names: Sequence[str]) -> Message:
    by_folded_name = {column.casefold(): column for column in names}
    close_names = difflib.get_close_matches(
        name.casefold(), by_folded_name, n=MAX_SUGGESTIONS, cutoff=0.5
    )
    containing_names = [
        column for column in by_folded_name if len(name) > 2 and name.casefold() in column
    ]
    nearest_names = [
        by_folded_name[column] for column in dict.fromkeys([*close_names, *containing_names])
    ][:MAX_SUGGESTIONS]
    quoted = ", ".join(f'"{column}"' if "." in column else column for column in nearest_names)
    suggestion = f"; did you mean {quoted}?" if nearest_names else ""
    hint = f"`{typed('-m analysis')} list --csv FILE` writes all columns"
    return Message(
        "list.no-column",
        f'no column "{name}"{suggestion} ({hint})',
        column=name,
        near=nearest_names,
    )
