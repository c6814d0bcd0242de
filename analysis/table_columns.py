"""Columns, from which commands and the report build their tables."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from multicard.records import figures
from multicard.records.output import Rows
from multicard.records.text_table import TextTable

from .runs import grouping


@dataclass(frozen=True)
class Column:
    """A column of a table, for people and for programs.

    heading: its heading for people; empty for programs only.
    name: its name for programs, with the unit; empty for people only.
    values: its values for programs.
    text: writes a value that is not None; by default as the figure of that name.
    is_setting: the column is a key with values as they are typed. It is always shown.
    written: the texts, if the values do not determine them.

    Only the report's tables use the following fields:
    code: the texts are code.
    group: the heading under which an opened row has it.
    shown: it is shown at first, not only if all columns are asked for.
    telling: it is one of the columns that distinguish the rows.
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
        """The values, by which rows are sorted and filtered; None if they are texts."""
        known_values = [value for value in self.values if value is not None]
        is_number = known_values and all(
            isinstance(value, int | float) and not isinstance(value, bool) for value in known_values
        )
        return self.values if is_number else None

    @property
    def is_empty(self) -> bool:
        return not {*self.texts} - {"-", ""}


def sortable_table(
    columns: Iterable[Column], above: Sequence[str] = (), below: Sequence[str] = ()
) -> TextTable:
    """Return the columns as a table for people, without columns that have nothing to show."""
    shown_columns = [
        column
        for column in columns
        if column.heading and (column.is_setting or not column.is_empty)
    ]
    return TextTable(
        [column.heading for column in shown_columns],
        list(zip(*(column.texts for column in shown_columns), strict=True)),
        above,
        below,
    )


def rows(columns: Iterable[Column]) -> Rows:
    """Return the values for programs, with a dictionary for each row."""
    values_by_name = {column.name: column.values for column in columns if column.name}
    return [
        dict(zip(values_by_name, values, strict=True))
        for values in zip(*values_by_name.values(), strict=True)
    ]
