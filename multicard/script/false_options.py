"""Refuse `args.NAME=false` if the script has the option on all the same.

False leaves an option out. This turns off a flag, but not an option whose default is true. The
settings false and true would then be the same run under two names.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from multicard.config.pasting import override
from multicard.config.script import ScriptConfig
from multicard.messages import Refusal
from multicard.script import words


@contextmanager
def refused(config: ScriptConfig) -> Iterator[None]:
    """Look at the options that each parser of argparse reads while the script runs."""
    wanted_false = words.options_wanted_false(config)
    parse = argparse.ArgumentParser.parse_known_args

    def parse_and_check(
        parser: argparse.ArgumentParser, *arguments: Any, **keywords: Any
    ) -> tuple[Any, list[str]]:
        namespace, rest = parse(parser, *arguments, **keywords)
        for name in wanted_false:
            action = parser._option_string_actions.get(f"--{name}")
            if action is not None and getattr(namespace, action.dest, None) is True:
                _require_false_is_meant(parser, action, name)
        return namespace, rest

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", parse_and_check):
        yield


def _require_false_is_meant(
    parser: argparse.ArgumentParser, action: argparse.Action, name: str
) -> None:
    """Refuse an option that is on, unless leaving out `--no-cuda` is what turns CUDA on."""
    if action.nargs == 0 and action.const is False:
        return
    remedy = _word_that_turns_off(parser, action, name)
    advice = "the script has no word that turns it off"
    if remedy is not None:
        advice = f"use `{remedy}`"
    elif action.type is bool:
        advice = "its type=bool takes any text for true, so only the script can change it"
    raise Refusal(
        "script.option-stays-on",
        f"args.{name}=false: the script has --{name} on all the same; {advice}",
        key=f"args.{name}",
        option=name,
        remedy=remedy,
    )


def _word_that_turns_off(
    parser: argparse.ArgumentParser, action: argparse.Action, name: str
) -> str | None:
    """Return the override that turns an option off, or None if there is none."""
    takes_value = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    if takes_value and action.type is not bool:
        return override(f"args.{name}", "False")
    for text, other in parser._option_string_actions.items():
        is_opposite = other is action and text.startswith("--no-")
        if is_opposite or (
            other.dest == action.dest and isinstance(other, argparse._StoreFalseAction)
        ):
            return override(f"args.{text.lstrip('-')}", True)
    return None
