"""Remedies: what sentences offer in backticks can be pasted
(tests/goldens/messages.py finds the sentences).

A remedy is an override, a flag or a command. Placeholders in it stand in capitals,
`dataset.root=FOLDER`; what is not known before the program runs is a hole here.
"""

import argparse
import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import multicard
from analysis import __main__ as analysis
from analysis.evidence import command as evidence
from benchmarks import generated_code
from multicard import workloads
from multicard.__main__ import COMMANDS
from multicard.cli import command_line
from multicard.decide.plan import command as plan
from multicard.messages import REMEDY, Parser
from multicard.observe.profiles import command as profiles
from multicard.run.workload import Workload
from tests.conftest import ROOT
from tests.goldens import messages as golden

HOLE = "…"
PLACEHOLDER = re.compile(r"\b[A-Z]{2,}\b|" + HOLE)
# Programs of others
OTHERS = (
    "chmod",
    "cp",
    "git",
    "hf",
    "iconv",
    "ls",
    "jupyter",
    "make",
    "nsys",
    "pip",
    "sacctmgr",
    "sbatch",
    "scancel",
    "scontrol",
    "sed",
    "sinfo",
    "srun",
    "ssh",
    "wandb",
)
OF_HYDRA = {"-m": True, "--help": False}  # whether words follow
OF_CONTAINERS = {"--ipc", "--memory", "--shm-size"}  # flags that start one
SLURM = "hydra/launcher=submitit_slurm"


class NotARemedy(Exception):  # noqa: N818 (what it says)
    """Why a text in backticks cannot be pasted."""


def with_holes(sentence: str) -> str:
    """A sentence of the page with a hole for each expression;
    braces around anything else are the sentence's own.
    """
    text, at = "", 0
    while at < len(sentence):
        end = _end_of_expression(sentence, at) if sentence[at] == "{" else None
        text += sentence[at] if end is None else HOLE
        at = at + 1 if end is None else end
    return text


def _end_of_expression(sentence: str, at: int) -> int | None:
    """Where the braces end that begin here; None where they hold no expression of Python."""
    depth = 0
    for end, letter in enumerate(sentence[at:], at + 1):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth == 0:
            try:
                ast.parse(sentence[at + 1 : end - 1].strip() or "-", mode="eval")
            except SyntaxError:
                return None
            return end
    return None


def remedies() -> dict[str, str]:
    """The remedies of all sentences, each with the code of one that offers it."""
    return {
        remedy: place.code
        for place in golden.places()
        for remedy in REMEDY.findall(with_holes(place.sentence))
    }


# ---- what can be pasted


def check_remedy(remedy: str) -> None:
    """Raise NotARemedy unless it is an override, a flag, a command or a call of the package."""
    call = re.fullmatch(r"multicard\.(\w+)\(.*\)", remedy)
    if call is not None:
        if not hasattr(multicard, call[1]):
            raise NotARemedy(f"multicard has no {call[1]}")
        return
    try:
        words = shlex.split(remedy)
    except ValueError as error:
        raise NotARemedy(str(error)) from None
    if words[0] == HOLE:
        _check_command_of_analysis(words[1:])
    elif words[0].startswith("-"):
        _check_flag(*words)
    elif words[0] == "python":
        _check_python(*words[1:])
    elif words[0] == "multicard":
        _check_multicard(*words[1:])
    elif words[0] in OTHERS:
        _check_files(words)
    else:
        for word in words:
            _check_override(word)


def _check_override(word: str) -> None:
    key, sets, value = word.partition("=")
    if not sets or not value:
        raise NotARemedy(f"{word} is neither key=VALUE nor a command")
    if HOLE not in key and not _is_key(key):
        raise NotARemedy(f"no schema has the key {key}")


def _is_key(key: str) -> bool:
    if key.startswith("hydra/"):
        return (ROOT / "conf" / key).is_dir()
    if key.startswith("hydra."):
        config = workloads.composed("tune_llm.py", [SLURM])
        return (
            key in config
            or OmegaConf.select(config, key, throw_on_missing=False, default=HOLE) != HOLE
        )
    return any(key in workloads.known_keys(workload) for workload in workloads.WORKLOADS)


@cache
def _parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command that is no entry."""
    _, found = analysis._parser()
    others = {
        "plan": _parser_of(plan.main),
        "profile": _parser_of(profiles.main),
        "evidence": evidence.parser(),
    }
    # a measurement with messages
    return found | others | {"generated_code": generated_code.options()}


def _parser_of(main: Any) -> Parser:
    parsers: list[Parser] = []

    def keep(parser: Parser, _: Any) -> None:
        parsers.append(parser)
        raise NotARemedy("nothing is run")

    with pytest.MonkeyPatch.context() as patch, pytest.raises(NotARemedy):
        patch.setattr(Parser, "parse_args", keep)
        main([])
    return parsers[0]


def _check_flag(flag: str, *values: str) -> None:
    name = flag.partition("=")[0]
    takes_value = [
        parser._option_string_actions[flag].nargs != 0
        for parser in _parsers().values()
        if flag in parser._option_string_actions
    ]
    if flag in OF_HYDRA:
        takes_value.append(OF_HYDRA[flag] and bool(values))
    if name != flag and name in OF_CONTAINERS:
        takes_value.append(False)
    if bool(values) not in takes_value:
        raise NotARemedy(f"no command has {flag}{' with a value' if values else ' alone'}")
    if flag == "-m":
        for word in values:
            _check_override(word)


def _check_multicard(command: str, *words: str) -> None:
    if command not in COMMANDS and command not in ("--help", "--version"):
        raise NotARemedy(f"multicard has no command {command}")
    flags = [word for word in words if word.startswith("--")]
    if flags and flags[0] not in _parsers()[command]._option_string_actions:
        raise NotARemedy(f"multicard {command} has no {flags[0]}")


def _check_command_of_analysis(words: list[str]) -> None:
    if words and words[0] != HOLE:
        _check_multicard(*words)


def _check_python(file: str, *words: str) -> None:
    if file != "-m":
        if not (ROOT / file).is_file():
            raise NotARemedy(f"no file {file}")
    elif find_spec(words[0]) is None:
        raise NotARemedy(f"no module {words[0]}")
    elif words[0] in ("multicard", "analysis"):
        _check_multicard(*words[1:])


def _check_files(words: list[str]) -> None:
    """What commands of others name of this project: a file, a target of `make`,
    an extra of the package.
    """
    named = dict(pairwise(words))
    if "-r" in named and words[0] == "pip" and not (ROOT / named["-r"]).is_file():
        raise NotARemedy(f"no file {named['-r']}")
    if words[0] == "make" and not re.search(
        rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE
    ):
        raise NotARemedy(f"no target {words[1]}")
    extra = re.fullmatch(r"\.\[(\w+)\]", words[-1])
    if extra is not None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())
        if extra[1] not in project["tool"]["setuptools"]["dynamic"]["optional-dependencies"]:
            raise NotARemedy(f"no extra {extra[1]}")


def test_each_remedy_can_be_pasted():
    workloads.register()
    wrong = {}
    for remedy, code in remedies().items():
        try:
            check_remedy(remedy)
        except NotARemedy as error:
            wrong[code] = f"`{remedy}`: {error}"
    assert wrong == {}


@pytest.mark.parametrize(
    "remedy",
    [
        "dataset.splitt=0.2",
        "leave it out",
        "gpus=",
        "--wehre X",
        "--all X",
        "--out",
        "multicard bset",
        "python train.py",
        "make dalli",
        "pip install -r requirements-x.txt",
        "pip install '.[x]'",
        "hydra/launchers=local",
        "hydra.sweep.dirr=X",
        "name='x",
    ],
)
def test_what_cannot_be_pasted_is_no_remedy(remedy: str):
    workloads.register()
    with pytest.raises(NotARemedy):
        check_remedy(remedy)


def test_only_expressions_of_the_page_are_holes():
    assert with_holes("write `a={', '.join((f'{b}' for b in c))}`") == f"write `a={HOLE}`"
    assert with_holes("`a={{key}:{value[key]}}`") == f"`a={{{HOLE}:{HOLE}}}`"
    assert with_holes("`a={OPTION: VALUE}`") == "`a={OPTION: VALUE}`"


# ---- what the schemas accept


def literal_overrides() -> list[list[str]]:
    """The remedies that are overrides without a placeholder."""
    texts = [remedy.removeprefix("-m ") for remedy in remedies() if not PLACEHOLDER.search(remedy)]
    return [shlex.split(text) for text in texts if re.match(r"[a-z][\w./]*=", text)]


def _commands(words: list[str]) -> Iterator[tuple[Workload, list[str]]]:
    """The commands that might take these words: of each entry,
    with each kind of option that has the keys.
    """
    for workload in workloads.WORKLOADS:
        candidates: list[list[str]] = [[]]
        for key in (word.partition("=")[0] for word in words):
            group, dot, name = key.partition(".")
            schemas: dict[Any, Any] = workload.options.get(group, {})
            fitting = {
                schema: str(getattr(option, "value", option)) for option, schema in schemas.items()
            }
            if dot and fitting and not any(word.startswith(f"{group}=") for word in words):
                options = [
                    option
                    for schema, option in fitting.items()
                    if name in schema.__dataclass_fields__
                ]
                candidates = [
                    [*before, f"{group}={option}"] for before in candidates for option in options
                ]
        if any(word.startswith("hydra.launcher.") for word in words):
            candidates = [[SLURM, *candidate] for candidate in candidates]
        for candidate in candidates:
            yield workload, [*candidate, *words]


def _problem(workload: Workload, words: list[str]) -> Exception | None:
    """Why the command is refused before it has a configuration,
    or why its configuration lacks what a word sets.
    """
    try:
        chosen = command_line.overrides(command_line.switched(words, workload))
        command_line.check_overrides(chosen, workload)
        config = workloads.composed(workload.entry, command_line.first_values(chosen))
        for override in chosen:
            _check_effect(override, config)
    except (ValueError, HydraException, OmegaConfBaseException) as error:
        return error
    return None


def _check_effect(override: Override, config: DictConfig) -> None:
    """Raise a ValueError unless the configuration has the value, or one of the values,
    that a word sets.
    """
    key = override.key_or_group
    values = [*override.sweep_iterator()] if override.is_sweep_override() else [override.value()]
    choices = config.hydra.runtime.choices
    found = choices[key] if key in choices else OmegaConf.select(config, key)
    if OmegaConf.is_config(found):
        found = OmegaConf.to_container(found)
    if _plain(found) not in [_plain(value) for value in values]:
        raise ValueError(f"{override.input_line}: {key} is {found}")


def _plain(value: Any) -> Any:
    """A value as numbers and text: of a quoted string its text, of an enumeration its name."""
    text = str(getattr(value, "text", getattr(value, "name", value))).lower()
    with suppress(ValueError):
        return float(text)
    return text


def test_the_schemas_accept_each_remedy_without_a_placeholder():
    workloads.register()
    wrong = {}
    for words in literal_overrides():
        problems = []
        for workload, command in _commands(words):
            problem = _problem(workload, command)
            if problem is None:
                break
            problems.append(f"{workload.entry} {' '.join(command)}: {problem}")
        else:
            wrong[" ".join(words)] = problems
    assert wrong == {}
