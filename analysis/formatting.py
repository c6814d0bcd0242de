"""Figures with their units, as a person reads them."""

from collections.abc import Iterable
from typing import Any

from multicard.records.table import in_bytes
from multicard.records.text_table import clean


def value(column: str, found: Any) -> str:
    """A column's value by the unit in its name; "-" where there is none."""
    if found is None:
        return "-"
    if isinstance(found, bool):
        return str(found).lower()
    if not isinstance(found, int | float):
        return clean(str(found))
    return _number(column, found)


def _number(column: str, found: float) -> str:
    if column.endswith("_bytes"):
        return in_bytes(found)
    if column.endswith("_per_s"):
        return f"{found:,.0f}"
    if column.endswith("_s"):
        return seconds(found)
    if column.endswith("_joules"):
        return joules(found)
    if column.endswith("accuracy"):
        return f"{found:.2%}"
    return str(found) if isinstance(found, int) else f"{found:.4g}"


def seconds(count: float) -> str:
    """Seconds to a tenth from 10 s on, else to four digits."""
    return f"{count:,.1f}" if count >= 10 else f"{count:.4g}"


def joules(count: float) -> str:
    for unit in ("J", "kJ"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.3g} MJ"


def say(lines: Iterable[str]) -> None:
    """Print all at once: 10,000 lines one by one take a second."""
    print("\n".join(lines))
