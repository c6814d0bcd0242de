"""Blocks of a report as plain data: sections of paragraphs, tables, figures and claims,
which `page` writes as HTML.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multicard.records.text_table import capital

from ..figures.vega import Chart
from ..table_columns import Column


@dataclass(frozen=True)
class Paragraph:
    """`quiet`: said beside the rest, in a softer colour."""

    text: str
    quiet: bool = False


@dataclass(frozen=True)
class Heading:
    """The start of a subsection."""

    text: str
    about: str = ""


@dataclass(frozen=True)
class Facts:
    """Names, each with one value or several. code: the values are commands to type."""

    rows: Sequence[tuple[str, Sequence[str]]]
    code: bool = False


@dataclass(frozen=True)
class Recommendation:
    """What to run for one workload, in large letters, and beside it a chart of its settings.

    statement: a sentence without its full stop. doubts: what the marks of its runs say.
    typed: the command, or where none is known the keys, that run it.
    facts: a name, a sentence and a command, which may be empty. blocks: the chart.
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

    wraps: its cells are sentences, which are broken into lines.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()
    wraps: bool = False


@dataclass(frozen=True)
class SortableTable:
    """A table of any length that the page sorts and filters, and whose rows open.

    name: of its data. label: for readers who cannot see it. details: texts that an opened row has
    beside its columns.
    page_rows: shown at a time. parents: the row under which each row stands once that is opened;
    None for one of its
    own. curves: of the first rows, values that an opened row draws. marks: each sign in it,
    and what it means.
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
    """A figure, whose title and notes the page has as text,
    and the commands that measured what it shows.
    """

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

    line: what it holds in a few words, under which it is folded away; empty: it is shown.
    """

    name: str
    title: str
    question: str
    blocks: Sequence[Block]
    line: str = ""


@dataclass(frozen=True)
class Report:
    """The whole report.

    warnings: a mark's sign and what it says of some or all runs. legend: each sign's meaning.
    themes: Vega's configuration for a `light` and a `dark` page. answer: what to run,
    in a sentence; empty without one.
    """

    title: str
    written_at: str
    summary: str
    warnings: Sequence[tuple[str, str]]
    legend: Mapping[str, str]
    sections: Sequence[Section]
    themes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    answer: str = ""

    def blocks(self) -> Iterator[Block]:
        """Every block, including those that are folded away."""
        for section in self.sections:
            yield from _unfolded(section.blocks)


def _unfolded(blocks: Sequence[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Fold | Recommendation):
            yield from _unfolded(block.blocks)


def sentences(lines: Iterable[str]) -> str:
    """Lines for a terminal as sentences."""
    return " ".join(f"{capital(line).rstrip('.')}." for line in lines)
