"""All keys of all schemas, and what they mean: every question about keys is asked here,
and no list of them is kept.

Keys are named as they are typed: "batch_size", "dataset.image_size", and a group by its name,
"dataset". A group's keys are those of all of its options: of the schema's own class and of all that
extend it.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import chain
from typing import Any, get_args

from multicard.config import llm, script, vision
from multicard.config.base import RunConfig
from multicard.config.keys import Tries, remembered
from multicard.config.roles import Role

SCHEMAS: tuple[type[RunConfig], ...] = (vision.VisionConfig, llm.LlmConfig, script.ScriptConfig)
AXES = {"vision": vision.AXES, "llm": llm.AXES, "script": script.AXES}  # by kind


@dataclass(frozen=True)
class Older:
    """A key of older records that no schema has any more.

    roles: what it meant. words: the values that it could have, of a key that was part of what was
    measured.
    as_now: that of runs that did what all runs do now; None of a key that was no part of it.
    """

    roles: Role
    words: tuple[str, ...] = ()
    as_now: str | None = None


# Keys of older records, and Hydra's own words
OLDER = {
    "objective": Older(Role.beside | Role.forecast),  # of searches
    "repeat_compare": Older(Role.beside),
    "gpus_auto": Older(Role.beside),
    "batch_size_auto": Older(Role.beside),
    "model.blocks": Older(Role.identity | Role.memory | Role.speed, ("plain", "fused"), "plain"),
}
OF_HYDRA = {
    "experiment": Role.beside | Role.one_value | Role.planned,
    "hydra": Role.beside | Role.once | Role.planned,
}


@dataclass(frozen=True)
class OtherNames:
    """What other programs call a key and its values, of a key that no schema has (`keys.key`)."""

    also: tuple[str, ...]
    means: Mapping[str, str]


OF_OTHERS = {
    "hydra/launcher": OtherNames(
        ("launcher", "cluster", "scheduler", "submit"),
        {"slurm": "submitit_slurm", "sbatch": "submitit_slurm"},
    ),
    "hydra.launcher.partition": OtherNames(("queue",), {}),
    "hydra.launcher.account": OtherNames(("project",), {}),
}
# of a key that no schema has: a run with another value is another one
UNKNOWN = Role.identity | Role.speed
CONFIG = "config."  # begins the column of a key that is called as a figure is: `config.steps`


@dataclass(frozen=True)
class Entry:
    """An entry of a schema.

    name: as it is typed, "group.key". group: that of the key; empty outside of groups.
    metadata: what `keys.key` was given.
    """

    name: str
    group: str
    metadata: Mapping[str, Any]

    @property
    def own_roles(self) -> Role:
        """The roles that the entry itself declares."""
        return self.metadata["roles"]


def entries(schema: type, prefix: str = "") -> Iterator[Entry]:
    """Each key of a schema, and of its groups' options;
    one that several options have comes once for each.
    """
    for field in fields(schema):
        yield Entry(f"{prefix}{field.name}", prefix.rstrip("."), field.metadata)
    for field in fields(schema):
        for group in (field.type, *get_args(field.type)):  # Optional[...] of a group
            if isinstance(group, type) and is_dataclass(group):
                for option in _with_subclasses(group):
                    yield from entries(option, f"{prefix}{field.name}.")


def _with_subclasses(schema: type) -> Iterator[type]:
    yield schema
    for extending in schema.__subclasses__():
        yield from _with_subclasses(extending)


@remembered
def _entries() -> dict[str, list[Entry]]:
    """The entries of each key: one for each schema and option that has it."""
    found: dict[str, list[Entry]] = {}
    for schema in SCHEMAS:
        for entry in entries(schema):
            found.setdefault(entry.name, []).append(entry)
    return found


@remembered
def _declared() -> dict[str, Role]:
    """The roles of each key, those of all its entries together;
    the name of an option has those of its group.
    """
    declared = {name: older.roles for name, older in OLDER.items()} | OF_HYDRA
    for name, own in _entries().items():
        roles = Role(0)
        for entry in own:
            roles |= entry.own_roles
            if Role.option in entry.own_roles:
                roles |= declared[entry.group]
        declared[name] = roles
    return declared


# ---- roles


@remembered
def of(name: str) -> Role:
    """The roles of a key, or of the key of a column of runs.

    A key that no schema has (of older records, or of options whose
    module is not imported) has those of its group.
    """
    declared, name = _declared(), key_of(name)
    group = name.partition(".")[0]
    return declared.get(name) or declared.get(group, UNKNOWN)


@remembered
def keys(role: Role) -> tuple[str, ...]:
    """The keys and groups that have all of these roles, in the order of the schemas."""
    return tuple(name for name, roles in _declared().items() if role in roles)


@remembered
def own(schema: type, role: Role) -> tuple[str, ...]:
    """The keys and groups of one schema that have all of these roles there,
    without the keys within groups.
    """
    return tuple(field.name for field in fields(schema) if role in field.metadata["roles"])


@remembered
def beside() -> frozenset[str]:
    """The keys and groups that are no part of a cell's identity, without the keys within groups."""
    return frozenset(name for name in keys(Role.beside) if "." not in name)


@remembered
def without(role: Role) -> frozenset[str]:
    """The keys that are part of a cell's identity and do not have this role."""
    return frozenset(
        name for name, roles in _declared().items() if Role.identity in roles and role not in roles
    )


# ---- keys of older records


def without_older(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings ("group.key" to value) without older keys that say what all runs do now."""
    return {key: value for key, value in settings.items() if not _is_as_now(key, value)}


def nested_without_older(config: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration, as records have it, without such keys."""
    kept = dict(config)
    for group, own in config.items():
        if isinstance(own, dict):
            kept[group] = {
                key: value for key, value in own.items() if not _is_as_now(f"{group}.{key}", value)
            }
    return kept


def _is_as_now(name: str, value: Any) -> bool:
    return name in OLDER and value is not None and value == OLDER[name].as_now


# ---- columns of runs


def key_of(column: str) -> str:
    """The key of a column of runs: an axis has dropped its group,
    so "image_size" is "dataset.image_size".
    """
    return _axes().get(column) or column.removeprefix(CONFIG)


def column_of(key: str) -> str:
    """The column of a key: of an axis its last word."""
    last = key.rpartition(".")[2]
    return last if _axes().get(last) == key else key


@cache
def _axes() -> dict[str, str]:
    """The keys of axes by their columns."""
    return {key.rpartition(".")[2]: key for key in chain.from_iterable(AXES.values())}


# ---- what else entries declare


@remembered
def since() -> dict[str, list[tuple[str, Any]]]:
    """The keys that came later. With each the keys that were there before, one for each schema that
    it came to, and the value of what earlier runs did.
    """
    found: dict[str, list[tuple[str, Any]]] = {}
    for name, own in _entries().items():
        group, dot, _ = name.rpartition(".")
        for entry in own:
            given = entry.metadata.get("since")
            if given is None:
                continue
            before, value = given
            known = found.setdefault(name, [])
            if (f"{group}{dot}{before}", value) not in known:
                known.append((f"{group}{dot}{before}", value))
    return found


def switches(schema: type) -> dict[str, str]:
    """The key of a schema that the name of a group sets by
    itself: `predict=true` is `predict.enabled=true`.
    """
    keys = {field.name: field.metadata.get("switch") for field in fields(schema)}
    return {name: f"{name}.{key}" for name, key in keys.items() if key is not None}


def called_elsewhere(schema: type) -> dict[str, str]:
    """What other programs call the keys of a schema, and the key of each name."""
    found = dict[str, str]()
    for key, own in OF_OTHERS.items():
        found |= dict.fromkeys(own.also, key)
    for entry in entries(schema):
        for name in entry.metadata.get("also", ()):
            found.setdefault(name, entry.name)
    return found


def meant_values(schema: type) -> dict[str, dict[str, str]]:
    """By key of a schema, what other programs call its values, and the value here."""
    found = {key: dict(own.means) for key, own in OF_OTHERS.items()}
    for entry in entries(schema):
        found.setdefault(entry.name, {}).update(entry.metadata.get("means", {}))
    return found


def power(name: str) -> float | None:
    """The exponent with which a step computes in proportion to a key; None where it does not."""
    return _given("power").get(name)


def shown() -> list[str]:
    """The columns that the subtitle of a figure names, in its order."""
    return [column_of(name) for name in sorted(_given("shown"), key=place)]


def place(name: str) -> float:
    """The place of a key among those that a subtitle names;
    behind them all where it is not one of them.
    """
    return _given("shown").get(name, math.inf)


def title(column: str) -> str | None:
    """What figures call a key, where that is not its name."""
    return _given("title").get(key_of(column))


def tries(kind: str, phase: str) -> list[str]:
    """The keys to try next in runs of a kind whose steps spend most of their time in a phase."""
    found: dict[str, int] = {}
    for name, given in values_to_try(kind).items():
        if phase in given.phases:
            found[name] = given.phases.index(phase)
    return sorted(found, key=lambda name: found[name])


@remembered
def values_to_try(kind: str) -> dict[str, Tries]:
    """What to try of each key of a kind of runs."""
    (schema,) = (schema for schema in SCHEMAS if schema.kind == kind)
    return {
        field.name: field.metadata["tries"]
        for field in fields(schema)
        if field.metadata["tries"] is not None
    }


@remembered
def _given(attribute: str) -> dict[str, Any]:
    """The keys whose entries have an attribute, with the first that it has."""
    found: dict[str, Any] = {}
    for name, own in _entries().items():
        for entry in own:
            if entry.metadata.get(attribute) is not None:
                found.setdefault(name, entry.metadata[attribute])
    return found
