"""Values as JSON has them: no NaN, no infinity, and text alone."""

import math
from typing import Any

import msgspec
import numpy as np

from multicard.messages import as_text


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
    """`value` with None for every NaN and infinity,
    and with text for every name of other bytes (`as_text`).
    """
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, str):
        return as_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
