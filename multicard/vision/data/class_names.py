"""The names of classes: cell values as text, the order in which classes are numbered, and names
that differ only in spelling.
"""

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


def as_texts(values: Sequence[Any], declared: Sequence[str]) -> list[str]:
    """Convert values to text. Missing values become "", and class numbers their declared names.

    The text nan is a value, as a class may be called `Nan`. If all other values are numbers, it is
    missing.
    """
    if declared:
        values = [declared[number] if number in range(len(declared)) else None for number in values]
    cell_texts = ["" if _is_missing(value) else str(value).strip() for value in values]
    other_values = {text for text in cell_texts if text and text.lower() != "nan"}
    if all(NUMBER.fullmatch(text) for text in other_values):
        return ["" if text.lower() == "nan" else text for text in cell_texts]
    return cell_texts


def replace_no_class(labels: Sequence[str]) -> list[str]:
    """Replace -1 by "" if it means "no class".

    It does if the other labels are at least two different numbers, all of them 0 or more. Labels of
    -1 and 1, or with other negative numbers, stay as they are.
    """
    other_values = {label for label in labels if label and not _is_no_class(label)}
    if len(other_values) < 2 or not all(
        NUMBER.fullmatch(label) and float(label) >= 0 for label in other_values
    ):
        return [*labels]
    return ["" if _is_no_class(label) else label for label in labels]


def _is_no_class(label: str) -> bool:
    return NUMBER.fullmatch(label) is not None and float(label) == -1


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def is_fraction(text: str) -> bool:
    """Tell whether a text is a number with decimals other than 0."""
    return NUMBER.fullmatch(text) is not None and not float(text).is_integer()


def ordered_classes(labels: Sequence[str], declared: Sequence[str]) -> list[str]:
    """Return the classes of these labels in the order of their numbers.

    The order is the declared one, or by value if all labels are numbers, or by name.
    """
    present_names = set(labels)
    sort_value = (
        float if all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in present_names) else str
    )
    # Sorting by name first gives 1 and 01, which have the same value, a fixed order.
    by_value = sorted(sorted(present_names), key=sort_value)
    return [name for name in declared if name in present_names] or by_value


def group_similar_names(names: Sequence[str]) -> list[list[str]]:
    """Group the names of classes that differ only in spelling.

    Such names differ in case, in blanks, dashes and underscores, or in how they write an accent or
    a number (1 and 1.0).
    """
    groups = defaultdict[str | float, list[str]](list)
    for name in names:
        groups[without_spelling(name)].append(name)
    return [group for group in groups.values() if len(group) > 1]


def without_spelling(name: str) -> str | float:
    """Return what is the same for names that differ only in spelling."""
    if NUMBER.fullmatch(name):
        return float(name)
    # Accents are a letter with it, or one behind it, as macOS writes them.
    plain = unicodedata.normalize("NFC", name).casefold()
    return re.sub(r"[ _-]+", " ", plain).strip()
