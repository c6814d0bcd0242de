"""The words and variables by which a script gets its arguments."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from multicard.config.script import ScriptConfig
from multicard.script import words
from multicard.script.workload import check, code, describe
from tests.conftest import composed


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
    with pytest.raises(ValueError, match=r"args\.rank: RANK is set"):
        words.variables(typed("args.style=env", "args.rank=1"))


@pytest.mark.parametrize(
    ("overrides", "reason"),
    [
        (["args.style=shell"], "args.style=shell: choose one of argparse, hydra, env"),
        (["diagnose=true"], "diagnose=true: cannot leave out parts"),
        (["profile=kineto"], "profile.window=after: a script takes no steps after its own"),
        (["race.figure=samples_per_s"], "race=samples_per_s: compares full runs of a known length; set steps"),
        (["steps=0"], "steps=0: must be 1 or more"),
    ],
)
def test_what_a_script_cannot_do_is_refused(overrides: list[str], reason: str):
    with pytest.raises(ValueError, match=reason):
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
    ("content", "reason"),
    [
        (None, "there is no such file"),
        ("", "is no file"),
        ("x = = 1", "is no Python .*line 1"),
        ("\0", "is no Python"),
        ('{"cells": []}', "is a notebook; export it"),
    ],
)
def test_what_is_no_script_is_refused(tmp_path: Path, content: str | None, reason: str):
    path = tmp_path / ("train.ipynb" if content and "cells" in content else "train.py")
    if content:
        path.write_text(content)
    elif content is not None:
        path.mkdir()
    with pytest.raises(ValueError, match=reason):
        check(typed(f"script={path}"))
