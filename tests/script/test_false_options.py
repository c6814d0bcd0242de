"""Options that `args.NAME=false` leaves out, but that are on by default."""

import argparse
import shlex
from collections.abc import Callable
from typing import Any

import pytest

from multicard.script import false_options, words
from tests.helpers.messages import find, refused, remedies
from tests.script.test_script_runs import TRAIN, measured
from tests.script.test_words import typed


def as_truth(text: str) -> bool:
    return text.lower() in ("yes", "true", "1")


# An option's definition, and the word that turns it off if args.amp=false does not
ON: dict[str, tuple[dict[str, Any], str | None]] = {
    "a value": ({"type": as_truth, "default": True}, 'args.amp="False"'),
    "a value or none": (
        {"type": as_truth, "default": True, "nargs": "?", "const": True},
        'args.amp="False"',
    ),
    "two options": (
        {"action": argparse.BooleanOptionalAction, "default": True},
        "args.no-amp=true",
    ),
    "any text": ({"type": bool, "default": True}, None),
    "a flag": ({"action": "store_true", "default": True}, None),
}
OFF: dict[str, dict[str, Any]] = {
    "a flag": {"action": "store_true"},
    "a value": {"type": as_truth, "default": False},
    "two options": {"action": argparse.BooleanOptionalAction, "default": False},
    "a flag that turns off": {"action": "store_false"},
    "a constant": {"action": "store_const", "const": False, "default": True},
    "a number": {"type": int, "default": 1},
}

STAYS_TRUE = ("a flag that turns off", "a constant", "a number")


def read(option: dict[str, Any], *overrides: str) -> bool:
    """What a script with this option reads of a command's words."""
    config = typed(*overrides)
    with false_options.refused(config):
        parser = argparse.ArgumentParser()
        parser.add_argument("--amp", **option)
        return parser.parse_args(words.words(config)).amp


@pytest.mark.parametrize("name", ON)
def test_an_option_that_stays_on_is_refused_with_the_word_that_turns_it_off(name: str):
    option, off = ON[name]
    with refused("script.option-stays-on", key="args.amp", option="amp") as refusal:
        read(option, "args.amp=false")
    offered = remedies(refusal.value)
    assert [shlex.split(remedy) for remedy in offered] == ([] if off is None else [[off]])
    for remedy in offered:
        assert read(option, *shlex.split(remedy)) is False
    assert read(option, "args.lr=null" if off is None else "args.amp=null") is True


def test_a_text_that_an_option_takes_for_true_is_refused():
    with refused("script.option-stays-on", remedy=None):
        read({"type": bool, "default": False}, "args.amp='False'")


@pytest.mark.parametrize("name", OFF)
def test_an_option_that_is_off_by_default_may_be_left_out(name: str):
    assert read(OFF[name], "args.amp=false") == (name in STAYS_TRUE)


def test_options_of_transformers_that_are_on_are_refused_and_others_left_out():
    transformers = pytest.importorskip("transformers")
    config = typed("args.bf16=false", "args.output_dir=x")
    with false_options.refused(config):
        parser = transformers.HfArgumentParser(transformers.TrainingArguments)
        (arguments,) = parser.parse_args_into_dataclasses(words.words(config))
    assert arguments.bf16 is False
    with (
        refused("script.option-stays-on", option="remove_unused_columns"),
        false_options.refused(typed("args.remove_unused_columns=false")),
    ):
        parser.parse_args_into_dataclasses([])


@pytest.mark.usefixtures("processes")
def test_a_run_fails_by_an_option_that_stays_on(script: Callable[[str], str]):
    parse = "import argparse; parser = argparse.ArgumentParser()\n"
    parse += "parser.add_argument('--amp', type=lambda text: text == 'True', default=True)\n"
    name = script(parse + "parser.parse_args()\n" + TRAIN)
    record = measured(name, "args.amp=false").record
    assert record.status == "failed" and record.cause is not None
    find(record.cause.message, "script.option-stays-on", option="amp")


def read_by_click(*overrides: str, option: str, **own: Any) -> Any:
    """What a script whose options click reads gets from a command's words."""
    click = pytest.importorskip("click")
    got = dict[str, Any]()
    main = click.Command("train", None, got.update, [click.Option([option, "amp"], **own)])
    config = typed(*overrides)
    with false_options.refused(config):
        main(words.words(config), standalone_mode=False)
    return got["amp"]


@pytest.mark.parametrize(
    ("option", "own", "off"),
    [
        ("--amp/--no-amp", {"default": True}, "args.no-amp=true"),
        ("--amp/--fp32", {"default": True}, "args.fp32=true"),
        ("--amp", {"type": bool, "default": True}, 'args.amp="False"'),
    ],
)
def test_an_option_of_click_that_stays_on_is_refused(option: str, own: dict[str, Any], off: str):
    with refused("script.option-stays-on", key="args.amp") as refusal:
        read_by_click("args.amp=false", option=option, **own)
    (remedy,) = remedies(refusal.value)
    assert shlex.split(remedy) == [off]
    assert read_by_click(*shlex.split(remedy), option=option, **own) is False
    assert read_by_click("args.amp=null", option=option, **own) is True


@pytest.mark.parametrize(
    ("option", "own"),
    [
        ("--amp", {"is_flag": True}),
        ("--amp/--no-amp", {"default": False}),
        ("--amp", {"is_flag": True, "flag_value": False, "default": True}),
    ],
)
def test_an_option_of_click_that_is_off_by_default_may_be_left_out(
    option: str, own: dict[str, Any]
):
    read_by_click("args.amp=false", option=option, **own)


def read_by_absl(*overrides: str, default: bool) -> bool:
    flags = pytest.importorskip("absl.flags")
    values = flags.FlagValues()
    flags.DEFINE_boolean("amp", default, "mixed precision", flag_values=values)
    config = typed(*overrides)
    with false_options.refused(config):
        values(["train.py", *words.words(config)])
    return values.amp


def test_an_option_of_absl_that_stays_on_is_refused():
    with refused("script.option-stays-on", key="args.amp") as refusal:
        read_by_absl("args.amp=false", default=True)
    (remedy,) = remedies(refusal.value)
    assert read_by_absl(*shlex.split(remedy), default=True) is False
    assert read_by_absl("args.amp=false", default=False) is False
    assert read_by_absl("args.amp=true", default=False) is True
