"""Columns that name the part of each row, for training or to test on: `split`, `is_valid`."""

from collections.abc import Mapping

from multicard.records import part_names

# All but the first name parts only where each value is the name of one, or a boolean
SPLITS = ("split", "set", "subset", "partition", "is_valid", "is_val", "is_test")
BOOLEANS = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}


def named_parts(columns: Mapping[str, list[str]], is_named: bool) -> tuple[str, list[str] | None]:
    """The first of these columns that names the part of each row, and the parts.
    "" and None where none does.

    Args:
        is_named: the column was given, so that its values are parts, whatever they are.
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
