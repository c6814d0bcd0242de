"""Other programs' names for the keys of one entry, and for their values."""

import re
from collections import defaultdict
from collections.abc import Iterable
from enum import EnumMeta
from itertools import chain
from types import UnionType
from typing import Any, Union, get_args, get_origin

from multicard import workloads
from multicard.cli.launcher_words import LAUNCHER_GROUP, LAUNCHERS, launcher_keys
from multicard.config import schema
from multicard.config.roles import Role
from multicard.run.workload import Workload

TRUE = ("", "true", "True", "1", "yes")
NO_NAMES = ("true", "false", "none", "auto", "all")  # Options that many keys have.
LEAST_BEGINNING = 4  # A beginning with this many letters may identify an option.
MINUTES = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::\d\d)?")  # SLURM's [DAYS-]HOURS:MINUTES:SECONDS
GIGABYTES = re.compile(r"(\d+)\s*Gi?B?", re.IGNORECASE)
BRACKETS = re.compile(r"[\[\](){}'\"]|\$\{")


def folded(name: str) -> str:
    """Return a name without case, dashes, underscores and dots, in which spellings differ."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def parts_of(value: str) -> list[str]:
    """Split the values of a sweep. A list, or a quoted text, is a single value."""
    return [value] if BRACKETS.search(value) else value.split(",")


class Vocabulary:
    """The keys and values of one entry, under all names by which they are known."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.types = workloads.known_keys(workload)
        self.groups = workloads.groups(workload)
        self.switches = schema.switches(workload.schema)
        self.elsewhere = {
            folded(name): key for name, key in schema.called_elsewhere(workload.schema).items()
        }
        self.meant = {
            key: {folded(name): value for name, value in values.items()}
            for key, values in schema.meant_values(workload.schema).items()
        }
        self.launchers = launcher_keys()

    def has(self, key: str) -> bool:
        """True if the entry has a key of exactly this name."""
        return (
            key in self.types
            or key.startswith(("hydra.", "hydra/"))
            or any(key.startswith(f"{free}.") for free in self.workload.free)
        )

    def key_of(self, name: str) -> str | None:
        """Return the key that a name means; None if it means none or several."""
        last_part = name.rpartition(".")[2]
        for spelling in (name, last_part):
            if self.has(spelling.replace("-", "_")):
                return spelling.replace("-", "_")
            if folded(spelling) in self.elsewhere:
                return self.elsewhere[folded(spelling)]
        if last_part == "name" or name in schema.OLDER:
            return None
        measured_keys = [key for key in self.types if _is_of_what_is_measured(key)]
        return _only_name(
            key
            for key in (*measured_keys, *self.launchers)
            if "." in key and folded(key.rpartition(".")[2]) == folded(last_part)
        )

    def options_of(self, key: str) -> list[str]:
        """Return the values that a key can have; none if it takes numbers or text."""
        if key in self.groups:
            return workloads.every_option(self.workload, key)
        if key == LAUNCHER_GROUP:
            return [*LAUNCHERS]
        switch = self.switches.get(key)
        return _members(self.types.get(switch or key, set()))

    def value_of(self, key: str, typed: str) -> str | None:
        """Return the value that is meant by a typed value; None if the key has no such value."""
        values = [self._one_value(key, part) for part in parts_of(typed)]
        known_values = [value for value in values if value is not None]
        return ",".join(known_values) if len(known_values) == len(values) else None

    def _one_value(self, key: str, typed: str) -> str | None:
        options = self.options_of(key)
        if typed in options or BRACKETS.search(typed) or typed in ("null", "auto"):
            return typed
        translated = self.meant.get(key, {}).get(folded(typed))
        if translated is not None and (not options or translated in options):
            return translated
        if not options:
            value = _in_unit(key, typed) if key in self.types else typed
            return value if self._fits(key, value) else None
        is_named = key in self.workload.named  # Names such as `microsoft/resnet-50`.
        folded_name = folded(typed.rpartition("/")[2] if is_named else typed)
        same_option = _only_name(option for option in options if folded(option) == folded_name)
        if same_option is not None or is_named or len(folded_name) < LEAST_BEGINNING:
            return same_option
        return _only_name(option for option in options if folded(option).startswith(folded_name))

    def _fits(self, key: str, value: str) -> bool:
        """True if the value fits the key's type: a number, if the key only takes numbers."""
        kinds = {*chain.from_iterable(map(_kinds, self.types.get(key, set())))}
        if bool in kinds and kinds <= {bool, type(None)}:
            return value.lower() in ("true", "false")
        if not kinds or not kinds <= {int, float, type(None)}:
            return True
        try:
            float(value)
        except ValueError:
            return False
        return float in kinds or value.lstrip("-").isdigit()

    def takes_no_value(self, key: str) -> bool:
        """True for a key that is true or false. As a flag, it has no value."""
        kinds = self.types.get(self.switches.get(key, key), set())
        return bool(kinds) and all(bool in _kinds(kind) for kind in kinds)

    def option_named(self, name: str) -> tuple[str, str] | None:
        """Return the only key with an option of this name, and the option (`--qlora`)."""
        options = list[tuple[str, str]]()
        for key in self._keys_of_options():
            options.extend((key, value) for value in self._options_called(key, name))
        return options[0] if len(options) == 1 else None

    def _keys_of_options(self) -> list[str]:
        enumerated = [key for key in self.types if "." not in key and key not in self.groups]
        return [*self.groups, *enumerated, LAUNCHER_GROUP]

    def _options_called(self, key: str, name: str) -> list[str]:
        if folded(name) in NO_NAMES:
            return []
        translated = self.meant.get(key, {}).get(folded(name))
        options = self.options_of(key)
        if translated in options:
            return [str(translated)]
        return [option for option in options if folded(option) == folded(name)]

    def option_with(self, key: str) -> str | None:
        """Return the only option of a key's group that has the key, if the default lacks it."""
        group, _, name = key.partition(".")
        options = self.workload.options.get(group, {})
        with_key = [
            str(option)
            for option, schema_of_option in options.items()
            if name in getattr(schema_of_option, "__dataclass_fields__", {})
        ]
        default = workloads.defaults(self.workload.name).get(group)
        return with_key[0] if len(with_key) == 1 and default not in with_key else None


def _only_name(names: Iterable[str]) -> str | None:
    """Return the only distinct name; None if there are none or several."""
    distinct_names = [*dict.fromkeys(names)]
    return distinct_names[0] if len(distinct_names) == 1 else None


def _is_of_what_is_measured(key: str) -> bool:
    """True for a key of a group that is measured, such as `dataset`. Groups that observe a run,
    such as `profile`, have keys of the same name with another meaning (`steps`).
    """
    roles = schema.of(key.partition(".")[0])
    return Role.identity in roles and Role.observes not in roles


def _kinds(annotated: Any) -> tuple[Any, ...]:
    if get_origin(annotated) in (Union, UnionType):
        return get_args(annotated)
    return (annotated,)


def _members(types: set[Any]) -> list[str]:
    """Return the members of enumerations; none if other types are among the types."""
    members = defaultdict[str, None]()
    for annotated in types:
        for kind in _kinds(annotated):
            if isinstance(kind, EnumMeta):
                members |= dict.fromkeys(str(member) for member in kind)
            elif kind is not type(None):
                return []
    return [*members]


def _in_unit(key: str, value: str) -> str:
    """Convert a value to the unit in the key's name: SLURM's 01:30:00 to minutes, 64G to GB."""
    time = MINUTES.fullmatch(value)
    if key.endswith("_min") and time is not None:
        return str((int(time[1] or 0) * 24 + int(time[2])) * 60 + int(time[3]))
    size = GIGABYTES.fullmatch(value)
    if key.endswith("_gb") and size is not None:
        return size[1]
    return value
