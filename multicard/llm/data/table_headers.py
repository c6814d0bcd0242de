"""CSV and TSV whose first line is a row: read as the names of the columns, it would be lost."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from multicard.config.llm import LlmConfig
from multicard.config.llm_texts import StoredTextConfig
from multicard.config.pasting import typeable
from multicard.llm import methods
from multicard.llm.data import columns, guessed_columns, templates
from multicard.llm.data.files import StoredRows
from multicard.llm.data.pairs import CHOICES
from multicard.llm.data.row_folders import KEY, kind_of
from multicard.messages import Message, Refusal, say
from multicard.records.separated_text import line_above, separated_text

TABLES = (".csv", ".tsv")
WORDS = 3  # of a cell, at least; a name mostly has fewer
_say_once = cache(say)  # the cells of a sweep have the same data


def check_headers(
    config: LlmConfig, data: StoredTextConfig, stored: StoredRows, key: str = KEY
) -> None:
    """Refuse a table whose first line reads as a row;
    say so where `dataset.columns` takes it for names.

    Args:
        key: that names the files.
    """
    at = 0
    for file, count in stored.files:
        if count and kind_of(file) in TABLES:
            _check_header(config, data, key, file, list(stored.rows[at]))
        at += count


def _check_header(
    config: LlmConfig, data: StoredTextConfig, key: str, file: Path, names: Sequence[str]
) -> None:
    cell = next((name for name in names if _reads_as_cell(name)), None)
    are_taken = bool(set(names) & set(data.columns.values()))
    if cell is None and are_taken and not any(map(guessed_columns.has_meaning, names)):
        cell = names[0]  # Any word may be a name, or a row of a glossary.
    if cell is None or any(name.strip().lower() in columns.NAMED for name in names):
        return
    wanted = _wanted(config, len(names))
    above = _line_above(file, wanted)
    if are_taken:
        _say_once(
            Message(
                "llm.header-taken",
                f"{key}={file}: line 1 is taken for the names of the columns ({cell}); if it is a"
                f" row, it is not trained on: write names above it{above}",
                key=key,
                file=str(file),
                cell=cell,
            )
        )
        return
    own = dict(zip(wanted, names, strict=True))
    remedy = columns.override(own) if all(map(typeable, names)) else None
    hint = f"; if they are names, say so, as `{remedy}`" if remedy else ""
    raise Refusal(
        "llm.no-header",
        f"{key}={file}: line 1 has no names of columns that are known, and reads as a row ({cell});"
        f" write names above it{above}{hint}",
        key=key,
        file=str(file),
        cell=cell,
        remedy=remedy,
    )


def _reads_as_cell(name: str) -> bool:
    """Whether a name has the words of a text, or the brackets of JSON."""
    return len(name.split()) >= WORDS or name.lstrip().startswith(("[", "{"))


def _wanted(config: LlmConfig, count: int) -> list[str]:
    """The columns that the run reads, and others up to a count."""
    template = templates.chosen(config)
    names = ["instruction", "output"]
    if methods.chosen(config).pairs:
        names = [*CHOICES]
        if count > len(names):
            names = ["prompt", *names]
    elif template is not None:
        names = [*template.columns]
    if count > len(names) and "instruction" in names:
        names.insert(1, "input")
    return [*names, *(f"column_{number + 1}" for number in range(len(names), count))][:count]


def _line_above(file: Path, names: Sequence[str]) -> str:
    if file.suffix.lower() not in TABLES:  # compressed
        return ""
    return f", as `{line_above(file, names, separated_text(file.read_bytes()).delimiter)}`"
