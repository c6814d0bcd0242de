"""Decode messages that are stored as a text of JSON, or as Python prints them.

CSV holds them so, and so do Parquet files with only text columns and the type Json of `datasets`.
A text is decoded only if it holds messages. Other texts may begin like JSON because somebody
wrote so.
"""

import ast
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any
from warnings import catch_warnings, simplefilter

from multicard.llm.data import columns as names
from multicard.llm.data.columns import RowColumns, is_filled
from multicard.llm.data.roles import CONTENT_KEYS, ROLE_KEYS, role_named, with_lower_keys
from multicard.messages import Refusal

TEXT_PART = ("type", "text")  # The keys of a part of a content.
CALL_KEYS = ("tool_calls", "function_call")  # A message may have them in place of a content.
ANSWER_COLUMNS = (*names.ANSWER, *names.CHOSEN, *names.REJECTED)


def constant(word: str) -> float | None:
    """Return the value of a word that Python writes into JSON for a number.

    NaN is null: Python's json writes it for the empty cells of pandas.
    """
    return None if word == "NaN" else float(word)


def as_object(text: str) -> Any:
    """Return the object or list that a text holds, or the text itself if it holds none.

    The text is JSON, or was printed by Python, as pandas writes lists into CSV.
    """
    if not text.lstrip().startswith(("[", "{")):
        return text
    with suppress(ValueError, RecursionError):
        return json.loads(text, parse_constant=constant)
    with suppress(ValueError, SyntaxError, RecursionError, MemoryError), catch_warnings():
        simplefilter("ignore")  # Python warns about backslashes that escape nothing.
        printed = ast.literal_eval(text.strip())
        if isinstance(printed, list | dict):
            return printed
    return text


def one_text(value: Any) -> Any:
    """Join the text in a list of one text, or in parts that are marked as text.

    Any other value is returned unchanged.
    """
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        return value[0]
    parts = value if isinstance(value, list) else [value]
    if not parts or not all(isinstance(part, Mapping) for part in parts):
        return value
    are_text = all(
        isinstance(part.get("text"), str)
        and {*part} <= {*TEXT_PART}
        and part.get("type", "text") == "text"
        for part in parts
    )
    if not are_text or (len(parts) > 1 and not all("type" in part for part in parts)):
        return value
    return "".join(part["text"] for part in parts)


def as_messages(value: Any) -> Any:
    """Decode a message, or a list of messages, from one JSON text or from several.

    Any other value is returned unchanged.

    Raises:
        Refusal: in a list, some texts hold a message and others do not.
    """
    decoded_value = as_object(value) if isinstance(value, str) else value
    if isinstance(decoded_value, Mapping):
        return decoded_value if _is_message(decoded_value) else value
    if not isinstance(decoded_value, list | tuple) or not decoded_value:
        return value
    are_of_text = isinstance(value, str) and all(
        isinstance(item, Mapping) for item in decoded_value
    )
    if are_of_text:
        return decoded_value if all(map(_is_message, decoded_value)) else value
    decoded_items = [as_object(item) if isinstance(item, str) else item for item in decoded_value]
    are_messages = [_is_message(item) for item in decoded_items]
    if all(isinstance(item, Mapping) for item in decoded_items):
        return decoded_items  # The reader of messages refuses unknown roles.
    are_texts = [isinstance(item, str) for item in decoded_value]
    if any(
        is_text and is_message for is_text, is_message in zip(are_texts, are_messages, strict=True)
    ):
        number = are_messages.index(False) + 1
        raise Refusal(
            "llm.chat-json-mixed",
            f"has messages as JSON texts, but message {number} is not one; write each as an object"
            " with role and content",
            message=number,
        )
    return value


def are_messages(value: Any) -> bool:
    """Tell whether a value is a list of messages with known roles, or a text of JSON of them."""
    decoded = as_object(value) if isinstance(value, str) else value
    return isinstance(decoded, list) and bool(decoded) and all(map(_is_message, decoded))


def decode(row: RowColumns) -> None:
    """Decode messages that are JSON texts in the columns of questions and answers.

    An answer in JSON stays a text if it begins with the user, and the question is in plain words
    that the answer does not repeat. In such a row the user asked for a dialogue in JSON.
    """
    questions = row.filled(names.QUESTION) or row.filled(names.CONTEXT[:1])
    for name in questions:
        row.replace(name, one_text(as_messages(row.peek(name))))
    question_values = [row.peek(name) for name in questions]
    plain_questions = [text.strip() for text in question_values if isinstance(text, str)]
    for name in row.filled(ANSWER_COLUMNS):
        value = row.peek(name)
        decoded_value = as_messages(value)
        if (
            isinstance(value, str)
            and plain_questions
            and not _answers_question(decoded_value, plain_questions)
        ):
            continue
        row.replace(name, one_text(decoded_value))


def _answers_question(value: Any, questions: Sequence[str]) -> bool:
    """Tell whether messages begin with the assistant's, or repeat a question in plain words."""
    messages = value if isinstance(value, list) else [value]
    if not all(isinstance(message, Mapping) for message in messages):
        return False
    if _role_of(messages[0]) not in ("user", "system"):
        return True
    contents = list[Any]()
    for message in map(with_lower_keys, messages):
        contents += [message.get(key) for key in CONTENT_KEYS]
    return any(isinstance(content, str) and content.strip() in questions for content in contents)


def _role_of(message: Mapping[str, Any]) -> str | None:
    message = with_lower_keys(message)
    return next((role_named(message[key]) for key in ROLE_KEYS if key in message), None)


def _is_message(value: Any) -> bool:
    """Tell whether a value is an object with a known role, and with a content or calls."""
    if not isinstance(value, Mapping) or _role_of(value) is None:
        return False
    value = with_lower_keys(value)
    has_content = any(isinstance(value.get(key), str | list) for key in CONTENT_KEYS)
    return has_content or any(is_filled(value.get(key)) for key in CALL_KEYS)
