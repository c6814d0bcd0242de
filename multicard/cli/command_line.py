"""The words of a command: what Hydra would accept and nobody reads is refused, and what Hydra refuses is said in one
line with the key and the remedy."""

import difflib
import re
import shlex
from collections.abc import Callable
from typing import Any, NoReturn, Optional

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, Quote, QuotedString
from hydra.errors import OverrideParseException

from multicard import workloads
from multicard.config import schema
from multicard.config.base import GLOBAL
from multicard.config.job import AUTO
from multicard.config.keys import require
from multicard.config.roles import Role
from multicard.messages import say
from multicard.run.workload import Workload

SWITCHES = ({bool}, {Optional[bool]})  # types of keys that are true or false
MULTIRUN = ("-m", "--multirun")
NO_PAIR = "is no key=value, written without spaces; --help lists the keys"
FOLLOWS = f"batch_size_asked={GLOBAL}"
TRUE_OR_FALSE = (True, False, None)  # and so 1 and 0; words are OmegaConf's to judge


def switched(words: list[str], workload: Workload) -> list[str]:
    """The words with `predict=VALUE` as `predict.enabled=VALUE`, and the like; with `gpus=auto` and the like as
    their keys; with what tells that a rank's batch follows from the global one, whatever an experiment or a preset
    has for it; with the options that `glob()` matches; with `-m` first; and with `+experiment=NAME`, as it is written
    where the defaults do not have the group, as `experiment=NAME`. `glob()` that matches nothing and several
    keys that are `auto` are refused (ValueError)."""
    words = _once([_matched(word, workload) for word in sorted(words, key=lambda word: word not in MULTIRUN)])
    given = {word.lstrip("+").partition("=")[0] for word in words}
    # no roles: the keys that say what global_batch_size sets
    words += [FOLLOWS] * ("global_batch_size" in given and not given & {"batch_size", "batch_size_asked"})
    keys = schema.switches()
    autos = [word for word in words if word in AUTO]
    require(len(autos) < 2, f"{' '.join(autos)}: one key alone can be auto; give the value of the others")
    words = [part for word in words for part in AUTO.get(word, (word,))]
    parted = [word.partition("=") for word in words]
    words = [f"{keys.get(name, name)}{sign}{value}" for name, sign, value in parted]
    if not any(word.startswith("+") for word in words):
        return words
    added = tuple(f"+{group}=" for group in workloads.optional_groups(workload))
    return [word.removeprefix("+") if word.startswith(added) else word for word in words]


def _once(words: list[str]) -> list[str]:
    """The words without keys that a later word sets again: Hydra takes the last, and names folders by all of them."""
    kept = dict[str, str]()
    for place, word in enumerate(words):
        key, sets, value = word.lstrip("+").partition("=")
        merges = word.startswith("++") and value.startswith("{")
        name = key if sets and not word.startswith("-") and not merges else str(place)
        if (before := kept.pop(name, None)) is not None:
            say(f"{before}: left out, as {word} comes later", error=True)
        kept[name] = word
    return [*kept.values()]


def _matched(word: str, workload: Workload) -> str:
    """The word with the options that its `glob()` matches: of this entry's, of which Hydra does not know."""
    group, _, value = word.partition("=")
    if not value.startswith("glob("):
        return word
    options = workloads.every_option(workload, group) if group in workloads.groups(workload) else None
    require(options is not None, f"{word}: glob is for groups of options; name the values, as {group}=1,2,3")
    glob: Any = _parsed([word])[0].value()
    require(isinstance(glob, Glob), f"{word}: glob() stands alone; name the values, as {group}=a,b")
    matched = glob.filter(options)
    require(matched, f"{word}: matches none of {_choices(group, workload)}")
    return f"{group}={','.join(matched)}"


def overrides(words: list[str]) -> list[Override]:
    """The keys that a command sets; a ValueError says what cannot be read, with the remedy."""

    def refuse(message: str) -> NoReturn:
        raise ValueError(f"{message}; flags come first, keys are set as key=value, and --help lists them")

    if {"-h", "--help"} & {*words}:
        words = [word for word in words if not word.startswith("-")]
    else:
        parser = get_args_parser()
        parser.error = refuse
        words = parser.parse_args(words).overrides
    return _parsed(words)


def _parsed(words: list[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(words)
    except OverrideParseException as error:
        raise ValueError(_unreadable(error.override)) from None


def _unreadable(word: str) -> str:
    key, sign, value = word.partition("=")
    if value.endswith(",") or word.startswith(",") or ",," in value:
        return f"{word}: has an empty value; write gpus=1,2 without spaces"
    if not sign:
        return f"{word}: {NO_PAIR}"
    if value.startswith("="):
        return f"{word}: has a second equals sign; use {key}={value.lstrip('=')}"
    if not value.isprintable():
        return f"{word}: has a character that cannot be printed; leave it out"
    quoted = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
    return f"{word}: Hydra cannot read this value; close its brackets, or quote it: {shlex.quote(quoted)}"


def first_values(chosen: list[Override]) -> list[str]:
    """The words of a single run: of each sweep its first value."""
    words = []
    for override in chosen:
        values = override.sweep_string_iterator() if override.is_sweep_override() else iter(())
        first = next(values, None)
        words.append(str(override.input_line) if first is None else f"{override.get_key_element()}={first}")
    return words


def check(chosen: list[Override], workload: Workload) -> None:
    """Refuse (ValueError, with the alternatives) what Hydra would compose: options of the other entry, keys that are
    added or taken away, sweeps of experiments, numbers that would count as true.
    """
    known, groups = workloads.known_keys(workload), workloads.groups(workload)
    for override in chosen:
        key, word = override.key_or_group, override.input_line
        require(key != "", f"{word}: {NO_PAIR}")
        own = key != "hydra/sweeper" or override.value() == "cells"
        require(own, f"{word}: the cells of a sweep are multicard's own to choose; leave it out (race= finds the best)")
        if key.partition(".")[0] == "hydra" or key.startswith("hydra/"):
            continue
        remedy = f"write {key}=VALUE, or leave it out for its default"
        is_free = key.partition(".")[0] in workload.free
        require(not override.is_delete(), f"{word}: a key cannot be taken away; {remedy}")
        if override.is_add() or override.is_force_add():
            require(key in known or is_free, _explain_key(key, workload))
        require(not override.is_add(), f"{word}: the key is there already; write it without +")
        underscored = key.replace(".", "_")  # repeat.error, as repeat is no group
        value = str(word).partition("=")[2]
        require(key in known or underscored not in known, f"{word}: write {underscored}={value}")
        sweeps = override.is_sweep_override()
        require(not sweeps or Role.one_value not in schema.of(key), f"{word}: takes one value, not a sweep")
        require(not sweeps or override.is_discrete_sweep(), f"{word}: name the values, as {key}=1,2,3")
        values: list[Any] = list(override.sweep_iterator()) if sweeps else [override.value()]
        alone = f"{key}=auto" not in AUTO or "auto" not in values
        require(alone, f"{word}: auto stands alone, as {key}=auto")
        if known.get(key) in SWITCHES:
            numbers = [value for value in values if type(value) is int and value not in TRUE_OR_FALSE]
            require(not numbers, f"{word}: must be true or false")
        if key in groups:
            _check_options(key, values, workload)


def _check_options(group: str, values: list[Any], workload: Workload) -> None:
    own, named = workloads.every_option(workload, group), workload.named.get(group)
    remedy = f"{workload.entry} has {_choices(group, workload)}"
    for option in values:
        shared = str(option).startswith("shared/")
        require(not shared, f"{group}={option}: is a part of experiments; {remedy}")
        require(option is not None, f"{group}=null: is no option; leave it out for the default or choose one: {remedy}")
        for other in workloads.WORKLOADS:
            belongs = option not in own and option in workloads.every_option(other, group)
            require(not belongs, f"{group}={option}: belongs to {other.entry}; {remedy}")
        if named is not None:
            named.refuse(str(option))


def _choices(group: str, workload: Workload) -> str:
    named = [workload.named[group].words] if group in workload.named else []
    return ", ".join([*workloads.options(workload, group), *named])


# What OmegaConf says of a value, in plain words
VALUES = (
    ("could not be converted to Integer", "must be a whole number"),
    ("could not be converted to Float", "must be a number"),
    ("is not a valid bool", "must be true or false"),
    ("is not Optional", "must not be null"),
    ("is not a ListConfig", "must be a list, as [a,b]"),
    ("is not a subclass of", "has keys of its own; set those, as --help lists them"),
    ("'Optional[Union[bool, str]]'", "must be true, false or a word"),
)


def explain(message: str, workload: Workload) -> str:
    """One line for what Hydra or OmegaConf says of a command line that cannot be composed: the key and a remedy."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    first = lines[0]
    for pattern, explained in _EXPLANATIONS:
        if (match := re.search(pattern, first)) is not None:
            return explained(match, lines, workload)
    return " ".join(lines[:2]) if first.endswith(":") else first


def _explain_value(match: re.Match[str], lines: list[str], _: Workload) -> str:
    reason = lines[1] if len(lines) > 1 else "cannot be set"
    plain = next((words for part, words in VALUES if part in reason), f"{reason[0].lower()}{reason[1:]}")
    return f"{match[1]}: {plain}"


def _explain_option(match: re.Match[str], lines: list[str], workload: Workload) -> str:
    group, _, option = match[1].rpartition("/")
    options = sorted(path.stem for path in (workloads.CONF / group).glob("*.yaml"))
    if group in workloads.groups(workload):
        options = workloads.options(workload, group)
    return f"{group}={option}: no such option; choose one of {', '.join(options)}" if options else lines[0]


def _explain_ambiguous(_: re.Match[str], lines: list[str], __: Workload) -> str:
    words = lines[0].partition("'")[2].rstrip("'")
    return f"{words}: several values are a sweep; add -m, or write a list as [a,b]"


def _explain_reference(match: re.Match[str], lines: list[str], _: Workload) -> str:
    keys = [line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")]
    return ": ".join([*keys[:1], f"${{{match[1]}}} is not there; write the value, or the name of a key"])


_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str], list[str], Workload], str]], ...] = (
    (r"^Could not override '([^']*)'", lambda match, _, workload: _explain_key(match[1], workload)),
    (r"Could not find '([^']*)'", _explain_option),
    (r"^Ambiguous value", _explain_ambiguous),
    (r"^Error merging override (.*)", _explain_value),
    (r"^Interpolation key '([^']*)' not found", _explain_reference),
    (r"^Unsupported interpolation type (\S+)", _explain_reference),
)


def _explain_key(key: str, workload: Workload) -> str:
    known = workloads.known_keys(workload)
    if key in known:
        return f"{key}: not a key of the option chosen for {key.partition('.')[0]}; --help shows those it has"
    for other in workloads.WORKLOADS:
        if key in workloads.known_keys(other):
            return f"{key}: belongs to {other.entry}"
    last = key.rpartition(".")[2]
    near = [last] if last in known else difflib.get_close_matches(key, known, n=3)
    return f"{key}: no such key here; " + (f"nearest: {', '.join(near)}" if near else "--help shows all keys")
