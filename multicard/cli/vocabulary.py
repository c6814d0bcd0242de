"""What keys, and values of keys, are called by other programs, for one entry."""

import re
from collections import defaultdict
from collections.abc import Iterable
from enum import EnumMeta
from functools import cache
from itertools import chain
from types import UnionType
from typing import Any, Union, get_args, get_origin

from omegaconf import OmegaConf

from multicard import workloads
from multicard.config import schema
from multicard.config.roles import Role
from multicard.run.workload import Workload

LAUNCHER = "hydra.launcher."
SLURM = "hydra/launcher=submitit_slurm"
OF_MULTICARD = ("_target_", "mode", "packs", "on_slurm")  # entries of a launcher's file
TRUE = ("", "true", "True", "1", "yes")
NO_NAMES = ("true", "false", "none", "auto", "all")  # options that many keys have
LEAST_BEGINNING = 4  # letters of an option by whose beginning it is known
MINUTES = re.compile(r"(?:(\d+)-)?(\d+):(\d\d)(?::\d\d)?")  # SLURM's [DAYS-]HOURS:MINUTES:SECONDS
GIGABYTES = re.compile(r"(\d+)\s*Gi?B?", re.IGNORECASE)
BRACKETS = re.compile(r"[\[\](){}'\"]|\$\{")


def folded(name: str) -> str:
    """A name without what spellings differ in: case, dashes, underscores and dots."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def parts_of(value: str) -> list[str]:
    """The values of a sweep; a list, or what is quoted, is one."""
    return [value] if BRACKETS.search(value) else value.split(",")


class Vocabulary:
    """The keys and the values of one entry, by all names that they are known under."""

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
        self.launchers = _launcher_keys()

    def has(self, key: str) -> bool:
        """True for a key that the entry has as it is typed."""
        return (
            key in self.types
            or key.startswith(("hydra.", "hydra/"))
            or any(key.startswith(f"{free}.") for free in self.workload.free)
        )

    def key_of(self, name: str) -> str | None:
        """The key that a name means; None where it means none, or several."""
        last = name.rpartition(".")[2]
        for each in (name, last):
            if self.has(each.replace("-", "_")):
                return each.replace("-", "_")
            if folded(each) in self.elsewhere:
                return self.elsewhere[folded(each)]
        if last == "name" or name in schema.OLDER:
            return None
        own = [key for key in self.types if _is_of_what_is_measured(key)]
        return _only(
            key
            for key in (*own, *self.launchers)
            if "." in key and folded(key.rpartition(".")[2]) == folded(last)
        )

    def options_of(self, key: str) -> list[str]:
        """The values that a key can have; none of a key that takes numbers or texts."""
        if key in self.groups:
            return workloads.every_option(self.workload, key)
        if key == SLURM.partition("=")[0]:
            return [path.stem for path in (workloads.CONF / key).glob("*.yaml")]
        switch = self.switches.get(key)
        return _members(self.types.get(switch or key, set()))

    def value_of(self, key: str, typed: str) -> str | None:
        """The value that is meant by what was typed; None where the key has no such value."""
        values = [self._one_value(key, part) for part in parts_of(typed)]
        known = [value for value in values if value is not None]
        return ",".join(known) if len(known) == len(values) else None

    def _one_value(self, key: str, typed: str) -> str | None:
        options = self.options_of(key)
        if typed in options or BRACKETS.search(typed) or typed in ("null", "auto"):
            return typed
        meant = self.meant.get(key, {}).get(folded(typed))
        if meant is not None and (not options or meant in options):
            return meant
        if not options:
            value = _in_unit(key, typed) if key in self.types else typed
            return value if self._fits(key, value) else None
        is_named = key in self.workload.named  # as `microsoft/resnet-50`
        last = folded(typed.rpartition("/")[2] if is_named else typed)
        same = _only(option for option in options if folded(option) == last)
        if same is not None or is_named or len(last) < LEAST_BEGINNING:
            return same
        return _only(option for option in options if folded(option).startswith(last))

    def _fits(self, key: str, value: str) -> bool:
        """True for a value of the key's type: a number where it takes numbers alone."""
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
        """True for a key that is true or false, which a flag names alone."""
        kinds = self.types.get(self.switches.get(key, key), set())
        return bool(kinds) and all(bool in _kinds(each) for each in kinds)

    def option_named(self, name: str) -> tuple[str, str] | None:
        """The key that has an option of this name, and the option: `--qlora`, `bf16=true`."""
        found = list[tuple[str, str]]()
        for key in self._keys_of_options():
            found.extend((key, value) for value in self._called(key, name))
        return found[0] if len(found) == 1 else None

    def _keys_of_options(self) -> list[str]:
        enumerated = [key for key in self.types if "." not in key and key not in self.groups]
        return [*self.groups, *enumerated, SLURM.partition("=")[0]]

    def _called(self, key: str, name: str) -> list[str]:
        if folded(name) in NO_NAMES:
            return []
        meant = self.meant.get(key, {}).get(folded(name))
        options = self.options_of(key)
        if meant in options:
            return [str(meant)]
        return [each for each in options if folded(each) == folded(name)]

    def option_with(self, key: str) -> str | None:
        """The only option of a key's group that has the key, where the default has not."""
        group, _, name = key.partition(".")
        options = self.workload.options.get(group, {})
        with_key = [
            str(option)
            for option, own in options.items()
            if name in getattr(own, "__dataclass_fields__", {})
        ]
        default = workloads.defaults(self.workload.name).get(group)
        return with_key[0] if len(with_key) == 1 and default not in with_key else None


@cache
def _launcher_keys() -> tuple[str, ...]:
    file = workloads.CONF / f"{SLURM.replace('=', '/')}.yaml"
    return tuple(
        f"{LAUNCHER}{name}" for name in map(str, OmegaConf.load(file)) if name not in OF_MULTICARD
    )


def _only(found: Iterable[str]) -> str | None:
    """The one that was found; None of several."""
    each = [*dict.fromkeys(found)]
    return each[0] if len(each) == 1 else None


def _is_of_what_is_measured(key: str) -> bool:
    """True for a key of a group that says what is measured, as `dataset`, and not of those that
    observe it, as `profile`, whose `steps` are others.
    """
    roles = schema.of(key.partition(".")[0])
    return Role.identity in roles and Role.observes not in roles


def _kinds(annotated: Any) -> tuple[Any, ...]:
    if get_origin(annotated) in (Union, UnionType):
        return get_args(annotated)
    return (annotated,)


def _members(types: set[Any]) -> list[str]:
    """The members of enumerations; none where other types are among them."""
    found = defaultdict[str, None]()
    for each in types:
        for kind in _kinds(each):
            if isinstance(kind, EnumMeta):
                found |= dict.fromkeys(str(member) for member in kind)
            elif kind is not type(None):
                return []
    return [*found]


def _in_unit(key: str, value: str) -> str:
    """A value in the unit of the key's name: SLURM's 01:30:00 in minutes, 64G in GB."""
    time = MINUTES.fullmatch(value)
    if key.endswith("_min") and time is not None:
        return str((int(time[1] or 0) * 24 + int(time[2])) * 60 + int(time[3]))
    size = GIGABYTES.fullmatch(value)
    if key.endswith("_gb") and size is not None:
        return size[1]
    return value
