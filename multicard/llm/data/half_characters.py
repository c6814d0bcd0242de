"""Refuse rows that hold half of a character, which no tokenizer can read.

JSON writes a character beyond U+FFFF as a pair of surrogates. A program that cuts texts by UTF-16
units leaves half of such a pair. UTF-8 cannot encode it.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from multicard.llm.data.columns import RowColumns
from multicard.messages import SURROGATES, Refusal


class HalfCharacter(NamedTuple):
    """Half of a character, and its place in a row, such as "messages[1].content"."""

    place: str
    letter: str


def check_characters(converted: Any, columns: RowColumns) -> None:
    """Refuse a row if the run would learn half of a character.

    Args:
        converted: the form of the row that the run learns.
        columns: the columns of the row. Half a character does no harm in unread columns.

    Raises:
        Refusal: names the place in the row.
    """
    first_half = _first_half(converted, in_json=False)
    if first_half is None:
        return
    unread = columns.unread()
    read_columns = {name: value for name, value in columns.row.items() if name not in unread}
    located_half = (
        _first_half(read_columns, in_json=False)
        or _first_half(read_columns, in_json=True)
        or first_half
    )
    half = f"\\u{ord(located_half.letter):04x}"
    raise Refusal(
        "llm.row-half-character",
        f"has {half} in {located_half.place}, half of a character without its other half; write"
        " the whole character, take the half out, or leave the row out",
        column=located_half.place,
        half=half,
    )


def _first_half(value: Any, in_json: bool) -> HalfCharacter | None:
    return next(_halves(value, "", in_json), None)


def _halves(value: Any, place: str, in_json: bool) -> Iterator[HalfCharacter]:
    """Yield each half in texts and in the names of objects.

    Args:
        place: the place of the value in its row.
        in_json: also search texts that are JSON, such as cells of a table.
    """
    if isinstance(value, dict):
        for name, inner in value.items():
            inner_place = f"{place}.{name}" if place else str(name)
            yield from _halves(str(name), inner_place, in_json)
            yield from _halves(inner, inner_place, in_json)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _halves(inner, f"{place}[{number}]", in_json)
    elif isinstance(value, str):
        match = None if value.isascii() else SURROGATES.search(value)
        if match is not None:
            yield HalfCharacter(place, match[0])
        elif in_json and value.lstrip().startswith(("[", "{")):
            yield from _halves(_parse_or_none(value), place, in_json)


def _parse_or_none(text: str) -> Any:
    """Return the value of a JSON text; None for other texts."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
