"""What a command found, for a terminal and as JSON, CSV, Markdown and LaTeX: the one writer of all commands."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from analysis.runs import grouping
from analysis.runs.load import Skipped
from multicard.records import figures
from multicard.records.run_folder import json_text, write_text
from multicard.records.text_table import Table, clean, terminal_width, to_csv

STDOUT = Path("-")
NAMED = 5  # skipped records that are named one by one

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading and texts for people, its name (with the unit) and values for programs.

    heading: empty: for programs alone. name: empty: for people alone. text: of a value that is not None; by default as
    the figure of that name. is_setting: a key with values as they are typed, which is shown in any case.
    written: the texts, where a value does not say them.

    Of the report's tables alone: code: the texts are code. group: under which an opened row has it. shown: at first,
    else where all columns are asked for. telling: one of those that tell a row from the others.
    """

    heading: str
    name: str
    values: Sequence[Any]
    text: Callable[[Any], str] | None = None
    is_setting: bool = False
    written: Sequence[str] = ()
    code: bool = False
    group: str = ""
    shown: bool = True
    telling: bool = False

    @cached_property
    def texts(self) -> Sequence[str]:
        if self.is_setting:
            return list(map(grouping.typed, self.values))
        text = self.text or partial(figures.text, self.name)
        return self.written or ["-" if value is None else text(value) for value in self.values]

    @cached_property
    def numbers(self) -> Sequence[float | None] | None:
        """The values, by which rows are sorted and filtered; None for a column of texts."""
        known = [value for value in self.values if value is not None]
        is_number = known and all(isinstance(one, int | float) and not isinstance(one, bool) for one in known)
        return self.values if is_number else None

    @property
    def is_empty(self) -> bool:
        return not {*self.texts} - {"-", ""}


def table(columns: Iterable[Column], above: Sequence[str] = (), below: Sequence[str] = ()) -> Table:
    """The columns for people, without those that have nothing to show."""
    shown = [one for one in columns if one.heading and (one.is_setting or not one.is_empty)]
    return Table([one.heading for one in shown], list(zip(*(one.texts for one in shown), strict=True)), above, below)


def rows(columns: Iterable[Column]) -> Rows:
    """The values for programs, a dictionary a row."""
    named = {column.name: column.values for column in columns if column.name}
    return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]


@dataclass(frozen=True)
class Output:
    """What a command found.

    lines: for a terminal of some width in cells; None: any. tables: for Markdown and LaTeX.
    rows: for CSV and JSON. columns: of CSV, in their order; None: those of the rows.
    content: the JSON, of the rows; None: the rows and the tables' notes.
    notes: lines after the others, on stderr where a file is written to stdout.
    code: the command's exit code.
    """

    lines: Callable[[int | None], Sequence[str]]
    tables: Callable[[], Sequence[Table]]
    rows: Iterable[dict[str, Any]]
    columns: Sequence[str] | None = None
    content: Callable[[Rows], dict[str, Any]] | None = None
    notes: Sequence[str] = ()
    code: int = 0

    def csv(self, rows: Rows) -> str:
        columns = [*(self.columns if self.columns is not None else dict.fromkeys(name for row in rows for name in row))]
        return to_csv(columns, [[row.get(name) for name in columns] for row in rows])

    def json(self, rows: Rows, skipped: Sequence[Skipped]) -> str:
        lines = (line for table in self.tables() for line in (*table.above, *table.below))
        content = self.content(rows) if self.content else {"rows": rows, "notes": [*filter(None, lines)]}
        return json_text(content | {"skipped": [{"folder": str(one.folder), "why": one.why} for one in skipped]})

    def emit(self, targets: Mapping[str, Path | None], skipped: Sequence[Skipped]) -> None:
        """Write the files that are asked for, by format (ValueError: one file twice); print the lines, or what goes to
        STDOUT."""
        chosen = {form: path for form, path in targets.items() if path is not None}
        if len({*chosen.values()}) < len(chosen):
            options = ", ".join(f"--{form}" for form in chosen)
            raise ValueError(f"{options}: two of them have one file; name another, or - once")
        rows = [*self.rows] if {"json", "csv"} & {*chosen} else []
        contents = {path: FORMATS[form](self, rows, skipped) for form, path in chosen.items()}
        for path, content in contents.items():
            if path != STDOUT:
                write_text(path, content)
        notes = [*self.notes, *skipped_lines(skipped)]
        if STDOUT in contents:
            sys.stdout.write(contents[STDOUT])
            print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
        else:
            print("\n".join([*self.lines(terminal_width()), *notes]))  # at once: 10,000 lines one by one take a second


FORMATS: dict[str, Callable[[Output, Rows, Sequence[Skipped]], str]] = {
    "json": Output.json,
    "csv": lambda output, rows, _: output.csv(rows),
    "markdown": lambda output, *_: "\n\n".join(map(Table.markdown, output.tables())) + "\n",
    "latex": lambda output, *_: "\n\n".join(map(Table.latex, output.tables())) + "\n",
}


def skipped_lines(records: Sequence[Skipped]) -> list[str]:
    """A line for each record that could not be used, and one for those beyond the first few."""
    named = [f"skipped {clean(str(record.folder))}: {clean(record.why)}" for record in records[:NAMED]]
    rest = [f"skipped {len(records) - NAMED} more (--json FILE names all)"] if len(records) > NAMED else []
    return named + rest
