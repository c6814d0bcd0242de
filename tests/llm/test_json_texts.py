"""Messages that stand as JSON texts, and which answers of a
row with a prompt of messages are learnt.
"""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from multicard.llm import preflight
from multicard.llm.data import forms, pairs, row_sources
from multicard.llm.data.forms import Conversation
from tests.conftest import typed_llm
from tests.helpers.messages import refused
from tests.llm.test_chat import written
from tests.llm.test_row_forms import (
    ASKED,
    CHAT,
    GPT,
    PREFERENCE,
    SLIMORCA,
    A,
    B,
    Q,
    S,
    loaded,
    pieces,
    said_by,
)

U2, A2 = {"role": "user", "content": "Q2"}, {"role": "assistant", "content": "A2"}


def as_json(*messages: Any) -> list[str]:
    return [json.dumps(message) for message in messages]


# By form: the row, and what it says
CONVERSATIONS: dict[str, tuple[Any, str]] = {
    "a list of JSON texts": ({"messages": as_json(S, Q, A)}, "system: S | user: Q | assistant: A"),
    "a list of JSON texts as JSON": (
        {"messages": json.dumps(as_json(Q, A))},
        "user: Q | assistant: A",
    ),
    "sharegpt's turns as JSON texts": (
        {"conversations": as_json(ASKED, GPT)},
        "user: Q | assistant: A",
    ),
    "questions and answers as JSON texts": (
        {"conversation": as_json({"input": "Q", "output": "A"})},
        "user: Q | assistant: A",
    ),
    "a history of JSON texts": (
        {"history": as_json(Q, A), "prompt": "Q2", "response": "B"},
        "user: Q | assistant: A | user: Q2 | assistant: B",
    ),
    "prompt and completion as JSON": (
        {"prompt": json.dumps([S, Q]), "completion": json.dumps([A])},
        "system: S | user: Q | assistant: A",
    ),
    "prompt and completion as lists of JSON texts": (
        {"prompt": as_json(S, Q), "completion": as_json(A)},
        "system: S | user: Q | assistant: A",
    ),
    "an answer that is a message as JSON": (
        {"question": "Q", "answer": json.dumps(A)},
        "user: Q | assistant: A",
    ),
    "a prompt in brackets": (
        {"prompt": "[INST] Q", "completion": "[1, 2]"},
        "user: [INST] Q | assistant: [1, 2]",
    ),
    "an answer with another role": (
        {"prompt": "Q", "completion": '{"role": "Engineer", "content": "A"}'},
        'user: Q | assistant: {"role": "Engineer", "content": "A"}',
    ),
    "a dialogue that was asked for as JSON": (
        {"prompt": "Write one.", "completion": json.dumps([Q, A])},
        f"user: Write one. | assistant: {json.dumps([Q, A])}",
    ),
    "a dialogue to be summed up": (
        {"instruction": "Sum up.", "input": json.dumps([Q, A]), "output": "B"},
        f"user: Sum up.\n{json.dumps([Q, A])} | assistant: B",
    ),
    "texts by turns that begin as JSON does": (
        {"messages": ["[Q", "{A"]},
        "user: [Q | assistant: {A",
    ),
    "a list for each key": (
        {"conversations": {"from": ["human", "gpt"], "value": ["Q", "A"]}},
        "user: Q | assistant: A",
    ),
    "a list for each key, of a prompt": (
        {"prompt": {"role": ["system", "user"], "content": ["S", "Q"]}, "completion": "A"},
        "system: S | user: Q | assistant: A",
    ),
    "a list for each key, with nulls": (
        {
            "messages": {
                "role": ["user", "assistant"],
                "content": ["Q", "A"],
                "tool_calls": [None, None],
                "name": None,
            }
        },
        "user: Q | assistant: A",
    ),
    "an answer beside messages": (
        {"messages": [Q, A, U2], "completion": "A2"},
        "user: Q | assistant: A | user: Q2 | assistant: A2",
    ),
    "an answer as a message beside messages": (
        {"messages": [Q], "response": [A]},
        "user: Q | assistant: A",
    ),
}


@pytest.mark.parametrize("form", CONVERSATIONS)
def test_json_texts_are_messages_where_these_are_expected_and_else_what_somebody_said(form: str):
    row, expected = CONVERSATIONS[form]
    held = forms.columns_of(row, {})
    assert said_by(forms.conversation(held)) == expected
    assert not held.unread()


# By form: a pair; each says "user: Q | assistant: A" against "B"
PAIRS: dict[str, Any] = {
    "lists of JSON texts": {"chosen": as_json(Q, A), "rejected": as_json(Q, B)},
    "lists of JSON texts beside a prompt": {
        "prompt": "Q",
        "chosen": as_json(A),
        "rejected": as_json(B),
    },
    "JSON texts beside a prompt": {
        "prompt": "Q",
        "chosen": json.dumps([A]),
        "rejected": json.dumps([B]),
    },
    "messages as JSON beside a prompt": {
        "prompt": "Q",
        "chosen": json.dumps(A),
        "rejected": json.dumps(B),
    },
    "conversations as JSON beside a prompt": {
        "prompt": "Q",
        "chosen": json.dumps([Q, A]),
        "rejected": json.dumps([Q, B]),
    },
    "all as JSON": {
        "prompt": json.dumps([Q]),
        "chosen": json.dumps([A]),
        "rejected": json.dumps([B]),
    },
}


@pytest.mark.parametrize("form", PAIRS)
def test_json_texts_of_pairs_are_messages(form: str):
    held = forms.columns_of(PAIRS[form], {})
    found = pairs.pair(held, "dataset=preference")
    assert said_by(Conversation(found.chosen)) == "user: Q | assistant: A"
    assert said_by(Conversation(found.rejected)) == "user: Q | assistant: B"
    assert not held.unread()


def test_json_texts_of_which_some_are_no_messages_are_refused():
    with refused("llm.chat-json-mixed", message=2):
        forms.conversation(forms.columns_of({"messages": [json.dumps(Q), "A"]}, {}))


def test_json_texts_with_unknown_roles_are_refused_and_not_learnt_as_text():
    critic = {"role": "critic", "content": "A"}
    with refused("llm.chat-role", message=1):
        forms.conversation(forms.columns_of({"messages": as_json(critic, critic)}, {}))


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_files_with_json_texts_are_read_as_their_messages(kind: str, tmp_path: Path):
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(pa.table({"messages": [as_json(Q, A)]}), file)
    else:
        with file.open("w", newline="") as stream:
            csv.writer(stream).writerows([["messages"], [json.dumps([Q, A])]])
    found = row_sources.load_rows(typed_llm(f"dataset.data_files={file}", "batch_size=1", *CHAT))
    assert found.rows == loaded(tmp_path, [{"messages": [Q, A]}], *CHAT).rows


ANSWERED: dict[str, Any] = {
    "messages and messages": {"prompt": [Q, A, U2], "completion": [A2]},
    "messages and a text": {"prompt": [Q, A, U2], "response": "A2"},
    "a system's text beside them": {"system": "S", "prompt": [Q, A, U2], "completion": [A2]},
    "a flat dialogue": {
        "prompt": "\n\nHuman: Q\n\nAssistant: A\n\nHuman: Q2\n\nAssistant:",
        "response": " A2",
    },
}


@pytest.mark.parametrize("form", ANSWERED)
def test_of_a_prompt_and_its_completion_the_completion_alone_is_learnt(form: str, tmp_path: Path):
    (row,) = loaded(tmp_path, [ANSWERED[form]], *CHAT).rows or []
    assert [text for text, learnt in pieces(row) if learnt] == ["A2<|eot_id|>"]
    assert any("A<|eot_id|>" in text for text, learnt in pieces(row) if not learnt)


def test_answers_of_a_prompt_are_learnt_on_request_and_those_of_a_history_as_before(tmp_path: Path):
    prompt = {"prompt": [Q, A | {"train": True}, U2], "completion": [A2]}
    (row,) = loaded(tmp_path, [prompt], *CHAT).rows or []
    assert [text for text, learnt in pieces(row) if learnt] == ["A<|eot_id|>", "A2<|eot_id|>"]
    history = {"system": "S", "history": [["h", "i"]], "prompt": [Q, A, U2], "completion": [A2]}
    (row,) = loaded(tmp_path, [history], *CHAT).rows or []
    assert [text for text, learnt in pieces(row) if learnt] == ["i<|eot_id|>", "A2<|eot_id|>"]
    (row,) = (
        loaded(tmp_path, [ANSWERED["messages and messages"]], *CHAT, "dataset.loss=all").rows or []
    )
    assert [learnt for _, learnt in pieces(row)] == [True]


def test_a_form_that_would_learn_the_answers_of_a_prompt_refuses_them(tmp_path: Path):
    with refused("llm.broken-rows") as caught:
        loaded(tmp_path, [ANSWERED["messages and messages"]], *SLIMORCA)
    assert caught.value.message.facts["reason"].code == "llm.row-prompt-learnt"


def test_texts_without_roles_are_read_in_turn_which_is_said(tmp_path: Path):
    rows = [
        {"messages": ["Q", "A"]},
        {"conversations": json.dumps(["Q", "A"])},
        {"messages": as_json(Q, A)},
    ]
    config = typed_llm(written(tmp_path, *rows), "batch_size=1", *CHAT)
    preflight.prepare(config)
    assert [
        each.facts for each in preflight.notices(config) if each.code == "llm.turns-by-place"
    ] == [{"rows": 2}]


def test_pairs_keep_their_history_with_prompts_of_messages(tmp_path: Path):
    pair = {
        "prompt": json.dumps([Q, A, U2]),
        "chosen": json.dumps([A2]),
        "rejected": json.dumps([B]),
    }
    (row,) = loaded(tmp_path, [pair], *PREFERENCE).rows or []
    assert [each["content"] for each in row["chosen"]] == ["Q", "A", "Q2", "A2"]
    assert row["chosen"][:-1] == row["rejected"][:-1]


FIELDS = {"category": "bill", "urgent": True}


@pytest.mark.parametrize(
    ("row", "columns", "remedy"),
    [
        ({"input": FIELDS, "output": FIELDS}, ["input", "output"], None),
        ({"instruction": "Q", "Response": FIELDS}, ["Response"], None),
        ({"prompt": FIELDS, "completion": "A"}, ["prompt"], None),
        ({"instruction": "Q", "input": FIELDS, "output": FIELDS}, ["input", "output"], None),
        (
            {"question": "Q", "context": {"contexts": ["C"]}, "answer": "A"},
            ["context"],
            "'dataset.columns={context: null}'",
        ),
    ],
)
def test_an_object_where_text_is_read_is_called_so(
    row: Any, columns: list[str], remedy: str | None
):
    with refused("llm.row-object", columns=columns, remedy=remedy):
        forms.conversation(forms.columns_of(row, {}))


def test_the_json_of_an_object_is_learnt_as_it_is_written():
    answer = '{"category": "bill", "urgent": true}'
    row = {"instruction": "Q", "input": '{"text":  "T"}', "output": answer}
    said = forms.conversation(forms.columns_of(row, {})).messages
    assert [message["content"] for message in said] == ['Q\n{"text":  "T"}', answer]
