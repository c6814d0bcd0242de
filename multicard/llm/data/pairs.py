"""Read preference pairs: a chosen and a rejected answer, each with the messages before it."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from multicard.llm.data import columns as names
from multicard.llm.data import json_texts, turns
from multicard.llm.data.beside_messages import tools_of, with_system
from multicard.llm.data.columns import RowColumns
from multicard.llm.data.flat_dialogues import flat_turns, is_dialogue
from multicard.llm.data.form_refusals import (
    missing_columns_refusal,
    no_answer_refusal,
    no_text_refusal,
    two_prompts_refusal,
)
from multicard.llm.data.forms import (
    answer_messages,
    held_messages,
    messages_before_answer,
    only_column,
    role_texts,
)
from multicard.llm.data.learnt_rows import refuse_label
from multicard.llm.data.turns import Message
from multicard.messages import Refusal

CHOICES = ("chosen", "rejected")
Piece = dict[str, Any]


class Pair(NamedTuple):
    """Two answers to the same messages. Each list also holds the messages before the answer."""

    chosen: list[Message]
    rejected: list[Message]
    tools: list[Any] | None = None


def pair(row: RowColumns, reader: str) -> Pair:
    """Return the two answers that a row holds, each with all messages before it.

    Raises:
        Refusal: the row has no two answers to one prompt.
    """
    json_texts.decode(row)
    chosen = row.filled(names.CHOSEN)[:1]
    rejected = row.filled(names.REJECTED)[:1]
    # In ms-swift's form, the chosen answer ends the messages.
    swift_conversation = None if chosen or not rejected else held_messages(row)
    if swift_conversation is not None and swift_conversation[1][-1]["role"] == "assistant":
        return _pair_of_answered(row, swift_conversation[1], rejected[0])
    if not (chosen and rejected):
        refuse_label(row)
        for empty in (*row.present(names.CHOSEN)[:1], *row.present(names.REJECTED)[:1]):
            if not row.filled((empty,)):
                raise no_answer_refusal(empty)
        missing = [
            name for name, columns in (("chosen", chosen), ("rejected", rejected)) if not columns
        ]
        has_prompt = row.filled((*names.CONVERSATION, *names.QUESTION, "input"))
        raise missing_columns_refusal(row, missing, reader, also=() if has_prompt else ("prompt",))
    values = [row.get(*chosen), row.get(*rejected)]
    held_conversation = held_messages(row)
    question_columns = row.filled(names.QUESTION) or row.filled(names.CONTEXT[:1])
    are_whole = any(map(_includes_prompt, values))
    question = (
        None
        if held_conversation or are_whole or not question_columns
        else only_column(row, question_columns)
    )
    follows_dialogue = question is not None and is_dialogue(row.peek(question))
    answers = list[list[Message]]()
    for name, value in zip((*chosen, *rejected), values, strict=True):
        is_text = isinstance(value, str) and are_whole
        messages = (
            flat_turns(value) if is_text else answer_messages(value, row, name, follows_dialogue)
        )
        if messages[-1]["role"] != "assistant" or _begins_with_user(messages) != are_whole:
            raise no_answer_refusal(name)
        answers.append(messages)
    first = answers[0]
    if are_whole:
        _check_prompt(row, held_conversation, question_columns, answers)
        _check_same_prompt(*answers)
        prompt = list[Message]()
    elif held_conversation:
        prompt = _without_chosen_answer(held_conversation[1], first, held_conversation[0])
    elif question:
        prompt = messages_before_answer(row, question)
    else:
        empty = row.present((*names.QUESTION, *names.CONTEXT[:1]))
        raise no_text_refusal(empty) if empty else missing_columns_refusal(row, ["prompt"], reader)
    chosen_turns, rejected_turns = (with_system(row, prompt + messages) for messages in answers)
    return Pair(chosen_turns, rejected_turns, tools_of(row))


def _includes_prompt(value: Any) -> bool:
    """Tell whether an answer includes the conversation before it."""
    if isinstance(value, str):
        return is_dialogue(value) and flat_turns(value)[-1]["role"] == "assistant"
    messages = turns.messages(value) if isinstance(value, list | dict) else None
    return _begins_with_user(messages or ())


def _begins_with_user(messages: Sequence[Message]) -> bool:
    """Tell whether messages begin with the user's, after the system's if there are any.

    Other messages continue a prompt, and the user may speak among them.
    """
    roles = [
        message["role"] for message in messages if message["role"] not in ("system", "developer")
    ]
    return roles[:1] == ["user"]


def _pair_of_answered(row: RowColumns, messages: list[Message], column: str) -> Pair:
    """Return the pair of a whole conversation and another answer to it."""
    answer = answer_messages(row.get(column), row, column)
    if answer[-1]["role"] != "assistant":
        raise no_answer_refusal(column)
    rejected_messages = answer if _begins_with_user(answer) else [*messages[:-1], *answer]
    _check_same_prompt(messages, rejected_messages)
    return Pair(with_system(row, messages), with_system(row, rejected_messages), tools_of(row))


def _check_prompt(
    row: RowColumns,
    held_conversation: tuple[str, list[Message]] | None,
    question_columns: Sequence[str],
    answers: Sequence[list[Message]],
) -> None:
    """Check that the messages or the prompt in other columns are part of both conversations."""
    texts_of_answers = [role_texts(messages) for messages in answers]
    if held_conversation is not None:
        texts = role_texts(held_conversation[1])
        if not any(texts == answer_texts[: len(texts)] for answer_texts in texts_of_answers):
            raise two_prompts_refusal(held_conversation[0])
    for name in question_columns:
        value = row.peek(name)
        if isinstance(value, list):
            texts = role_texts(turns.messages(value) or ())
        else:
            texts = role_texts(flat_turns(str(value)))
        plain_text = str(value).strip()
        are_contained = bool(texts) and all(
            {*texts} <= {*answer_texts} for answer_texts in texts_of_answers
        )
        is_one_text = all(
            plain_text in {text for _, text in answer_texts} for answer_texts in texts_of_answers
        )
        if not are_contained and not is_one_text:
            raise two_prompts_refusal(name)
        row.pass_over(name)


def _check_same_prompt(chosen: Sequence[Message], rejected: Sequence[Message]) -> None:
    """Refuse two conversations that differ before their answers do: their prompts differ.

    After answers that differ, the user may continue differently too.
    """
    for number, (chosen_message, rejected_message) in enumerate(
        zip_longest(chosen, rejected), start=1
    ):
        if chosen_message is not None and rejected_message is not None:
            if role_texts([chosen_message]) == role_texts(
                [rejected_message]
            ) and chosen_message.get("tool_calls") == rejected_message.get("tool_calls"):
                continue
            if chosen_message["role"] == rejected_message["role"] == "assistant":
                return
        raise Refusal(
            "llm.row-pair-prompts",
            f"answers different prompts: chosen and rejected differ at message {number}, before an"
            " answer does; give both the same messages before their answers, or leave the row out",
            message=number,
        )


def _without_chosen_answer(
    messages: list[Message], answer: Sequence[Message], column: str
) -> list[Message]:
    """Return the messages before an answer.

    If the conversation already ends with the chosen answer, that answer is removed.
    """
    if messages and messages[-1]["role"] == "assistant":
        if role_texts(messages[-1:]) != role_texts(answer[-1:]):
            raise two_prompts_refusal(column)
        return messages[:-1]
    return messages


# ---- the beginning that both answers share


def shared_length(chosen: Sequence[Any], rejected: Sequence[Any], most: int) -> int:
    """Return how many turns, or pieces of text, the answers of a pair share at their beginning.

    The number is at most `most`.
    """
    for place in range(most):
        if chosen[place] != rejected[place]:
            return place
    return most


def answers_alone(
    chosen: Sequence[Piece], rejected: Sequence[Piece]
) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of both answers. Pieces that both share are the prompt, and not learnt.

    TRL defines the prompt in the same way.
    """
    both = (chosen, rejected)
    last_learnt = min(
        max(place for place, piece in enumerate(pieces) if piece["learnt"]) for pieces in both
    )
    prompt_length = shared_length(chosen, rejected, last_learnt)
    first, second = (
        [piece | {"learnt": False} for piece in pieces[:prompt_length]] for pieces in both
    )
    return [*first, *chosen[prompt_length:]], [*second, *rejected[prompt_length:]]
