"""Halves of characters in rows: JSON writes a character beyond U+FFFF as a pair of surrogates, and
a program that cuts texts by UTF-16 units leaves half of one. UTF-8 has no form of it,
so that no tokenizer reads it.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from multicard.llm.data.columns import RowColumns
from multicard.messages import SURROGATES, Refusal


class Half(NamedTuple):
    """Half a character, and its place in a row, as "messages[1].content"."""

    place: str
    letter: str


def check_characters(converted: Any, columns: RowColumns) -> None:
    """Refuse a row of which half a character would be learnt.

    Args:
        converted: what the run makes of the row.
        columns: of the row; in those that nobody reads, half a character does no harm.

    Raises:
        Refusal: with the place in the row.
    """
    written = _first(converted, in_json=False)
    if written is None:
        return
    unread = columns.unread()
    read = {name: value for name, value in columns.row.items() if name not in unread}
    found = _first(read, in_json=False) or _first(read, in_json=True) or written
    half = f"\\u{ord(found.letter):04x}"
    raise Refusal(
        "llm.row-half-character",
        f"has {half} in {found.place}, half of a character without its other half; write the whole"
        " character, take the half out, or leave the row out",
        column=found.place,
        half=half,
    )


def _first(value: Any, in_json: bool) -> Half | None:
    return next(_halves(value, "", in_json), None)


def _halves(value: Any, place: str, in_json: bool) -> Iterator[Half]:
    """Each half in texts and in names of objects.

    Args:
        place: of the value in its row.
        in_json: texts are read that are JSON themselves, as cells of a table are.
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            own = f"{place}.{name}" if place else str(name)
            yield from _halves(str(name), own, in_json)
            yield from _halves(inner, own, in_json)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _halves(inner, f"{place}[{number}]", in_json)
    elif isinstance(value, str):
        found = None if value.isascii() else SURROGATES.search(value)
        if found is not None:
            yield Half(place, found[0])
        elif in_json and value.lstrip().startswith(("[", "{")):
            yield from _halves(_of_json(value), place, in_json)


def _of_json(text: str) -> Any:
    """What a text of JSON holds; None of another text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
