"""Blocks of a report as plain data, which `page` writes as HTML.

Blocks are paragraphs, tables, figures and claims, grouped into sections.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicard.records.text_table import capital

from ..figures.vega import Chart
from ..table_columns import Column


@dataclass(frozen=True)
class Paragraph:
    """A paragraph. If it is `quiet`, it is printed in a softer color."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Heading:
    """The start of a subsection."""

    text: str
    about: str = ""


@dataclass(frozen=True)
class Facts:
    """Names, each with one or several values. If `code` is set, values are commands to type."""

    rows: Sequence[tuple[str, Sequence[str]]]
    code: bool = False


@dataclass(frozen=True)
class Recommendation:
    """What to run for one workload, in large letters, next to a chart of its settings.

    statement: a sentence without its full stop.
    doubts: the meanings of its runs' marks.
    typed: the command that runs it, or the keys if no command is known. It is empty if nothing is
        recommended.
    facts: each a name, a sentence and a command, which may be empty.
    blocks: the chart.
    """

    work: str
    statement: str
    doubts: Sequence[str]
    typed: str
    facts: Sequence[tuple[str, str, str]]
    blocks: "Sequence[Plot]"


@dataclass(frozen=True)
class PlainTable:
    """A table that is short enough to be read as a whole, and the commands that measured it.

    wraps: True if its cells are sentences, which are broken into lines.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    wraps: bool = False


@dataclass(frozen=True)
class SortableTable:
    """A table of any length, which the page sorts and filters, and whose rows open.

    name: the name of its data in the page.
    label: the description for screen readers.
    details: columns that are visible only in an opened row.
    page_rows: the number of rows that are visible at a time.
    parents: for each row, the index of the row under which it appears once that one is opened, or
        None if the row is always visible.
    curves: the values that an opened row draws, for the first rows.
    marks: each sign in the table, and what it means.
    """

    name: str
    label: str
    columns: Sequence[Column]
    details: Sequence[Column] = ()
    notes: Sequence[str] = ()
    page_rows: int = 15
    parents: Sequence[int | None] = ()
    curves: Sequence[Sequence[float]] = ()
    marks: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Plot:
    """A figure and the commands that measured it. Title and notes stand next to it as text."""

    figure: Chart
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Fold:
    """Blocks that are folded away under a title."""

    title: str
    blocks: "Sequence[Block]"


Block = Paragraph | Heading | Facts | Recommendation | PlainTable | SortableTable | Plot | Fold


@dataclass(frozen=True)
class Section:
    """A section of the report, with the question it answers.

    line: the contents in a few words. If it is set, the section is folded away under it.
    """

    name: str
    title: str
    question: str
    blocks: Sequence[Block]
    line: str = ""


@dataclass(frozen=True)
class Report:
    """The whole report.

    warnings: for each mark, its sign, and what it says about some or all runs.
    legend: the meaning of each sign.
    mark_names: the words that are shown in place of each sign.
    themes: Vega's configuration for a `light` and a `dark` page.
    answer: what to run, in a sentence for each of the last workloads; empty if there is none.
    """

    title: str
    written_at: str
    summary: str
    warnings: Sequence[tuple[str, str]]
    legend: Mapping[str, str]
    mark_names: Mapping[str, str]
    sections: Sequence[Section]
    themes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answer: Sequence[str] = ()

    def blocks(self) -> Iterator[Block]:
        """Every block, including those that are folded away."""
        for section in self.sections:
            yield from _unfolded(section.blocks)


def _unfolded(blocks: Sequence[Block]) -> Iterator[Block]:
    """Yield blocks, and the blocks inside them."""
    for block in blocks:
        yield block
        if isinstance(block, Fold | Recommendation):
            yield from _unfolded(block.blocks)


def sentences(lines: Iterable[str]) -> str:
    """Join lines that are written for a terminal into sentences."""
    return " ".join(f"{capital(line).rstrip('.')}." for line in lines)
