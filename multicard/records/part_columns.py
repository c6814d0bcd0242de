"""Recognizes columns that assign rows to training or testing, such as `split` and `is_valid`."""

from collections.abc import Mapping

from multicard.records import part_names

# Columns other than the first only count if each value names a part or is a boolean.
SPLITS = ("split", "set", "subset", "partition", "is_valid", "is_val", "is_test")
BOOLEANS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def named_parts(columns: Mapping[str, list[str]], is_named: bool) -> tuple[str, list[str] | None]:
    """Return the first of these columns that assigns rows to parts, and the part of each row. If
    there is none, return "" and None.

    Args:
        is_named: the user named the column, so its values are parts, whatever they are.
    """
    for name, values in columns.items():
        if name.startswith("is_") and all(value.lower() in BOOLEANS for value in values):
            kind = name.removeprefix("is_")
            return name, [kind if BOOLEANS[value.lower()] else "train" for value in values]
        if is_named or name == SPLITS[0]:
            return name, values
        if not name.startswith("is_") and all(part_names.parsed(value) for value in {*values}):
            return name, values
    return "", None
