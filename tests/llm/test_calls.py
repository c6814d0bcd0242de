"""Calls of tools in public rows: parallel calls, and calls that follow words of the assistant."""

import json
from typing import Any

from multicard.llm.data import forms
from tests.helpers.messages import refused

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
