"""The words and variables by which a script gets its arguments."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from multicard.config.script import ScriptConfig
from multicard.script import words
from multicard.script.workload import check, code, describe
from tests.conftest import composed
from tests.helpers.messages import refused


def typed(*overrides: str) -> ScriptConfig:
    config = OmegaConf.to_object(composed("script=train.py", *overrides, entry="measure_script"))
    assert isinstance(config, ScriptConfig)
    return config


ARGS = ("args.lr=0.1", "args.bf16=true", "args.off=false", "args.none=null", "args.sizes=[1,2]", "args.optim.name=sgd")


def test_argparse_gets_options():
    own = words.words(typed(*ARGS, "args.text='it is \"a\" $b'", "args.shift=-3", "args.flag=-x", "words=[in.csv,-v]"))
    expected = ["--lr", "0.1", "--bf16", "--sizes", "1", "2", "--optim.name", "sgd", "--text", 'it is "a" $b']
    assert own == ["in.csv", "-v", *expected, "--shift", "-3", "--flag=-x"]
    assert words.words(typed("args.lr=0.1", "words=[fit,--,-x]")) == ["fit", "--lr", "0.1", "--", "-x"]


def test_hydra_gets_keys_and_reads_them_back():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    config = typed("args.style=hydra", *ARGS, "args.text='a \"b\", c=d'")
    own = words.words(config)
    assert own[:4] == ["lr=0.1", "bf16=true", "off=false", "none=null"]
    assert own[4:6] == ["sizes=[1,2]", "optim.name=sgd"]
    (read,) = OverridesParser.create().parse_overrides(own[6:])
    assert read.value() == 'a "b", c=d'


def test_variables_are_set_by_env():
    config = typed("args.style=env", *ARGS)
    assert words.words(config) == []
    assert words.variables(config) == {"LR": "0.1", "BF16": "1", "SIZES": "1 2", "OPTIM_NAME": "sgd"}
    with refused("script.launch-variable", key="args.rank", variable="RANK"):
        words.variables(typed("args.style=env", "args.rank=1"))


@pytest.mark.parametrize(
    ("overrides", "code", "facts"),
    [
        (["args.style=shell"], "config.script-style", {"key": "args.style", "value": "shell"}),
        (["diagnose=true"], "config.script-diagnose", {"key": "diagnose"}),
        (["profile=kineto"], "config.script-window", {"key": "profile.window"}),
        (["race.figure=samples_per_s"], "config.script-race-length", {"key": "race", "value": "samples_per_s"}),
        (["steps=0"], "config.least", {"key": "steps", "value": 0, "least": 1}),
    ],
)
def test_what_a_script_cannot_do_is_refused(overrides: list[str], code: str, facts: dict[str, Any]):
    with refused(code, **facts):
        typed(*overrides)


def test_arguments_and_steps_are_part_of_the_identity():
    configs = [typed(), typed("args.lr=0.1"), typed("args.lr=0.2"), typed("steps=5"), typed("words=[a]")]
    assert len({config.identity() for config in configs}) == len(configs)
    assert describe(configs[3]) == ["train.py", "5 steps"]


def test_the_fingerprint_covers_the_script_and_its_packages(tmp_path: Path):
    for name in ("train.py", "helper.py", "pkg/__init__.py", "pkg/deep.py", "data/no.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    config = typed(f"script={tmp_path / 'train.py'}")
    assert [name for name, _ in code(config)["script"]] == ["train.py", "helper.py", "pkg/__init__.py", "pkg/deep.py"]


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
def test_what_is_no_script_is_refused(tmp_path: Path, content: str | None, code: str, facts: dict[str, Any]):
    path = tmp_path / ("train.ipynb" if content and "cells" in content else "train.py")
    if content:
        path.write_text(content)
    elif content is not None:
        path.mkdir()
    with refused(code, key="script", value=str(path), **facts):
        check(typed(f"script={path}"))
