"""The words and variables by which a script gets its arguments."""

from pathlib import Path
from typing import Any

import pytest

from multicard.cli import command_line
from multicard.config import schema
from multicard.config.base import WindowConfig, plain
from multicard.config.roles import Role
from multicard.config.script import ScriptConfig
from multicard.decide.race import command
from multicard.script import words
from multicard.script.run import exited
from multicard.script.summary import axes
from multicard.script.workload import WORKLOAD, check_script, code, describe
from tests.conftest import typed_script
from tests.helpers.messages import refused, remedies


def typed(*overrides: str) -> ScriptConfig:
    return typed_script("script=train.py", *overrides)


ARGS = (
    "args.lr=0.1",
    "args.bf16=true",
    "args.off=false",
    "args.none=null",
    "args.sizes=[1,2]",
    "args.optim.name=sgd",
)


def test_argparse_gets_options():
    own = words.words(
        typed(
            *ARGS,
            "args.text='it is \"a\" $b'",
            "args.shift=-3",
            "args.flag=-x",
            "words=[in.csv,-v]",
        )
    )
    expected = [
        "--lr",
        "0.1",
        "--bf16",
        "--sizes",
        "1",
        "2",
        "--optim.name",
        "sgd",
        "--text",
        'it is "a" $b',
    ]
    assert own == ["in.csv", "-v", *expected, "--shift", "-3", "--flag=-x"]
    assert words.words(typed("args.lr=0.1", "words=[fit,--,-x]")) == [
        "fit",
        "--lr",
        "0.1",
        "--",
        "-x",
    ]


def test_hydra_gets_keys_and_reads_them_back():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    config = typed("args.style=hydra", *ARGS, "args.text='a \"b\", c=d'")
    own = words.words(config)
    assert own[:4] == ["lr=0.1", "bf16=true", "off=false", "none=null"]
    assert own[4:6] == ["sizes=[1,2]", "optim.name=sgd"]
    (read,) = OverridesParser.create().parse_overrides(own[6:])
    assert read.value() == 'a "b", c=d'


def test_equals_gives_keys_and_values_in_one_word():
    config = typed(
        "args.style=equals",
        "args.lr=1e-3",
        "args.compile=false",
        "args.none=null",
        "args.sizes=[1,2]",
    )
    assert words.words(config) == ["--lr=0.001", "--compile=False", "--sizes=[1,2]"]


def test_texts_that_hydra_reads_as_something_else_stay_texts():
    assert words.words(typed("args.style=hydra", "args.a='null'", "args.b='True'")) == [
        "a='null'",
        "b='True'",
    ]
    assert words.words(typed("args.a=[null,x]")) == ["--a", "null", "x"]


@pytest.mark.parametrize(
    ("typed_word", "own"),
    [
        *(
            (f"args.x={value}", ["--x", value])
            for value in ("1.10", "1e3", "12e4567", "007", "0x10", "yes", ".5")
        ),
        *(
            (f"args.x={value}", ["--x", value])
            for value in ("1_000", "-1e3", "5.", "NaN", "1.10-rc", "3", "0.1")
        ),
        ("args.x=null", []),
        ("args.x=[1.10,True,null]", ["--x", "1.10", "True", "null"]),
        ("args.x={a: 1e3}", ["--x.a", "1e3"]),
        ("words=[--x,1e3,true,null,007]", ["--x", "1e3", "true", "null", "007"]),
    ],
)
def test_values_reach_a_script_as_they_are_typed(typed_word: str, own: list[str]):
    assert words.words(typed(*command_line.switched([typed_word], WORKLOAD))) == own


def test_values_of_a_sweep_and_of_literals_are_as_they_are_typed():
    assert command_line.switched(["args.x=1e3,0.1,2"], WORKLOAD) == ["args.x='1e3',0.1,2"]
    read = command_line.switched(
        ["args.style=equals", "args.compile=False,true", "gpus=1,2"], WORKLOAD
    )
    assert words.words(typed(*read[:1], "args.compile='False'")) == ["--compile=False"]
    assert read[1:] == ["args.compile='False','true'", "gpus=1,2"]
    assert command_line.switched(["args.x=range(1,3)"], WORKLOAD) == ["args.x=range(1,3)"]


def test_words_are_an_axis_and_ways_to_do_the_same_work():
    assert axes(typed("words=[--amp,'a b']"), "cpu")["words"] == "--amp 'a b'"
    assert Role.work not in schema.of("words")


def test_a_command_that_trains_on_has_no_length_of_a_trial():
    assert command._belongs_to_race("steps=20") and not command._belongs_to_race("args.lr=0.1")


def test_the_command_of_a_configuration_makes_it_again():
    config = typed(
        "args.lr='1e3'", "args.text='a b'", "args.style=equals", "words=[fit,--,-x]", "steps=5"
    )
    again = typed(*command_line.switched(words.overrides(config)[1:], WORKLOAD))
    assert again.identity() == config.identity()


def test_the_command_of_a_configuration_has_all_that_was_typed():
    own = [
        "device=cpu",
        "name=trial",
        "warmup_steps=2",
        "gpus=2",
        "malloc=system",
        "tracker.mode=disabled",
    ]
    profile = ["profile=kineto", "profile.window=start", "profile.steps=3"]
    config = typed(*own, *profile, "args.lr=0.1", "launch=python", "repeat=2")
    found = words.overrides(config)
    assert {*own, *profile, "launch=python", "args.lr=0.1"} < {*found} and "repeat=2" not in found
    again = typed(*command_line.switched(found[1:], WORKLOAD))
    assert plain(again) | {"repeat": config.repeat} == plain(config)


@pytest.mark.parametrize("names", [[], ["name=trial-2"]])
def test_the_command_of_a_configuration_has_a_name_that_was_typed(names: list[str]):
    assert words.overrides(typed(*names)) == ["script=train.py", *names]


def test_variables_are_set_by_env():
    config = typed("args.style=env", *ARGS)
    assert words.words(config) == []
    assert words.variables(config) == {
        "LR": "0.1",
        "BF16": "1",
        "SIZES": "1 2",
        "OPTIM_NAME": "sgd",
    }
    with refused("script.launch-variable", key="args.rank", variable="RANK"):
        words.variables(typed("args.style=env", "args.rank=1"))


@pytest.mark.parametrize(
    ("overrides", "code", "facts"),
    [
        (["args.style=shell"], "config.script-style", {"key": "args.style", "value": "shell"}),
        (["diagnose=true"], "config.script-diagnose", {"key": "diagnose"}),
        (
            ["profile=kineto", "profile.window=after"],
            "config.script-window",
            {"key": "profile.window"},
        ),
        (
            ["race.figure=samples_per_s"],
            "config.script-race-length",
            {"key": "race", "value": "samples_per_s"},
        ),
        (["steps=0"], "config.least", {"key": "steps", "value": 0, "least": 1}),
    ],
)
def test_what_a_script_cannot_do_is_refused(overrides: list[str], code: str, facts: dict[str, Any]):
    with refused(code, **facts):
        typed(*overrides)


def test_a_profile_of_a_script_is_of_its_start_unless_told_otherwise():
    config = typed("profile=kineto")
    assert isinstance(config.profile, WindowConfig) and config.profile.from_start
    assert config.identity() == typed("profile=kineto", "profile.window=start").identity()
    assert typed("profile=kineto", "profile.steps=null").identity() != config.identity()


@pytest.mark.parametrize(
    ("source", "override", "remedy"),
    [
        ("--batch-size", "args.batch_size=32", "args.batch-size=32"),
        ("--batch_size", "args.batch-size=32", "args.batch_size=32"),
        ("--batch_size --batch-size", "args.batch_size=32", ""),
        ("", "args.batch_size=32", ""),
    ],
)
def test_a_script_that_does_not_take_an_argument_is_quoted(
    source: str, override: str, remedy: str, tmp_path: Path
):
    (tmp_path / "train.py").write_text(f"# {source}")
    config = typed_script(f"script={tmp_path / 'train.py'}", override)
    line = "train.py: error: unrecognized arguments: --batch_size 32"
    log = f"usage: train.py [-h]\n{line}\n"
    message = exited(config, 2, log)
    assert (message.code, message.facts["said"]) == ("script.usage", line)
    assert message.facts["remedy"] == remedy and remedies(message) == [remedy] * bool(remedy)
    assert exited(config, 3, log).code == exited(config, 2, "loss 0.1").code == "script.exited"


def test_options_are_known_by_the_usage_of_a_script_too():
    log = "usage: train.py [--lr-max LR]\ntrain.py: error: unrecognized arguments: --lr_max 1\n"
    message = exited(typed("args.lr_max=1", "args.other=2"), 2, log)
    assert (message.key, message.facts["remedy"]) == ("args.lr-max", "args.lr-max=1")


def test_arguments_and_steps_are_part_of_the_identity():
    configs = [
        typed(),
        typed("args.lr=0.1"),
        typed("args.lr=0.2"),
        typed("steps=5"),
        typed("words=[a]"),
    ]
    assert len({config.identity() for config in configs}) == len(configs)
    assert describe(configs[3]) == ["train.py", "5 steps"]


def test_the_fingerprint_covers_the_script_and_its_packages(tmp_path: Path):
    for name in ("train.py", "helper.py", "pkg/__init__.py", "pkg/deep.py", "data/no.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    config = typed(f"script={tmp_path / 'train.py'}")
    assert [name for name, _ in code(config)["script"]] == [
        "train.py",
        "helper.py",
        "pkg/__init__.py",
        "pkg/deep.py",
    ]


@pytest.mark.parametrize(
    ("content", "code", "facts"),
    [
        (None, "script.absent", {}),
        ("", "script.no-file", {}),
        ("x = = 1", "script.no-python", {"line": 1}),
        ("\0", "script.no-python", {}),
        ('{"cells": []}', "script.notebook", {}),
    ],
)
def test_what_is_no_script_is_refused(
    tmp_path: Path, content: str | None, code: str, facts: dict[str, Any]
):
    path = tmp_path / ("train.ipynb" if content and "cells" in content else "train.py")
    if content:
        path.write_text(content)
    elif content is not None:
        path.mkdir()
    with refused(code, key="script", value=str(path), **facts):
        check_script(typed(f"script={path}"))
