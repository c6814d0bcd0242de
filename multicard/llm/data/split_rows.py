"""Split rows by a column that names their split. As with images, test rows are not trained on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from multicard.records import part_names
from multicard.records.part_columns import SPLITS, named_parts
from multicard.records.part_names import PartKind

NO_PART = "no split"  # The rows' column holds nothing.


class SplitRows(NamedTuple):
    """Rows by their splits.

    Fields:
        column: the column that names the split.
        train: the numbers of the rows to train on.
        test: the numbers of the rows in `part`.
        part: the name of the split to test on.
        others: the number of rows in each other split.
    """

    column: str
    train: list[int]
    test: list[int]
    part: str
    others: Counter[str]

    def unread(self, tests: bool) -> dict[str, int]:
        """Return the record's `ignored`: counts of rows that are neither trained nor tested on.

        Args:
            tests: the rows of `part` are tested on.
        """
        counts = Counter(self.others)
        if not tests:
            counts[self.part] += len(self.test)
        return {f"rows of {part} ({self.column})": count for part, count in counts.items()}


def split_rows(rows: Sequence[Any], named: Mapping[str, str | None]) -> SplitRows | None:
    """Split rows; None if no column names some rows to train on and others to test on.

    Args:
        named: `dataset.columns`, whose `split` may name another column, or None to ignore splits.
    """
    if "split" in named and named["split"] is None:
        return None
    if not all(isinstance(row, dict) for row in rows):
        return None
    candidates = [named["split"]] if "split" in named else _split_columns(rows)
    columns = {
        name: [_text(row.get(name)) for row in rows] for name in candidates if name is not None
    }
    names_by_lower = {name.strip().lower(): name for name in columns}
    split_columns = {
        name: columns[names_by_lower[name]] for name in SPLITS if name in names_by_lower
    } or columns
    column, parts = named_parts(split_columns, is_named="split" in named)
    if parts is None:
        return None
    kinds = dict[str, PartKind]()
    for part in {*parts}:
        name = part_names.parsed(part)
        if name is not None:
            kinds[part] = name.kind
    tests = [part for part in kinds if kinds[part] is not PartKind.train]
    if not tests or len(tests) == len(kinds):
        return None
    tested_part = min(tests, key=_order)
    train = [
        number for number, row_part in enumerate(parts) if kinds.get(row_part) is PartKind.train
    ]
    test = [number for number, row_part in enumerate(parts) if row_part == tested_part]
    others = Counter(
        row_part or NO_PART
        for row_part in parts
        if row_part != tested_part and kinds.get(row_part) is not PartKind.train
    )
    return SplitRows(names_by_lower.get(column, column), train, test, tested_part, others)


def _split_columns(rows: Sequence[Any]) -> list[str]:
    names = []
    for row in rows:
        names.extend(row)
    distinct = dict.fromkeys(names)
    return [name for name in distinct if name.strip().lower() in SPLITS]


def _order(part: str) -> tuple[int, int, str]:
    """Return the key that sorts splits to test on. The first of several is used."""
    name = part_names.parsed(part)
    assert name is not None
    return *name.order, part


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()
