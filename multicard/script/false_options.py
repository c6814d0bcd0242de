"""Refuse `args.NAME=false` if the script has the option on all the same.

False leaves an option out. This turns off a flag, but not an option whose default is true. The
settings false and true would then be the same run under two names. Options are looked at as the
script's own parser reads them: argparse, click (and typer) or absl.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import Any
from unittest import mock

from multicard.config.pasting import override
from multicard.config.script import ScriptConfig
from multicard.messages import Refusal
from multicard.script import words

NO_WORD = "the script has no word that turns it off"
ANY_TEXT = "its type=bool takes any text for true, so only the script can change it"


@contextmanager
def refused(config: ScriptConfig) -> Iterator[None]:
    """Look at the options that each parser reads while the script runs."""
    wanted_false = words.options_wanted_false(config)
    with ExitStack() as patches:
        if wanted_false:
            patches.enter_context(_argparse_checked(wanted_false))
        if wanted_false and find_spec("click") is not None:
            patches.enter_context(_click_checked(wanted_false))
        if wanted_false and find_spec("absl") is not None:
            patches.enter_context(_absl_checked(wanted_false))
        yield


def _refusal(name: str, remedy: str | None, without_remedy: str = NO_WORD) -> Refusal:
    advice = without_remedy if remedy is None else f"use `{remedy}`"
    return Refusal(
        "script.option-stays-on",
        f"args.{name}=false: the script has --{name} on all the same; {advice}",
        key=f"args.{name}",
        option=name,
        remedy=remedy,
    )


# ---- argparse


@contextmanager
def _argparse_checked(wanted_false: Sequence[str]) -> Iterator[None]:
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
    without_remedy = ANY_TEXT if action.type is bool else NO_WORD
    raise _refusal(name, _word_that_turns_off(parser, action, name), without_remedy)


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


# ---- click


@contextmanager
def _click_checked(wanted_false: Sequence[str]) -> Iterator[None]:
    import click

    parse = click.Command.parse_args

    def parse_and_check(command: click.Command, context: click.Context, args: list[str]) -> Any:
        rest = parse(command, context, args)
        for option in command.params:
            if isinstance(option, click.Option):
                _require_off(option, context.params, wanted_false)
        return rest

    with mock.patch.object(click.Command, "parse_args", parse_and_check):
        yield


def _require_off(option: Any, values: Mapping[str, Any], wanted_false: Sequence[str]) -> None:
    """Refuse an option of click that is on. Leaving out a flag whose value is False is meant."""
    names = [name for name in wanted_false if f"--{name}" in option.opts]
    turns_off = option.is_flag and option.flag_value is False
    if not names or values.get(option.name) is not True or turns_off:
        return
    (name,) = names
    opposites = [text for text in option.secondary_opts if text.startswith("--")]
    remedy = None
    if opposites:
        remedy = override(f"args.{opposites[0].removeprefix('--')}", True)
    elif not option.is_flag:
        remedy = override(f"args.{name}", "False")
    raise _refusal(name, remedy)


# ---- absl


@contextmanager
def _absl_checked(wanted_false: Sequence[str]) -> Iterator[None]:
    from absl import flags

    parse = flags.FlagValues.__call__

    def parse_and_check(values: Any, *arguments: Any, **keywords: Any) -> Any:
        rest = parse(values, *arguments, **keywords)
        for name in wanted_false:
            if name in values and values[name].boolean and values[name].value is True:
                raise _refusal(name, override(f"args.no{name}", True))
        return rest

    with mock.patch.object(flags.FlagValues, "__call__", parse_and_check):
        yield
