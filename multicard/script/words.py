"""The words and environment variables by which a script gets its arguments. No shell reads them."""

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

PLAIN = re.compile(r"[\w./:@%+-]+")  # values that Hydra reads without quotes
# negative ones, which argparse does not take for an option
NUMBER = re.compile(r"-\d*\.?\d+(e[+-]?\d+)?")
RESERVED = ("null", "true", "false")  # texts that Hydra would read as something else
TIME = "%Y-%m-%d_%H-%M-%S"  # as conf/common.yaml names runs
# Variables by which ranks find one another
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
    """The module of `script=-m NAME`; empty where the script is a file."""
    return config.script[3:].strip() if config.script.startswith("-m ") else ""


def file(config: ScriptConfig) -> Path:
    """The file that starts. A module is looked for as `python -m` does, but nothing is imported for
    it; a ValueError says that there is none.
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
            f"script={config.script}: there is no such module to start, seen from {Path.cwd()}; "
            "a package needs __main__.py",
            key="script",
            value=config.script,
        )
    return Path(str(spec.origin))


def words(config: ScriptConfig) -> list[str]:
    """The words of the script's command line, after its name: a subcommand takes only the options
    behind it, and one with a list of values would take words behind it.
    What follows a word `--` is no option, and comes last.
    """
    style, args = _style_and_args(config)
    own = list[str]()
    for name, value in args.items():
        if style is Style.argparse:
            own += _options(f"--{name}", value)
        elif style is Style.equals and value is not None:
            own.append(f"--{name}={_literal(value)}")
        elif style is Style.hydra:
            own.append(f"{name}={_grammar(value)}")
    last = config.words.index("--") if "--" in config.words else len(config.words)
    return [*config.words[:last], *own, *config.words[last:]]


def variables(config: ScriptConfig) -> dict[str, str]:
    """The environment variables of `args.style=env`: true is 1, false and null are left out, a list
    is divided by spaces. A name that the launch of ranks sets is refused (ValueError).
    """
    style, args = _style_and_args(config)
    if style is not Style.env:
        return {}
    found = {}
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
            found[name] = (
                "1"
                if value is True
                else " ".join(map(_text, value if isinstance(value, list) else [value]))
            )
    return found


def overrides(config: ScriptConfig) -> list[str]:
    """The words of a command of multicard that runs this configuration once: the script, and each
    key that has another value than its default. Keys that mean nothing for a single run,
    and a name that is a time, are left out.
    """
    values = flat(asdict(config))
    usual = flat({each.name: _default(each, config) for each in fields(config)})
    own = [f"script={_grammar(config.script)}"]
    if config.profile.name != ProfileName.none:  # an option, and then its keys
        own.append(f"profile={config.profile.name}")
    for key, value in values.items():
        # no roles: keys that were written above
        is_named = key in ("script", "profile.name") or (key == "name" and _is_time(config.name))
        group = key.partition(".")[0]
        if is_named or Role.sweeps in schema.of(key) or Role.sweeps in schema.of(group):
            continue
        if key not in usual or value != usual[key] or key == "name":
            own.append(f"{key}={_grammar(value)}")
    return own


def _default(field: Field[Any], config: ScriptConfig) -> Any:
    """The default of a key, or those of a group as the option that was chosen has them,
    as `asdict` gives them.
    """
    value = getattr(config, field.name)
    if is_dataclass(value):
        return {each.name: _default(each, cast(Any, value)) for each in fields(value)}
    return field.default if field.default_factory is MISSING else field.default_factory()


def _is_time(name: str) -> bool:
    """True for the name that a command without one has."""
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
    """A value as Python writes it, which scripts that take
    `--key=value` alone read by `literal_eval`.
    """
    if isinstance(value, list):
        return f"[{','.join(map(_literal, value))}]"
    return str(value)


def _grammar(value: Any) -> str:
    """A value as Hydra reads it."""
    if isinstance(value, list):
        return f"[{','.join(map(_grammar, value))}]"
    if isinstance(value, str) and (value.lower() in RESERVED or not PLAIN.fullmatch(value)):
        return QuotedString(value, Quote.single).with_quotes()
    return "null" if value is None else _text(value)
