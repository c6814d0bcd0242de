"""Building blocks of the schemas: described keys, refusals, and keys as they are typed."""

from collections.abc import Mapping
from dataclasses import field
from typing import Any


def key(default: Any, description: str) -> Any:
    """A key of a schema, with its default and the line that `--help` shows for it.

    Args:
        default: MISSING where a file under `conf/` sets it; a callable (`list`) makes a new value each time.
        description: what the value means, with its unit, and what null stands for.
    """
    metadata = {"help": description}
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as "group.key", as it is typed, to value."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return values


def require(condition: bool, message: str) -> None:
    """Refuse a value: `message` names the key and the remedy.

    Raises:
        ValueError: where `condition` is false.
    """
    if not condition:
        raise ValueError(message)
