"""JSON texts where messages are expected: of CSV, of Parquet with text columns alone,
and of `datasets`' type Json.

Such a text is decoded only if it holds messages.
A text that merely begins as JSON does is what somebody said.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from multicard.llm.data import columns as names
from multicard.llm.data.columns import RowColumns, is_filled
from multicard.llm.data.roles import CONTENT_KEYS, ROLE_KEYS, ROLES
from multicard.messages import Refusal

CALL_KEYS = ("tool_calls", "function_call")  # in the place of a content
ANSWERED = (*names.ANSWER, *names.CHOSEN, *names.REJECTED)


def as_object(text: str) -> Any:
    """The object or list that a JSON text holds; the text itself if it holds none."""
    if text.lstrip().startswith(("[", "{")):
        with suppress(ValueError, RecursionError):
            return json.loads(text)
    return text


def as_messages(value: Any) -> Any:
    """A message or a list of messages, decoded where they are a JSON text; a list of JSON texts
    with its objects. Any other value is returned as it is.

    Raises:
        Refusal: of a list, some texts hold a message and others do not.
    """
    found = as_object(value) if isinstance(value, str) else value
    if isinstance(found, Mapping):
        return found if _is_message(found) else value
    if not isinstance(found, list | tuple) or not found:
        return value
    are_of_text = isinstance(value, str) and all(isinstance(each, Mapping) for each in found)
    if are_of_text:
        return found if all(map(_is_message, found)) else value
    decoded = [as_object(each) if isinstance(each, str) else each for each in found]
    are_messages = [_is_message(each) for each in decoded]
    if all(isinstance(each, Mapping) for each in decoded):
        return decoded  # of roles that are not known, whoever reads messages says so
    are_texts = [isinstance(each, str) for each in found]
    if any(is_text and is_one for is_text, is_one in zip(are_texts, are_messages, strict=True)):
        number = are_messages.index(False) + 1
        raise Refusal(
            "llm.chat-json-mixed",
            f"has messages as JSON texts, but message {number} is none; write each as an object"
            " with role and content",
            message=number,
        )
    return value


def decode(row: RowColumns) -> None:
    """Decode the messages that stand as JSON texts in columns of a question, an answer,
    or a pair's answers.

    JSON of an answer that begins with the user stays a text beside a question in plain words that
    it does not repeat: somebody was asked to write a dialogue as JSON.
    """
    questions = row.there(names.QUESTION) or row.there(names.CONTEXT[:1])
    for name in questions:
        row.replace(name, as_messages(row.peek(name)))
    asked = [row.peek(name) for name in questions]
    plain = [text.strip() for text in asked if isinstance(text, str)]
    for name in row.there(ANSWERED):
        value = row.peek(name)
        found = as_messages(value)
        if isinstance(value, str) and plain and not _answers(found, plain):
            continue
        row.replace(name, found)


def _answers(found: Any, asked: Sequence[str]) -> bool:
    """True of messages that begin with the assistant's, or that hold a question in plain words."""
    said = found if isinstance(found, list) else [found]
    if not all(isinstance(each, Mapping) for each in said):
        return False
    if _role_of(said[0]) not in ("user", "system"):
        return True
    contents = [each.get(key) for each in said for key in CONTENT_KEYS]
    return any(isinstance(content, str) and content.strip() in asked for content in contents)


def _role_of(message: Mapping[str, Any]) -> str | None:
    return next((ROLES.get(str(message[key]).lower()) for key in ROLE_KEYS if key in message), None)


def _is_message(found: Any) -> bool:
    """True of an object with a role that is known, and with a content or calls."""
    if not isinstance(found, Mapping) or _role_of(found) is None:
        return False
    has_content = any(isinstance(found.get(key), str | list) for key in CONTENT_KEYS)
    return has_content or any(is_filled(found.get(key)) for key in CALL_KEYS)
