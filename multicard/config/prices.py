"""What a GPU costs for an hour: `price.gpu_hour`, or the user's own table of GPUs."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, Optional  # OmegaConf reads Optional[...] on every Python that it supports

from multicard.config import strict_yaml
from multicard.config.keys import key
from multicard.config.roles import Role
from multicard.messages import Refusal

TABLE = "multicard/prices.yaml"  # in the folder of the user's configuration


@dataclass
class PriceConfig:
    gpu_hour: Optional[float] = key(
        None,
        "price of a GPU for an hour, in any currency; null: of ~/.config/multicard/prices.yaml",
        Role.beside | Role.site,
        above=0,
    )

    def __post_init__(self) -> None:
        _table()  # a broken one is refused before anything runs


def gpu_hour(config: Mapping[str, Any], gpu: str | None) -> float | None:
    """The price of a GPU for an hour: the configuration's, else the table's;
    None where neither has one.

    Args:
        gpu: its name as NVML has it. A line of the table is of the GPUs that have all its words;
            that with most counts.

    Raises:
        ValueError: a table that cannot be read, or a price that is none.
    """
    asked = config.get("price")
    price = asked.get("gpu_hour") if isinstance(asked, Mapping) else None
    if price is not None:
        return price if _is_price(price) else None
    words = _words(gpu or "")
    fitting = [
        (len(name), price)
        for name, price in _table().items()
        if name <= words and "," not in (gpu or "")
    ]
    return max(fitting)[1] if fitting else None


def _table() -> dict[frozenset[str], float]:
    """The user's prices, by the words of a GPU's name."""
    return _read(Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", TABLE))


@cache
def _read(file: Path) -> dict[frozenset[str], float]:
    if not file.is_file():
        return {}
    try:
        prices = strict_yaml.read(file)
    except (OSError, ValueError) as error:
        raise Refusal(
            "prices.unreadable",
            f"{file}: cannot be read ({error})",
            file=str(file),
            reason=str(error),
        ) from None
    if not isinstance(prices, dict):
        raise _no_prices(file, repr(prices))
    for gpu, price in prices.items():
        if not _words(str(gpu)) or not _is_price(price):
            raise _no_prices(file, f"{gpu}: {price!r}")
    return {_words(str(gpu)): float(price) for gpu, price in prices.items()}


def _no_prices(file: Path, content: str) -> Refusal:
    return Refusal(
        "prices.no-price",
        f"{file}: {content} is no price of an hour; write a GPU and a number above 0 on each line,"
        " as H100: 2.49",
        file=str(file),
        content=content,
    )


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", name.lower()))
