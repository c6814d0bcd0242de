"""Building blocks of the schemas: `key` declares a key, `check_bounds` refuses bad numbers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from math import inf
from typing import Any, TypeVar, get_args

from omegaconf import MISSING

from multicard.config.roles import Role, problem
from multicard.messages import Refusal

Answer = TypeVar("Answer")

_CACHED_ANSWERS: list[Any] = []


def remembered(answer: Callable[..., Answer]) -> Callable[..., Answer]:
    """Cache the answers of a function about keys until another option is defined, because it may
    add keys.
    """
    cached_answer = cache(answer)
    _CACHED_ANSWERS.append(cached_answer)
    return cached_answer


class Group:
    """The schema of a group's options. An option with more keys extends it, in any module."""

    def __init_subclass__(cls) -> None:
        for cached_answer in _CACHED_ANSWERS:
            cached_answer.cache_clear()


@dataclass(frozen=True)
class Tries:
    """Values of a key that are worth trying if nobody varied it.

    values: the values as they are typed; empty if a number is to be multiplied.
    phases: the phases of a step that other values may shorten, the most affected phase first.
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
    is_internal: bool = False,
) -> Any:
    """Declare a key of a schema. All that the code knows about the key follows from this entry.

    Args:
        default: the default. MISSING if a file under `conf/` sets it. A callable (`list`) makes a
            new value each time.
        description: the line in `--help`: what the value means, its unit, and what null stands for.
        roles: what the key means for cells, figures and tables; see `Role`.
        least: the lowest allowed value.
        above: a bound that the value must exceed; it must also be finite.
        since: for a key that was added later: an older key of the same schema, and the value that
            describes what runs did before. With this value, a run keeps its identity. The older key
            is named because another schema may have had a key of this name all along.
        switch: for a group: the key that is set through the group's name. `predict=true` stands for
            `predict.enabled=true`.
        power: the computation of a step is proportional to the value to this power.
        tries: values to try next.
        shown: its position among the settings in a figure's subtitle; None: it is not shown.
        title: its name in figures; None: the name of the key.
        also: names of the key in other programs. A command that uses one is refused, and the
            refusal suggests this key.
        is_internal: multicard sets the key itself, so `--help` does not list it.
        means: other programs' names of values, with the corresponding value here, as it is typed.
    """
    if (error := problem(roles)) is not None:
        raise TypeError(f"a key that {error}: {description}")
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
        "is_internal": is_internal,
    }
    if callable(default):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def option_name(default: Any = MISSING) -> Any:
    """Declare the key `name` of a group's option. The option's file sets it, and it has the roles
    of the group.

    Args:
        default: the default of a group whose options have no files.
    """
    return field(default=default, metadata={"roles": Role.option})


def later_keys(config: Any, prefix: str = "") -> dict[str, tuple[str, Any]]:
    """Return the keys of a configuration that were added later (`since`), each with an older key
    and the value that describes what runs did before.
    """
    later: dict[str, tuple[str, Any]] = {}
    for schema_field in fields(config):
        since = schema_field.metadata.get("since")
        if since is not None:
            later[f"{prefix}{schema_field.name}"] = (f"{prefix}{since[0]}", since[1])
        value = getattr(config, schema_field.name, None)
        if is_dataclass(value):
            later |= later_keys(value, f"{prefix}{schema_field.name}.")
    return later


def check_bounds(config: Any, prefix: str = "") -> None:
    """Refuse (ValueError) numbers outside the bounds of their keys, including keys of groups."""
    for schema_field in fields(config):
        value = getattr(config, schema_field.name)
        name = f"{prefix}{schema_field.name}"
        if is_dataclass(value):
            check_bounds(value, f"{name}.")
        if not isinstance(value, int | float):
            continue
        least = schema_field.metadata.get("least")
        above = schema_field.metadata.get("above")
        null = ", or null" if type(None) in get_args(schema_field.type) else ""
        if least is not None and not value >= least:  # This form also refuses NaN.
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
        # Larger integers would overflow in torch, NumPy or SLURM.
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
    """Flatten a nested configuration to "group.key" and value."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        values |= (
            flat(value, f"{prefix}{name}.")
            if isinstance(value, Mapping)
            else {f"{prefix}{name}": value}
        )
    return values
