"""Quotes for values that Hydra cannot read: around each part of a list,
a dictionary or a sweep that needs them.
"""

import re
from collections.abc import Sequence
from itertools import chain
from typing import get_args, get_origin

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import OverrideParseException

from multicard import workloads

CLOSES = {"[": "]", "{": "}", "(": ")"}
NAMED = re.compile(r"\s*[\w.-]+\s*:\s*")  # the name of a value in a dictionary


def readable(key: str, value: str, sweeps: bool) -> str:
    """The value in a form that Hydra reads as what was meant.

    Args:
        sweeps: a comma outside of brackets separates values of a sweep; else it is a part of the
            value. Of a key that takes a list, what stands without brackets is one list.
    """
    parts = _split(value)
    if _is_list(key) and not value.startswith("["):
        return f"[{','.join(map(_part, parts))}]" if parts is not None else f"[{_text(value)}]"
    if sweeps and parts is not None and len(parts) > 1:
        return _if_read(",".join(map(_part, parts)), value)
    return _part(value)


def _part(value: str) -> str:
    """One value: as it is, with quotes within its brackets, or quoted as a whole."""
    if _reads(value):
        return value
    inner = value[1:-1]
    parts = _split(inner) if len(value) > 1 and CLOSES.get(value[0]) == value[-1] else None
    if parts is not None and value[0] == "[":
        return _if_read(f"[{','.join(map(_part, parts))}]", value)
    if parts is not None and value[0] == "{" and all(NAMED.match(part) for part in parts):
        return _if_read(f"{{{','.join(map(_named, parts))}}}", value)
    return _text(value)


def _named(part: str) -> str:
    name = NAMED.match(part)
    assert name is not None
    return f"{name[0].strip()}{_part(part[name.end() :])}"


def _if_read(made: str, value: str) -> str:
    return made if _reads(made) else _text(value)


def _text(value: str) -> str:
    return QuotedString(value, Quote.double).with_quotes()


def _reads(value: str) -> bool:
    try:
        return value != "" and len(OverridesParser.create().parse_overrides([f"key={value}"])) == 1
    except OverrideParseException:
        return False


def _split(value: str) -> list[str] | None:
    """The parts of a value between commas outside of brackets and quotes;
    None if those do not close.
    """
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
        get_origin(kind) is list or kind is list or any(get_origin(each) is list for each in inner)
    )
