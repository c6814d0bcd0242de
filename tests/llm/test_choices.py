"""Questions of multiple choice: choices that the prompt lacks are refused, and put into it by name."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import row_sources
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused
from tests.llm.test_chat import written

CHAT, ALPACA = ("dataset=chat",), ("dataset=alpaca_cleaned",)
PREFERENCE = ("dataset=preference", "method=dpo")
ASKED = {"question": "Q", "answer": "A"}
BOTH = ["red", "green"]


def read_rows(place: str, *words: str) -> row_sources.LoadedRows:
    return row_sources.load_rows(typed_llm(place, "batch_size=1", *words))


@pytest.mark.parametrize(
    ("words", "row", "lines"),
    [
        (CHAT, ASKED | {"choices": BOTH}, "Q\nA. red\nB. green"),
        (CHAT, ASKED | {"Options": {"A": "red", "B": "green"}}, "Q\nA. red\nB. green"),
        (
            CHAT,
            ASKED | {"choices": {"text": BOTH, "label": ["1", "2"]}},
            "Q\n1. red\n2. green",
        ),
        (
            CHAT,
            ASKED | {"options": [{"label": "x", "text": "red"}, {"text": "green"}]},
            "Q\nx. red\nB. green",
        ),
        (CHAT, ASKED | {"options": repr(BOTH)}, "Q\nA. red\nB. green"),
        (CHAT, ASKED | {"options": "(A) red (B) green"}, "Q\n(A) red (B) green"),
        (CHAT, {"question": "Q", "choices": BOTH, "answerKey": "A"}, "Q\nA. red\nB. green"),
        (ALPACA, {"instruction": "Q", "output": "A", "options": BOTH}, "A. red\nB. green"),
        (ALPACA, ASKED | {"options": BOTH}, "A. red\nB. green"),
        (
            PREFERENCE,
            {"question": "Q", "choices": BOTH, "chosen": "A", "rejected": "B"},
            "Q\nA. red\nB. green",
        ),
    ],
)
def test_choices_that_the_prompt_lacks_are_refused_and_the_remedy_puts_them_there(
    words: tuple[str, ...], row: Any, lines: str, tmp_path: Path
):
    place = written(tmp_path, row)
    with refused("llm.broken-rows") as caught:
        read_rows(place, *words)
    code = "llm.row-choices"
    if "answerKey" in row:
        code = "llm.chat-no-messages"
    elif words == ALPACA and "question" in row:
        code = "llm.row-columns"
    (word,) = shlex.split(find(str(caught.value), code).facts["remedy"])
    found = read_rows(place, *words, word)
    assert json.dumps(lines)[1:-1] in json.dumps(found.rows) and not found.ignored


@pytest.mark.parametrize(
    ("row", "columns"),
    [
        (ASKED | {"A": "red", "B": "green"}, ["A", "B"]),
        (ASKED | {"opa": "red", "opb": "green"}, ["opa", "opb"]),
        (ASKED | {"option_1": "red", "option_2": "green"}, ["option_1", "option_2"]),
        (ASKED | {"context": "C", "choices": BOTH}, ["choices"]),
    ],
)
def test_choices_that_no_column_can_bring_are_refused_without_a_remedy_that_drops_them(
    row: Any, columns: list[str], tmp_path: Path
):
    with refused("llm.broken-rows") as caught:
        read_rows(written(tmp_path, row), *CHAT)
    assert find(str(caught.value), "llm.row-choices", columns=columns).facts["remedy"] is None


@pytest.mark.parametrize(
    "row",
    [
        {"question": "Q\nA. red\nB. green", "answer": "A", "choices": BOTH},
        ASKED | {"choices": [{"index": 0, "message": {"role": "assistant", "content": "A"}}]},
        ASKED | {"a": "one alone"},
    ],
)
def test_columns_that_the_prompt_holds_or_that_are_no_choices_are_named(row: Any, tmp_path: Path):
    found = read_rows(written(tmp_path, row), *CHAT)
    assert len(found.rows or []) == 1 and [*found.ignored] == [[*row][-1]]


def test_more_choices_than_letters_are_all_written(tmp_path: Path):
    row = ASKED | {"choices": [f"choice {number}" for number in range(30)]}
    found = read_rows(written(tmp_path, row), *CHAT, "dataset.columns={input: choices}")
    assert "Z. choice 25\\n27. choice 26" in json.dumps(found.rows)
    assert "choice 29" in json.dumps(found.rows)
