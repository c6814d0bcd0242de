"""Calls of tools in public rows: parallel calls, and calls that follow words of the assistant."""

import json
from pathlib import Path
from typing import Any

import pytest

from multicard.llm import preflight
from multicard.llm.data import forms, merged_keys
from tests.conftest import typed_llm
from tests.helpers.messages import refused, says
from tests.llm.test_chat import with_template, written

Q, A = {"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def as_message(name: str, **more: Any) -> dict[str, Any]:
    return {"role": "tool_call", "content": json.dumps({"name": name, "arguments": {}})} | more


def messages_of(*messages: Any, **columns: Any) -> list[dict[str, Any]]:
    row = forms.columns_of({"messages": [*messages], **columns}, {})
    return forms.conversation(row).messages


# ---- calls that are messages


def test_calls_in_messages_of_their_own_are_one_turn_of_parallel_calls():
    results = [{"role": "tool_response", "content": text} for text in ("1", "2")]
    found = messages_of(Q, as_message("f"), as_message("g"), *results, A)
    roles = [message["role"] for message in found]
    assert roles == ["user", "assistant", "tool", "tool", "assistant"]
    assert found[1]["tool_calls"] == [call("f"), call("g")]


def test_a_call_joins_the_words_of_the_assistant_before_it():
    found = messages_of(Q, A, as_message("f"), {"role": "tool_response", "content": "1"}, A)
    assert found[1] == A | {"tool_calls": [call("f")]} and len(found) == 4


def test_a_call_after_a_result_is_a_turn_of_its_own():
    result = {"role": "tool_response", "content": "1"}
    found = messages_of(Q, as_message("f"), result, as_message("g"), result, A)
    assert [message["role"] for message in found[1:5]] == ["assistant", "tool"] * 2


def test_calls_with_different_reasoning_stay_turns_of_their_own():
    thoughts = [as_message("f", reasoning_content=text) for text in ("R", "S")]
    found = messages_of(Q, *thoughts, {"role": "tool_response", "content": "1"}, A)
    assert [message.get("reasoning_content") for message in found[1:3]] == ["R", "S"]


def test_a_call_that_is_learnt_without_the_words_before_it_is_refused():
    with refused("llm.row-call-weight", message=3):
        messages_of(Q, A | {"weight": 0}, as_message("f"), A)
    assert messages_of(Q, A | {"loss": False}, as_message("f", loss=False), A)[1]["weight"] == 0


# ---- results


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ({"degrees": 3, "sky": "é"}, '{"degrees": 3, "sky": "é"}'),
        ([{"degrees": 3}], '[{"degrees": 3}]'),
        (["a", "b"], '["a", "b"]'),
        (3.5, "3.5"),
        (True, "true"),
        ([{"type": "text", "text": "3"}], "3"),
        ("3", "3"),
    ],
)
def test_a_result_that_is_data_is_read_as_its_json(content: Any, text: str):
    found = messages_of(Q, as_message("f"), {"role": "tool", "content": content}, A)
    assert found[2]["content"] == text


def test_a_result_with_an_image_or_nothing_is_refused():
    for content, code in (([{"type": "image"}], "llm.chat-part"), (None, "llm.chat-no-text")):
        with refused(code, message=3):
            messages_of(Q, as_message("f"), {"role": "tool", "content": content}, A)


# ---- calls as the text of an answer


@pytest.mark.parametrize(
    ("answer", "is_call"),
    [
        ([{"name": "f", "arguments": {"a": 1}}], True),
        ({"name": "f", "parameters": {"a": 1}}, True),
        ([{"name": "h", "arguments": {"a": 1}}], False),
        ([{"name": "f", "arguments": {"a": 1}, "why": "x"}], False),
        ([{"name": "f", "arguments": [1]}], False),
        ([], False),
        ({"a": 1}, False),
    ],
)
def test_an_answer_that_is_json_of_calls_of_its_tools_is_a_call(answer: Any, is_call: bool):
    row = {"query": "Q", "output": json.dumps(answer), "tools": json.dumps([{"name": "f"}])}
    (_, found) = forms.conversation(forms.columns_of(row, {})).messages
    if is_call:
        assert found == {"role": "assistant", "content": "", "tool_calls": [call("f", a=1)]}
    else:
        assert found == {"role": "assistant", "content": row["output"]}
    row.pop("tools")
    (_, found) = forms.conversation(forms.columns_of(row, {})).messages
    assert found == {"role": "assistant", "content": row["output"]}


# ---- keys of other rows


def tool(name: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_null_keys_of_other_rows_are_left_out_of_tools_and_calls():
    text, null = {"type": "string", "enum": None, "default": None}, None
    row = {
        "messages": [Q, {"role": "assistant", "tool_calls": [call("f", a=1, b=None, c=None)]}],
        "tools": [tool("f", a=text, b=text, c=null), tool("g", a=null, default=null)],
    }
    read = forms.conversation(forms.columns_of(row, {}))
    kept = {"type": "string", "default": None}
    assert read.tools == [tool("f", a=kept, b=kept), tool("g")]
    messages = merged_keys.without_foreign_arguments(read.messages, read.tools)
    assert messages[1]["tool_calls"] == [call("f", a=1, b=None)]
    assert merged_keys.have_null_arguments(messages)


def test_a_call_of_a_function_without_a_schema_keeps_its_nulls():
    messages = messages_of(Q, {"role": "assistant", "tool_calls": [call("f", a=None)]})
    for tools in (None, [{"function": {"name": "f"}}], [tool("g", b={})]):
        assert merged_keys.without_foreign_arguments(messages, tools) == messages


def test_null_arguments_are_told_before_the_start(tmp_path: Path):
    def told(name: str, **arguments: Any) -> Any:
        messages = [Q, {"role": "assistant", "tool_calls": [call("f", **arguments)]}]
        config = typed_llm(
            "dataset=chat",
            written(tmp_path / name, {"messages": messages, "tools": [tool("f", a={}, b={})]}),
            with_template(tmp_path / "t", "qwen"),
            "dataset.split=0",
            "batch_size=1",
        )
        (row,) = preflight.prepare(config).rows or ()
        assert json.dumps(arguments) in "".join(piece["content"] for piece in row["pieces"])
        return [
            says(str(notice), "llm.null-arguments", rows=1) for notice in preflight.notices(config)
        ]

    assert any(told("nulls", a=1, b={"c": [None]})) and not any(told("none", a=1))
