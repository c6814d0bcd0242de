"""Values as JSON has them: no NaN, no infinity, and text alone."""

import math
import re
from typing import Any

import msgspec
import numpy as np

SURROGATES = re.compile("[\ud800-\udfff]")  # in Python's texts, parts of names that are not UTF-8
BYTES_FROM = 0xDC00  # Python has byte 0xE9 of such a name as U+DCE9


def builtins(value: Any) -> Any:
    """A value, or a struct, in types that JSON has."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """A number of NumPy's as one of Python's, a message as its text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def readable(value: Any) -> Any:
    """`value` with None for every NaN and infinity, and with text for every name of other bytes (`as_text`)."""
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, str):
        return as_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_text(name: str) -> str:
    r"""A name of any bytes, as of a file, as text that UTF-8 has: byte E9 of Latin-1 becomes `\xe9`.

    Whoever writes the surrogates of Python's own form of it writes what no strict reader of JSON takes.
    """
    return SURROGATES.sub(_escaped, name) if not name.isascii() else name


def _escaped(surrogate: re.Match[str]) -> str:
    number = ord(surrogate[0])
    is_byte = BYTES_FROM + 0x80 <= number <= BYTES_FROM + 0xFF
    return f"\\x{number - BYTES_FROM:02x}" if is_byte else f"\\u{number:04x}"
