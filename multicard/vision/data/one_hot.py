"""Classes that a table gives by a column each: exactly one of them is 1 in each row (one-hot)."""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.messages import Message
from multicard.records import part_names
from multicard.records.part_columns import SPLITS
from multicard.vision.data.image_columns import UsableColumns

FLAGS = {"0": 0, "0.0": 0, "false": 0, "1": 1, "1.0": 1, "true": 1}  # Values in lower case.
SHOWN_COLUMNS = 5  # A notice names at most this many columns.


def one_hot_columns(columns: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the columns of 0 and 1 if exactly one of them is 1 in each row, else an empty list."""
    flags = {}
    for name, values in columns.items():
        if all(value.lower() in FLAGS for value in values):
            flags[name] = [FLAGS[value.lower()] for value in values]
    if len(flags) > 1 and all(sum(row) == 1 for row in zip(*flags.values(), strict=True)):
        return [*flags]
    return []


def columns_of_classes(table: Any, columns: UsableColumns) -> dict[str, list[str]]:
    """Return the values of a table's one-hot columns, by their names in the file.

    The result is empty if there are none, or if they are named as parts.

    Args:
        table: A pyarrow `Dataset`.
        columns: The table's columns. None of them is the column of classes.
    """
    other_fields = [
        field
        for name, field in columns.fields.items()
        if name not in (columns.image, "", *SPLITS, *columns.encoded)
    ]
    stored_columns = table.to_table([field.name for field in other_fields])
    texts = {
        name: ["" if value is None else str(value).strip() for value in values.to_pylist()]
        for name, values in zip(stored_columns.column_names, stored_columns.columns, strict=True)
    }
    names = one_hot_columns(texts)
    if any(part_names.parsed(name) is not None for name in names):
        return {}
    return {name: texts[name] for name in names}


def labels_of_rows(flags: Mapping[str, Sequence[str]]) -> list[str]:
    """Return, for each row, the name of the column that is 1, without blanks around it."""
    rows = zip(*flags.values(), strict=True)
    return [
        next(name.strip() for name, value in zip(flags, row, strict=True) if FLAGS[value.lower()])
        for row in rows
    ]


def notice(place: str, names: Sequence[str]) -> Message:
    """Say which columns are taken for the classes."""
    names = [name.strip() for name in names]
    more = f" and {len(names) - SHOWN_COLUMNS} more" if len(names) > SHOWN_COLUMNS else ""
    return Message(
        "photographs.one-hot-columns",
        f"{place}: takes the columns {', '.join(names[:SHOWN_COLUMNS])}{more} for the classes, as"
        " exactly one of them is 1 in each row",
        key="dataset.columns",
        place=place,
        columns=[*names],
    )
