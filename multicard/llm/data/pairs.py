"""Read preference pairs: a chosen and a rejected answer, each with the messages before it."""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from multicard.llm.data import columns as names
from multicard.llm.data import json_texts, turns
from multicard.llm.data.beside_messages import tools_of, with_system
from multicard.llm.data.columns import RowColumns
from multicard.llm.data.flat_dialogues import flat_turns, is_dialogue
from multicard.llm.data.forms import (
    answer_messages,
    held_messages,
    messages_before_answer,
    missing_columns_refusal,
    no_answer_refusal,
    no_text_refusal,
    only_column,
    role_texts,
    two_prompts_refusal,
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
    answered = None if chosen or not rejected else held_messages(row)
    if answered is not None and answered[1][-1]["role"] == "assistant":
        return _pair_of_answered(row, answered[1], rejected[0])
    if not (chosen and rejected):
        refuse_label(row)
        for empty in (*row.present(names.CHOSEN)[:1], *row.present(names.REJECTED)[:1]):
            if not row.filled((empty,)):
                raise no_answer_refusal(empty)
        missing = [
            name for name, found in (("chosen", chosen), ("rejected", rejected)) if not found
        ]
        asks = row.filled((*names.CONVERSATION, *names.QUESTION, "input"))
        raise missing_columns_refusal(row, missing, reader, also=() if asks else ("prompt",))
    values = [row.get(*chosen), row.get(*rejected)]
    held = held_messages(row)
    asked = row.filled(names.QUESTION) or row.filled(names.CONTEXT[:1])
    is_whole = any(map(_is_whole, values))
    question = None if held or is_whole or not asked else only_column(row, asked)
    flat = question is not None and is_dialogue(row.peek(question))
    answers = list[list[Message]]()
    for name, value in zip((*chosen, *rejected), values, strict=True):
        is_text = isinstance(value, str) and is_whole
        said = flat_turns(value) if is_text else answer_messages(value, row, name, flat)
        if said[-1]["role"] != "assistant" or _begins_whole(said) != is_whole:
            raise no_answer_refusal(name)
        answers.append(said)
    first = answers[0]
    if is_whole:
        _check_prompt(row, held, asked, answers)
        _check_same_prompt(*answers)
        prompt = list[Message]()
    elif held:
        prompt = _open(held[1], first, held[0])
    elif question:
        prompt = messages_before_answer(row, question)
    else:
        empty = row.present((*names.QUESTION, *names.CONTEXT[:1]))
        raise no_text_refusal(empty) if empty else missing_columns_refusal(row, ["prompt"], reader)
    chosen_turns, rejected_turns = (with_system(row, prompt + said) for said in answers)
    return Pair(chosen_turns, rejected_turns, tools_of(row))


def _is_whole(value: Any) -> bool:
    """Tell whether an answer includes the conversation before it."""
    if isinstance(value, str):
        return is_dialogue(value) and flat_turns(value)[-1]["role"] == "assistant"
    said = turns.messages(value) if isinstance(value, list | dict) else None
    return _begins_whole(said or ())


def _begins_whole(said: Sequence[Message]) -> bool:
    """Tell whether messages begin with the user's, after the system's if there are any.

    Other messages continue a prompt, and the user may speak among them.
    """
    roles = [each["role"] for each in said if each["role"] not in ("system", "developer")]
    return roles[:1] == ["user"]


def _pair_of_answered(row: RowColumns, said: list[Message], column: str) -> Pair:
    """Return the pair of a whole conversation and another answer to it."""
    other = answer_messages(row.get(column), row, column)
    if other[-1]["role"] != "assistant":
        raise no_answer_refusal(column)
    own = other if _begins_whole(other) else [*said[:-1], *other]
    _check_same_prompt(said, own)
    return Pair(with_system(row, said), with_system(row, own), tools_of(row))


def _check_prompt(
    row: RowColumns,
    held: tuple[str, list[Message]] | None,
    asked: Sequence[str],
    answers: Sequence[list[Message]],
) -> None:
    """Check that the messages or the prompt in other columns are part of both conversations."""
    own = [role_texts(said) for said in answers]
    if held is not None:
        texts = role_texts(held[1])
        if not any(texts == said[: len(texts)] for said in own):
            raise two_prompts_refusal(held[0])
    for name in asked:
        value = row.peek(name)
        texts = (
            role_texts(turns.messages(value) or ())
            if isinstance(value, list)
            else role_texts(flat_turns(str(value)))
        )
        is_said = bool(texts) and all(all(text in said for text in texts) for said in own)
        if not is_said and not all(
            str(value).strip() in {text for _, text in said} for said in own
        ):
            raise two_prompts_refusal(name)
        row.pass_over(name)


def _check_same_prompt(chosen: Sequence[Message], rejected: Sequence[Message]) -> None:
    """Refuse two conversations that differ before their answers do: their prompts differ.

    After answers that differ, the user may continue differently too.
    """
    for number, (one, other) in enumerate(zip_longest(chosen, rejected), start=1):
        if one is not None and other is not None:
            if role_texts([one]) == role_texts([other]) and one.get("tool_calls") == other.get(
                "tool_calls"
            ):
                continue
            if one["role"] == other["role"] == "assistant":
                return
        raise Refusal(
            "llm.row-pair-prompts",
            f"answers different prompts: chosen and rejected differ at message {number}, before an"
            " answer does; give both the same messages before their answers, or leave the row out",
            message=number,
        )


def _open(said: list[Message], answer: Sequence[Message], column: str) -> list[Message]:
    """Return the messages before an answer.

    If the conversation already ends with the chosen answer, that answer is removed.
    """
    if said and said[-1]["role"] == "assistant":
        if role_texts(said[-1:]) != role_texts(answer[-1:]):
            raise two_prompts_refusal(column)
        return said[:-1]
    return said


# ---- the beginning that both answers share


def shared(chosen: Sequence[Any], rejected: Sequence[Any], most: int) -> int:
    """Return how many turns, or pieces of text, both of a pair share at their beginning.

    The number is at most `most`.
    """
    differ = (place for place in range(most) if chosen[place] != rejected[place])
    return next(differ, most)


def answers_alone(
    chosen: Sequence[Piece], rejected: Sequence[Piece]
) -> tuple[list[Piece], list[Piece]]:
    """Return the pieces of both answers. Pieces that both share are the prompt, and not learnt.

    TRL defines the prompt in the same way.
    """
    every = (chosen, rejected)
    last = min(
        max(place for place, piece in enumerate(pieces) if piece["learnt"]) for pieces in every
    )
    history = shared(chosen, rejected, last)
    first, second = ([piece | {"learnt": False} for piece in pieces[:history]] for pieces in every)
    return [*first, *chosen[history:]], [*second, *rejected[history:]]
