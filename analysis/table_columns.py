"""Columns, of which the tables of commands and of the report are made."""

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
    """A column of a table: its heading and texts for people,
    its name (with the unit) and values for programs.

    heading: empty: for programs alone. name: empty: for people alone. text: of a value that is not
    None; by default as the figure of that name. is_setting: a key with values as they are typed,
    which is shown in any case.
    written: the texts, where a value does not say them.

    Of the report's tables alone: code: the texts are code. group: under which an opened row has it.
    shown: at first, else where all columns are asked for.
    telling: one of those that tell a row from the others.
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
        is_number = known and all(
            isinstance(one, int | float) and not isinstance(one, bool) for one in known
        )
        return self.values if is_number else None

    @property
    def is_empty(self) -> bool:
        return not {*self.texts} - {"-", ""}


def table(
    columns: Iterable[Column], above: Sequence[str] = (), below: Sequence[str] = ()
) -> TextTable:
    """The columns for people, without those that have nothing to show."""
    shown = [one for one in columns if one.heading and (one.is_setting or not one.is_empty)]
    return TextTable(
        [one.heading for one in shown],
        list(zip(*(one.texts for one in shown), strict=True)),
        above,
        below,
    )


def rows(columns: Iterable[Column]) -> Rows:
    """The values for programs, a dictionary a row."""
    named = {column.name: column.values for column in columns if column.name}
    return [dict(zip(named, values, strict=True)) for values in zip(*named.values(), strict=True)]
