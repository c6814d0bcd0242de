"""Checks and translates the words of a command.

Words that Hydra would accept but nothing reads are refused. What Hydra refuses is reported in one
line, with the key and a remedy.
"""

import re
import shlex
from collections.abc import Callable, Container, Mapping
from itertools import chain
from typing import Any, NoReturn, Optional

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override
from hydra.errors import OverrideParseException

from multicard import workloads
from multicard.cli import as_typed, guesses, value_quoting
from multicard.cli.launcher_words import LAUNCHER_GROUP, check_launcher
from multicard.cli.unknown_keys import unknown_key
from multicard.cli.word_reader import MULTIRUN
from multicard.config import schema
from multicard.config.base import GLOBAL
from multicard.config.job import AUTO
from multicard.config.roles import Role
from multicard.messages import Message, Refusal, flag_of, say
from multicard.run.workload import Workload

SWITCHES = ({bool}, {Optional[bool]})  # The types of keys that are true or false.
# no roles: the keys that a global batch size sets unless the command does.
BATCH_OF_A_RANK = {"batch_size", "batch_size_asked"}
FOLLOWS = f"batch_size_asked={GLOBAL}"
TRUE_OR_FALSE = (True, False, None)  # Equal to 1 and 0 too. OmegaConf checks words.


def switched(words: list[str], workload: Workload) -> list[str]:
    """Return the words in the form that Hydra reads.

    `predict=VALUE` becomes `predict.enabled=VALUE`, and likewise for other groups with a switch.
    `gpus=auto` and the like become their keys. Values of text keys stay as they are typed. `glob()`
    becomes the options that it matches. `-m` comes first. If the batch per rank follows from the
    global one, a word is added that says so, whatever an experiment or preset sets. Hydra's
    documentation writes `+experiment=NAME` for groups without a default; it becomes
    `experiment=NAME`.

    A `glob()` that matches nothing, and several `auto` keys, are refused.
    """
    words = guesses.as_meant(words, workload)
    words = _without_repeated_keys(
        [
            _with_glob_resolved(word, workload)
            for word in sorted(words, key=lambda word: word not in MULTIRUN)
        ]
    )
    given = {word.lstrip("+").partition("=")[0] for word in words}
    if "global_batch_size" in given and not given & BATCH_OF_A_RANK:
        words.append(FOLLOWS)
    keys = schema.switches(workload.schema)
    autos = [word for word in words if word in AUTO]
    if len(autos) > 1:
        raise Refusal(
            "words.several-auto",
            f"{' '.join(autos)}: only one key can be auto; give values for the others",
            words=autos,
        )
    words = list(chain.from_iterable(AUTO.get(word, (word,)) for word in words))
    parted = [word.partition("=") for word in words]
    words = as_typed.with_quotes(
        [f"{keys.get(name, name)}{sign}{value}" for name, sign, value in parted], workload
    )
    if not any(word.startswith("+") for word in words):
        return words
    added = tuple(f"+{group}=" for group in workloads.optional_groups(workload))
    return [word.removeprefix("+") if word.startswith(added) else word for word in words]


def _without_repeated_keys(words: list[str]) -> list[str]:
    """Drop words whose key a later word sets again. Hydra would use the last one, but name folders
    by all of them.
    """
    word_of_key = dict[str, str]()
    for position, word in enumerate(words):
        key, sets, value = word.lstrip("+").partition("=")
        merges = word.startswith("++") and value.startswith("{")
        name = key if sets and not word.startswith("-") and not merges else str(position)
        if (earlier_word := word_of_key.pop(name, None)) is not None:
            say(
                Message(
                    "words.set-twice",
                    f"{earlier_word}: ignored, because {word} comes later",
                    key=name,
                    word=earlier_word,
                    later=word,
                ),
                error=True,
            )
        word_of_key[name] = word
    return [*word_of_key.values()]


def _with_glob_resolved(word: str, workload: Workload) -> str:
    """Replace `glob()` by the options that match. Hydra does not know the options of an entry."""
    group, _, value = word.partition("=")
    if not value.startswith("glob("):
        return word
    if group not in workloads.groups(workload):
        raise Refusal(
            "words.glob-of-values",
            f"{word}: glob only works for groups of options; name the values, as `{group}=1,2,3`",
            key=group,
            word=word,
        )
    glob: Any = _parsed([word])[0].value()
    if not isinstance(glob, Glob):
        raise Refusal(
            "words.glob-among-others",
            f"{word}: glob() must stand alone; name the values, as `{group}=A,B`",
            key=group,
            word=word,
        )
    options = glob.filter(workloads.every_option(workload, group))
    if not options:
        raise Refusal(
            "words.glob-of-nothing",
            f"{word}: matches none of {_choices(group, workload)}",
            key=group,
            word=word,
            choices=_names(group, workload),
        )
    return f"{group}={','.join(options)}"


def overrides(words: list[str]) -> list[Override]:
    """Parse the keys that a command sets; refuse words that cannot be read, with a remedy."""

    def refuse(message: str) -> NoReturn:
        raise Refusal(
            "words.flag",
            f"{message}; flags come first, keys are set as key=value, and `--help` lists them",
            key=flag_of(message),
            reason=message,
        )

    sweeps = bool({*words} & {*MULTIRUN})
    if {"-h", "--help"} & {*words}:
        words = [word for word in words if not word.startswith("-")]
    else:
        parser = get_args_parser()
        parser.error = refuse
        words = parser.parse_args(words).overrides
    return _parsed(words, sweeps)


def _parsed(words: list[str], sweeps: bool = False) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(words)
    except OverrideParseException as error:
        raise _unreadable(error.override, sweeps) from None


def _unreadable(word: str, sweeps: bool) -> Refusal:
    """Return what is wrong with a word that Hydra cannot read.

    Args:
        sweeps: whether a comma separates the values of a sweep.
    """
    key, sign, value = word.partition("=")
    if value.endswith(",") or word.startswith(",") or ",," in value:
        return Refusal(
            "words.empty-value",
            f"{word}: has an empty value; write `gpus=1,2` without spaces",
            key=key,
            word=word,
        )
    if not sign:
        return _no_pair(word)
    if value.startswith("="):
        remedy = shlex.quote(f"{key}={value_quoting.readable(key, value.lstrip('='), sweeps)}")
        return Refusal(
            "words.second-equals-sign",
            f"{word}: has a second equals sign; use `{remedy}`",
            key=key,
            word=word,
            remedy=remedy,
        )
    if not value.isprintable():
        return Refusal(
            "words.unprintable",
            f"{word}: has an unprintable character; leave it out",
            key=key,
            word=word,
        )
    quoted = shlex.quote(f"{key}={value_quoting.readable(key, value, sweeps)}")
    return Refusal(
        "words.unreadable",
        f"{word}: Hydra cannot read this value; close its brackets, or quote it: `{quoted}`",
        key=key,
        word=word,
        quoted=quoted,
    )


def _no_pair(word: str) -> Refusal:
    return Refusal(
        "words.no-pair",
        f"{word}: is not key=value, written without spaces; `--help` lists the keys",
        word=word,
    )


def first_values(chosen: list[Override]) -> list[str]:
    """Return the words for a single run, with the first value of each sweep."""
    words = []
    for override in chosen:
        values = override.sweep_string_iterator() if override.is_sweep_override() else iter(())
        first = next(values, None)
        words.append(
            str(override.input_line) if first is None else f"{override.get_key_element()}={first}"
        )
    return words


def check_overrides(chosen: list[Override], workload: Workload) -> None:
    """Refuse words that Hydra would accept, and name alternatives: options of another entry, added
    or deleted keys, sweeps of experiments, and numbers that would count as true.
    """
    known = workloads.known_keys(workload)
    groups = workloads.groups(workload)
    for override in chosen:
        key = override.key_or_group
        word = str(override.input_line)
        if key == "":
            raise _no_pair(word)
        if key == "hydra/sweeper" and override.value() != "cells":
            raise Refusal(
                "words.sweeper",
                f"{word}: multicard chooses the cells of a sweep itself; leave it out"
                " (`race=FIGURE` finds the best)",
                key=key,
                word=word,
            )
        if key == LAUNCHER_GROUP:
            check_launcher(override)
        if key.partition(".")[0] != "hydra" and not key.startswith("hydra/"):
            _check_change(override, workload, known)
            values = _checked_values(override, known)
            if key in groups:
                _check_options(key, values, workload)


def _check_change(override: Override, workload: Workload, known: Container[str]) -> None:
    """Refuse a word that adds or deletes a key, and words such as `repeat.error`, which treat
    `repeat` as a group.
    """
    key = override.key_or_group
    word = str(override.input_line)
    if override.is_delete():
        raise Refusal(
            "words.taken-away",
            f"{word}: a key cannot be deleted; write `{key}=VALUE`, or leave it out for its"
            " default",
            key=key,
            word=word,
        )
    adds = override.is_add() or override.is_force_add()
    is_free = any(key.startswith(f"{free}.") for free in workload.free)
    if adds and key not in known and not is_free:
        raise unknown_key(key, workload)
    if override.is_add():
        raise Refusal(
            "words.added",
            f"{word}: the key already exists; write it without +",
            key=key,
            word=word,
        )
    underscored = key.replace(".", "_")
    if key not in known and underscored in known:
        remedy = shlex.quote(f"{underscored}={word.partition('=')[2]}")
        raise Refusal(
            "words.repeat-is-no-group",
            f"{word}: write `{remedy}`",
            key=key,
            word=word,
            remedy=remedy,
        )


def _checked_values(override: Override, known: Mapping[str, set[Any]]) -> list[Any]:
    """Return the values of a word; refuse values that only Hydra would accept."""
    key = override.key_or_group
    word = str(override.input_line)
    values: list[Any] = [override.value()]
    if override.is_sweep_override():
        if Role.one_value in schema.of(key):
            raise Refusal(
                "words.one-value", f"{word}: takes one value, not a sweep", key=key, word=word
            )
        if not override.is_discrete_sweep():
            raise Refusal(
                "words.continuous-sweep",
                f"{word}: list the values, as `{key}=1,2,3`",
                key=key,
                word=word,
            )
        values = list(override.sweep_iterator())
    if f"{key}=auto" in AUTO and "auto" in values:
        raise Refusal(
            "words.auto-among-others",
            f"{word}: auto must stand alone, as `{key}=auto`",
            key=key,
            word=word,
        )
    if known.get(key) in SWITCHES:
        numbers = [value for value in values if type(value) is int and value not in TRUE_OR_FALSE]
        if numbers:
            raise Refusal("words.switch", f"{word}: must be true or false", key=key, word=word)
    return values


def _check_options(group: str, values: list[Any], workload: Workload) -> None:
    """Refuse options of a group that the entry does not have."""
    options = workloads.every_option(workload, group)
    named = workload.named.get(group)
    choices = _names(group, workload)
    remedy = f"{workload.entry} has {_choices(group, workload)}"
    for option in values:
        if option is None:
            raise Refusal(
                "words.null-option",
                f"{group}=null: is not an option; leave it out for the default or choose one:"
                f" {remedy}",
                key=group,
                choices=choices,
            )
        if str(option).startswith("shared/"):
            raise Refusal(
                "words.part-of-experiments",
                f"{group}={option}: is only a part of experiments; {remedy}",
                key=group,
                value=option,
                choices=choices,
            )
        for other in workloads.WORKLOADS:
            if option not in options and option in workloads.every_option(other, group):
                raise Refusal(
                    "words.option-of-another-entry",
                    f"{group}={option}: belongs to {other.entry}; {remedy}",
                    key=group,
                    value=option,
                    entry=other.entry,
                    choices=choices,
                )
        if named is not None:
            named.refuse(str(option))


def _names(group: str, workload: Workload) -> list[str]:
    return list(workloads.options(workload, group))


def _choices(group: str, workload: Workload) -> str:
    """List the options of a group in words, including names that a library provides."""
    named = [workload.named[group].words] if group in workload.named else []
    return ", ".join([*_names(group, workload), *named])


# A part of OmegaConf's message about a value, what the value must be as a fact, and the same in
# words.
VALUES = (
    ("could not be converted to Integer", "whole-number", "must be a whole number"),
    ("could not be converted to Float", "number", "must be a number"),
    ("is not a valid bool", "true-or-false", "must be true or false"),
    ("is not Optional", "not-null", "must not be null"),
    ("is not a ListConfig", "list", "must be a list, as [a,b]"),
    ("is not a subclass of", "group", "has keys of its own; set those, as `--help` lists them"),
    ("'Optional[Union[bool, str]]'", "true-false-or-word", "must be true, false or a word"),
)


def explain(message: str, workload: Workload) -> Refusal:
    """Return a refusal in one line, with key and remedy, for what Hydra or OmegaConf says about a
    command line that cannot be composed.
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()] or [""]
    first_line = lines[0]
    for pattern, make_refusal in _EXPLANATIONS:
        if (match := re.search(pattern, first_line)) is not None:
            return make_refusal(match, lines, workload)
    return _as_hydra_says(" ".join(lines[:2]) if first_line.endswith(":") else first_line)


def _as_hydra_says(line: str) -> Refusal:
    return Refusal("words.hydra", line, reason=line)


def _explain_value(match: re.Match[str], lines: list[str], _: Workload) -> Refusal:
    word = match[1]
    reason = lines[1] if len(lines) > 1 else "cannot be set"
    key = word.lstrip("+").partition("=")[0]
    for part, must_be, sentence in VALUES:
        if part in reason:
            return Refusal(
                "words.value", f"{word}: {sentence}", key=key, word=word, must_be=must_be
            )
    lowercase_reason = f"{reason[0].lower()}{reason[1:]}"
    return Refusal(
        "words.value-as-hydra-says",
        f"{word}: {lowercase_reason}",
        key=key,
        word=word,
        reason=lowercase_reason,
    )


def _explain_option(match: re.Match[str], lines: list[str], workload: Workload) -> Refusal:
    group, _, option = match[1].rpartition("/")
    options = workloads.files(workload, group)
    if group in workloads.groups(workload):
        options = workloads.options(workload, group)
    if not options:
        return _as_hydra_says(lines[0])
    of_folder = "; for a folder of weights, use `model=hf model.path=FOLDER`"
    return Refusal(
        "words.no-such-option",
        f"{group}={option}: no such option; choose one of {', '.join(options)}"
        f"{of_folder if 'hf' in options else ''}",
        key=group,
        value=option,
        choices=options,
    )


def _explain_ambiguous(_: re.Match[str], lines: list[str], __: Workload) -> Refusal:
    word = lines[0].partition("'")[2].rstrip("'")
    return Refusal(
        "words.sweep-without-m",
        f"{word}: several values are a sweep; add `-m`, or write a list as [a,b]",
        key=word.partition("=")[0],
        word=word,
    )


def _explain_reference(match: re.Match[str], lines: list[str], _: Workload) -> Refusal:
    keys = [line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")]
    name = match[1]
    key = keys[0] if keys else None
    problem = f"${{{name}}} does not exist; write the value, or the name of a key"
    return Refusal(
        "words.reference", problem if key is None else f"{key}: {problem}", key=key, name=name
    )


_EXPLANATIONS: tuple[tuple[str, Callable[[re.Match[str], list[str], Workload], Refusal]], ...] = (
    (
        r"^Could not override '([^']*)'",
        lambda match, lines, workload: unknown_key(match[1], workload, _typed_value(lines)),
    ),
    (r"Could not find '([^']*)'", _explain_option),
    (r"^Ambiguous value", _explain_ambiguous),
    (r"^Error merging override (.*)", _explain_value),
    (r"^Interpolation key '([^']*)' not found", _explain_reference),
    (r"^Unsupported interpolation type (\S+)", _explain_reference),
)


def _typed_value(lines: list[str]) -> str:
    """Return the value of the key that Hydra does not know; its advice repeats the whole word."""
    appended = [line.partition(" use +")[2] for line in lines if " use +" in line]
    return appended[0].partition("=")[2] if appended else ""
