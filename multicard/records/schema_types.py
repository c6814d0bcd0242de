"""The types of the values in a record, with their bounds."""

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from msgspec import Meta

MOST = 10**18  # Larger than any figure. Sums and powers of larger values may overflow.
# Seeds have 63 bits.
Scalar = str | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float | bool | None
Int = Annotated[int, Meta(ge=-MOST, le=MOST)]
Float = Annotated[float, Meta(ge=-MOST, le=MOST)]
Count = Int | None
Number = Float | None
Share = Annotated[float, Meta(ge=0, le=1)] | None
Duration = Annotated[float, Meta(ge=1e-9, le=MOST)] | None  # Positive: others are divided by it.


def described(hint: Any) -> tuple[list[Any], str]:
    """Return the types of a key, with unions expanded, and the description in its annotation."""
    if get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        types, text = described(inner)
        for note in notes:
            if isinstance(note, str):
                return types, note
        return types, text
    if get_origin(hint) in (Union, UnionType):
        kinds = []
        for part in get_args(hint):
            kinds.extend(described(part)[0])
        return kinds, ""
    return [hint], ""
