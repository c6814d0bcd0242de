"""Read the columns beside a row's messages: earlier turns, the system's text, and tools."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from multicard.llm.data import columns as names
from multicard.llm.data import json_texts, merged_keys, turns
from multicard.llm.data.columns import RowColumns, is_filled, override
from multicard.llm.data.turns import Message
from multicard.messages import Refusal


def history_messages(row: RowColumns) -> list[Message]:
    """Return the turns before a question, from a separate column."""
    for name in row.filled(names.HISTORY):
        history = turns.messages(row.peek(name), by_place=True, by_pairs=True)
        if history is not None:
            row.get(name)
            return history
    return []


def with_system(row: RowColumns, messages: list[Message]) -> list[Message]:
    """Return the messages, after the system's text if a column holds one."""
    text = row.get(*names.SYSTEM)
    if isinstance(text, dict) and "parts" in text:
        text = text["parts"]
    text = json_texts.one_text(text)
    if isinstance(text, str) and text.lstrip().startswith("[{"):
        parts = json_texts.one_text(json_texts.as_object(text))
        text = parts if isinstance(parts, str) else text
    if text is None:
        return messages
    system = turns.message(1, {"role": "system", "content": text})
    if messages and messages[0]["role"] == "system":
        if messages[0]["content"].strip() != system["content"].strip():
            remedy = override({row.filled(names.SYSTEM)[0]: None})
            raise Refusal(
                "llm.row-two-systems",
                "has two texts of the system, in a column and as a message; leave one out, as"
                f" `{remedy}`",
                remedy=remedy,
            )
        return messages
    return [system, *messages]


def tools_of(row: RowColumns) -> list[Any] | None:
    """Return the tools of a row in the form that templates read: each has a `function`.

    Older forms lack this key.
    """
    tools = row.get(*names.TOOLS)
    if tools is None:
        return None
    if isinstance(tools, str):
        tools = json_texts.as_object(tools)
    if isinstance(tools, dict):
        tools = [tools]
    if isinstance(tools, list):
        with suppress(ValueError, RecursionError):
            tools = [json.loads(tool) if isinstance(tool, str) else tool for tool in tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        if not is_filled(tools):
            return None
        raise Refusal(
            "llm.chat-tools",
            f"has tools that are not JSON ({str(tools)[:40]!r}); give a list of tools, or none",
            tools=str(tools)[:40],
        )
    tools = [merged_keys.without_nulls(tool) for tool in tools]
    wrapped = [
        tool if "function" in tool or "name" not in tool else _wrap_function(tool) for tool in tools
    ]
    return wrapped or None


def _wrap_function(tool: Mapping[str, Any]) -> dict[str, Any]:
    function = {key: value for key, value in tool.items() if key != "type"}
    return {"type": "function", "function": function}
