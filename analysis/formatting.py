"""Figures with their units, as a person reads them."""

from collections.abc import Iterable
from typing import Any

from multicard.records.text_table import clean, in_bytes, in_joules

KINDS = {"vision": "training", "llm": "tuning"}  # of runs, as headings name them


def value(column: str, content: Any) -> str:
    """A column's value by the unit in its name; "-" where there is none."""
    if content is None:
        return "-"
    if isinstance(content, bool):
        return str(content).lower()
    if not isinstance(content, int | float):
        return clean(str(content))
    return _number(column, content)


def _number(column: str, content: float) -> str:
    if column.endswith("_bytes"):
        return in_bytes(content)
    if column.endswith("_per_s"):
        return f"{content:,.0f}"
    if column.endswith("_s"):
        return seconds(content)
    if column.endswith("_joules"):
        return in_joules(content)
    if column.endswith("accuracy"):
        return f"{content:.2%}"
    return str(content) if isinstance(content, int) else f"{content:.4g}"


def kind(run_kind: str) -> str:
    """The kind of runs as a heading names it."""
    return KINDS.get(run_kind, clean(run_kind))


def seconds(count: float) -> str:
    """Seconds to a tenth from 10 s on, else to four digits."""
    return f"{count:,.1f}" if count >= 10 else f"{count:.4g}"


def counted(number: int, noun: str) -> str:
    """The number with its noun: "1 run", "2,000 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def say(lines: Iterable[str]) -> None:
    """Print all at once: 10,000 lines one by one take a second."""
    print("\n".join(lines))
