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
        found = Counter(self.others)
        if not tests:
            found[self.part] += len(self.test)
        return {f"rows of {part} ({self.column})": count for part, count in found.items()}


def split_rows(rows: Sequence[Any], named: Mapping[str, str | None]) -> SplitRows | None:
    """Split rows; None if no column names some rows to train on and others to test on.

    Args:
        named: `dataset.columns`, whose `split` may name another column, or None to ignore splits.
    """
    if "split" in named and named["split"] is None:
        return None
    if not all(isinstance(row, dict) for row in rows):
        return None
    wanted = [named["split"]] if "split" in named else _called(rows)
    columns = {name: [_text(row.get(name)) for row in rows] for name in wanted if name is not None}
    lowered = {name.strip().lower(): name for name in columns}
    known = {name: columns[lowered[name]] for name in SPLITS if name in lowered} or columns
    column, parts = named_parts(known, is_named="split" in named)
    if parts is None:
        return None
    kinds = {part: name.kind for part in {*parts} if (name := part_names.parsed(part)) is not None}
    tests = [part for part in kinds if kinds[part] is not PartKind.train]
    if not tests or len(tests) == len(kinds):
        return None
    part = min(tests, key=_order)
    train = [number for number, own in enumerate(parts) if kinds.get(own) is PartKind.train]
    test = [number for number, own in enumerate(parts) if own == part]
    others = Counter(
        own or NO_PART for own in parts if own != part and kinds.get(own) is not PartKind.train
    )
    return SplitRows(lowered.get(column, column), train, test, part, others)


def _called(rows: Sequence[Any]) -> list[str]:
    names = []
    for row in rows:
        names.extend(row)
    found = dict.fromkeys(names)
    return [name for name in found if name.strip().lower() in SPLITS]


def _order(part: str) -> tuple[int, int, str]:
    """Return the key that sorts splits to test on. The first of several is used."""
    name = part_names.parsed(part)
    assert name is not None
    return *name.order, part


def _text(value: Any) -> str:
    return "" if value is None else str(value).strip()
