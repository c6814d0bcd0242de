"""Building blocks of the schemas: described keys, refusals, and keys as they are typed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from math import inf
from typing import Any, TypeVar, get_args

from omegaconf import MISSING

from multicard.config.roles import Role, problem
from multicard.messages import Refusal

Answer = TypeVar("Answer")

_REMEMBERED: list[Any] = []


def remembered(answer: Callable[..., Answer]) -> Callable[..., Answer]:
    """A function about keys whose answers are kept until another option is defined,
    which may have keys of its own.
    """
    kept = cache(answer)
    _REMEMBERED.append(kept)
    return kept


class Group:
    """The schema of a group's options; an option with more keys extends it,
    wherever it is defined.
    """

    def __init_subclass__(cls) -> None:
        for kept in _REMEMBERED:
            kept.cache_clear()


@dataclass(frozen=True)
class Tries:
    """Values of a key to try beside a run's own, where nobody varied it.

    values: as they are typed; none of a number that is multiplied.
    phases: of a step, which other values may shorten: the one that they shorten most first.
    """

    values: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()


def key(
    default: Any,
    description: str,
    roles: Role,
    *,
    least: int | None = None,
    above: int | None = None,
    since: tuple[str, Any] | None = None,
    switch: str | None = None,
    power: float | None = None,
    tries: Tries | None = None,
    shown: int | None = None,
    title: str | None = None,
    also: tuple[str, ...] = (),
    means: Mapping[str, str] | None = None,
) -> Any:
    """A key of a schema: its one entry, from which all that is known of it follows.

    Args:
        default: MISSING where a file under `conf/` sets it; a callable (`list`) makes a new value
            each time.
        description: the line that `--help` shows: what the value means, with its unit, and what
            null stands for.
        roles: what it means for cells, figures and tables: see `Role`.
        least: the least value.
        above: what the value must exceed, and be finite.
        since: of a key that came later: a key of the same schema that was there before, as other
            schemas may have had one of this name all along, and what earlier runs did. At that
            value a run keeps its identity.
        switch: of a group: its key that the group's own name sets: `predict=true` is
            `predict.enabled=true`.
        power: a step computes in proportion to the value to this power.
        tries: values to try next.
        shown: its place among the settings that a figure's subtitle names; None: it is not among
            them.
        title: what figures call it; None: its name.
        also: what other programs call the key; a command that does is refused with this key.
        means: what other programs call its values, and the value here, as it is typed.
    """
    if (wrong := problem(roles)) is not None:
        raise TypeError(f"a key that {wrong}: {description}")
    metadata = {
        "help": description,
        "roles": roles,
        "least": least,
        "above": above,
        "since": since,
        "switch": switch,
        "power": power,
        "tries": tries,
        "shown": shown,
        "title": title,
        "also": also,
        "means": means or {},
    }
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_name(default: Any = MISSING) -> Any:
    """The key `name` of a group's option, which the
    option's file sets: it has the roles of the group.

    Args:
        default: of a group whose options have no files.
    """
    return field(default=default, metadata={"roles": Role.option})


def later_keys(config: Any, prefix: str = "") -> dict[str, tuple[str, Any]]:
    """The keys of a configuration that came later (`since`), with the key that was there before and
    the value of what earlier runs did.
    """
    found: dict[str, tuple[str, Any]] = {}
    for each in fields(config):
        since = each.metadata.get("since")
        if since is not None:
            found[f"{prefix}{each.name}"] = (f"{prefix}{since[0]}", since[1])
        value = getattr(config, each.name, None)
        if is_dataclass(value):
            found |= later_keys(value, f"{prefix}{each.name}.")
    return found


def check_bounds(config: Any, prefix: str = "") -> None:
    """Refuse (ValueError) numbers beyond the bounds of their keys, those of groups too."""
    for each in fields(config):
        value = getattr(config, each.name)
        name = f"{prefix}{each.name}"
        if is_dataclass(value):
            check_bounds(value, f"{name}.")
        if not isinstance(value, int | float):
            continue
        least = each.metadata.get("least")
        above = each.metadata.get("above")
        null = ", or null" if type(None) in get_args(each.type) else ""
        if least is not None and not value >= least:  # written so that nan is refused too
            raise Refusal(
                "config.least",
                f"{name}={value}: must be {least} or more{null}",
                key=name,
                value=value,
                least=least,
            )
        if above is not None and not above < value < inf:
            raise Refusal(
                "config.above",
                f"{name}={value}: must be above {above}, and finite{null}",
                key=name,
                value=value,
                above=above,
            )
        # beyond, they overflow in torch, NumPy or SLURM
        bits = 63 if name == "seed" or name.endswith("_bytes") else 31
        if isinstance(value, int) and abs(value) >= 2**bits:
            raise Refusal(
                "config.overflow",
                f"{name}={value}: must be below 2^{bits}",
                key=name,
                value=value,
                bits=bits,
            )


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration as "group.key", as it is typed, to value."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{name}": value}
        )
    return values
