"""Passes arguments to a script by words and environment variables. No shell reads them."""

import re
import sys
from collections.abc import Sequence
from dataclasses import MISSING, Field, asdict, fields, is_dataclass
from datetime import datetime
from importlib.machinery import PathFinder
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from hydra.core.override_parser.types import Quote, QuotedString

from multicard.config import schema
from multicard.config.base import ProfileName
from multicard.config.keys import flat
from multicard.config.roles import Role
from multicard.config.script import STYLE, ScriptConfig, Style
from multicard.messages import Refusal

PLAIN = re.compile(r"[\w./:@%+-]+")  # Values that Hydra reads without quotes.
# Negative numbers, which argparse does not take for an option.
NUMBER = re.compile(r"-\d*\.?\d+(e[+-]?\d+)?")
RESERVED = ("null", "true", "false")  # Texts that Hydra would read as other values.
TIME = "%Y-%m-%d_%H-%M-%S"  # conf/common.yaml names runs so.
# Variables by which ranks find one another.
LAUNCH = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


def module(config: ScriptConfig) -> str:
    """Return the module of `script=-m NAME`; "" if the script is a file."""
    return config.script[3:].strip() if config.script.startswith("-m ") else ""


def file(config: ScriptConfig) -> Path:
    """Return the file that starts.

    A module is looked for as `python -m` does, but nothing is imported for it.

    Raises:
        ValueError: there is no such module.
    """
    if not (name := module(config)):
        return Path(config.script)
    spec = None
    places = [str(Path.cwd()), *sys.path]
    for part in accumulate(name.split("."), "{}.{}".format):
        spec = PathFinder.find_spec(part, places) if places else None
        places = spec and spec.submodule_search_locations
    if places:
        spec = PathFinder.find_spec(f"{name}.__main__", places)
    if spec is None or not spec.has_location:
        raise Refusal(
            "script.no-module",
            f"script={config.script}: there is no such module to start in {Path.cwd()} or on "
            "Python's path; "
            "a package needs __main__.py",
            key="script",
            value=config.script,
        )
    return Path(str(spec.origin))


def words(config: ScriptConfig) -> list[str]:
    """Return the words of the script's command line, after its name.

    `args` follow `words`: a subcommand takes only the options behind it, and an option with a list
    of values would take words behind it. A word `--` and what follows it are no options, and come
    last.
    """
    style, args = _style_and_args(config)
    arguments = list[str]()
    for name, value in args.items():
        if style is Style.argparse:
            arguments += _options(f"--{name}", value)
        elif style is Style.equals and value is not None:
            arguments.append(f"--{name}={_literal(value)}")
        elif style is Style.hydra:
            arguments.append(f"{name}={_grammar(value)}")
    last = config.words.index("--") if "--" in config.words else len(config.words)
    return [*config.words[:last], *arguments, *config.words[last:]]


def options_wanted_false(config: ScriptConfig) -> list[str]:
    """Return the names of the options that the command leaves out by false, or gives this text."""
    style, args = _style_and_args(config)
    if style is not Style.argparse:
        return []
    return [name for name, value in args.items() if _text(value).lower() == "false"]


def variables(config: ScriptConfig) -> dict[str, str]:
    """Return the environment variables of `args.style=env`.

    True is 1, false and null are left out, and a list is joined by spaces.

    Raises:
        ValueError: the launch of ranks sets a variable of that name.
    """
    style, args = _style_and_args(config)
    if style is not Style.env:
        return {}
    variables_to_set = {}
    for key, value in args.items():
        name = re.sub(r"\W", "_", key).upper()
        if name in LAUNCH:
            raise Refusal(
                "script.launch-variable",
                f"args.{key}: {name} is set by the launch of ranks; use another name",
                key=f"args.{key}",
                variable=name,
            )
        if value is not None and value is not False:
            texts = map(_text, value if isinstance(value, list) else [value])
            variables_to_set[name] = "1" if value is True else " ".join(texts)
    return variables_to_set


def overrides(config: ScriptConfig) -> list[str]:
    """Return the words of a multicard command that runs this configuration once.

    These are the script, and each key whose value is not its default. Keys that mean nothing for a
    single run, and a name that is a time, are left out.
    """
    values = flat(asdict(config))
    defaults = flat({field.name: _default(field, config) for field in fields(config)})
    overriding = [f"script={_grammar(config.script)}"]
    if config.profile.name != ProfileName.none:  # The option comes first, and then its keys.
        overriding.append(f"profile={config.profile.name}")
    for key, value in values.items():
        # no roles: these keys were written above.
        is_named = key in ("script", "profile.name") or (key == "name" and _is_time(config.name))
        group = key.partition(".")[0]
        if is_named or Role.sweeps in schema.of(key) or Role.sweeps in schema.of(group):
            continue
        if key not in defaults or value != defaults[key] or key == "name":
            overriding.append(f"{key}={_grammar(value)}")
    return overriding


def _default(field: Field[Any], config: ScriptConfig) -> Any:
    """Return the default of a key, or of the chosen option of a group, as `asdict` gives it."""
    value = getattr(config, field.name)
    if is_dataclass(value):
        return {each.name: _default(each, cast(Any, value)) for each in fields(value)}
    return field.default if field.default_factory is MISSING else field.default_factory()


def _is_time(name: str) -> bool:
    """Return True for the name of a command to which the user gave none."""
    try:
        datetime.strptime(name, TIME)
    except ValueError:
        return False
    return True


def _style_and_args(config: ScriptConfig) -> tuple[Style, dict[str, Any]]:
    return Style(config.args[STYLE]), flat(
        {key: value for key, value in config.args.items() if key != STYLE}
    )


def _options(option: str, value: Any) -> Sequence[str]:
    if value is None or value is False:
        return ()
    if value is True:
        return (option,)
    if isinstance(value, list):
        return (option, *map(_text, value))
    text = _text(value)
    return (
        (f"{option}={text}",)
        if text.startswith("-") and not NUMBER.fullmatch(text)
        else (option, text)
    )


def _text(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _literal(value: Any) -> str:
    """Return a value as Python writes it.

    Scripts that take only `--key=value` read it by `literal_eval`.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_literal, value))}]"
    return str(value)


def _grammar(value: Any) -> str:
    """Return a value as Hydra reads it."""
    if isinstance(value, list):
        return f"[{','.join(map(_grammar, value))}]"
    if isinstance(value, str) and (value.lower() in RESERVED or not PLAIN.fullmatch(value)):
        return QuotedString(value, Quote.single).with_quotes()
    return "null" if value is None else _text(value)
