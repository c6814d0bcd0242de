"""Converts values to what JSON supports: no NaN, no infinity, and valid text."""

import math
from typing import Any

import msgspec
import numpy as np

from multicard.messages import as_text


def builtins(value: Any) -> Any:
    """Convert a value or a struct to the types that JSON has."""
    return msgspec.to_builtins(value, enc_hook=_plain)


def _plain(value: Any) -> Any:
    """Convert a NumPy number to a Python number, and a message to its text."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, str):
        return str(value)
    raise TypeError(f"JSON has no {type(value).__name__}")


def readable(value: Any) -> Any:
    """Return `value` with None in place of NaN and infinity, and with invalid text replaced
    (`as_text`).
    """
    if isinstance(value, dict):
        return {readable(key): readable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [readable(item) for item in value]
    if isinstance(value, str):
        return as_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value
