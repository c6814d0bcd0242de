"""Bring the calls of tools into the form that templates read, each with its message.

Public data hold a call in a key of a message, or as a message of its own.
"""

import json
from typing import Any

from multicard.llm.data.columns import is_filled
from multicard.messages import Refusal

Message = dict[str, Any]

FUNCTION_KEYS = ("name", "arguments", "parameters")
FLAT_CALL_KEYS = ("id", "index")  # Keys of the call, where it has no `function`.


def calls_of(stored: Any, number: int) -> list[dict[str, Any]]:
    """Return the calls in a list, in one object, or in the JSON of either."""
    calls = stored
    if isinstance(stored, str):
        try:
            calls = json.loads(stored)
        except (ValueError, RecursionError):
            raise _bad_call(stored, number) from None
    if isinstance(calls, dict):
        calls = [calls]
    if not isinstance(calls, list):
        raise _bad_call(stored, number)
    return [call_of(call, number) for call in calls]


def call_of(content: Any, number: int) -> dict[str, Any]:
    """Return a call of a function in the form that templates read: its arguments are an object.

    OpenAI's form has the name and the arguments under `function`, and the arguments as JSON.
    Other forms have both keys in the call itself.
    """
    try:
        call = json.loads(content) if isinstance(content, str) else content
        function = call["function"] if isinstance(call.get("function"), dict) else call
        name = function["name"]
        arguments = function.get("arguments", function.get("parameters"))
        if isinstance(arguments, str) and arguments.strip():
            arguments = json.loads(arguments)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise _bad_call(content, number) from None
    if not is_filled(arguments):
        arguments = {}
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise _bad_call(content, number)
    if function is call:
        call_fields = {key: value for key, value in call.items() if key in FLAT_CALL_KEYS}
        read_keys = (*FUNCTION_KEYS, *FLAT_CALL_KEYS, "type")
    else:
        call_fields = {key: value for key, value in call.items() if key not in ("function", "type")}
        read_keys = FUNCTION_KEYS
    function_fields = {
        key: value for key, value in function.items() if key not in read_keys and is_filled(value)
    }
    return {
        "type": "function",
        "function": {"name": name, "arguments": arguments} | function_fields,
    } | call_fields


def _bad_call(content: Any, number: int) -> Refusal:
    return Refusal(
        "llm.row-call",
        f"message {number} does not hold a function call ({str(content)[:40]!r}); "
        'write {"name": "...", "arguments": {...}}',
        message=number,
        content=str(content)[:40],
    )


def join(before: Message, call: Message, number: int) -> Message | None:
    """Return a message of the assistant that also holds the calls of the message after it.

    A call that is a message of its own belongs to the assistant's turn before it: two such
    messages are parallel calls. Returns None if the message before it is not the assistant's, or
    if both have a key with different values.

    Raises:
        Refusal: only one of both messages is to be learnt.
    """
    if before["role"] != "assistant":
        return None
    if before.get("weight", 1) != call.get("weight", 1):
        raise Refusal(
            "llm.row-call-weight",
            f"message {number} is a call of the assistant's turn before it, and only one of them"
            " is to be learnt; give both the same weight, or leave the row out",
            message=number,
        )
    others = {key: value for key, value in call.items() if key not in ("content", "tool_calls")}
    if any(before.get(key, value) != value for key, value in others.items()):
        return None
    earlier_calls = before.get("tool_calls") or []
    return {**before, **others, "tool_calls": [*earlier_calls, *call["tool_calls"]]}


def calls_in_text(text: Any, tools: Any) -> list[dict[str, Any]] | None:
    """Return the calls in an answer that is JSON of calls of its row's tools; None for others.

    xLAM's rows have such answers. The template says in the prompt how calls are written, so they
    are calls rather than text.
    """
    if not isinstance(text, str) or not tools or not text.lstrip().startswith(("[", "{")):
        return None
    known = {str((tool.get("function") or tool).get("name")) for tool in tools}
    try:
        found = json.loads(text)
        calls = found if isinstance(found, list) else [found]
        are_calls = all({*call} <= {*FUNCTION_KEYS} and call["name"] in known for call in calls)
        return calls_of(calls, 1) if calls and are_calls else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
