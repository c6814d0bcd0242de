"""Overrides as remedies: typed into a shell as they stand, Hydra reads the very value,
whatever a file is called.
"""

import json
import shlex
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from multicard import workloads
from multicard.config.pasting import override, typeable
from multicard.llm.data import row_sources
from multicard.messages import Message
from tests.conftest import composed, typed_llm
from tests.helpers.messages import refused, remedies

LLM = next(workload for workload in workloads.WORKLOADS if workload.entry == "tune_llm.py")
NASTY = (
    *(
        "plain.jsonl",
        "a b.jsonl",
        "a (1).jsonl",
        "a,b.jsonl",
        "a=b.jsonl",
        "it's.jsonl",
        'say "x".jsonl',
        "'q'",
        '"q"',
    ),
    *(
        "$HOME.jsonl",
        "`x`.jsonl",
        "a\\b.jsonl",
        "x\\",
        "x\\\\",
        "a\\'b",
        "~/a.jsonl",
        "[x].jsonl",
        "{a}.jsonl",
        "*.jsonl",
    ),
    *(
        "*.jsonl",
        "a?b",
        "a:b",
        "a#b",
        "a&b;c|d<e>",
        "!x",
        "猫.jsonl",
        "é",
        " lead",
        "trail ",
        "a\tb",
        "-x",
        "+x",
        "@x",
        "%41",
    ),
    *(
        "${env:HOME}",
        "a${x}b",
        "\\${x}",
        "\\\\${x}",
        "null",
        "True",
        "12",
        "007",
        "1e3",
        ".5",
        "nan",
        "-inf",
        "1_0",
    ),
    *("choice(a,b)", "range(1)", "glob(x)", "2024-01/x", ".", "..", "a'b\"c"),
)


@pytest.mark.parametrize("name", NASTY)
def test_any_name_is_read_as_it_is(name: str):
    key = "dataset.test_files"
    word = "dataset=chat"
    chosen = composed(word, *shlex.split(override(key, name)), entry="tune_llm")
    assert OmegaConf.select(chosen, key) == name
    for names in ([name], ["a", name]):
        words = shlex.split(override(key, names))
        assert (
            OmegaConf.to_container(
                composed(word, *words, entry="tune_llm").dataset.test_files, resolve=True
            )
            == names
        )
    columns = shlex.split(override("dataset.columns", {"output": name, "id": None}))
    found = composed(word, *columns, entry="tune_llm").dataset.columns
    assert OmegaConf.to_container(found, resolve=True) == {"output": name, "id": None}


@pytest.mark.parametrize("name", NASTY)
def test_a_name_within_braces_is_read_as_it_is_or_is_known_not_to_be(name: str):
    words = shlex.split(override("dataset.columns", {name: None}))
    if not typeable(name):
        assert not (name.isascii() and name.isalpha()) or name in ("null", "True", "nan")
        return
    found = composed("dataset=chat", *words, entry="tune_llm").dataset.columns
    assert OmegaConf.to_container(found, resolve=True) == {name: None}


def test_values_that_are_no_text_are_written_as_hydra_has_them():
    values = (3, 0.5, True, None)
    assert [override("a", value) for value in values] == ["a=3", "a=0.5", "a=true", "a=null"]
    assert override("a.b", ["x", "y/z"]) == "a.b=[x,y/z]"  # no quotes where none are needed


def test_a_remedy_with_a_backtick_is_one_remedy():
    remedy = override("dataset.root", "`x` y")
    message = Message("a.b", f"use `{remedy}`, or `gpus=1`", remedy=remedy)
    assert message.remedies == [remedy, "gpus=1"]


IN_FOLDERS = ("a b", "a(1)", "it's", "a,b=c", "猫", "12", "[x]", "a&b", 'say "x"', "$x")


@pytest.mark.parametrize("name", IN_FOLDERS)
@pytest.mark.parametrize(
    ("files", "code"),
    [
        (("test.jsonl",), "llm.data-folder-splits"),
        (("train.jsonl", "train.json"), "llm.data-two-trains"),
        (("train-00000-of-00002.jsonl",), "llm.data-missing-shards"),
    ],
)
def test_remedies_of_folders_of_any_name_are_read(
    name: str, files: tuple[str, ...], code: str, tmp_path: Path
):
    folder = tmp_path / name
    folder.mkdir()
    row = {"messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]}
    for file in files:
        (folder / file).write_text(json.dumps(row) + "\n")
    own = ("dataset=chat", "dataset.split=0")
    with refused(code) as caught:
        row_sources.load_rows(
            typed_llm(*own, *shlex.split(override("dataset.data_files", str(folder))))
        )
    for remedy in remedies(caught.value):
        assert row_sources.load_rows(typed_llm(*own, *shlex.split(remedy))).rows
