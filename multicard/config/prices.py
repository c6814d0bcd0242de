"""Finds the price of a GPU hour: `price.gpu_hour`, or an entry in the user's table of GPUs."""

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

TABLE = "multicard/prices.yaml"  # Relative to the folder of the user's configuration.


@dataclass
class PriceConfig:
    gpu_hour: Optional[float] = key(
        None,
        "price of one GPU for an hour, in any currency; null: from ~/.config/multicard/prices.yaml",
        Role.beside | Role.site,
        above=0,
    )

    def __post_init__(self) -> None:
        _table()  # Refuses a broken table before anything runs.


def gpu_hour(config: Mapping[str, Any], gpu: str | None) -> float | None:
    """Return the price of a GPU hour, from the configuration or else from the table; None if
    neither has one.

    Args:
        gpu: the GPU's name, as NVML reports it. A line of the table applies to GPUs whose name has
            all words of the line. If several lines apply, the one with the most words counts.

    Raises:
        ValueError: the table cannot be read, or a price in it is invalid.
    """
    price_config = config.get("price")
    price = price_config.get("gpu_hour") if isinstance(price_config, Mapping) else None
    if price is not None:
        return price if _is_price(price) else None
    words = _words(gpu or "")
    matching_prices = [
        (len(name), price)
        for name, price in _table().items()
        if name <= words and "," not in (gpu or "")
    ]
    return max(matching_prices)[1] if matching_prices else None


def _table() -> dict[frozenset[str], float]:
    """Return the user's prices, by the words of a GPU's name."""
    return _read_table(Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", TABLE))


@cache
def _read_table(file: Path) -> dict[frozenset[str], float]:
    if not file.is_file():
        return {}
    try:
        prices = strict_yaml.read_yaml(file)
    except (OSError, ValueError) as error:
        raise Refusal(
            "prices.unreadable",
            f"{file}: cannot be read ({error})",
            file=str(file),
            reason=str(error),
        ) from None
    if not isinstance(prices, dict):
        raise _not_a_price(file, repr(prices))
    for gpu, price in prices.items():
        if not _words(str(gpu)) or not _is_price(price):
            raise _not_a_price(file, f"{gpu}: {price!r}")
    return {_words(str(gpu)): float(price) for gpu, price in prices.items()}


def _not_a_price(file: Path, content: str) -> Refusal:
    return Refusal(
        "prices.no-price",
        f"{file}: {content} is not a price per hour; write a GPU and a number above 0 on each line,"
        " as H100: 2.49",
        file=str(file),
        content=content,
    )


def _is_price(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf


def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", name.lower()))
