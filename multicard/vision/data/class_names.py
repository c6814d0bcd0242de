"""The names of classes: a table's values as texts, in which order they are numbered,
and names that are almost one.
"""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def texts(values: Sequence[Any], declared: Sequence[str]) -> list[str]:
    """Values as texts, "" where there is none: numbers by their declared names,
    where there are some.

    The text nan is a value, as `Nan` may be a class,
    unless all others are numbers: then one is missing.
    """
    if declared:
        values = [declared[number] if number in range(len(declared)) else None for number in values]
    found = ["" if _is_missing(value) else str(value).strip() for value in values]
    others = {text for text in found if text and text.lower() != "nan"}
    if all(NUMBER.fullmatch(text) for text in others):
        return ["" if text.lower() == "nan" else text for text in found]
    return found


def without_no_class(labels: Sequence[str]) -> list[str]:
    """Labels with "" for -1, which stands for no class beside two or more numbers from 0 on,
    whatever file has them.

    Of -1 and 1, or beside other negative numbers, it is a class as they are.
    """
    others = {label for label in labels if label and not _is_no_class(label)}
    if len(others) < 2 or not all(
        NUMBER.fullmatch(label) and float(label) >= 0 for label in others
    ):
        return [*labels]
    return ["" if _is_no_class(label) else label for label in labels]


def _is_no_class(label: str) -> bool:
    return NUMBER.fullmatch(label) is not None and float(label) == -1


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_fraction(text: str) -> bool:
    """True of a number with decimals that are not all 0."""
    return NUMBER.fullmatch(text) is not None and not float(text).is_integer()


def in_order(labels: Sequence[str], declared: Sequence[str]) -> list[str]:
    """The classes of these samples: as declared, or by their value where all are numbers,
    or by name.
    """
    present = set(labels)
    value = float if all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in present) else str
    by_value = sorted(sorted(present), key=value)  # by name first: 1 and 01 are of one value
    return [name for name in declared if name in present] or by_value


def alike(names: Sequence[str]) -> list[list[str]]:
    """Names of classes that differ only by case and by blanks, dashes and underscores, or as two
    ways to write an accent or a number (1 and 1.0), those of one group together.
    """
    groups = defaultdict[str | float, list[str]](list)
    for name in names:
        if NUMBER.fullmatch(name):
            groups[float(name)].append(name)
        else:
            # accents are a letter with it, or one behind it, as macOS writes them
            plain = unicodedata.normalize("NFC", name).casefold()
            groups[re.sub(r"[ _-]+", " ", plain).strip()].append(name)
    return [group for group in groups.values() if len(group) > 1]
