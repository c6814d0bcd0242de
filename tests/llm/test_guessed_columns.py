"""Rows whose columns have other names: the override that a refusal offers reads the whole row."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.messages import find, refused
from tests.llm.test_row_forms import CHAT, loaded

MESSAGES = [{"role": "user", "content": "Q"}, {"from": "gpt", "value": "A"}]


def remedy_for(folder: Path, row: Any, code: str = "llm.chat-no-messages") -> str | None:
    with refused("llm.broken-rows") as caught:
        loaded(folder, [row], *CHAT)
    return find(str(caught.value), code, found=[*row]).facts["remedy"]


def text_of(folder: Path, row: Any, remedy: str) -> str:
    """The text that is read with the remedy, which leaves no column unread."""
    found = loaded(folder, [row], *CHAT, *shlex.split(remedy))
    assert found.rows is not None and not found.ignored
    return "".join(piece["content"] for piece in found.rows[0]["pieces"])


@pytest.mark.parametrize("value", [MESSAGES, json.dumps(MESSAGES)], ids=["list", "JSON"])
@pytest.mark.parametrize("name", ["message", "chat", "my turns"])
def test_messages_under_another_name_are_refused_with_that_name(
    name: str, value: Any, tmp_path: Path
):
    remedy = remedy_for(tmp_path, {name: value}, "llm.row-other-messages")
    assert remedy is not None
    text = text_of(tmp_path, {name: value}, remedy)
    assert text == text_of(tmp_path, {"messages": MESSAGES}, "dataset.skip_broken=false")


def test_two_columns_of_messages_are_not_guessed(tmp_path: Path):
    assert remedy_for(tmp_path, {"one": MESSAGES, "two": MESSAGES}) is None


@pytest.mark.parametrize(
    "names",
    [
        ("toy_system", "toy_input", "toy_output"),
        ("sys_prompt", "user_prompt", "reply"),
        ("system", "user", "assistant"),
    ],
)
def test_the_systems_text_is_named_with_a_question_and_its_answer(
    names: tuple[str, ...], tmp_path: Path
):
    row = dict(zip(names, ("Be brief.", "Q", "A"), strict=True))
    remedy = remedy_for(tmp_path, row)
    assert remedy is not None
    expected = {"system": "Be brief.", "prompt": "Q", "completion": "A"}
    assert text_of(tmp_path, row, remedy) == text_of(tmp_path, expected, "dataset.split=0")


@pytest.mark.parametrize("row", [{"system": "Be brief.", "user": "Q"}, {"audio": "a.wav"}])
def test_neither_the_systems_text_nor_a_files_path_is_offered_to_be_learnt(
    row: Any, tmp_path: Path
):
    assert remedy_for(tmp_path, row) is None


@pytest.mark.parametrize("name", ["think", "Complex_CoT", "reasoning"])
def test_reasoning_beside_an_answer_is_refused_until_it_is_left_out(name: str, tmp_path: Path):
    row = {"Question": "Q", name: "R", "Response": "A"}
    with refused("llm.broken-rows") as caught:
        loaded(tmp_path, [row], *CHAT)
    (word,) = shlex.split(find(str(caught.value), "llm.row-bears", column=name).facts["remedy"])
    assert loaded(tmp_path, [row], *CHAT, word).ignored == {name: 1}
