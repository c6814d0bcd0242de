"""SQL over runs for `--where` and `--sort`, in a DuckDB with one table and no access to anything else."""

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from analysis.runs.load import Run

NEAREST = 5  # columns that a message names
LONGEST = 2_000  # characters of a condition: DuckDB takes a minute to parse 10,000 parentheses, and 100,000 end it
# Nothing goes to disk
OPTIONS: dict[str, Any] = {"python_enable_replacements": "false", "memory_limit": "2GB", "temp_directory": ""}
ROW = "row number"  # the table's own column, beside the runs'


def select(runs: Sequence[Run], where: str | None = None, sort: str | None = None) -> list[Run]:
    """The runs for which `where` (an SQL expression over their columns) is true, ordered by `sort`.

    Args:
        sort: columns, each with `desc` where the highest comes first: "gpus, total_s desc". Runs without it come last.

    Raises:
        ValueError: an expression that SQL or the columns do not allow, in one line.
    """
    if where is not None:
        where = _text(where)
        if not where.strip():
            raise ValueError('--where: is empty; give a condition, as "gpus>=2"')
        if len(where) > LONGEST:
            raise ValueError(f"--where: has {len(where):,} characters; give at most {LONGEST:,}")
    names = column_names(runs)
    order = _order(sort, names) if sort is not None else ""
    if where is None and not order:
        return list(runs)
    with duckdb.connect(":memory:", config=OPTIONS) as database:
        database.register("loaded", _table(runs, _mentioned(f"{where or ''} {order}", names)))
        database.execute("CREATE TABLE runs AS SELECT * FROM loaded")
        database.unregister("loaded")
        database.execute("SET enable_external_access = false")  # no file is read or written by an expression
        database.execute("SET lock_configuration = true")
        condition = f"WHERE (\n{where}\n)" if where is not None else ""
        try:
            statement = _statement(database, f'SELECT "{ROW}" FROM runs {condition} ORDER BY {order} "{ROW}"', where)
            rows = database.execute(statement).fetchall()
        except duckdb.Error as error:
            raise ValueError(f"--where: {_short(str(error), where or '', names)}") from None
    return [runs[row] for (row,) in rows]


def _statement(database: duckdb.DuckDBPyConnection, query: str, where: str | None) -> duckdb.Statement:
    """The query that holds `where` in parentheses.

    Without them it must be the end of a query too: `true) UNION ALL (SELECT 1` is an expression in neither sense.
    """
    statements = database.extract_statements(query)
    try:
        whole = where is None or len(database.extract_statements(f"SELECT 1 WHERE\n{where}\n")) == 1
    except duckdb.Error:
        whole = False
    if len(statements) != 1 or not whole:
        raise ValueError("--where: must be one expression, with no other query or statement after it")
    return statements[0]


def column_names(runs: Sequence[Run]) -> list[str]:
    """Every column that a run has, in their order; names that SQL cannot tell apart (a, A) once."""
    by_name: dict[str, str] = {}
    shapes = dict.fromkeys(tuple(run.columns) for run in runs)  # few: most runs have the same columns
    for name in dict.fromkeys(name for shape in shapes for name in shape):
        by_name.setdefault(name.casefold(), name)
    return list(by_name.values())


def known(name: str, names: Sequence[str], option: str) -> str:
    """The column of this name in any case.

    Raises:
        ValueError: there is none, with the nearest names.
    """
    match = next((column for column in names if column.casefold() == name.strip().strip('"').casefold()), None)
    if match is None:
        raise ValueError(f"{option}: {_unknown(name.strip(), names)}")
    return match


def _order(sort: str, names: Sequence[str]) -> str:
    terms = []
    for term in sort.split(","):
        match = re.fullmatch(r"\s*(.*?)(?:\s+(asc|desc))?\s*", term, re.IGNORECASE)
        assert match is not None  # the pattern matches every text
        name = known(match[1], names, "--sort").replace('"', '""')
        terms.append(f'"{name}" {match[2] or "asc"} NULLS LAST')
    return ", ".join(terms) + ","


def _mentioned(text: str, names: Sequence[str]) -> list[str]:
    """The columns that a query may refer to: not all columns of 10,000 runs have to be loaded."""
    text = text.casefold().replace('""', '"')
    if "*" in text or "columns" in text:  # DuckDB's COLUMNS(*), COLUMNS('dataset.*')
        return list(names)
    return [name for name in names if name.casefold() in text]


def _table(runs: Sequence[Run], names: Sequence[str]) -> pa.Table:
    data = {name: _array([run.columns.get(name) for run in runs]) for name in names}
    return pa.table({**data, ROW: pa.array(range(len(runs)), pa.int64())})


def _array(values: list[Any]) -> pa.Array:
    """One column: of the type that all of its values have, else of their texts (`compile` may be true or null)."""
    types = {type(value) for value in values if value is not None}
    try:
        if types <= {bool}:
            return pa.array(values, pa.bool_())
        if types == {int}:
            return pa.array(values, pa.int64())
        if types <= {int, float}:
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
    except (OverflowError, pa.ArrowInvalid):
        pass  # an integer beyond 64 bits: its text
    texts = (value if value is None or isinstance(value, str) else json.dumps(value) for value in values)
    return pa.array([None if text is None else _text(text) for text in texts], pa.string())


def _text(content: str) -> str:
    """`content` without lone surrogates, which no other program takes."""
    return content.encode(errors="replace").decode()


def _short(message: str, where: str, names: Sequence[str]) -> str:
    """DuckDB's message without the query around it; where a column is unknown, what was probably meant."""
    unknown = re.search(r'Referenced (?:column|table) "(.*?)" not found', message)
    if unknown is not None:
        return _unquoted(unknown[1], where, names) or _unknown(unknown[1], names)
    lines = [line for line in message.split("\n\n", maxsplit=1)[0].splitlines() if not line.startswith("LINE ")]
    return " ".join(" ".join(lines).split())


def _unquoted(name: str, where: str, names: Sequence[str]) -> str | None:
    """A remedy where an unknown column is a text that was compared without its quotes: `precision=bf16`."""
    pattern = rf"""(\w+|"[^"]+")\s*(==?|!=|<>)\s*({re.escape(name)}[\w.-]*)"""
    match = re.search(pattern, where, re.IGNORECASE)
    columns = {column.casefold() for column in names}
    if match is None or match[1].strip('"').casefold() not in columns:
        return None
    column, sign, value = match.groups()
    return f"text needs single quotes, and the shell double ones around all of it: \"{column}{sign}'{value}'\""


def _unknown(name: str, names: Sequence[str]) -> str:
    """A message that the column is unknown, with the nearest names."""
    folded = {column.casefold(): column for column in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=NEAREST, cutoff=0.5)
    containing = [column for column in folded if len(name) > 2 and name.casefold() in column]
    near = [folded[column] for column in dict.fromkeys([*close, *containing])][:NEAREST]
    quoted = [f'"{column}"' if "." in column else column for column in near]
    nearest = f"; did you mean {', '.join(quoted[:-1])}{' or ' if quoted[1:] else ''}{quoted[-1]}?" if quoted else ""
    return f'no column "{name}"{nearest} (list --csv FILE writes all columns)'
