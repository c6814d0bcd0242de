"""What a report is made of, as plain data: sections of parts, which `page` writes as HTML.

Figures, tables and verdicts come from other modules as objects of their own; `content` turns them into these.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Words:
    """A paragraph; `tone` is `plain`, or `quiet` for what is said beside."""

    text: str
    tone: str = "plain"


@dataclass(frozen=True)
class Heading:
    """A subsection begins."""

    text: str
    about: str = ""


@dataclass(frozen=True)
class Facts:
    """Names with one value or several."""

    rows: Sequence[tuple[str, Sequence[str]]]


@dataclass(frozen=True)
class Line:
    """An answer: its name, the figure with its marks, the setting as it is typed, and what is to be said beside it."""

    name: str
    figure: str = ""
    setting: str = ""
    beside: str = ""
    marks: str = ""


@dataclass(frozen=True)
class Answer:
    """What the runs answer for one work, or about all."""

    title: str
    lines: Sequence[Line]


@dataclass(frozen=True)
class Table:
    """A table of text that is short enough to be read as a whole; of `commands` came what it shows."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Column:
    """A column of a grid.

    key: its name in the data that is downloaded. texts: what is shown of each row.
    values: the numbers by which it sorts and is filtered; None for a column of text. typed: it is code, to be typed.
    """

    heading: str
    key: str
    texts: Sequence[str]
    values: Sequence[float | None] | None = None
    typed: bool = False


@dataclass(frozen=True)
class Grid:
    """A table of any length, which the page pages, sorts and filters.

    name: of its data. details: what a row opens, by the same row; `wide` ones have a line of their own.
    page_rows, printed_rows: at once, and on paper.
    """

    name: str
    title: str
    columns: Sequence[Column]
    details: Sequence[Column] = ()
    wide: Sequence[str] = ()
    notes: Sequence[str] = ()
    page_rows: int = 50
    printed_rows: int = 500


@dataclass(frozen=True)
class Plot:
    """A figure.

    name: of its data, once in the report. spec: Vega-Lite; without `data` it is of `rows`. rows: what it shows.
    """

    name: str
    title: str
    spec: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    marks: str = ""
    caption: str = ""
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of the papers and what the runs say of it.

    tone: `good`, `bad`, `open` where the verdict says nothing of the papers' claim, `none` without one.
    figures: a comparison and its figure. printed: the paper's own.
    """

    title: str
    verdict: str
    tone: str
    figures: Sequence[tuple[str, str]]
    beside: str
    printed: str
    source: str
    marks: str = ""
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Commands:
    """Commands to type, each with what it would tell."""

    rows: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Fold:
    """What is folded away under a line that says what it is."""

    title: str
    parts: "Sequence[Part]"


Part = Words | Heading | Facts | Answer | Table | Grid | Plot | Claim | Commands | Fold


@dataclass(frozen=True)
class Section:
    """A section of the report: `answers` is the question it answers, in a sentence."""

    name: str
    title: str
    answers: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Report:
    """All of it.

    warnings: what must be said of all or some runs before anything else: a mark's sign and a sentence.
    legend: a mark's sign and its meaning. themes: Vega's configuration by `light` and `dark`.
    """

    title: str
    made: str
    summary: str
    warnings: Sequence[tuple[str, str]]
    legend: Mapping[str, str]
    sections: Sequence[Section]
    themes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def parts(self) -> Iterator[Part]:
        """All of them, those that are folded away too."""
        waiting = [part for section in reversed(self.sections) for part in reversed(section.parts)]
        while waiting:
            part = waiting.pop()
            waiting += reversed(part.parts) if isinstance(part, Fold) else ()
            yield part
