"""What the schemas are written with: described keys, and refusals."""

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


def require(condition: bool, message: str) -> None:
    """Refuse a value: `message` names the key and the remedy.

    Raises:
        ValueError: where `condition` is false.
    """
    if not condition:
        raise ValueError(message)
