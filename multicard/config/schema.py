"""Answers all questions about the keys of all schemas, so that no other lists of keys are needed.

Keys are named as they are typed: "batch_size", "dataset.image_size", and for a group its name,
"dataset". A group has the keys of all of its options, including options that other modules add by
extending the schema's class.
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
AXES = {"vision": vision.AXES, "llm": llm.AXES, "script": script.AXES}  # By kind of record.


@dataclass(frozen=True)
class Older:
    """A key of older records that is in no schema any more.

    roles: the roles that it had.
    words: the values that it could have, if it was part of what was measured.
    as_now: the value that describes what all runs do today; None if it was not part of what was
        measured.
    """

    roles: Role
    words: tuple[str, ...] = ()
    as_now: str | None = None


# Keys of older records, and keys of Hydra.
OLDER = {
    "objective": Older(Role.beside | Role.forecast),  # A key of searches.
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
    """Other programs' names of a key and of its values, for keys in no schema (`keys.key`)."""

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
# The roles of a key in no schema: another value makes another run.
UNKNOWN = Role.identity | Role.speed
CONFIG = "config."  # Begins the column of a key that has the name of a figure: `config.steps`.


@dataclass(frozen=True)
class Entry:
    """An entry of a schema.

    name: the key as it is typed, "group.key".
    group: the key's group; empty outside groups.
    metadata: the arguments of `keys.key`.
    """

    name: str
    group: str
    metadata: Mapping[str, Any]

    @property
    def own_roles(self) -> Role:
        """The roles that the entry itself declares."""
        return self.metadata["roles"]


def entries(schema: type, prefix: str = "") -> Iterator[Entry]:
    """Yield each key of a schema and of its groups' options, once for each option that has it."""
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
    """Return the entries of each key, one for each schema and option that has it."""
    entries_of_key: dict[str, list[Entry]] = {}
    for schema in SCHEMAS:
        for entry in entries(schema):
            entries_of_key.setdefault(entry.name, []).append(entry)
    return entries_of_key


@remembered
def _roles_of_keys() -> dict[str, Role]:
    """Return the roles of each key, united over all of its entries. The name of an option also has
    the roles of its group.
    """
    declared = {name: older.roles for name, older in OLDER.items()} | OF_HYDRA
    for name, own_entries in _entries().items():
        roles = Role(0)
        for entry in own_entries:
            roles |= entry.own_roles
            if Role.option in entry.own_roles:
                roles |= declared[entry.group]
        declared[name] = roles
    return declared


# ---- roles


@remembered
def of(name: str) -> Role:
    """Return the roles of a key, or of the key that a column of runs shows.

    A key in no schema has the roles of its group. Examples are keys of older records, and of
    options whose module is not imported.
    """
    roles_of_keys, name = _roles_of_keys(), key_of(name)
    group = name.partition(".")[0]
    return roles_of_keys.get(name) or roles_of_keys.get(group, UNKNOWN)


@remembered
def keys(role: Role) -> tuple[str, ...]:
    """Return the keys and groups that have all of these roles, in the order of the schemas."""
    return tuple(name for name, roles in _roles_of_keys().items() if role in roles)


@remembered
def own(schema: type, role: Role) -> tuple[str, ...]:
    """Return the keys and groups of one schema that have all of these roles there, without keys
    within groups.
    """
    return tuple(field.name for field in fields(schema) if role in field.metadata["roles"])


@remembered
def beside() -> frozenset[str]:
    """Return the keys and groups outside of cells' identities, without keys within groups."""
    return frozenset(name for name in keys(Role.beside) if "." not in name)


@remembered
def without(role: Role) -> frozenset[str]:
    """Return the keys that are part of a cell's identity and do not have this role."""
    return frozenset(
        name
        for name, roles in _roles_of_keys().items()
        if Role.identity in roles and role not in roles
    )


# ---- keys of older records


def without_older(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings ("group.key" to value) without older keys that all runs now agree on."""
    return {
        key: value for key, value in settings.items() if not _describes_current_runs(key, value)
    }


def nested_without_older(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a nested configuration, as in records, without such keys."""
    remaining = dict(config)
    for group, value in config.items():
        if isinstance(value, dict):
            remaining[group] = {
                key: value
                for key, value in value.items()
                if not _describes_current_runs(f"{group}.{key}", value)
            }
    return remaining


def _describes_current_runs(name: str, value: Any) -> bool:
    return name in OLDER and value is not None and value == OLDER[name].as_now


# ---- columns of runs


def key_of(column: str) -> str:
    """Return the key of a column of runs. Axes are shown without their group: "image_size" is
    "dataset.image_size".
    """
    return _axes().get(column) or column.removeprefix(CONFIG)


def column_of(key: str) -> str:
    """Return the column of a key: for an axis, its last word."""
    last = key.rpartition(".")[2]
    return last if _axes().get(last) == key else key


@cache
def _axes() -> dict[str, str]:
    """Map the columns of axes to their keys."""
    return {key.rpartition(".")[2]: key for key in chain.from_iterable(AXES.values())}


# ---- other attributes of entries


@remembered
def since() -> dict[str, list[tuple[str, Any]]]:
    """Return the keys that were added later.

    Each comes with a list: for each schema, an older key, and the value that describes what runs
    did before.
    """
    older_keys: dict[str, list[tuple[str, Any]]] = {}
    for name, own_entries in _entries().items():
        group, dot, _ = name.rpartition(".")
        for entry in own_entries:
            since = entry.metadata.get("since")
            if since is None:
                continue
            older_key, value = since
            pairs = older_keys.setdefault(name, [])
            if (f"{group}{dot}{older_key}", value) not in pairs:
                pairs.append((f"{group}{dot}{older_key}", value))
    return older_keys


def switches(schema: type) -> dict[str, str]:
    """Map groups of a schema to the key that the group's name sets: `predict=true` sets
    `predict.enabled=true`.
    """
    keys = {field.name: field.metadata.get("switch") for field in fields(schema)}
    return {name: f"{name}.{key}" for name, key in keys.items() if key is not None}


def called_elsewhere(schema: type) -> dict[str, str]:
    """Map other programs' names of keys to the keys of a schema."""
    key_of_name = dict[str, str]()
    for key, other_names in OF_OTHERS.items():
        key_of_name |= dict.fromkeys(other_names.also, key)
    for entry in entries(schema):
        for name in entry.metadata.get("also", ()):
            key_of_name.setdefault(name, entry.name)
    return key_of_name


def meant_values(schema: type) -> dict[str, dict[str, str]]:
    """Map keys of a schema to other programs' names of their values, with the values here."""
    values_of_key = {key: dict(other_names.means) for key, other_names in OF_OTHERS.items()}
    for entry in entries(schema):
        values_of_key.setdefault(entry.name, {}).update(entry.metadata.get("means", {}))
    return values_of_key


def power(name: str) -> float | None:
    """Return the power of a key to which the computation of a step is proportional, or None."""
    return _first_attributes("power").get(name)


def shown() -> list[str]:
    """Return the columns that the subtitle of a figure shows, in order."""
    return [column_of(name) for name in sorted(_first_attributes("shown"), key=place)]


def place(name: str) -> float:
    """Return the position of a key in subtitles; infinity if it is not shown there."""
    return _first_attributes("shown").get(name, math.inf)


def title(column: str) -> str | None:
    """Return a key's name in figures if it differs from the key's name."""
    return _first_attributes("title").get(key_of(column))


def tries(kind: str, phase: str) -> list[str]:
    """Return the keys to try next in runs of a kind that spend most of each step in a phase."""
    rank_of_key: dict[str, int] = {}
    for name, values in values_to_try(kind).items():
        if phase in values.phases:
            rank_of_key[name] = values.phases.index(phase)
    return sorted(rank_of_key, key=lambda name: rank_of_key[name])


@remembered
def values_to_try(kind: str) -> dict[str, Tries]:
    """Return the values to try, by key, for a kind of runs."""
    (schema,) = (schema for schema in SCHEMAS if schema.kind == kind)
    return {
        field.name: field.metadata["tries"]
        for field in fields(schema)
        if field.metadata["tries"] is not None
    }


@remembered
def _first_attributes(attribute: str) -> dict[str, Any]:
    """Return the first value of an attribute for each key whose entries have it."""
    attributes: dict[str, Any] = {}
    for name, own_entries in _entries().items():
        for entry in own_entries:
            if entry.metadata.get(attribute) is not None:
                attributes.setdefault(name, entry.metadata[attribute])
    return attributes
