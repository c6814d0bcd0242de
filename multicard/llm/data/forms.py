"""Read rows of public data in any of their forms, as conversations or pairs.

Each row is recognized by itself, from its columns. A column is read, repeats the text of the
messages, or is left to the caller, which counts it or refuses it by its meaning.
"""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from multicard.llm.data import choices, json_texts, turns
from multicard.llm.data import columns as names
from multicard.llm.data.beside_messages import history_messages, tools_of, with_system
from multicard.llm.data.calls import calls_in_text
from multicard.llm.data.columns import RowColumns, override
from multicard.llm.data.flat_dialogues import flat_turns, is_dialogue
from multicard.llm.data.form_refusals import (
    no_text_refusal,
    object_refusal,
    text_list_refusal,
    two_prompts_refusal,
    unknown_form,
)
from multicard.llm.data.learnt_rows import refuse_label
from multicard.llm.data.roles import ROLE_KEYS, with_lower_keys
from multicard.llm.data.turns import FORM, Message
from multicard.messages import Refusal


class Conversation(NamedTuple):
    """The content of a row: messages, a text, or segments of a text.

    Fields:
        messages: the messages; empty for a text.
        tools: the tools that the assistant may call.
        column: the column that held the messages.
        text: a text without messages.
        segments: the parts of a text, each with whether it is learnt.
        prompt: the places of the messages that belong to the prompt, if the answer has a column of
            its own. As in TRL, answers among them are not learnt unless one of their keys says so.
        is_by_place: the messages named no speakers, and were assigned to the user and the
            assistant in turn.
    """

    messages: list[Message]
    tools: list[Any] | None = None
    column: str = "messages"
    text: str | None = None
    segments: list[tuple[str, bool]] | None = None
    prompt: range = range(0)
    is_by_place: bool = False

    def answers_of_prompt(self) -> list[int]:
        """Return the places of answers within the prompt that no key marks as learnt."""
        messages = self.messages
        return [
            place
            for place in self.prompt
            if messages[place]["role"] == "assistant" and "weight" not in messages[place]
        ]


def columns_of(row: Any, named: dict[str, str | None]) -> RowColumns:
    """Return the columns of a row. A list of messages counts as a row with a conversation.

    Raises:
        Refusal: the row is not an object.
    """
    if (
        isinstance(row, list)
        and row
        and all(
            isinstance(turn, dict) and {*ROLE_KEYS} & with_lower_keys(turn).keys() for turn in row
        )
    ):
        row = {"messages": row}
    if not isinstance(row, dict):
        raise Refusal("llm.row-no-object", "is not an object with columns; write each row as {...}")
    input_value = row.get("input")
    # OpenAI's pairs have the messages within `input`.
    if isinstance(input_value, dict) and "messages" in input_value and "input" not in named:
        row = {name: value for name, value in row.items() if name != "input"} | input_value
    return RowColumns(row, named)


# ---- conversations


def conversation(row: RowColumns) -> Conversation:
    """Return the conversation that a row holds.

    Raises:
        Refusal: the row holds none, or is of another kind.
    """
    json_texts.decode(row)
    refuse_label(row)
    messages_of_row = held_messages(row)
    if messages_of_row is not None:
        column, messages = messages_of_row
        is_by_place = turns.are_texts(row.peek(column))
        _pass_over_repeated(row, messages)
        if messages[-1]["role"] != "assistant":
            messages = [*messages, *_separate_answer(row)]
        return Conversation(
            with_system(row, messages), tools_of(row), column, is_by_place=is_by_place
        )
    question_columns = row.filled(names.QUESTION) or row.filled(names.CONTEXT[:1])
    if question_columns and row.present(names.ANSWER):
        return _question_and_answer(row, question_columns)
    if row.filled(names.CHOSEN) and row.filled(names.REJECTED):
        chosen = row.filled(names.CHOSEN)[0]
        remedy = override({"output" if isinstance(row.peek(chosen), str) else "messages": chosen})
        raise Refusal(
            "llm.row-pair",
            "holds a chosen and a rejected answer; use `dataset=preference method=dpo`, "
            f"or learn only the chosen one, by `{remedy}`",
            remedy=remedy,
        )
    if row.filled(names.SEGMENTS):
        return Conversation([], segments=_segments(row.get(*names.SEGMENTS)))
    if row.filled(("role", "from")) and not row.filled(names.QUESTION):
        raise Refusal(
            "llm.row-single-message",
            f"holds a single message; put the messages of a conversation into one row: {FORM}",
            found=row.all(),
        )
    if row.filled(names.TEXT):
        text = row.get(*names.TEXT)
        if isinstance(text, str) and not question_columns:
            return Conversation([], text=text)
    raise unknown_form(row)


def held_messages(row: RowColumns) -> tuple[str, list[Message]] | None:
    """Return the first column that holds messages, and its messages.

    Other columns with the same messages count as read.
    """
    first: tuple[str, list[Message]] | None = None
    is_question = bool(row.filled(names.QUESTION) and row.filled(names.ANSWER))
    for name in row.filled(names.CONVERSATION):
        if is_question and name in names.LISTS:
            continue
        value = _unwrap_single(row.peek(name))
        if name in names.BY_PLACE and _is_list_of_lists(value):
            raise Refusal(
                "llm.row-conversations",
                f"holds {len(value)} lists in {name}, which may be separate conversations or the"
                " turns of one; write a row for each conversation, or messages with a role",
                column=name,
                length=len(value),
            )
        messages = turns.messages(value, by_place=name in names.BY_PLACE)
        if not messages:
            continue
        if first is None:
            first = name, messages
            row.get(name)
        elif role_texts(messages) == role_texts(first[1]):
            row.pass_over(name)
        else:
            remedy = override({name: None})
            raise Refusal(
                "llm.row-two-conversations",
                f"holds two conversations, {first[0]} and {name}; leave one out, as `{remedy}`",
                columns=[first[0], name],
                remedy=remedy,
            )
    return first


def _unwrap_single(value: Any) -> Any:
    """Unwrap a list of one conversation; return any other value unchanged."""
    decoded = json_texts.as_object(value) if isinstance(value, str) else value
    return decoded[0] if _is_list_of_lists(decoded) and len(decoded) == 1 else value


def _is_list_of_lists(value: Any) -> bool:
    """Tell whether a value is a list of lists of texts or messages."""
    decoded = json_texts.as_object(value) if isinstance(value, str) else value
    return (
        isinstance(decoded, list)
        and bool(decoded)
        and all(isinstance(item, list | tuple) and len(item) > 0 for item in decoded)
    )


def _question_and_answer(row: RowColumns, question_columns: Sequence[str]) -> Conversation:
    """Return the conversation of a question and its answer, with the messages before them."""
    question = only_column(row, question_columns)
    answer = only_column(row, row.filled(names.ANSWER) or row.present(names.ANSWER))
    refuse_number(row, answer)
    earlier_turns = history_messages(row)
    question_turns = question_messages(row, question)
    tools = tools_of(row)
    answer_turns = _answer_column(row, answer, flat=is_dialogue(row.peek(question)))
    calls = calls_in_text(row.peek(answer), tools)
    if calls is not None:
        answer_turns = [{"role": "assistant", "content": "", "tool_calls": calls}]
    messages = [*earlier_turns, *question_turns, *answer_turns]
    all_messages = with_system(row, messages)
    begin = len(all_messages) - len(messages) + len(earlier_turns)
    return Conversation(
        all_messages, tools, answer, prompt=range(begin, begin + len(question_turns))
    )


def _separate_answer(row: RowColumns) -> list[Message]:
    """Return the answer from a separate column, for messages that end without one.

    The list is empty if there is no such column.
    """
    answer_columns = row.filled_unread(names.ANSWER)
    return _answer_column(row, only_column(row, answer_columns)) if answer_columns else []


def _answer_column(row: RowColumns, answer: str, flat: bool = False) -> list[Message]:
    """Return the messages of a column with an answer, or refuse a number."""
    refuse_number(row, answer)
    value = row.get(answer)
    return answer_messages(value if value is not None else "", row, answer, flat)


def refuse_number(row: RowColumns, answer: str) -> None:
    """Refuse a number in the place of an answer's text."""
    value = row.peek(answer)
    if isinstance(value, int | float):
        raise Refusal(
            "llm.row-number",
            f"has {json.dumps(value)} in {answer}, which is not a text; write it in quotes, or"
            " leave the row out",
            column=answer,
            value=value,
        )


def only_column(row: RowColumns, columns: Sequence[str]) -> str:
    """Return the column to read among several with the same meaning.

    If their values differ, they are refused: what a run learns would depend on the choice.
    """
    if len(columns) > 1 and any(row.peek(name) != row.peek(columns[0]) for name in columns):
        our_name = "instruction" if columns[0] in (*names.QUESTION, *names.CONTEXT) else "output"
        remedy = override({our_name: columns[-1]})
        raise Refusal(
            "llm.row-ambiguous",
            f"has {' and '.join(columns)}, but only one can be read; name it, as `{remedy}`",
            columns=list(columns),
            remedy=remedy,
        )
    row.pass_over(*columns)
    return columns[0]


def messages_before_answer(row: RowColumns, question: str) -> list[Message]:
    """Return the messages before an answer: the history, and the question with its context."""
    return history_messages(row) + question_messages(row, question)


def question_messages(row: RowColumns, question: str) -> list[Message]:
    """Return a question with its context as a message, or the messages of a prompt."""
    value = row.get(question)
    if isinstance(value, list | dict):
        messages = _messages_with_speakers(value, question)
        if messages is None:
            raise object_refusal(row, question)
        return messages
    contexts = [name for name in row.filled(names.CONTEXT) if name != question]
    texts = [value, *(context(row, name) for name in contexts)]
    for name, text in zip((question, *contexts), texts, strict=True):
        if isinstance(text, dict):
            raise object_refusal(row, name)
    if not all(isinstance(text, str) for text in texts):
        raise no_text_refusal(
            [
                name
                for name, text in zip((question, *contexts), texts, strict=True)
                if type(text) is not str
            ]
        )
    messages = flat_turns("\n".join(texts))
    choices.refuse_missing_choices(row, "\n".join(texts))
    if messages[-1]["role"] == "assistant":
        raise Refusal(
            "llm.row-prompt-answered",
            f"ends its {question} with words of the assistant; put them into the answer, or leave"
            " the row out",
            column=question,
        )
    return messages


def _messages_with_speakers(value: Any, column: str) -> list[Message] | None:
    """Return the messages in a list or an object; None for an object without a speaker.

    Raises:
        Refusal: a list does not say who speaks.
    """
    messages = None if _names_no_speaker(value) else turns.messages(value)
    if not messages and isinstance(value, list):
        raise text_list_refusal(column, value)
    return messages or None


def context(row: RowColumns, name: str) -> Any:
    """Return a question's context. Choices that the command names as context become lines."""
    value = row.get(name)
    is_choices = name in row.named and row.file_name(name).lower().strip() in names.CHOICES
    return choices.as_lines(value) if is_choices else value


def answer_messages(value: Any, row: RowColumns, column: str, flat: bool = False) -> list[Message]:
    """Return the messages of an answer, given as a text, a message, or several messages.

    Args:
        flat: the answer follows "Assistant:", so a space at its beginning is not part of it.
    """
    if isinstance(value, list | dict):
        messages = _messages_with_speakers(value, column)
        if messages is None:
            raise object_refusal(row, column)
        return messages
    text = value.removeprefix(" ") if flat and isinstance(value, str) else value
    return [turns.message(1, {"role": "assistant", "content": text})]


def _segments(value: Any) -> list[tuple[str, bool]]:
    """Return axolotl's parts of a text, each with whether it is learnt."""
    fits = isinstance(value, list) and all(
        isinstance(part, dict)
        and isinstance(part.get("text"), str)
        and isinstance(part.get("label"), bool)
        for part in value
    )
    if not fits or not any(part["label"] for part in value):
        raise Refusal(
            "llm.row-segments",
            'holds no segments to learn; write [{"text": "...", "label": true}, ...], with true'
            " for at least one of them",
        )
    return [(part["text"], part["label"]) for part in value]


def _pass_over_repeated(row: RowColumns, messages: Sequence[Message]) -> None:
    """Count columns as read whose text the messages repeat.

    A prompt that the messages do not contain is refused.
    """
    texts = role_texts(messages)
    for name in row.filled((*names.QUESTION, *names.CONTEXT, *names.ANSWER, *names.SYSTEM)):
        value = row.peek(name)
        column_texts = role_texts(turns.messages(value) or ()) if _has_roles(value) else ()
        if (isinstance(value, str) and value.strip() in {text for _, text in texts}) or (
            column_texts and column_texts == texts[: len(column_texts)]
        ):
            row.pass_over(name)
        elif name == "prompt":
            raise two_prompts_refusal(name)


def _names_no_speaker(value: Any) -> bool:
    """Tell whether a list holds objects with a text and no role, such as several answers."""
    parts = [with_lower_keys(part) for part in value if isinstance(part, dict)]
    return len(parts) == len(value) and all("text" in part and "role" not in part for part in parts)


def _has_roles(value: Any) -> bool:
    """Tell whether a value is a list of messages, rather than of the parts of a text."""
    return isinstance(value, list) and all(
        isinstance(turn, dict) and {*ROLE_KEYS} & with_lower_keys(turn).keys() for turn in value
    )


def role_texts(messages: Sequence[Message]) -> list[tuple[str, str]]:
    return [(message["role"], str(message["content"]).strip()) for message in messages]
