"""Classes in lists of one, as `[0]`: data of several labels an image,
or of tools that can give several, where each image has one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.messages import Refusal


def list_column(schema: Any, named: str | None, names: Sequence[str]) -> Any | None:
    """The column of lists that may hold the classes; None where none does.

    Args:
        named: the column of the classes by the command. names: of such columns.
    """
    lists = {
        field.name.strip().lower(): field for field in schema if _is_list_of_values(field.type)
    }
    if named is not None:
        return lists.get(named.strip().lower())
    return next((lists[name] for name in names if name in lists), None)


def _is_list_of_values(kind: Any) -> bool:
    from pyarrow import types

    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return is_list and not kind.value_type.num_fields and not types.is_binary(kind.value_type)


def single_values(values: Sequence[Any], place: str, column: str) -> list[Any]:
    """Values, lists of one as what they hold, and empty ones as nothing.
    Refused where one holds several.
    """
    several = next((each for each in values if isinstance(each, list) and len(each) > 1), None)
    if several is not None:
        labels = [str(label) for label in several]
        raise Refusal(
            "photographs.lists-of-labels",
            f"{place}: {column} gives an image several labels: {several} is"
            f" {' and '.join(labels[:3])}. A classifier needs one; keep the rows with one label",
            key="dataset.root",
            column=column,
            example=str(several),
            labels=labels[:20],
        )
    return [(each[0] if each else None) if isinstance(each, list) else each for each in values]


def names_of(feature: Mapping[str, Any]) -> list[str]:
    """The names that `datasets` declared for the numbers of a column, or for those in its lists."""
    return [*feature.get("feature", feature)["names"]]
