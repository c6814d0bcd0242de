"""Turns in further public forms: keys in capitals, texts under other keys, histories, the system's
text in parts, lists in cells as Python prints them, and the channels of gpt-oss.
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from multicard.llm.data import forms, pairs, row_sources
from tests.conftest import typed_llm
from tests.helpers.messages import find, refused
from tests.llm.test_chat import written

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}
B = {"role": "assistant", "content": "B"}
SHOUTED = [{"ROLE": "USER", "CONTENT": "Q"}, {"ROLE": "ASSISTANT", "CONTENT": "A"}]
CAPITAL = [{"Role": "user", "Content": "Q"}, {"Role": "assistant", "Content": "A"}]
SHARED = [{"From": "human", "Value": "Q"}, {"From": "gpt", "Value": "A"}]
COHERE = [{"role": "User", "message": "q"}, {"role": "Chatbot", "message": "a"}]
ONE = "user: Q | assistant: A"
PAST = "user: q | assistant: a | user: Q | assistant: A"
ASKED = {"prompt": "Q", "completion": "A"}

READ: dict[str, tuple[Any, str]] = {
    "capitals": ({"messages": CAPITAL}, ONE),
    "all capitals": ({"messages": SHOUTED}, ONE),
    "sharegpt in capitals": ({"conversations": SHARED}, ONE),
    "blanks": ({"messages": [{" role": "user", "content ": "Q"}, A]}, ONE),
    "blanks around a role": (
        {"messages": [{"role": "user ", "content": "Q"}, {"role": "assistant\n", "content": "A"}]},
        ONE,
    ),
    "capitals as a list": (CAPITAL, ONE),
    "capitals as JSON": ({"messages": json.dumps(CAPITAL)}, ONE),
    "capitals of a question": ({"prompt": CAPITAL[:1], "completion": CAPITAL[1:]}, ONE),
    "capitals by lists": (
        {"messages": {"Role": ["user", "assistant"], "Content": ["Q", "A"]}},
        ONE,
    ),
    "exchanges in capitals": ({"messages": [{"Question": "Q", "Answer": "A"}]}, ONE),
    "role and text": (
        {"messages": [{"role": "user", "text": "Q"}, {"role": "model", "text": "A"}]},
        ONE,
    ),
    "a conversation alone in a list": ({"messages": [[Q, A]]}, ONE),
    "cohere's messages": ({"messages": COHERE}, "user: q | assistant: a"),
    "cohere's history": (ASKED | {"chat_history": COHERE}, PAST),
    "history of messages": (ASKED | {"history": COHERE}, PAST),
    "history of pairs": (ASKED | {"Chat_History": [["q", "a"]]}, PAST),
    "history as JSON": (ASKED | {"conversation_history": json.dumps([["q", "a"]])}, PAST),
    "history of texts": (ASKED | {"chat_history": ["q", "a"]}, PAST),
    "gemini": (
        {
            "systemInstruction": {"role": "system", "parts": [{"text": "S"}]},
            "contents": [
                {"role": "user", "parts": [{"text": "Q"}]},
                {"role": "model", "parts": [{"text": "A"}]},
            ],
        },
        f"system: S | {ONE}",
    ),
    "bedrock": (
        {
            "system": [{"text": "S"}],
            "messages": [
                {"role": "user", "content": [{"text": "Q"}]},
                {"role": "assistant", "content": [{"text": "A"}]},
            ],
        },
        f"system: S | {ONE}",
    ),
    "system as JSON": (ASKED | {"system": '[{"text": "S"}]'}, f"system: S | {ONE}"),
    "system as an object": (ASKED | {"system": {"text": "S"}}, f"system: S | {ONE}"),
    "system that begins as JSON": (ASKED | {"system": "[INST] S"}, f"system: [INST] S | {ONE}"),
    "an answer in a list": ({"question": "Q", "answer": ["A"]}, ONE),
    "a question in parts": (
        {"question": [{"text": "Q"}], "answer": {"type": "text", "text": "A"}},
        ONE,
    ),
    "as Python prints it": ({"messages": repr([Q, A])}, ONE),
    "ShareGPT as Python prints it": (
        {
            "conversations": repr(
                [{"from": "human", "value": "it's"}, {"from": "gpt", "value": "A"}]
            )
        },
        "user: it's | assistant: A",
    ),
    "texts as Python prints them": ({"conversations": repr(["Q", "A"])}, ONE),
    "an answer that Python prints": (
        {"question": "Q", "answer": "{'a': 1}"},
        "user: Q | assistant: {'a': 1}",
    ),
    "the channel of an answer": (
        {"messages": [Q, A | {"channel": "final", "recipient": "all"}]},
        ONE,
    ),
}


def said_by(row: Any) -> str:
    said = forms.conversation(forms.columns_of(row, {})).messages
    return " | ".join(f"{each['role']}: {each['content']}" for each in said)


@pytest.mark.parametrize("form", READ)
def test_turns_of_each_form_are_read_whole(form: str):
    row, expected = READ[form]
    assert said_by(row) == expected
    held = forms.columns_of(row, {})
    forms.conversation(held)
    assert not held.unread()


REFUSED: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "ChatterBot's pairs": (
        {"conversations": [["Q", "A"], ["q", "a"]]},
        "llm.row-conversations",
        {"column": "conversations", "length": 2},
    ),
    "two conversations of messages": (
        {"messages": [[Q, A], [Q, A]]},
        "llm.row-conversations",
        {"column": "messages"},
    ),
    "several answers in objects": (
        {"question": "Q", "answer": [{"text": "A"}, {"text": "B"}]},
        "llm.row-list",
        {"column": "answer"},
    ),
    "as numpy prints it": (
        {"messages": repr([Q, A]).replace("}, {", "}\n {")},
        "llm.row-text-of-list",
        {"column": "messages"},
    ),
    "reasoning of gpt-oss": (
        {"messages": [Q, B | {"channel": "analysis"}, A | {"channel": "final"}]},
        "llm.chat-harmony",
        {"message": 2, "column": "channel"},
    ),
    "a call of gpt-oss": (
        {"messages": [Q, B | {"recipient": "functions.get"}, A]},
        "llm.chat-harmony",
        {"message": 2, "column": "recipient"},
    ),
    "a call in capitals": (
        {"messages": [Q, B | {"Tool_Calls": [{"Function": {"Name": "f"}}]}]},
        "llm.row-call",
        {"message": 2},
    ),
}


@pytest.mark.parametrize("form", REFUSED)
def test_turns_that_mean_something_else_are_refused_with_the_true_reason(form: str):
    row, code, facts = REFUSED[form]
    with refused(code, **facts):
        said_by(row)


def test_a_key_that_stands_there_twice_or_says_something_else_is_named(tmp_path: Path):
    said = [Q | {"Role": "x"}, A | {"text": "other", "channel": "email"}]
    place = written(tmp_path, {"messages": said})
    found = row_sources.load_rows(typed_llm(place, "dataset=chat", "batch_size=1"))
    assert dict(found.ignored) == {
        "messages.Role": 1,
        "messages.text": 1,
        "messages.channel": 1,
    }


def test_the_remedy_for_other_names_keeps_the_history(tmp_path: Path):
    place = written(tmp_path, {"message": "Q", "chat_history": COHERE, "response": "A"})
    with refused("llm.broken-rows") as caught:
        row_sources.load_rows(typed_llm(place, "dataset=chat", "batch_size=1"))
    found = find(str(caught.value), "llm.chat-no-messages")
    (word,) = shlex.split(found.facts["remedy"])
    rows = row_sources.load_rows(typed_llm(place, "dataset=chat", "batch_size=1", word))
    assert "q<|eot_id|>" in json.dumps(rows.rows) and not rows.ignored


@pytest.mark.parametrize("prompt", ["", None, []])
def test_a_pair_with_an_empty_prompt_is_called_so(prompt: Any):
    row = {"prompt": prompt, "chosen": "A", "rejected": "B"}
    with refused("llm.row-no-text", columns=["prompt"]):
        pairs.pair(forms.columns_of(row, {}), "dataset=preference")


@pytest.mark.parametrize(
    ("dataset", "row", "column"),
    [
        ("alpaca_cleaned", {"instruction": "Q", "input": "", "output": ""}, "output"),
        ("grammar", {"input": "Q", "output": " \n"}, "output"),
        ("samsum", {"dialogue": "Q", "summary": ""}, "summary"),
    ],
)
def test_an_empty_answer_is_refused_in_the_columns_of_a_template(
    dataset: str, row: Any, column: str, tmp_path: Path
):
    with refused("llm.broken-rows") as caught:
        row_sources.load_rows(
            typed_llm(written(tmp_path, row), f"dataset={dataset}", "batch_size=1")
        )
    assert find(str(caught.value), "llm.row-empty-answer", column=column)
