"""Quotes values that Hydra cannot read, including the parts of lists, dictionaries and sweeps."""

import re
from collections.abc import Sequence
from itertools import chain
from typing import get_args, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import OverrideParseException

from multicard import workloads

CLOSES = {"[": "]", "{": "}", "(": ")"}
NAME_IN_DICTIONARY = re.compile(r"\s*[\w.-]+\s*:\s*")  # The name of a value in a dictionary.


def readable(key: str, value: str, sweeps: bool) -> str:
    """Return the value in a form that Hydra reads as it was meant.

    Args:
        sweeps: whether a comma outside brackets separates the values of a sweep; otherwise, it is
            part of the value. If the key takes a list, a value without brackets is one list.
    """
    parts = _split(value)
    if _is_list(key) and not value.startswith("["):
        return (
            f"[{','.join(map(_readable_part, parts))}]"
            if parts is not None
            else f"[{_quoted_text(value)}]"
        )
    if sweeps and parts is not None and len(parts) > 1:
        return _quoted_unless_readable(",".join(map(_readable_part, parts)), value)
    return _readable_part(value)


def _readable_part(value: str) -> str:
    """Return one value: unchanged, with quotes within its brackets, or quoted as a whole."""
    if _is_readable(value):
        return value
    inner = value[1:-1]
    parts = _split(inner) if len(value) > 1 and CLOSES.get(value[0]) == value[-1] else None
    if parts is not None and value[0] == "[":
        return _quoted_unless_readable(f"[{','.join(map(_readable_part, parts))}]", value)
    if (
        parts is not None
        and value[0] == "{"
        and all(NAME_IN_DICTIONARY.match(part) for part in parts)
    ):
        return _quoted_unless_readable(f"{{{','.join(map(_readable_entry, parts))}}}", value)
    return _quoted_text(value)


def _readable_entry(part: str) -> str:
    name = NAME_IN_DICTIONARY.match(part)
    assert name is not None
    return f"{name[0].strip()}{_readable_part(part[name.end() :])}"


def _quoted_unless_readable(quoted: str, value: str) -> str:
    return quoted if _is_readable(quoted) else _quoted_text(value)


def _quoted_text(value: str) -> str:
    return QuotedString(value, Quote.double).with_quotes()


def _is_readable(value: str) -> bool:
    try:
        return value != "" and len(OverridesParser.create().parse_overrides([f"key={value}"])) == 1
    except OverrideParseException:
        return False


def _split(value: str) -> list[str] | None:
    """Split a value at commas outside brackets and quotes; None if these do not close."""
    parts = [""]
    open_until = list[str]()
    for letter in value:
        quoted = bool(open_until) and open_until[-1] in "'\""
        if open_until and letter == open_until[-1]:
            open_until.pop()
        elif not quoted and letter in "'\"":
            open_until.append(letter)
        elif not quoted and letter in CLOSES:
            open_until.append(CLOSES[letter])
        elif letter == "," and not open_until:
            parts.append("")
            continue
        parts[-1] += letter
    return None if open_until else parts


def _is_list(key: str) -> bool:
    """True for a key of a schema that takes a list."""
    by_workload = (workloads.known_keys(workload).get(key, ()) for workload in workloads.WORKLOADS)
    return any(_has_list(kind) for kind in chain.from_iterable(by_workload))


def _has_list(kind: object) -> bool:
    inner: Sequence[object] = get_args(kind)
    return (
        get_origin(kind) is list
        or kind is list
        or any(get_origin(argument) is list for argument in inner)
    )
