"""Check that a chat template writes everything that a conversation holds.

Each part of a row must be in the text, or is named or refused. Templates name some keys that they
only write at times: the first of several calls, or the reasoning of the last answer. Therefore the
text itself is searched. Short words are in any text by chance. So the template also writes a
stand-in for each conversation of the same shape, in which each part differs from all others.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from multicard.llm.data.columns import is_filled
from multicard.llm.data.roles import BEARING_KEYS
from multicard.llm.data.turns import Message, unwritten
from multicard.messages import Refusal

REASONING = ("reasoning_content", "reasoning", "thinking", "tool_plan")
# Templates read these keys to find a call, or to choose a form, and seldom write them.
LINK_KEYS = ("role", "weight", "tool_call_id", "id", "type", "index")
THOUGHTS = "<think>"  # The key of a part that is reasoning within an answer's content.
MAX_SHAPES = 4096
STAND_IN = re.compile(r"Zx\d{5}Qj")

Shape = tuple[Any, ...]


class MessagePart(NamedTuple):
    """A part of a conversation: a text, a number or a truth value.

    `place` is the place of its message; None for the tools.
    """

    place: int | None
    key: str
    value: Any


class StandInResult(NamedTuple):
    """How the template wrote a stand-in.

    Fields:
        left_out: the parts that it does not write.
        mislearnt: the first part that is learnt outside of an answer, or not learnt within one.
    """

    left_out: list[MessagePart]
    mislearnt: MessagePart | None = None


class TemplateChecks:
    """Checks rows of one template and loss.

    The results for stand-ins are remembered by the shape of their conversations.

    Args:
        write: writes messages and tools in the way that rows are written. It returns the pieces of
            text, and whether only the last answer is learnt.
        source: the template's source.
    """

    def __init__(
        self, write: Callable[[list[Message], Any], tuple[list[dict[str, Any]], bool]], source: str
    ) -> None:
        self._write = write
        self._source = source
        self._results: dict[Shape, StandInResult] = {}

    def unwritten_keys(
        self, messages: Sequence[Message], tools: Any, text: str, column: str
    ) -> list[str]:
        """Return the parts that are not written and bear nothing to learn, as "messages.name".

        Raises:
            Refusal: a part bears text that would be lost.
        """
        last = max(place for place, message in enumerate(messages) if _is_answer(message))
        missing = [part for part in _parts(messages, tools) if not _is_in_text(part, text)]
        missing += _missing_repeats(messages[: last + 1], text)
        shape = _shape(messages, tools)
        if shape not in self._results:
            if len(self._results) >= MAX_SHAPES:
                self._results.clear()
            self._results[shape] = self._try_stand_in(messages, tools)
        result = self._results[shape]
        unread_parts = list[str]()
        for part in (*result.left_out, *missing):  # In the stand-in no two messages are equal.
            if part.place is None:
                raise unwritten("tools", self._source)
            if part.place > last:
                continue
            is_earlier = part.place < last and part.key in (*REASONING, THOUGHTS)
            if not is_earlier and part.key in ("content", THOUGHTS, *BEARING_KEYS):
                key = "content" if part.key == THOUGHTS else part.key
                raise unwritten(key, self._source, part.place + 1)
            unread_parts.append(f"{column}.{part.key}")
        if result.mislearnt is not None:
            raise _mislearnt(result.mislearnt)
        return list(dict.fromkeys(unread_parts))

    def _try_stand_in(self, conversation: Sequence[Message], tools: Any) -> StandInResult:
        """Write a stand-in; the result is empty if the template does not accept it."""
        stand_in = _StandIn()
        messages = [stand_in.message(message) for message in conversation]
        stand_in_tools = [stand_in.tool(tool) for tool in tools or ()] or None
        try:
            pieces, last_alone = self._write(messages, stand_in_tools)
        except Exception:  # A template is a program, and may make any demand on its input.
            return StandInResult([])
        text = "".join(piece["content"] for piece in pieces)
        parts = list(_parts(messages, stand_in_tools))
        left_out = [part for part in parts if not _is_in_text(part, text)]
        if all(piece["learnt"] for piece in pieces):
            return StandInResult(left_out)
        learnt = "\n".join(piece["content"] for piece in pieces if piece["learnt"])
        answers = [place for place, message in enumerate(messages) if _is_answer(message)]
        answers = answers[-1:] if last_alone else answers
        for part in parts:
            if (
                part.place is None
                or not STAND_IN.fullmatch(str(part.value).strip())
                or not _is_in_text(part, text)
            ):
                continue
            if (part.place in answers) != _is_in_text(part, learnt):
                return StandInResult(left_out, part)
        return StandInResult(left_out)


def _mislearnt(part: MessagePart) -> Refusal:
    assert part.place is not None
    key = "content" if part.key == THOUGHTS else part.key
    return Refusal(
        "llm.chat-mislearnt",
        f"message {part.place + 1} has {key}, but the chat template does not show whether it is"
        " learnt; use `dataset.loss=all`, or a template with {% generation %} around answers",
        message=part.place + 1,
        column=key,
    )


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and message.get("weight") != 0


class _StandIn:
    """Makes values of the same kind, each different from all others."""

    def __init__(self) -> None:
        self._count = 0

    def _next_value(self, value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            return value
        self._count += 1
        if isinstance(value, str):
            return f"Zx{self._count:05d}Qj"
        return 70000 + self._count if isinstance(value, int) else 70000.5 + self._count

    def message(self, message: Message) -> Message:
        """Return a message with the same role, keys and calls, and other values.

        If the same reasoning is under two keys, its stand-in is the same too.
        """
        stand_in = dict[str, Any]()
        thoughts = dict[str, str]()
        for key, value in message.items():
            if key == "content" and isinstance(value, str):
                before, end_tag, after = value.rpartition("</think>")
                if message["role"] == "assistant" and end_tag:
                    before_tag, tag, after_tag = before.partition("<think>")
                    inner = after_tag if tag else before_tag
                    stand_in[key] = (
                        tag
                        + self._next_value(inner.strip())
                        + end_tag
                        + self._next_value(after.strip())
                    )
                else:
                    stand_in[key] = self._next_value(value.strip())
            elif key in REASONING and isinstance(value, str):
                stand_in[key] = thoughts.setdefault(value, self._next_value(value))
            elif key in LINK_KEYS:
                stand_in[key] = value
            else:
                stand_in[key] = self._with_other_values(value)
        return stand_in

    def tool(self, tool: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tool with another name."""
        function = tool.get("function")
        if isinstance(function, dict):
            return {**tool, "function": function | {"name": self._next_value(function.get("name"))}}
        return {**tool, "name": self._next_value(tool["name"])} if "name" in tool else dict(tool)

    def _with_other_values(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: inner
                if key in LINK_KEYS and _is_call(value)
                else self._with_other_values(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list):
            return [self._with_other_values(inner) for inner in value]
        return self._next_value(value)


def _is_call(value: Mapping[str, Any]) -> bool:
    """Tell whether a value is a call itself, whose id and type are not part of its text.

    Arguments may have keys with these names too.
    """
    return isinstance(value.get("function"), dict)


def _shape(messages: Sequence[Message], tools: Any) -> Shape:
    """Return everything, except words, on which it depends which parts a template writes."""
    return (*map(_shape_of_message, messages), len(tools or ()))


def _shape_of_message(message: Message) -> Shape:
    content = message.get("content")
    content_shape = isinstance(content, str) and (
        bool(content.strip()),
        "</think>" in content,
        "<think>" in content,
    )
    others = [
        (key, _kind(value)) for key, value in message.items() if key not in ("role", "content")
    ]
    return (message["role"], content_shape, *others)


def _kind(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _kind(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return (list, *map(_kind, value))
    return value if isinstance(value, bool) or value in ("", None, 0, 1) else type(value)


def _parts(messages: Sequence[Message], tools: Any) -> Iterator[MessagePart]:
    """Yield all parts of a conversation that its text must contain."""
    for place, message in enumerate(messages):
        for key, value in message.items():
            if key in LINK_KEYS or not is_filled(value):
                continue
            if key == "content" and message["role"] == "assistant" and "</think>" in str(value):
                before, _, after = str(value).rpartition("</think>")
                yield MessagePart(place, THOUGHTS, before.replace("<think>", "", 1))
                yield MessagePart(place, key, after)
            else:
                for leaf in _leaves(value):
                    yield MessagePart(place, key, leaf)
    for tool in tools or ():
        function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        for key in ("name", "description"):
            if isinstance(function.get(key), str):
                yield MessagePart(None, "tools", function[key])
        parameters = function.get("parameters")
        properties = parameters.get("properties") if isinstance(parameters, dict) else None
        for name in properties if isinstance(properties, dict) else ():
            yield MessagePart(None, "tools", name)


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values in objects and lists, and the names in objects.

    A call's id and type are left out.
    """
    if isinstance(value, dict):
        is_call = _is_call(value)
        for key, inner in value.items():
            if is_call and key in LINK_KEYS:
                continue
            if not is_call and not (key in ("name", "arguments") and "arguments" in value):
                yield key
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    else:
        yield value


def _is_in_text(part: MessagePart, text: str) -> bool:
    """Tell whether a text contains a part, unchanged or in the form of JSON."""
    value = part.value
    if isinstance(value, str):
        words = value.strip()
        return words in text or any(form in text for form in _json_forms(words))
    return any(form in text for form in {json.dumps(value), str(value)})


def _json_forms(words: str) -> Iterator[str]:
    """Yield a text as JSON writes it, and as JSON within JSON, with and without escapes."""
    for ascii_alone in (False, True):
        escaped = json.dumps(words, ensure_ascii=ascii_alone)[1:-1]
        yield escaped
        yield json.dumps(escaped, ensure_ascii=ascii_alone)[1:-1]


def _missing_repeats(messages: Sequence[Message], text: str) -> Iterator[MessagePart]:
    """Yield contents that the text contains less often than the messages do."""
    contents = [str(message["content"] or "").strip() for message in messages]
    totals = Counter(contents)
    seen_so_far = Counter[str]()
    for place, content in enumerate(contents):
        seen_so_far[content] += 1
        if totals[content] < 2 or not content or "</think>" in content:
            continue
        if (
            max(text.count(form) for form in (content, *_json_forms(content)))
            < seen_so_far[content]
        ):
            yield MessagePart(place, "content", content)


# ---- arguments of calls


def arguments_as_text(messages: Sequence[Message]) -> list[Message]:
    """Return messages whose calls have their arguments as a text of JSON.

    Templates that put the arguments between texts read them so.
    """
    return [
        (
            message | {"tool_calls": [_call_as_text(call) for call in message["tool_calls"]]}
            if calls_of(message)
            else message
        )
        for message in messages
    ]


def _call_as_text(call: dict[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return call | {
        "function": function | {"arguments": json.dumps(function["arguments"], ensure_ascii=False)}
    }


def calls_of(message: Message) -> list[dict[str, Any]]:
    """Return the calls of a message; their arguments are objects."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def has_python(messages: Sequence[Message], text: str) -> bool:
    """Tell whether a text holds an object of arguments as Python prints it, which is not JSON."""
    for message in messages:
        for call in calls_of(message):
            prints = _python_prints(call["function"]["arguments"])
            if any(printed in text for printed in prints):
                return True
    return False


def _python_prints(value: Any) -> Iterator[str]:
    """Yield the objects within arguments as Python prints them.

    Lists are left out, because LFM2's template writes calls as Python does.
    """
    if isinstance(value, dict) and value:
        yield str(value)
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _python_prints(inner)
