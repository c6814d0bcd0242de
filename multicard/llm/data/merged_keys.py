"""Remove the null keys that a schema of all rows leaves in tools and in calls.

Arrow's structs have the keys of all rows. `datasets` therefore writes null into JSON lines under
each key that only other rows have. A template would write these nulls into tools and calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from multicard.llm.data.turns import Message

VALUES = ("default", "const")  # In a JSON schema, null is a value under these keys.
# The keys of these objects are names that the schema defines.
DEFINITIONS = ("properties", "patternProperties", "$defs", "definitions")


def without_nulls(tool: Any, are_names: bool = False) -> Any:
    """Return a tool without keys of null, which mean nothing in a JSON schema.

    Args:
        are_names: the keys are names that the schema defines, rather than the schema's own.
    """
    if isinstance(tool, list):
        return [without_nulls(part) for part in tool]
    if not isinstance(tool, dict):
        return tool
    return {
        key: without_nulls(part, key in DEFINITIONS and not are_names)
        for key, part in tool.items()
        if part is not None or (key in VALUES and not are_names)
    }


def without_foreign_arguments(messages: Sequence[Message], tools: Any) -> list[Message]:
    """Return the messages without null arguments that the called function does not have.

    A function that no tool describes keeps its arguments.
    """
    parameters = _parameters_by_function(tools or ())
    return [
        message
        | {"tool_calls": [_without_foreign(call, parameters) for call in message["tool_calls"]]}
        if message.get("tool_calls") and parameters
        else message
        for message in messages
    ]


def have_null_arguments(messages: Sequence[Message]) -> bool:
    """Tell whether a call of the messages has a null argument."""
    calls = list[Any]()
    for message in messages:
        calls += message.get("tool_calls") or ()
    return any(_holds_null(call["function"]["arguments"]) for call in calls)


def _holds_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return any(map(_holds_null, value)) if isinstance(value, list) else value is None


def _parameters_by_function(tools: Sequence[Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of each function whose tool has a JSON schema of them."""
    found = dict[str, Mapping[str, Any]]()
    for tool in tools:
        function = tool.get("function")
        schema = function.get("parameters") if isinstance(function, dict) else None
        properties = schema.get("properties") if isinstance(schema, dict) else None
        if isinstance(function, dict) and isinstance(properties, dict):
            found[str(function.get("name"))] = properties
    return found


def _without_foreign(
    call: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    function = call["function"]
    known = parameters.get(function["name"])
    if known is None:
        return dict(call)
    arguments = {
        name: value
        for name, value in function["arguments"].items()
        if value is not None or name in known
    }
    return {**call, "function": function | {"arguments": arguments}}
