"""Writes the results of all commands: for a terminal, and as JSON, CSV, Markdown or LaTeX."""

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from multicard.messages import Message, Refusal
from multicard.records.run_folder import json_text, write_text
from multicard.records.text_table import TextTable, clean, terminal_width, to_csv

STDOUT = Path("-")
BOOKTABS = r"% needs \usepackage{booktabs}"
NAMED = 5  # At most this many skipped records are named one by one.

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Skipped:
    """A run folder whose record could not be used, and why."""

    folder: Path
    why: str


@dataclass(frozen=True)
class Output:
    """The result of a command.

    lines: makes the text for a terminal of a given width in cells; None is any width.
    tables: makes the tables for Markdown and LaTeX.
    rows: the rows for CSV and JSON.
    columns: the columns of the CSV in order; None takes all columns that the rows have.
    content: makes the JSON from the rows; None writes the rows and the tables' notes.
    notes: lines after the others; on stderr if a file goes to stdout.
    code: the command's exit code.
    """

    lines: Callable[[int | None], Sequence[str]]
    tables: Callable[[], Sequence[TextTable]]
    rows: Iterable[dict[str, Any]]
    columns: Sequence[str] | None = None
    content: Callable[[Rows], dict[str, Any]] | None = None
    notes: Sequence[str] = ()
    code: int = 0

    def csv(self, rows: Rows) -> str:
        in_rows = dict.fromkeys(chain.from_iterable(rows))
        columns = [*(in_rows if self.columns is None else self.columns)]
        return to_csv(columns, [[row.get(name) for name in columns] for row in rows])

    def json(self, rows: Rows, skipped: Sequence[Skipped] | None) -> str:
        lines = list[str]()
        for table in self.tables():
            lines.extend((*table.above, *table.below))
        content = (
            self.content(rows) if self.content else {"rows": rows, "notes": [*filter(None, lines)]}
        )
        skipped_json = (
            {}
            if skipped is None
            else {
                "skipped": [{"folder": str(record.folder), "why": record.why} for record in skipped]
            }
        )
        return json_text(content | skipped_json)

    def emit(self, options: argparse.Namespace, skipped: Sequence[Skipped] | None = None) -> None:
        """Write the files that the options of `add_formats` ask for, and print the lines. A format
        that goes to stdout replaces the lines.

        Args:
            skipped: run folders that could not be used; None for a command that reads none.

        Raises:
            Refusal: two options name the same file.
        """
        chosen = {form: path for form in FORMATS if (path := getattr(options, form)) is not None}
        if len({*chosen.values()}) < len(chosen):
            flags = [f"--{form}" for form in chosen]
            raise Refusal(
                "output.one-file",
                f"{', '.join(flags)}: two of them name the same file; choose another, or - once",
                key=flags[0],
                flags=flags,
            )
        rows = [*self.rows] if {"json", "csv"} & {*chosen} else []
        contents = {path: FORMATS[form](self, rows, skipped) for form, path in chosen.items()}
        for path, content in contents.items():
            if path != STDOUT:
                write_text(path, content)
        notes = [*self.notes, *skipped_lines(skipped or ())]
        for form, path in chosen.items():
            if path != STDOUT:
                name = clean(str(path))
                text = f"{form.replace('latex', 'LaTeX')}: {name}"
                notes.append(Message("output.written", text, form=form, file=name))
        if STDOUT in contents:
            sys.stdout.write(contents[STDOUT])
            print("".join(f"{note}\n" for note in notes), end="", file=sys.stderr)
        else:
            # One call: printing 10,000 lines one by one takes a second.
            print("\n".join([*self.lines(terminal_width()), *notes]))


FORMATS: dict[str, Callable[[Output, Rows, Sequence[Skipped] | None], str]] = {
    "json": Output.json,
    "csv": lambda output, rows, _: output.csv(rows),
    "markdown": lambda output, *_: "\n\n".join(map(TextTable.markdown, output.tables())) + "\n",
    "latex": lambda output, *_: (
        "\n\n".join([BOOKTABS, *map(TextTable.latex, output.tables())]) + "\n"
    ),
}


def add_formats(parser: argparse.ArgumentParser) -> None:
    for form in FORMATS:
        parser.add_argument(
            f"--{form}", metavar="FILE", help="write it to FILE (-: stdout)", type=target
        )


def file(text: str) -> Path:
    """Parse an argument as a file to write, in an existing folder."""
    path = Path(text)
    if path == STDOUT:
        message = Message(
            "output.stdout", "-: standard output is taken by this command's messages; name a file"
        )
        raise argparse.ArgumentTypeError(message)
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(
            Message("output.not-a-file", f"{text}: is not a file; name one", file=text)
        )
    if not path.parent.is_dir():
        message = Message(
            "output.no-folder",
            f"{text}: there is no folder {path.parent}; make it, or name another file",
            file=text,
            folder=str(path.parent),
        )
        raise argparse.ArgumentTypeError(message)
    return path


def target(text: str) -> Path:
    """Parse an argument as a file to write, or - for standard output."""
    return STDOUT if text == str(STDOUT) else file(text)


def skipped_lines(records: Sequence[Skipped]) -> list[str]:
    """Return a line for each record that could not be used; the last line counts the rest."""
    lines = []
    for record in records[:NAMED]:
        folder = clean(str(record.folder))
        line = Message(
            "output.skipped",
            f"skipped {folder}: {clean(record.why)}",
            folder=folder,
            reason=record.why,
        )
        lines.append(line)
    remaining = len(records) - NAMED
    if remaining > 0:
        lines.append(
            Message(
                "output.skipped-more",
                f"skipped {remaining} more (`--json FILE` names all)",
                records=remaining,
            )
        )
    return lines
