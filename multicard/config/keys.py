"""Building blocks of the schemas: described keys, refusals, and keys as they are typed."""

from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from math import inf
from typing import Any, get_args

from multicard.messages import Refusal


def key(default: Any, description: str, *, least: int | None = None, above: int | None = None) -> Any:
    """A key of a schema, with its default and the line that `--help` shows for it.

    Args:
        default: MISSING where a file under `conf/` sets it; a callable (`list`) makes a new value each time.
        description: what the value means, with its unit, and what null stands for.
        least: the least value. above: what the value must exceed, and be finite.
    """
    metadata = {"help": description, "least": least, "above": above}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_bounds(config: Any, prefix: str = "") -> None:
    """Refuse (ValueError) numbers beyond the bounds of their keys, those of groups too."""
    for each in fields(config):
        value, name = getattr(config, each.name), f"{prefix}{each.name}"
        if is_dataclass(value):
            check_bounds(value, f"{name}.")
        if not isinstance(value, int | float):
            continue
        least, above = each.metadata.get("least"), each.metadata.get("above")
        null = ", or null" if type(None) in get_args(each.type) else ""
        if least is not None and not value >= least:  # written so that nan is refused too
            raise Refusal(
                "config.least", f"{name}={value}: must be {least} or more{null}", key=name, value=value, least=least
            )
        if above is not None and not above < value < inf:
            raise Refusal(
                "config.above",
                f"{name}={value}: must be above {above}, and finite{null}",
                key=name,
                value=value,
                above=above,
            )
        bits = 63 if name == "seed" or name.endswith("_bytes") else 31  # beyond, they overflow in torch, NumPy or SLURM
        if isinstance(value, int) and abs(value) >= 2**bits:
            raise Refusal(
                "config.overflow", f"{name}={value}: must be below 2^{bits}", key=name, value=value, bits=bits
            )


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as "group.key", as it is typed, to value."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


def require(condition: bool, message: str) -> None:
    """Refuse a value (ValueError) unless `condition` holds: `message` names the key and the remedy."""
    if not condition:
        raise ValueError(message)
